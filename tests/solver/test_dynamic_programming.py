"""Dynamic programming over partial schedules: the optimum, and never a bound above it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from random import Random
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppopt import Objective, Pipeline, Status, cancellation, solve, verify
from ppopt.cancellation import within
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.operation import OpKind
from ppopt.problem.problem import Problem
from ppopt.schedule import timing
from ppopt.schedule.list_scheduling import one_at_a_time
from ppopt.solver import budget
from ppopt.solver.bounds import device_bounds
from ppopt.solver.bounds.subset_dynamic_program import SubsetDP
from ppopt.solver.dynamic_programming import dominance
from ppopt.solver.dynamic_programming.applicability import is_supported, layer_seconds
from ppopt.solver.dynamic_programming.classes import Classes
from ppopt.solver.dynamic_programming.layered import LayeredDP
from ppopt.solver.dynamic_programming.states import Matrix
from ppopt.solver.exact.dynamic_program import DynamicProgram
from ppopt.solver.parameters import DynamicProgramParams, SubsetParams
from ppopt.solver.relaxation.device_relaxation import DeviceSubset
from ppopt.solver.relaxation.route_times import RouteTimes
from tests.factories.instances import Case, V, middle_cases, tiny_cases
from tests.factories.searches import Begun, begun, ended
from tests.oracles import exhaustive
from tests.oracles.bounds import by_model

CASES = list(tiny_cases(81, 70))
TIGHT = Pipeline(
    stages=4,
    batches=8,
    forward="10.419",
    backward_input="10.207",
    weight="7.715",
    p2p="0.408",
    mem_limit=3,
)
"""Memory for 3 of 4 devices, W shorter than F and B."""


SHORT_V = replace(V, batches=5)


def subsets(search: Begun) -> SubsetDP:
    return SubsetDP(search.incumbent.problem, SubsetParams())


def fitting(cases: Iterator[Case] | list[Case]) -> Iterator[Problem]:
    """Problems that the program applies to, whose limits one microbatch at a time keeps."""
    for pipeline, fused in cases:
        problem = Problem(pipeline, Objective.MAKESPAN, BackwardKind.uniform(fused=fused))
        if is_supported(problem) and not device_bounds.infeasibility(problem.instance):
            yield problem


def long_enough(problem: Problem) -> int:
    """More ticks than any schedule needs that never waits without a reason."""
    alone = one_at_a_time(problem.instance)
    return 2 * timing.schedule(problem.pipeline, alone).metrics.makespan_ticks + 1


def test_the_optimum_of_exhaustive_search_is_found_and_nothing_below_it() -> None:
    """The path found is a valid schedule within the limits; asked for less, there is none."""
    several = 0
    for problem in fitting(CASES):
        pipeline, fused = problem.pipeline, problem.fused
        best = exhaustive.best(pipeline, fused=fused, objective=Objective.MAKESPAN)
        every = tuple(range(pipeline.num_devices))
        program = ended(problem, every, long_enough(problem))
        assert program.best == best, problem
        schedule = timing.schedule(pipeline, program.classes.orders(program.path()))
        assert schedule.metrics.makespan_ticks == best
        assert schedule.fits_limits
        assert not verify(schedule)
        assert ended(problem, every, best).best is None, problem
        several += pipeline.num_stages > pipeline.num_devices
    assert several > 7


def test_few_devices_never_need_more_than_all() -> None:
    tight = 0
    for problem in fitting(CASES[:30]):
        devices = range(problem.pipeline.num_devices)
        of_all = ended(problem, tuple(devices), long_enough(problem)).best
        for size in range(1, len(devices)):
            for some in combinations(devices, size):
                if not DeviceSubset(RouteTimes(problem.instance), frozenset(some)).retained:
                    continue
                of_some = ended(problem, some, of_all + 1).best
                assert of_some is not None, (problem, some)
                assert of_some <= of_all, (problem, some)
                tight += of_some == of_all
    assert tight > 14


def test_the_work_that_remains_counts_the_wait_for_memory() -> None:
    """Memory for one microbatch: one after the other, each 2 + 1 + 2 + 3 + 1 + 3 + 1 ticks.

    Without the limit the first microbatch is followed by two more B on the last stage, of 3 ticks
    each: 2 + 1 + 2 + 3 x 3 + 1 + 3 + 1.
    """
    pipe = Pipeline(stages=2, batches=3, forward=2, backward_input=3, weight=1, p2p=1)
    for mem_limit, expected in ((1, [39, 26, 13, 0]), (None, [19, 16, 13, 0])):
        pipeline = replace(pipe, mem_limit=mem_limit)
        problem = Problem(pipeline, Objective.MAKESPAN, BackwardKind.uniform(fused=False))
        classes = Classes(DeviceSubset(RouteTimes(problem.instance), frozenset(range(2))))
        forward = classes.index[OpKind.F, 0]
        assert classes.remaining[forward].tolist() == expected


@pytest.mark.slow
def test_the_optimum_of_the_model_is_found_on_larger_ones() -> None:
    compared = 0
    for problem in fitting(middle_cases(83, 30, ops=36)):
        best = by_model(problem.pipeline, fused=problem.fused)
        if best is None:
            continue
        every = tuple(range(problem.pipeline.num_devices))
        program = LayeredDP(
            Classes(DeviceSubset(RouteTimes(problem.instance), frozenset(every))), best + 1
        )
        while not program.ended and program.width < 20_000:
            program.advance()
        if program.ended:
            compared += 1
            assert program.best == best, problem
    assert compared > 7


@pytest.mark.parametrize("limit", [4, 5])
def test_memory_that_several_stages_of_a_device_share(limit: int) -> None:
    """An F run as early as it may can take the memory that another stage's F needs.

    Without room for that the search finds no schedule, or a longer one; CP-SAT knows better.
    """
    pipeline = Pipeline(
        stages=3, batches=3, placement="v", activation=2, mem_limit=limit, forward=2, p2p=1
    )
    problem = Problem(pipeline, Objective.MAKESPAN, BackwardKind.SPLIT)
    best = by_model(pipeline, fused=False)
    assert ended(problem, (0, 1, 2), long_enough(problem)).best == best


WIDTHS = st.sampled_from([None, 1, 2, 3, 40])


@given(
    st.integers(1, 90),
    st.integers(1, 3),
    st.integers(1, 4),
    WIDTHS,
    st.randoms(use_true_random=False),
)
def test_what_is_left_out_is_no_better_than_what_is_left(
    columns: int, max_time: int, rows: int, width: int | None, rng: Random
) -> None:
    """Same counts, not later, not less free; at most `width` columns per vector of counts."""

    def draw(size: int, high: int) -> Matrix:
        drawn = [[rng.randint(0, high) for _ in range(columns)] for _ in range(size)]
        return np.array(drawn, dtype=np.int32)

    states = np.concatenate([draw(2, 1), draw(1, 1), draw(rows, max_time)])
    reduction = dominance.reduced(states, slice(0, 2), 2, slice(3, None), width)
    result = states[:, reduction.columns]
    result[:, reduction.merged] = reduction.minima

    def is_dominated(state: Matrix) -> bool:
        same = (result[:2] == state[:2, None]).all(axis=0)
        freer = result[2] & ~state[2] == 0
        return bool((same & freer & (result[3:] <= state[3:, None]).all(axis=0)).any())

    assert all(map(is_dominated, states.T))
    if width is None:
        assert not reduction.merged.size
    else:
        _, sizes = np.unique(result[:2], axis=1, return_counts=True)
        assert sizes.max() <= width


def test_what_another_one_dominates_is_left_out() -> None:
    """Of four with the same counts two are no better than the others; the fifth has done less."""
    states = np.array([[1, 1, 1, 1, 0], [0] * 5, [1, 2, 3, 2, 9], [5, 4, 5, 4, 9]], dtype=np.int32)
    reduction = dominance.reduced(states, slice(0, 1), 1, slice(2, None))
    assert sorted(reduction.columns.tolist()) in ([0, 1, 4], [0, 3, 4])


def test_of_many_states_none_is_compared_too_few_times() -> None:
    """600 non-dominated ones of a group, each twice, and its later copies."""
    earlier = np.arange(600)
    times = np.stack([earlier, 600 - earlier])
    states = np.concatenate([np.zeros((2, 1800), int), np.hstack([times, times, times + 1])])
    reduction = dominance.reduced(states, slice(0, 1), 1, slice(2, None))
    assert reduction.columns.size == 600


def test_merged_states_bound_the_optimum() -> None:
    """On every subset of devices; with one state per vector often as well as without merging."""
    exact = merged = 0
    for problem in fitting(CASES):
        best = exhaustive.best(problem.pipeline, fused=problem.fused, objective=Objective.MAKESPAN)
        devices = range(problem.pipeline.num_devices)
        for size in range(1, len(devices) + 1):
            for some in combinations(devices, size):
                if not DeviceSubset(RouteTimes(problem.instance), frozenset(some)).retained:
                    continue
                bounds = []
                for width in (1, 3, None):
                    program = ended(problem, some, best + 1, width)
                    bounds.append(program.lower_bound)
                assert bounds[0] <= bounds[2] <= best, (problem, some)
                assert bounds[1] <= bounds[2], (problem, some)
                assert program.exact
                merged += bounds[0] == best
                exact += bounds[2] == best
    assert merged > exact / 2


def test_a_search_is_closed_and_resumed_where_it_was_left() -> None:
    """In many small shares of time; the optimum, 313241, is that of CP-SAT on the whole model."""
    search = begun(Problem(TIGHT, Objective.MAKESPAN, BackwardKind.SPLIT))
    params = DynamicProgramParams(first_reach=0, reach=0)  # else a turn goes on to the end
    program, rounds = DynamicProgram(search.incumbent.problem, params), 0
    while not search.incumbent.closed:
        program.run(search.incumbent, search.budget(0.02, 1))
        rounds += 1
        assert rounds < 1000
    assert (search.incumbent.value, search.incumbent.bound.value) == (313241, 313241)
    assert rounds > 3


def test_what_grows_too_fast_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a limit of memory there are ever more states; the bound stays as it was.

    The clock stands still: the estimate of the time that is missing ends it, on any machine.
    """
    for module in (budget, cancellation):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: 0.0))
    problem = Problem(
        Pipeline(stages=4, batches=12, forward=3, p2p=1), Objective.MAKESPAN, BackwardKind.SPLIT
    )
    search = begun(problem, seconds=1.0)
    before, program = search.incumbent.bound.value, DynamicProgram(problem, DynamicProgramParams())
    with within(1.0):
        while not search.budget().search_over and program.supports(problem):
            program.run(search.incumbent, search.budget(1.0, 2))
    assert not program.supports(problem)
    assert search.incumbent.bound.value >= before


