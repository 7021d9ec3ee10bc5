"""Mixed backwards: every one split or whole, whichever is better."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import cache
from random import Random
from typing import Any

import pytest

from ppopt import (
    InputError,
    Model,
    Objective,
    Pipeline,
    Result,
    Schedule,
    Status,
    baseline,
    evaluate,
    recheck,
    solve,
    verify,
)
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.operation import OpKind
from ppopt.problem.problem import Problem
from ppopt.rechecker import Verdict
from ppopt.solver.parameters import SolveParams
from ppopt.solver.relaxation.symmetry import canonical
from tests.factories.instances import mixed_cases
from tests.factories.relaxations import pipeline_of
from tests.oracles import exhaustive
from tests.oracles.rechecked import assert_solved
from tests.tiers import first

CHEAP_WHOLE = Pipeline(
    stages=3, batches=4, backward_input=2, weight=2, backward=3, memory_b=1, mem_limit=3
)
"""BW saves 1 of 4, and B allocates memory: both kinds are of use."""


def kinds(schedule: Schedule | None) -> set[OpKind]:
    assert schedule is not None
    return {OpKind(kind) for kind in schedule.kind.tolist()}


def mixed(pipeline: Pipeline, objective: Objective = Objective.MAKESPAN) -> Problem:
    return Problem(pipeline, objective, BackwardKind.MIXED)


@pytest.mark.parametrize("objective", Objective)
@pytest.mark.parametrize("seed", first(1, range(4)))
def test_value_and_status_are_those_of_exhaustive_search(objective: Objective, seed: int) -> None:
    """All orders and all choices; the bound is confirmed, and one above it is found wrong."""
    both = searched = 0
    for case in mixed_cases(900 + seed, 10):
        if case.batches * case.num_stages > 8:
            continue
        best = exhaustive.best_mixed(case, objective=objective.value)
        optimum = None if best is None else case.ticks.time(best)
        result = assert_solved(case, optimum, whole=None, span=objective is Objective.DEVICE_SPAN)
        if best is not None and mixed(case).reduced.mixed:
            searched += 1
            both += kinds(result.schedule) == set(OpKind)
    assert searched >= 3
    assert both >= 1


@pytest.mark.parametrize("kind", ["B", "W"])
def test_a_split_backward_that_needs_more_memory_is_no_reason_to_split(kind: str) -> None:
    """One layer: B or W by itself needs 3 more than the activation, BW nothing; the limit is 2."""
    layer = {"forward": 1, "activation": 1, "workspace": {kind: 3}}
    pipeline = Model([layer]).pipeline(devices=1, batches=1, mem_limit=2)
    result = solve(pipeline, workers=1)
    assert (result.status, result.value) == (Status.OPTIMAL, 3)
    split = solve(pipeline, workers=1, backward_kind="split")
    assert split.status is Status.INFEASIBLE


@pytest.mark.parametrize("objective", ["makespan", "device-span"])
def test_bounds_of_the_relaxation_are_bounds_of_every_choice(objective: Any) -> None:
    """The optimum of the relaxation is never above that of the mixed problem."""
    below = equal = 0
    for case in mixed_cases(71, 35, ops=12):
        if case.batches * case.num_stages > 6:
            continue
        best = exhaustive.best_mixed(case, objective=objective)
        relaxed = pipeline_of(mixed(case).relaxed.instance)
        assert relaxed.ticks.per_unit == case.ticks.per_unit
        optimum = exhaustive.best(relaxed, fused=False, objective=objective)
        if best is None:
            continue
        assert optimum <= best, case
        below, equal = below + (optimum < best), equal + (optimum == best)
    assert min(below, equal) >= 2


def test_pairs_that_hold_not_even_the_recompute_of_a_backward() -> None:
    """One device: all operations take 2 (7 + 12), and two pairs of unlike stages save 2 each.

    An F of stage 0 with the B of stage 1 takes max(4, 3, 4 + 3 - 2) = 5; an F and a B' of no length
    but its recompute, 2, would take 6.
    """
    case = Pipeline(
        stages=2, batches=2, placement=[0, 0], forward=[4, 3], backward_input=[1, 1],
        weight=[4, 4], backward=[5, 4], overlap=[6, 5], recompute_time=[1, 2],
    )  # fmt: skip
    result = solve(case, workers=1, time_limit=600)
    assert (result.status, result.value) == (Status.OPTIMAL, 2 * (7 + 12) - 2 * 2)
    assert recheck(result, workers=1).verdict is Verdict.CONFIRMED


def test_where_one_kind_is_never_worse_the_search_is_that_of_this_kind() -> None:
    """The optimum over all choices is that of the kind."""
    seen = dict.fromkeys(BackwardKind, 0)
    for case in mixed_cases(17, 60, ops=12):
        if case.batches * case.num_stages > 6:
            continue
        reduced = mixed(case).reduced
        seen[reduced.backward_kind] += 1
        if not reduced.mixed:
            best = exhaustive.best(case, fused=reduced.fused, objective="makespan")
            assert best == exhaustive.best_mixed(case, objective="makespan"), case
    assert min(seen.values()) >= 3


@cache
def solved(kind: BackwardKind) -> Result:
    return solve(CHEAP_WHOLE, backward_kind=kind, workers=1)


def test_a_choice_may_be_better_than_either_kind() -> None:
    """By exhaustive search: 22 mixed, 24 whole, 28 split."""
    values = {kind: solved(kind).value for kind in BackwardKind}
    assert values == {"mixed": 22, "whole": 24, "split": 28}


def test_the_default_is_mixed() -> None:
    pipe = Pipeline(stages=2, batches=2, backward=2, backward_input=1, weight=2)
    assert solve(pipe).backward_kind is BackwardKind.MIXED
    assert solve(pipe, backward_kind="whole").backward_kind is BackwardKind.WHOLE
    assert solve(pipe, backward_kind="split").backward_kind is BackwardKind.SPLIT
    with pytest.raises(InputError, match="'both' is unknown; use mixed, split, whole"):
        solve(pipe, backward_kind="both")


def test_the_flag_is_short_for_whole_and_contradicts_split() -> None:
    assert BackwardKind.read(None, fused=True) is BackwardKind.WHOLE
    assert BackwardKind.read("split", fused=False) is BackwardKind.SPLIT
    with pytest.raises(InputError, match="backward_kind says split"):
        BackwardKind.read("split", fused=True)


def test_a_hint_of_any_kind_is_followed_and_bettered() -> None:
    for kind in BackwardKind:
        result = solve(CHEAP_WHOLE, hint=solved(kind).schedule, workers=1)
        assert result.value == 22
        assert result.hint.notes == ()


def test_a_hint_over_the_limit_is_repaired() -> None:
    pipe = replace(CHEAP_WHOLE, mem_limit=1)
    hint = evaluate(replace(CHEAP_WHOLE, mem_limit=None), "1f1b")
    result = solve(pipe, hint=hint, workers=1, time_limit=600)
    assert result.schedule is not None
    assert verify(result.schedule) == []


def test_the_k_th_backward_of_either_kind_goes_to_microbatch_k() -> None:
    """One device: BW of microbatch 1 first, then B of 0, and its W last."""
    pipe = Pipeline(stages=1, batches=2, backward_input=1, weight=1, backward=1)
    rows = [
        (OpKind.F, 0, 1, 0, 0, 1),
        (OpKind.BW, 0, 1, 0, 1, 2),
        (OpKind.F, 0, 0, 0, 2, 3),
        (OpKind.B, 0, 0, 0, 3, 4),
        (OpKind.W, 0, 0, 0, 4, 5),
    ]
    schedule = Schedule.from_rows(pipe, rows)
    assert verify(schedule) == []
    named = [str(pipe.op(code)) for code in canonical(schedule).tolist()]
    assert named == ["0F0", "0BW0", "0F1", "0B1", "0W1"]


@pytest.mark.parametrize(
    "more",
    [
        {"slices": 2},
        {"routes": 2},
        {"placement": "v"},
        {"batches": 3, "forward": 2, "weight": 1, "backward": 2.5, "overlap": 3.5},
    ],
    ids=lambda more: next(iter(more)),
)
def test_slices_routes_chunks_and_pairs(more: dict[str, Any]) -> None:
    """F and BW as one save 1, F and B as one what BW would: with W after it, 1 more than BW."""
    pipe = Pipeline(
        **({"stages": 2, "batches": 2, "backward_input": 2, "weight": 2, "backward": 3} | more)
    )
    results = {
        kind: solve(pipe, backward_kind=kind, workers=1, time_limit=600) for kind in BackwardKind
    }
    best = results[BackwardKind.MIXED]
    assert best.status is Status.OPTIMAL
    assert best.value is not None
    assert recheck(best, workers=1).verdict is Verdict.CONFIRMED
    for result in results.values():
        assert best.value <= result.value


def drawn(rng: Random) -> Pipeline:
    """Two to four devices, BW from B + W down to less than either, B of either sign in memory."""
    size = rng.randint(2, 4)
    forward, partial, weight = (
        [rng.randint(*span) for _ in range(size)] for span in ((4, 12), (2, 13), (2, 11))
    )
    pipeline = Pipeline(
        stages=size, batches=rng.randint(2, 8),
        placement=rng.choice(("linear", "v", "interleaved")), activation=4,
        forward=forward, backward_input=partial, weight=weight,
        backward=[max(1, b + w - rng.randint(0, 6)) for b, w in zip(partial, weight, strict=True)],
        memory_b=rng.choice((0, 0, 1, 2, -1)), p2p=rng.choice((0, 0, 1)),
    )  # fmt: skip
    share = rng.choice((None, Fraction(1), Fraction(4, 5)))
    limits = replace(pipeline, mem_limit="1f1b").limits
    assert limits is not None
    return pipeline if share is None else replace(pipeline, mem_limit=limits[0] * share)


@pytest.mark.slow
@pytest.mark.parametrize("objective", Objective)
def test_no_worse_than_one_kind_or_by_hand_before_any_improvement(objective: Objective) -> None:
    """Construction alone: rules and baselines of both kinds are where a search begins. A
    search that is stopped at once has the better of both kinds, too."""
    rng, default = Random(81), SolveParams()
    params = replace(default, rounds=default.rounds._replace(max_rounds=0))
    chosen = 0
    for _ in range(6):
        pipeline = drawn(rng)
        options = {"objective": objective, "workers": 1, "params": params}
        for more in ({}, {"stop": lambda _: True}):
            mixed, *uniform = (
                solve(pipeline, backward_kind=kind, **options, **more).value
                for kind in ("mixed", "split", "whole")
            )
            known = [value for value in uniform if value is not None]
            assert not known or (mixed is not None and mixed <= min(known))
            chosen += len(known) == 2
        result = solve(pipeline, **options)
        best_baseline = baseline(result)
        assert best_baseline is None or (
            result.value is not None and result.value <= best_baseline.value
        )
    assert chosen


def test_a_stage_that_is_cheaper_whole_is_split_only_where_that_pays() -> None:
    """The shape of the tutorial's model: 1, 1, 3 and 3 layers as a V on 2 devices, 6 microbatches.

    A layer takes 1 for F and 2 for BW, but 1.2 each for B and W, as PyTorch takes longer for both
    than for one; the B of stage 0 does nothing. Device 1 waits 1 for the first F.

    - split: device 1 works 6 x (1 + 3) x (1 + 2.4) = 81.6, so 82.6.
    - `1f1b-v` keeps backwards whole and takes less: 81.
    - whole: it works 72, and the last BW of stage 0, 2, comes after its own: 1 + 72 + 2 = 75.
    - mixed: k backwards of stage 1 split cost 0.4 each, and 1.2 of each may come after the last B:
      1 + 72 + 0.4 k + max(0, 2 - 1.2 k), least at k = 2: 73.8.
    """
    layers = [1, 1, 3, 3]
    pipeline = Pipeline(
        stages=4, batches=6, placement=[0, 1, 1, 0], forward=layers, activation=layers,
        backward=[2 * time for time in layers], mem_limit=14,
        backward_input=[0, 1.2, 3.6, 3.6], weight=[2, 1.2, 3.6, 3.6],
    )  # fmt: skip
    results = {kind: solve(pipeline, backward_kind=kind, workers=1) for kind in BackwardKind}
    assert {result.status for result in results.values()} == {Status.OPTIMAL}
    baseline = evaluate(pipeline, "1f1b-v")
    assert baseline.fits_limits
    values = {kind.value: float(result.value or 0) for kind, result in results.items()}
    assert values == {"split": 82.6, "whole": 75, "mixed": 73.8}
    assert baseline.pipeline.ticks.time(baseline.metrics.makespan_ticks) == 81
