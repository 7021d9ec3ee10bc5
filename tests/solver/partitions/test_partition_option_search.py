"""Partition and recompute searched together, against every partition and choice of tiny models."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import islice
from pathlib import Path
from random import Random

import pytest

import ppopt
from ppopt import Pipeline, Status, Verdict
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.objective import Objective
from ppopt.problem.problem import Problem
from ppopt.solver.choices.enumeration import Key
from ppopt.solver.partitions import partition_option_choice
from ppopt.solver.partitions.partition_option_choice import PartitionOptionChoice
from tests.clock import SHORT, work_clock
from tests.solver.partitions.in_order import listed
from tests.tiers import first

ENDS = (119, 140, 148, 151)
"""With an embedding and a head; recompute of one that does not ask for it would lower the last
three."""


LAYER = {"forward": 1, "activation": 1, "count": 10, "recompute": {"activation": "0.1"}}


def test_both_together_are_no_worse_than_either() -> None:
    """Six layers and a heavy head on two devices: room for fewer microbatches than 1F1B has."""
    head = {"forward": 2, "backward": 5, "activation": 1}
    model = [LAYER | {"count": 6}, head]
    pipeline = Pipeline(stages=2, batches=4, model=model, partition="search", mem_limit=4)
    values = {}
    for mode in ("none", "full", "search"):
        with work_clock(SHORT):
            result = ppopt.solve(replace(pipeline, recompute=mode), workers=1, time_limit=1)
        assert result.lower_bound is not None and result.value is not None
        values[mode] = result
    both = values["search"]
    for mode in ("none", "full"):
        assert both.value <= values[mode].value  # type: ignore[operator]
        assert both.lower_bound <= values[mode].value  # type: ignore[operator]
    assert 0 < sum(both.pipeline.recomputed) < 6


def test_a_first_candidate_of_a_v_recomputes_what_v_half_needs() -> None:
    """Ten chunks on a device, of 2 layers each: 20 in 21.9, of stage 0 10 x 2.5 or 10 x 1.1."""
    first = {"forward": 1, "activation": "1.5", "recompute": {"activation": "0.1"}}
    pipeline = Pipeline(
        stages=8, batches=8, placement="v", mem_limit="21.9", partition="search",
        recompute="search", model=[first, LAYER | {"count": 31}],
    )  # fmt: skip
    candidates = PartitionOptionChoice(Problem(pipeline, Objective.MAKESPAN, BackwardKind.MIXED))
    bound, chosen = map(candidates.pipeline, islice(candidates.first(), 2))
    assert bound.counts == chosen.counts == (2,) * 16
    assert sum(bound.recomputed) > sum(chosen.recomputed) == 1
    assert ppopt.evaluate(chosen, "v-half").fits_limits
    none = replace(pipeline, partition="even", recompute="none")
    assert not ppopt.evaluate(none, "v-half").fits_limits


def test_a_file_keeps_what_it_takes_to_check_all_choices(tmp_path: Path) -> None:
    pipeline = Pipeline(
        stages=2, batches=2, model=[LAYER | {"count": 3}], partition="search", mem_limit=2,
        recompute="search",
    )  # fmt: skip
    result = ppopt.solve(pipeline, workers=1)
    assert result.status is Status.OPTIMAL and result.schedule is not None
    file = tmp_path / "best.json"
    result.schedule.to_json(file)
    schedule, _ = ppopt.read_schedule(file)
    checked = ppopt.recheck(schedule, workers=1)
    assert checked.verdict is Verdict.CONFIRMED
    assert checked.reason.startswith("all 2 partitions and choices of recompute are excluded")


def test_nothing_recomputes_without_a_limit() -> None:
    pipeline = Pipeline(stages=3, batches=4, model=[LAYER], partition="search", recompute="search")
    result = ppopt.solve(pipeline, workers=1)
    assert result.status is Status.OPTIMAL and not any(result.pipeline.recomputed)


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_the_result_is_never_worse_than_a_hint(recompute: str) -> None:
    """The embedding saves nothing by recompute: with `full` it recomputes, in the search never."""
    embedding = {"forward": 1}
    pipeline = Pipeline(
        stages=2, batches=6, model=[embedding, LAYER], mem_limit=1000,
        partition="search", recompute="search",
    )  # fmt: skip
    hint = ppopt.solve(replace(pipeline, partition=None, recompute=recompute), workers=1)
    assert hint.value is not None
    with work_clock(SHORT):
        result = ppopt.solve(pipeline, hint=hint.schedule, workers=1, time_limit=0.01)
    assert result.value is not None and result.value <= hint.value


def test_a_schedule_whose_choice_is_not_looked_at_is_no_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of eleven choices of a device four at most are looked at; a hint may have any of them."""
    monkeypatch.setattr(partition_option_choice, "MAX_DEVICE_OPTIONS", 4)
    pipeline = Pipeline(
        stages=1, batches=4, model=[LAYER], partition="search", recompute="search", mem_limit=30
    )
    problem = Problem(pipeline, Objective.MAKESPAN, BackwardKind.MIXED)
    candidates = PartitionOptionChoice(problem)
    keys = []
    for recomputed in range(11):
        layers = [LAYER | {"count": 1, "recompute": index < recomputed} for index in range(10)]
        keys.append(candidates.key(replace(pipeline, model=layers, partition=[10], recompute=None)))
    allowed = [key for key in keys if key is not None]
    assert 1 < len(allowed) < len(keys)
    assert all(configuration.key in allowed for configuration in candidates.configurations(allowed))


@pytest.mark.parametrize("seed", first(2, (14, 12, 11, 13, 15)))
def test_options_that_are_left_out_as_a_bound_is_asked_for_are_not_below_it(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few options of a device are kept here, and few partitions are begun at a time."""
    rng = Random(seed)
    layers = [
        {"forward": rng.randint(2, 6), "backward": rng.randint(2, 6), "weight": 1,
         "activation": (activation := rng.randint(3, 9)), "kept": rng.randint(0, activation - 1)}
        for _ in range(6)
    ]  # fmt: skip
    pipeline = ppopt.Model(layers).pipeline(
        devices=2, batches=rng.choice((1, 2, 3)), partition="search", recompute="search",
        mem_limit=rng.choice((10, 20, 30)),
    )  # fmt: skip
    problem = Problem(pipeline, Objective.MAKESPAN, BackwardKind.WHOLE)
    every: dict[Key, Fraction] = {}
    for following in listed(PartitionOptionChoice(problem), every):
        assert following.key is not None
    monkeypatch.setattr(partition_option_choice, "MAX_DEVICE_OPTIONS", 4)
    monkeypatch.setattr(partition_option_choice, "MAX_STARTED", 1)
    known: dict[Key, Fraction] = {}
    for following in listed(PartitionOptionChoice(problem), known):
        missed = [bound for key, bound in every.items() if key not in known]
        assert following.bound <= min(missed)