@pytest.mark.slow
def test_a_device_of_several_stages_alone_proves_what_the_whole_needs() -> None:
    """No schedule of the last device, which has the middle of the V, ends before 221."""
    assert solve(SHORT_V, time_limit=600, workers=1).value == 221
    search = begun(Problem(SHORT_V, Objective.MAKESPAN, BackwardKind.SPLIT))
    subset_dp = subsets(search)
    subset_dp.run(search.incumbent, search.budget(60.0, 1))
    assert search.incumbent.bound.value == 221
    assert search.incumbent.bound.certificate.devices == (3,)


def test_bounds_of_few_devices_are_never_above_the_optimum_and_often_equal_to_it() -> None:
    """More often than the bound before, until nothing is left to ask."""
    asked = before = tight = 0
    for problem in fitting(CASES):
        best = exhaustive.best(problem.pipeline, fused=problem.fused, objective=Objective.MAKESPAN)
        search = begun(problem)
        subset_dp = subsets(search)
        several = bool(subset_dp.open)
        asked += several
        before += several and search.incumbent.bound.value == best
        for _ in range(20):
            if not search.budget().search_over:
                subset_dp.run(search.incumbent, search.budget(1.0, 1))
        assert search.budget().search_over or not subset_dp.open
        assert search.incumbent.bound.value <= best, problem
        tight += several and search.incumbent.bound.value == best
    assert asked > 7
    assert tight > before + 1


