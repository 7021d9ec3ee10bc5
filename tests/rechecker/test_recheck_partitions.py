"""Bounds over all partitions, checked again without the search's code."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import cache
from math import inf
from pathlib import Path
from random import Random

import pytest

import ppopt
from ppopt import Argument, Certificate, InputError, Model, Status, Verdict
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.decisions import Decisions
from ppopt.problem.objective import Objective
from ppopt.problem.problem import Problem
from ppopt.rechecker import configurations, confirmed, partitions
from ppopt.rechecker.claim import Claim
from ppopt.rechecker.partitions import open_partitions
from tests.factories.partitions import draw_space, with_step_work
from tests.oracles.bounds import by_model
from tests.solver.partitions.over_partitions import over_partitions
from tests.solver.partitions.test_partition_bounds import slow_at_first
from tests.solver.partitions.test_partition_search import LINKS, layers, pipeline
from tests.tiers import first


@cache
def searched() -> ppopt.Result:
    """Nine layers and a head of three times the work on three devices, a limit of 12."""
    return ppopt.solve(
        layers(9).pipeline(devices=3, batches=6, partition="search", mem_limit=12), workers=1
    )


def test_a_file_keeps_what_it_takes_to_check_all_partitions(tmp_path: Path) -> None:
    result = searched()
    assert result.schedule is not None and result.value is not None
    file = tmp_path / "best.json"
    result.schedule.to_json(file)
    schedule, _ = ppopt.read_schedule(file)
    assert ppopt.recheck(schedule, workers=1).verdict is Verdict.CONFIRMED
    inflated = replace(
        schedule, origin=replace(schedule.origin, lower_bound=result.value + Fraction(1, 2))
    )
    assert ppopt.recheck(inflated, workers=1).verdict is Verdict.WRONG


def test_a_bound_of_one_partition_alone_is_not_one_of_all() -> None:
    """Optimal for its own partition, the two layers at the front, yet said of all of them."""
    model = layers(9)
    alone = ppopt.solve(model.pipeline(devices=2, batches=4, partition=[2, 8]), workers=1)
    assert alone.status is Status.OPTIMAL and alone.schedule is not None
    assert ppopt.recheck(alone, workers=1).verdict is Verdict.CONFIRMED
    claimed = replace(
        alone, certificate=Certificate(Argument.SEARCH, decisions=Decisions.PARTITION)
    )
    assert ppopt.recheck(claimed, workers=1).verdict is Verdict.WRONG
    origin = replace(
        alone.schedule.origin,
        certificate=Certificate(Argument.SEARCH, decisions=Decisions.PARTITION),
    )
    assert confirmed(replace(alone.schedule, origin=origin)) is None


def test_of_too_many_partitions_that_of_the_schedule_is_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """10 layers in 3 stages: 9 x 8 / 2 = 36 partitions, none of which is searched again."""
    monkeypatch.setattr(configurations.partitions, "open_partitions", lambda *_: None)
    result = searched()
    rechecked = ppopt.recheck(result, workers=1)
    assert rechecked.verdict is Verdict.UNDECIDED
    assert rechecked.reason.startswith(
        "not all 36 partitions can be searched again; for that of this schedule it is confirmed: "
    )
    inflated = replace(result, bound_ticks=result.bound_ticks + 1)
    wrong = ppopt.recheck(inflated, workers=1)
    assert wrong.verdict is Verdict.WRONG
    assert wrong.counterexample is not None and ppopt.verify(wrong.counterexample) == []


def test_arithmetic_alone_confirms_a_long_run_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """20 layers and a head in 4 stages: 20 x 19 x 18 / 6 = 1,140 partitions."""
    monkeypatch.setattr(configurations, "ARITHMETIC_SECONDS", inf)
    result = ppopt.solve(layers(20).pipeline(devices=4, batches=8, partition="search"), workers=1)
    assert result.status is Status.OPTIMAL and result.schedule is not None
    assert result.claim is not None
    assert open_partitions(result.claim, inf) == []
    argument = confirmed(result.schedule)
    assert argument is not None and argument.startswith(
        "all 1,140 partitions are excluded: in each,"
    )


def test_more_partitions_than_can_be_searched_are_not_listed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Below its optimum, some of 36 partitions are left to a search."""
    claim = searched().claim
    claim = claim._replace(bound=1000 * claim.pipeline.ticks.per_unit)
    left = open_partitions(claim, inf)
    assert left is not None and len(left) == 36
    monkeypatch.setattr(partitions, "MAX_OPEN", 35)
    assert open_partitions(claim, inf) is None


