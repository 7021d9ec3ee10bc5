"""Bounds over all choices of the layers that recompute, checked without the search's code."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import ppopt
from ppopt import Argument, Certificate, InputError, Model, Pipeline, Status, Verdict
from ppopt.problem.decisions import Decisions
from ppopt.rechecker import confirmed
from tests.solver.recompute.test_recompute_search import MODEL


def test_a_bound_of_one_choice_is_not_one_of_all() -> None:
    """Everything recomputes needlessly: optimal for this choice, yet said of all of them."""
    layers = [{**MODEL["layers"][0], "count": 4}]
    fields = {"stages": 2, "batches": 4, "layers": layers, "recompute": "full"}
    alone = ppopt.solve(Pipeline(**fields), backward_kind="whole", workers=1)
    assert alone.status is Status.OPTIMAL and alone.schedule is not None
    assert ppopt.recheck(alone, workers=1).verdict is Verdict.CONFIRMED
    claimed = replace(
        alone, certificate=Certificate(Argument.SEARCH, decisions=Decisions.RECOMPUTE)
    )
    assert ppopt.recheck(claimed, workers=1).verdict is Verdict.WRONG


def test_a_file_keeps_what_it_takes_to_check_all_choices(tmp_path: Path) -> None:
    """Arithmetic alone confirms it; without its layers the file is refused."""
    pipeline = Pipeline(**MODEL, recompute="search", mem_limit=16)
    result = ppopt.solve(pipeline, backward_kind="whole", workers=1)
    assert result.status is Status.OPTIMAL and result.schedule is not None
    file = tmp_path / "best.json"
    result.schedule.to_json(file)
    schedule, _ = ppopt.read_schedule(file)
    argument = confirmed(schedule)
    assert argument is not None and argument.startswith(
        "all choices of recompute are excluded: in each, one device"
    )
    assert ppopt.recheck(schedule, workers=1).verdict is Verdict.CONFIRMED
    bare = replace(schedule, pipeline=schedule.pipeline.without_model())
    with pytest.raises(InputError, match="of all choices of recompute, but the file has no layers"):
        ppopt.recheck(bare)


@pytest.mark.slow
def test_too_many_choices_are_left_undecided() -> None:
    """Times and savings of layers that all differ: every device has hundreds of choices."""
    layers = [
        {
            "forward": 10 + index,
            "activation": 50 + 7 * index % 13,
            "recompute": {"time": 3 + 5 * index % 11, "activation": index % 3},
        }
        for index in range(24)
    ]
    pipeline = Model(layers).pipeline(  # type: ignore[arg-type]
        devices=3, batches=12, partition=[8, 8, 8], recompute="search", mem_limit=900
    )
    result = ppopt.solve(
        pipeline, backward_kind="whole", workers=1, stop=ppopt.stop.FirstSchedule()
    )
    assert result.claim is not None and Decisions.RECOMPUTE in result.claim.decisions
    assert ppopt.recheck(result, workers=1, time_limit=3).verdict is not Verdict.WRONG


def test_a_rule_cuts_once_for_all_choices() -> None:
    """`balanced` cuts the layers as they say whether they recompute: 1, 2, which does not fit.

    By the layers without recompute it would cut 2, 1, which fits.
    """
    layers = [
        ppopt.Layer(forward=4, backward=4, recompute={"time": 1, "activation": 0}),
        ppopt.Layer(forward=1, activation=1, static=1),
        ppopt.Layer(forward=4, backward=4, weight=0, activation=2, memory_b=-2),
    ]
    fields = {"devices": 2, "batches": 1, "mem_limit": [8, 2], "recompute": "search"}
    cut, uncut = (
        ppopt.solve(
            Model(layers).pipeline(**fields, partition=partition),
            backward_kind="whole",
            workers=1,
        )
        for partition in ("balanced", (2, 1))
    )
    assert cut.pipeline.counts == (1, 2)
    assert (cut.status, uncut.status) == (Status.INFEASIBLE, Status.OPTIMAL)
    assert ppopt.recheck(cut, workers=1).verdict is Verdict.CONFIRMED


def test_a_layer_whose_forward_computes_nothing_leaves_it_undecided() -> None:
    """Without its phases on the link the layer has no F, so no device rules anything out."""
    phases = {"F": [{"on": "link", "time": 2}], "B": [{"on": "compute", "time": 1, "weight": 1}]}
    layers = [
        ppopt.Layer(forward=3, backward_input=2, weight=2, activation=2, recompute_time=1),
        ppopt.Layer(activation=1, phases=phases, recompute_time=0),
    ]
    pipeline = Model(layers).pipeline(
        devices=2, batches=2, partition=(1, 1), recompute="search", mem_limit=5
    )
    result = ppopt.solve(pipeline, workers=1)
    assert result.status is Status.OPTIMAL
    checked = ppopt.recheck(result, workers=1)
    assert checked.verdict is Verdict.UNDECIDED
    assert "for that of this schedule it is" in checked.reason