def test_subsets_end_with_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """One worker's share counts steps, not seconds; the search as a whole ends by the clock.

    No step is begun where two might not end in time.
    """
    steps = [0.0]

    def noted(program: LayeredDP) -> float:
        steps.append(layer_seconds(program))
        return steps[-1]

    monkeypatch.setattr("ppopt.solver.bounds.subset_dynamic_program.layer_seconds", noted)
    pipeline = Pipeline(
        stages=4, batches=24, chunks=4, placement="interleaved", activation=4, mem_limit=16
    )
    search = begun(Problem(pipeline, Objective.MAKESPAN, BackwardKind.SPLIT), seconds=1.0)
    subset_dp = subsets(search)
    with within(1.0):
        for _ in range(2):  # the first turn abandons what takes too long
            subset_dp.run(search.incumbent, search.budget(60.0, 1))
        assert -1 < search.whole.search_left <= 2 * steps[-1] or search.incumbent.closed


@pytest.mark.slow
def test_a_subset_that_takes_too_long_goes_on_in_the_next_turn() -> None:
    """The first turn abandons every subset."""
    search = begun(Problem(SHORT_V, Objective.MAKESPAN, BackwardKind.SPLIT))
    params = SubsetParams(max_remaining_share=0)
    subset_dp = SubsetDP(search.incumbent.problem, params)
    before = search.incumbent.bound.value
    subset_dp.run(search.incumbent, search.budget(60.0, 1))
    assert search.incumbent.bound.value == before
    subset_dp.run(search.incumbent, search.budget(60.0, 1))
    assert before < search.incumbent.bound.value <= 221