def test_cuts_that_leave_too_much_work_are_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 layers on 4 devices: few choices of a device's layers are bounded, of about 13,000."""
    bounded, reaches = [0], partitions._Choices._reaches

    def counted(*arguments) -> bool:
        bounded[0] += 1
        return reaches(*arguments)

    monkeypatch.setattr(partitions._Choices, "_reaches", counted)
    model = Model([{"forward": 1, "backward": 2}] * 64)
    pipe = model.pipeline(devices=4, batches=64, partition="search")
    bound = 16 * 3 * 67 * pipe.ticks.per_unit
    claim = Claim(pipe, False, BackwardKind.WHOLE, bound, decisions=Decisions.PARTITION)
    assert open_partitions(claim, inf) == []
    assert bounded[0] < 1000


@pytest.mark.parametrize("seed", range(12))
def test_what_devices_alone_bound_is_bounded_again_by_devices_alone(seed: int) -> None:
    """Under memory limits, of split and of whole backwards: no partition is left to a search."""
    rng = Random(700 + seed)
    space = draw_space(rng, batches=rng.randint(2, 9))
    while space.limits is None:
        space = draw_space(rng, batches=rng.randint(2, 9))
    space = slow_at_first(space, rng) if seed % 2 else space
    space = with_step_work(space, rng) if seed % 3 else space
    kind = BackwardKind.WHOLE if space.whole else BackwardKind.SPLIT
    objective = Objective.DEVICE_SPAN if space.span else Objective.MAKESPAN
    pipe = pipeline(space, "search", **rng.choice(LINKS))
    bound = over_partitions(Problem(pipe, objective, kind)).bound
    ticks = None if bound is None else int(bound * pipe.grid.time)
    claim = Claim(pipe, space.span, kind, ticks, decisions=Decisions.PARTITION)
    assert open_partitions(claim, inf) == []


@pytest.mark.parametrize("seed", first(3, (52, 45, 96, 16, 116)))
def test_partitions_that_arrivals_exclude_have_no_better_schedule(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Claims above the bound over all partitions, with a long first stage."""
    rng = Random(seed)
    space = slow_at_first(draw_space(rng, most_layers=2, span=False), rng)
    kind = BackwardKind.WHOLE if space.whole else BackwardKind.SPLIT
    pipe = pipeline(space, "search")
    bound = over_partitions(Problem(pipe, Objective.MAKESPAN, kind)).bound
    assert bound is not None
    excluded = 0
    for ticks in (int(bound * pipe.grid.time) + above for above in (1, 3)):
        claim = Claim(pipe, False, kind, ticks, decisions=Decisions.PARTITION)
        left = open_partitions(claim, inf)
        with monkeypatch.context() as patch:
            patch.setattr(partitions._Choices, "_rates", lambda *_: ())
            alone = open_partitions(claim, inf)
        assert left is not None and alone is not None
        for counts in {each.counts for each in alone} - {each.counts for each in left}:
            best = by_model(pipe.with_partition(counts), fused=space.whole)
            assert best is None or best >= ticks, (space, counts, ticks, best)
            excluded += 1
    assert excluded or seed in (45, 116)


def test_layers_are_needed() -> None:
    result = searched()
    bare = replace(result.schedule, pipeline=result.schedule.pipeline.without_model())
    with pytest.raises(InputError, match="it is of all partitions, but the file has no layers"):
        ppopt.recheck(bare)
