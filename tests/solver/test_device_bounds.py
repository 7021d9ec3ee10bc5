"""Bounds against optima, and wrong ones planted: none is too high, and one that is gets caught."""

from collections import Counter
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import pytest

from ppopt import Objective, Pipeline, Result, Verdict, VerificationError, recheck, solve
from ppopt.problem.instance import Instance
from ppopt.solver.bounds import device_bounds as solver_bounds
from ppopt.solver.bounds import idle_bounds, subset_selection
from ppopt.solver.parameters import SolveParams
from ppopt.solver.relaxation import device_relaxation
from ppopt.solver.relaxation.route_times import RouteTimes
from tests.factories.instances import Case, tiny_cases
from tests.oracles import bounds
from tests.oracles.bounds import Sample
from tests.tiers import slow

Patch = pytest.MonkeyPatch


@pytest.mark.parametrize(("stages", "batches"), [(1, 3), (2, 2), (4, 8), (5, 16)])
def test_whole_backwards_of_equal_stages_need_no_search(stages: int, batches: int) -> None:
    """GPipe and 1F1B take (M + P - 1)(F + BW), F = 1 and BW = 2: head, work and tail of a device.

    Device d waits d F, works M (F + BW), and its last gradient passes d more stages: d BW.
    """
    instance = Instance.uniform(Pipeline(stages, batches), fused=True)
    bound = solver_bounds.device_bound(instance, Objective.MAKESPAN)
    assert bound.value == 3 * (batches + stages - 1)


@pytest.mark.parametrize("objective", Objective)
@pytest.mark.parametrize(
    "cases",
    [
        [*bounds.cases(seed=5, count=10)],
        [*tiny_cases(42, 8, ops=bounds.EXHAUSTIVE, boundaries=True)],
        [*tiny_cases(34, 8, ops=bounds.EXHAUSTIVE, heavy=True)],
    ],
    ids=["all", "boundaries", "heavy"],
)
def test_no_bound_is_above_the_optimum(cases: list[Case], objective: Objective) -> None:
    """Each device and each set of devices alone, the work, and searches ended or cut short."""
    bounds_of_source: Counter[str] = Counter()
    for case in cases:
        best = bounds.optimum(case, objective)
        for sample in bounds.samples(case, objective, best):
            assert sample.sound, sample
            bounds_of_source[sample.source] += 1
    assert bounds_of_source.keys() >= {
        "search",
        "search, infeasible",
        "work",
        "1 of several devices",
    }


def head_too_long(patch: Patch) -> None:
    right = RouteTimes.head
    patch.setattr(RouteTimes, "head", lambda *arguments: right(*arguments) + 2)


def tail_too_long(patch: Patch) -> None:
    right = RouteTimes.tail
    patch.setattr(RouteTimes, "tail", lambda *arguments: right(*arguments) + 2)


def memory_window_too_tight(patch: Patch) -> None:
    """One microbatch less than there is room for between F and W."""
    right = RouteTimes.max_until_w

    def wrong(times: RouteTimes) -> list[int | None]:
        return [None if bound is None else max(1, bound - 1) for bound in right.func(times)]

    patch.setattr(RouteTimes, "max_until_w", property(wrong))


def cut_too_large(patch: Patch) -> None:
    right = device_relaxation.objective_cuts

    def wrong(*arguments: Any) -> Any:
        return (cut._replace(rest=cut.rest + 1) for cut in right(*arguments))

    patch.setattr(device_relaxation, "objective_cuts", wrong)


def work_counted_twice(patch: Patch) -> None:
    right = device_relaxation._work_after_b
    patch.setattr(device_relaxation, "_work_after_b", lambda *arguments: 2 * right(*arguments))


def ends_too_idle(patch: Patch) -> None:
    """One microbatch less than there is room for while a device waits."""
    right = idle_bounds.knapsack_bound

    def wrong(items: list[idle_bounds.KnapsackItem], headroom: int | None) -> int:
        fewer = [item._replace(copies=max(0, item.copies - 1)) for item in items]
        return right(fewer, headroom)

    patch.setattr(idle_bounds, "knapsack_bound", wrong)


"""Else few bounds are asked for."""
PLANTED = (
    head_too_long,
    tail_too_long,
    ends_too_idle,
    memory_window_too_tight,
    cut_too_large,
    work_counted_twice,
)


@pytest.mark.parametrize("count", [20, slow(40)])
@pytest.mark.parametrize("plant", PLANTED)
def test_a_wrong_bound_is_caught(
    plant: Callable[[Patch], None], count: int, monkeypatch: Patch
) -> None:
    """The re-checker answers every wrong bound with a schedule below it, and the search stops
    where it has met one; a claim that it makes all the same is either right or answered."""
    cases = [case for case in tiny_cases(seed=4, count=count, ops=24) if best_of(case) is not None]
    plant(monkeypatch)
    answered, stopped = 0, 0
    for case in cases:
        for wrong in (sample for sample in alone(case) if not sample.sound):
            assert bounds.rechecked(wrong) is Verdict.WRONG, wrong
            answered += 1
        result = searched(case)
        if result is None:
            stopped += 1
            continue
        right = Sample("", ticks(result), best_of(case), case, Objective.MAKESPAN).sound
        assert recheck(result, workers=1).verdict is (Verdict.CONFIRMED if right else Verdict.WRONG)
    assert answered >= 3
    assert stopped >= 1


@lru_cache
def best_of(case: Case) -> int | None:
    return bounds.optimum(case, Objective.MAKESPAN)


def alone(case: Case) -> Iterator[Sample]:
    """The bounds of the devices one by one, and of their work."""
    best = best_of(case)
    assert best is not None
    values = [
        solver_bounds.device_bound(
            Instance.uniform(case.pipeline, fused=case.fused), Objective.MAKESPAN
        ).value
    ]
    for devices in subset_selection.single_devices(case.pipeline):
        values.append(bounds.relaxation(case, Objective.MAKESPAN, devices, 3 * best + 7))
    for bound in values:
        yield Sample("planted", bound, best, case, Objective.MAKESPAN)


def searched(case: Case) -> Result | None:
    """What a search claims; None where it stops at a contradiction.

    Without the dynamic program over subsets, which proves most of these cases before a relaxation
    by CP-SAT, and so the planted bound, is asked.
    """
    params = SolveParams(without=frozenset({"subset dynamic program"}))
    try:
        return solve(
            case.pipeline,
            backward_kind=case.backward_kind,
            workers=1,
            params=params,
        )
    except VerificationError:
        return None


def ticks(result: Result) -> int | None:
    low = result.lower_bound
    return None if low is None else int(low * result.pipeline.ticks.per_unit)