def test_devices_of_one_stage_are_asked_where_memory_is_limited() -> None:
    """Evenly spaced subsets follow them. Without a limit they are left to others."""
    subset_dp = subsets(begun(Problem(TIGHT, Objective.MAKESPAN, BackwardKind.SPLIT)))
    alone = {(device,) for device in range(TIGHT.num_devices)}
    assert {*list(subset_dp.open)[: TIGHT.num_devices]} == alone
    assert {*subset_dp.open} == alone | {(0, 2), (0, 1, 2)}
    free = replace(TIGHT, mem_limit=None)
    assert not subsets(begun(Problem(free, Objective.MAKESPAN, BackwardKind.SPLIT))).open


@pytest.mark.parametrize(
    "fields",
    [
        {"routes": 2, "batches": 4},
        {"slices": 2},
        {"backward_input": 0, "weight": 1, "memory_b": 1},
    ],
)
def test_problems_that_are_not_supported(fields: dict[str, object]) -> None:
    pipeline = Pipeline(**({"stages": 2, "batches": 2} | fields))
    assert not is_supported(Problem(pipeline, Objective.MAKESPAN, BackwardKind.SPLIT))
    assert not is_supported(
        Problem(Pipeline(stages=2, batches=2), Objective.DEVICE_SPAN, BackwardKind.SPLIT)
    )


def test_a_long_tight_run_is_proved() -> None:
    """Time grows with the length of the run, where CP-SAT stays 4 % away after a minute."""
    pipeline = Pipeline(
        stages=3, batches=32, forward=10, backward_input=10, weight=4, p2p=1, mem_limit=2
    )
    assert solve(pipeline, time_limit=600, workers=1).status is Status.OPTIMAL
