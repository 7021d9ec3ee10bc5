"""Local search by windows: what they find is valid, within limits, better, and repeats itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, permutations, repeat
from operator import attrgetter
from random import Random

from ppopt import Objective, Pipeline, verify
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.instance import Instance
from ppopt.problem.problem import Problem
from ppopt.problem.traits import Trait
from ppopt.schedule import timing
from ppopt.schedule.list_scheduling import one_at_a_time
from ppopt.solver.bounds import device_bounds
from ppopt.solver.budget import SolverLimits
from ppopt.solver.heuristics.critical_swaps import CriticalSwaps
from ppopt.solver.heuristics.operation_network import OperationNetwork
from ppopt.solver.heuristics.window import SemiActiveSchedule, Window
from ppopt.solver.heuristics.window_lns import WindowLNS, WindowSearch
from ppopt.solver.portfolio import PROVING, left_out_when_improving
from ppopt.solver.result import Status
from ppopt.solver.solve import solve
from tests.clock import work_clock
from tests.factories.instances import Case, middle_cases, tiny_cases
from tests.factories.searches import waiting
from tests.oracles import exhaustive

LIMITS = SolverLimits(60, 1, 0)


def feasible(cases: Iterator[Case]) -> Iterator[OperationNetwork]:
    """Networks of the cases that windows apply to and that have a schedule."""
    for case in cases:
        instance = Instance.uniform(case.pipeline, fused=case.fused)
        paired = Trait.PAIRS in instance.traits
        if paired or device_bounds.infeasibility(instance):
            continue
        network = OperationNetwork(Problem(case.pipeline, Objective.MAKESPAN, case.backward_kind))
        if all(network.time):
            yield network


def alone(network: OperationNetwork) -> list[int]:
    """Starts of one microbatch after another."""
    pipeline = network.problem.pipeline
    orders = one_at_a_time(network.problem.instance)
    return network.starts(timing.schedule(pipeline, orders, Objective.MAKESPAN))


def network_of(pipeline: Pipeline) -> OperationNetwork:
    return OperationNetwork(Problem(pipeline, Objective.MAKESPAN, BackwardKind.SPLIT))


def settled(network: OperationNetwork) -> list[int]:
    """Starts of a schedule that justification no longer shortens."""
    start = alone(network)
    for _ in range(3):
        start = network.double_justified(start)
    return start


def upright(network: OperationNetwork, start: list[int], first: int, after: int) -> Window:
    return Window(SemiActiveSchedule(network, start), first, after)


def test_a_window_over_all_operations_is_the_whole_problem() -> None:
    """The optimum of an exhaustive search; the window says so, and finds nothing below it."""
    bettered = 0
    for network in feasible(tiny_cases(71, 40)):
        problem, start = network.problem, alone(network)
        best = exhaustive.best(problem.pipeline, fused=problem.fused, objective="makespan")
        assert best is not None
        outcome = upright(network, start, 0, network.size).reoptimise(LIMITS)
        assert outcome.complete
        if outcome.order is None:
            assert network.value(start) == best
            continue
        bettered += 1
        starts = earliest_starts(network, outcome.order)
        assert network.value(starts) == best
        assert upright(network, starts, 0, network.size).reoptimise(LIMITS).order is None
    assert bettered > 5


def test_with_fixed_modes_a_window_of_a_mixed_problem_is_that_of_one_kind() -> None:
    """All backwards split, or all whole, remain so: the optimum of that kind, with no flips."""
    bettered = 0
    for network in feasible(tiny_cases(77, 25)):
        problem = network.problem
        schedule = network.schedule(alone(network))
        mixed = OperationNetwork(replace(problem, backward_kind=BackwardKind.MIXED))
        current = SemiActiveSchedule.of(mixed, mixed.starts(schedule))
        cut = Window(current, 0, mixed.size, fixed_modes=True)
        outcome = cut.reoptimise(LIMITS)
        assert outcome.complete and not outcome.flips
        best = exhaustive.best(problem.pipeline, fused=problem.fused, objective="makespan")
        order = current.order if outcome.order is None else outcome.order
        assert current.changed(order, ()).value == best
        bettered += outcome.order is not None
    assert bettered > 4


def test_what_windows_find_is_valid_within_limits_and_better() -> None:
    rng, bettered = Random(72), 0
    for network in chain.from_iterable(
        repeat(network, 4) for network in feasible(middle_cases(72, 32))
    ):
        start = settled(network)
        value = network.value(start)
        first, after = sorted(rng.sample(range(network.size + 1), 2))
        cut = Window(SemiActiveSchedule(network, start), first, after)
        outcome = cut.reoptimise(LIMITS)
        if outcome.order is None:
            continue
        bettered += 1
        order = list(cut.schedule.order)
        order[first:after] = outcome.order
        schedule = network.schedule(earliest_starts(network, order))
        assert verify(schedule) == []
        assert schedule.fits_limits
        assert schedule.metrics.makespan_ticks < value
    assert bettered > 5


def test_windows_are_joined_with_changes_around_them_within_limits() -> None:
    """Of two windows without common operations, the second has its result after the first."""
    rng, late = Random(73), 0
    for network in feasible(middle_cases(73, 48)):
        current = SemiActiveSchedule.of(network, alone(network))
        for _ in range(6):
            middle = rng.randrange(1, network.size)
            windows = [Window(current, *ends) for ends in ((0, middle), (middle, network.size))]
            rng.shuffle(windows)
            first = joined(current, windows[0])
            second = joined(first, windows[1])
            late += second is not first is not current
            current = second
            schedule = network.schedule(current.start)
            assert verify(schedule) == []
            assert schedule.fits_limits
    assert late > 5


def earliest_starts(network: OperationNetwork, order: list[int]) -> list[int]:
    """Starts of all operations in a topological order."""
    start = network.earliest(network.by_resource(order))
    assert start is not None
    return start


def joined(current: SemiActiveSchedule, window: Window) -> SemiActiveSchedule:
    """The schedule after a window, if that makes it shorter."""
    outcome = window.reoptimise(LIMITS)
    changed = None if outcome.order is None else current.joined(outcome.order, outcome.flips)
    if changed is None or not changed.network.fits(changed.start):
        return current
    return min(current, changed, key=attrgetter("value"))


def test_what_a_window_says_without_a_model_holds_for_all_its_orders() -> None:
    """No order is below its least, and none shortens the run where it cannot improve."""
    rng, without_gain, better = Random(75), 0, 0
    for network in chain.from_iterable(
        repeat(network, 3) for network in feasible(middle_cases(75, 40))
    ):
        start, size = settled(network), rng.randint(2, min(6, network.size))
        value = network.value(start)
        first = rng.randrange(network.size - size + 1)
        cut = Window(SemiActiveSchedule(network, start), first, first + size)
        order = list(cut.schedule.order)
        without_gain += cut.cannot_improve
        for inside in permutations(cut.inside):
            order[first : first + size] = inside
            position_of = {op: at for at, op in enumerate(order)}
            if all(
                position_of[x] < position_of[op]
                for op in inside
                for x, _ in network.precedence.predecessors[op]
            ):
                reached = network.value(earliest_starts(network, order))
                assert cut.lower_bound <= reached
                assert reached >= value or not cut.cannot_improve
                better += reached < value
    assert without_gain > 5
    assert better > 5


def test_memory_that_goes_in_a_circle_keeps_the_schedule() -> None:
    """Two operations of no length: one takes, the other gives, each only after the other."""
    pipeline = Pipeline(
        stages=2,
        batches=19,
        placement="interleaved",
        forward=[8, 6],
        backward=[0, 2],
        weight=0,
        activation=[4, 2],
        memory_b=4,
        mem_limit=11,
    )
    with work_clock():
        result = solve(pipeline, time_limit=2, workers=1)
    assert result.status in (Status.FEASIBLE, Status.OPTIMAL)


def test_a_window_sees_what_holds_memory_around_it() -> None:
    """One device, two stages, room for two activations: F0 F1 B1 W1 B0 W0 is the only way.

    Two microbatches thus take twice 6, and no window of them finds less.
    """
    pipeline = Pipeline(stages=2, batches=2, placement=(0, 0), backward=2, weight=1, mem_limit=2)
    network = network_of(pipeline)
    start = alone(network)
    assert network.value(start) == 12
    for first in range(network.size):
        outcome = upright(network, start, first, min(network.size, first + 7)).reoptimise(LIMITS)
        assert (outcome.order, outcome.complete) == (None, True)


def test_windows_replace_other_heuristics_where_they_apply() -> None:
    """Overlapped pairs are one operation each, which windows do not handle."""
    plain, paired = Pipeline(stages=2, batches=4), Pipeline(stages=2, batches=4, overlap=2)
    replaced, none = (
        left_out_when_improving(Problem(pipeline, Objective.MAKESPAN, BackwardKind.MIXED)) - PROVING
        for pipeline in (plain, paired)
    )
    assert WindowLNS.name not in replaced and CriticalSwaps.name in replaced
    assert not none


def test_one_worker_finds_the_same_again_and_two_find_no_worse() -> None:
    """Two chunks in tight memory, from one microbatch at a time.

    Windows of one worker end by their work, those of two by the clock: a slow machine needs longer.
    """
    pipeline = Pipeline(stages=3, batches=5, placement="v", activation=2, mem_limit=5)
    network = network_of(pipeline)
    start = alone(network)

    def run(workers: int, seconds: float) -> list[int]:
        seen: list[int] = [network.value(start)]
        budget = waiting(network.problem).budget(seconds, workers)

        def accept(accepted: SemiActiveSchedule) -> None:
            assert accepted.value == network.value(accepted.start) < seen[-1]
            assert verify(network.schedule(accepted.start)) == []
            seen.append(accepted.value)

        current = SemiActiveSchedule.of(network, start)
        end = WindowSearch(network, Random(3)).search(current, budget, accept)
        assert end.value == seen[-1]
        return end.start

    starts = run(1, 1.0)
    assert network.value(starts) < network.value(start)
    assert run(1, 1.0) == starts
    assert any(
        network.value(run(2, seconds)) < network.value(start) for seconds in (1.0, 10.0, 100.0)
    )
