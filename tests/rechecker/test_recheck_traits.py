"""No argument of the re-checker applies to a claim with a trait that it does not name."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from math import inf
from typing import Any

import pytest

import ppopt
from ppopt import Pipeline
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.cost_table import STAGE_COSTS
from ppopt.problem.decisions import Decisions
from ppopt.rechecker import Verdict, check, confirmed, recheck
from ppopt.rechecker.arithmetic import by_arithmetic, over_limit
from ppopt.rechecker.claim import Claim, stated_by
from ppopt.rechecker.equal_microbatches import of_smallest
from ppopt.rechecker.idle_bound import min_idle
from ppopt.rechecker.mixed import with_one_kind
from ppopt.rechecker.partial_schedules import refuted
from ppopt.rechecker.partitions import open_partitions
from ppopt.rechecker.precedence import Precedence
from ppopt.rechecker.refute import refute
from ppopt.verifier.costs import Costs
from tests.factories.relaxations import with_stage_costs
from tests.factories.traits import novel_trait

LAYERS = [{"name": str(index), "forward": 1, "activation": 1} for index in range(3)]


def claim(kind: BackwardKind = BackwardKind.SPLIT, bound: int | None = 1, **fields: Any) -> Claim:
    """Claim of a bound of two stages and two microbatches."""
    pipeline = Pipeline(**({"stages": 2, "batches": 2} | fields))
    return Claim(pipeline, span=False, backward_kind=kind, bound=bound)


def arguments(**fields: Any) -> list[bool]:
    """Whether each argument proves something of a pipeline of which it can."""
    tight = claim(bound=None, mem_limit=1, **fields)._replace(bound=None)
    tight = tight._replace(pipeline=replace(tight.pipeline, activation=2))
    mixed = claim(BackwardKind.MIXED, **fields)
    filled = claim(batches=4, mem_limit=2, **fields)
    layers = claim(model=LAYERS, partition="search", **fields)
    layers = layers._replace(decisions=Decisions.PARTITION, bound=1)
    return [
        by_arithmetic(claim(**fields)) is not None,
        list(over_limit(tight)) != [],
        min_idle(filled, 0, Precedence.of_microbatch(filled)) > 0,
        refuted(claim(**fields), inf, lambda _: None) is not None,
        with_one_kind(mixed) is not mixed,
        open_partitions(layers, inf) is not None,
    ]


def test_arguments_apply_to_a_plain_claim_and_to_none_with_another_trait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert all(arguments())
    novel_trait(monkeypatch)
    assert not any(arguments())


@pytest.mark.parametrize("kind", ["split", "mixed"])
@pytest.mark.parametrize("fields", [{}, {"placement": "search"}, {"link_mode": "exclusive"}])
def test_the_re_checker_says_that_it_does_not_know_a_trait(
    kind: str, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = Pipeline(stages=2, batches=2, forward=2, backward=3, weight=2, p2p=1, **fields)
    result = ppopt.solve(pipeline, time_limit=600, workers=1, backward_kind=kind)
    assert recheck(result.schedule).verdict is Verdict.CONFIRMED
    novel_trait(monkeypatch)
    schedule = replace(result.schedule, pipeline=replace(result.schedule.pipeline))
    assert stated_by(schedule) is not None
    assert confirmed(schedule) is None
    rechecked = recheck(schedule)
    assert rechecked.verdict is Verdict.UNDECIDED
    assert "not handle novelty" in rechecked.reason


# The search for a schedule below a bound brings in the rules of devices only where it must.


def test_a_schedule_that_breaks_no_rule_of_other_devices_brings_in_none() -> None:
    """One microbatch never meets itself: no device can break a rule, and none has a limit."""
    pipeline = Pipeline(stages=3, batches=1)
    claim = Claim(pipeline, False, BackwardKind.SPLIT, 100, (1,))
    refutation = refute(claim, 60, 1, 0, lambda _: None)
    assert refutation.devices == (1,) and not refutation.refuted and refutation.schedule is not None


def test_the_smallest_microbatch_has_every_cost_that_a_factor_multiplies() -> None:
    """A cost that the table has and the re-checker forgets would be that of a larger one."""
    costs = {cost.field: 4 for cost in STAGE_COSTS if cost.multiplied_with} | {"backward": 8}
    unequal = claim(**costs, microbatch_times=[3, 2], microbatch_memory=[3, 5])
    smallest = of_smallest(unequal)
    rows = {
        field: tuple(map(smallest.pipeline.ticks.time, row))
        for field, row in unequal.pipeline.costs_at(Fraction(2), Fraction(3)).items()
    }
    equal = with_stage_costs(smallest.pipeline, rows)
    for own, expected in zip(smallest.costs, Costs.of(equal), strict=True):
        assert own.tolist() == expected.tolist()


def verdict(claimed: Claim) -> Verdict:
    """What a short re-check says of a claim."""
    return check(claimed, 5, 1, 0, lambda _: None).verdict


@pytest.mark.parametrize("feasible", [False, True])
@pytest.mark.parametrize("factor", [None, 1])
@pytest.mark.parametrize("of_split", ["input_workspace", "weight_workspace", "memory_b"])
@pytest.mark.parametrize("backward", [3, 4])
def test_a_whole_backward_fits_where_a_split_one_does_not(
    backward: int, of_split: str, factor: int | None, feasible: bool
) -> None:
    """F and BW keep the limit, which B, or W after it, exceeds; B and W take 4."""
    times: dict[str, Any] = {"backward_input": 1, "weight": 3, "backward": backward}
    memory: dict[str, Any] = {"activation": 1, of_split: 1, "mem_limit": 1}
    single: dict[str, Any] = {"stages": 1, "batches": 1, "microbatch_memory": factor}
    bound = 1 + backward + 1 if feasible else None
    assert verdict(claim(BackwardKind.MIXED, bound, **times, **memory, **single)) is Verdict.WRONG


@pytest.mark.parametrize("time", [0, 2])
def test_a_split_backward_fits_where_a_whole_one_does_not(time: int) -> None:
    """BW takes no longer than B, and exceeds the limit if it takes time."""
    times: dict[str, Any] = {"backward_input": time, "weight": 1, "backward": time}
    memory: dict[str, Any] = {"activation": 1, "backward_workspace": 1, "mem_limit": 1}
    single: dict[str, Any] = {"stages": 1, "batches": 1}
    assert verdict(claim(BackwardKind.MIXED, None, **times, **memory, **single)) is Verdict.WRONG


def test_a_relaxation_has_no_w_where_pairs_save_time() -> None:
    """F, two pairs of F with BW, and BW take 2 each; three F, and three W of 1, would take 9."""
    times: dict[str, Any] = {"forward": 2, "backward_input": 1, "weight": 1, "backward": 2}
    pairs: dict[str, Any] = {"stages": 1, "batches": 3, "overlap": 2}
    assert verdict(claim(BackwardKind.MIXED, 9, **times, **pairs)) is Verdict.WRONG


def test_memory_of_an_operation_without_length_does_not_count() -> None:
    times: dict[str, Any] = {"forward": 1, "backward_input": 0, "weight": 1, "backward": 1}
    memory: dict[str, Any] = {"activation": 1, "input_workspace": 1, "mem_limit": 1}
    single: dict[str, Any] = {"stages": 1, "batches": 1}
    assert verdict(claim(bound=None, **times, **memory, **single)) is Verdict.WRONG


def test_the_limit_of_1f1b_is_that_of_the_microbatches_themselves() -> None:
    fields: dict[str, Any] = {
        "mem_limit": "1f1b",
        "microbatch_memory": 2,
        "activation": 1,
        "p2p": 1,
    }
    optimum = ppopt.solve(Pipeline(stages=2, batches=2, **fields), workers=1)
    assert optimum.bound_ticks is not None
    assert verdict(claim(bound=optimum.bound_ticks + 1, **fields)) is Verdict.WRONG


def test_memory_times_time_may_exceed_64_bits() -> None:
    """Times as of nanoseconds, memory as of bytes; probing of CP-SAT 9.15 finds no schedule."""
    times: dict[str, Any] = {"forward": 8 * 10**9, "backward": 10**10, "weight": 6 * 10**9}
    memory: dict[str, Any] = {"activation": 2 * 10**9, "offload_memory": 10**9, "offload_time": 2}
    limits: dict[str, Any] = {"unshard_memory": 1, "mem_limit": 2 * 10**9 + 1}
    fields = times | memory | limits | {"stages": 1, "batches": 1, "slices": 2}
    pipeline = Pipeline(**fields)
    optimum = ppopt.solve(pipeline, backward_kind="whole", time_limit=60, workers=1)
    assert optimum.status == "optimal"
    assert optimum.bound_ticks is not None
    false = Claim(pipeline, False, BackwardKind.WHOLE, optimum.bound_ticks + 2)
    assert verdict(false) is not Verdict.CONFIRMED
