"""Bounds by relaxation: every constraint holds in every valid schedule, no bound is too high."""

from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.instance import Instance
from ppopt.problem.objective import Objective
from ppopt.problem.operation import OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.problem import Problem
from ppopt.schedule import timing
from ppopt.schedule.list_scheduling import ListScheduler, one_at_a_time
from ppopt.schedule.origin import Argument, Certificate
from ppopt.schedule.schedule import Schedule
from ppopt.solver.bound import Bound
from ppopt.solver.bounds import relaxation_bound, subset_selection
from ppopt.solver.bounds.device_bounds import device_bound, infeasibility
from ppopt.solver.bounds.relaxation_bound import RelaxationBound
from ppopt.solver.cp_sat import cpsat
from ppopt.solver.heuristics.priority_rules import priority_rules
from ppopt.solver.parameters import RelaxationParams
from ppopt.solver.relaxation import device_relaxation
from ppopt.solver.relaxation.device_relaxation import DeviceSubset
from ppopt.solver.relaxation.route_times import RouteTimes
from ppopt.solver.relaxation.symmetry import canonical
from tests.factories.instances import tiny_cases
from tests.factories.schedules import schedules
from tests.oracles import exhaustive
from tests.tiers import slow


def assert_all_hold(schedule: Schedule, subset: DeviceSubset) -> None:
    """Every constraint, release and floor of a subset holds in a schedule put in order."""
    start = dict(zip(canonical(schedule).tolist(), schedule.start.tolist(), strict=True))
    pipeline, duration = subset.instance.pipeline, subset.instance.durations
    for before, after, lag in zip(
        *(column.tolist() for column in device_relaxation.implied_precedence(subset)), strict=True
    ):
        gap = start[after] - start[before] - int(duration[before])
        assert gap >= lag, (pipeline.op(before), pipeline.op(after), lag, gap)
    for code, earliest in device_relaxation.releases(subset):
        assert start[code] >= earliest, pipeline.op(code)
    for objective in Objective:
        value = schedule.metrics.value_ticks(objective)
        for cut in device_relaxation.objective_cuts(subset, objective):
            low = start[cut.last] + int(duration[cut.last]) + cut.rest
            low -= 0 if cut.first is None else start[cut.first]
            assert value >= low, (objective, cut, pipeline.op(cut.last), low)


def subsets(schedule: Schedule, members: list[int]) -> list[DeviceSubset]:
    """Of the relaxation whose operations are no longer than the pairs that they can be in."""
    pipeline, kind = schedule.pipeline, BackwardKind.uniform(fused=OpKind.BW in schedule.kind)
    instance = Problem(pipeline, Objective.MAKESPAN, kind).relaxed.instance
    devices = frozenset(device % pipeline.num_devices for device in members)
    return [DeviceSubset(RouteTimes(instance, route), devices) for route in range(pipeline.routes)]


@settings(deadline=None)
@given(schedules(backwards=("split", "fused")), st.lists(st.integers(0, 5), max_size=3))
def test_constraints_hold_in_any_valid_schedule(schedule: Schedule, devices: list[int]) -> None:
    for subset in subsets(schedule, devices):
        assert_all_hold(schedule, subset)


def tight_schedules(seed: int, count: int) -> Iterator[Schedule]:
    """Two schedules of every pipeline under tight limits, where a wrong lag would show.

    A dense one, and one microbatch at a time: each comes back as soon as it can.
    """
    rng = Random(seed)
    while count:
        placed = rng.choice([{}, {"placement": "v"}, {"placement": "interleaved"}, {"routes": 2}])
        size = rng.randint(1, 5)
        pipeline = Pipeline(
            stages=size,
            batches=2 * rng.randint(1, 5),
            forward=[rng.randint(1, 6) for _ in range(size)],
            backward_input=[rng.randint(0, 6) for _ in range(size)],
            weight=[rng.randint(0, 6) for _ in range(size)],
            p2p=rng.randint(0, 3),
            activation=2,
            memory_b=rng.choice([0, -1, 1]),
            mem_limit=rng.choice([4, 6, 8, 12]),
            **placed,
        )
        fused = rng.random() < 0.3
        if infeasibility(Instance.uniform(pipeline, fused=fused)):
            continue
        instance = Instance.uniform(pipeline, fused=fused)
        rules = priority_rules(Instance.uniform(pipeline, fused=False))
        built = ListScheduler(instance).build(rng.choice(list(rules)))
        for orders in (built and built.arrays(), one_at_a_time(instance)):
            if orders:
                yield timing.schedule(pipeline, orders, rng.choice(list(Objective)))
        count -= 1


def test_constraints_hold_in_dense_schedules_under_tight_limits() -> None:
    rng = Random(3)
    for schedule in tight_schedules(seed=1, count=40):
        for subset in subsets(schedule, rng.sample(range(5), rng.randint(0, 3))):
            assert_all_hold(schedule, subset)


@pytest.mark.parametrize("count", [16, slow(80)])
@pytest.mark.parametrize("objective", Objective)
def test_no_bound_is_above_the_optimum(objective: Objective, count: int) -> None:
    """Exhaustive optima: every device alone and every pair stays at or below them."""
    tight = checked = 0
    for case in tiny_cases(seed=11, count=count, ops=14):
        best = exhaustive.best(case.pipeline, fused=case.fused, objective=objective.value)
        if best is None:
            continue
        start = device_bound(Instance.uniform(case.pipeline, fused=case.fused), objective)
        assert start.value <= best, case
        for devices in [
            *subset_selection.single_devices(case.pipeline),
            *subset_selection.evenly_spaced_subsets(case.pipeline, 2),
        ]:
            limits = cpsat.SolverLimits(seconds=20, workers=1, seed=0)
            zero = Bound(0, "", Certificate(Argument.WORK))
            ceiling = 4 * best + 10
            problem = Problem(case.pipeline, objective, case.backward_kind)
            bound, _ = relaxation_bound.raise_by_subset(problem, devices, zero, ceiling, limits)
            assert bound.value <= best, (case, devices)
            checked += 1
            tight += bound.value == best
    assert checked > 5 * count // 6
    assert tight > checked / 2


def test_a_planted_wrong_constraint_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """One tick too much in one family is caught by the checks above."""
    right = RouteTimes.down
    monkeypatch.setattr(RouteTimes, "down", lambda times, *stages: right(times, *stages) + 1)
    with pytest.raises(AssertionError):
        test_constraints_hold_in_dense_schedules_under_tight_limits()


def test_a_cut_is_the_span_of_a_device_left_out_where_its_last_w_is_long() -> None:
    """One microbatch: device 1 runs F, B and W of 1 + 1 + 20, and device 0 is done before."""
    pipeline = Pipeline(stages=2, batches=1, weight=[1, 20], backward=[2, 21])
    instance = Instance.uniform(pipeline, fused=False)
    schedule = timing.schedule(pipeline, one_at_a_time(instance), Objective.DEVICE_SPAN)
    start = {row.op: row.start for row in schedule.rows()}
    subset = DeviceSubset(RouteTimes(instance), frozenset({0}))
    lowest = [
        start[pipeline.op(cut.last)] + 1 + cut.rest - start[pipeline.op(cut.first)]
        for cut in device_relaxation.objective_cuts(subset, Objective.DEVICE_SPAN)
        if cut.first is not None
    ]
    assert max(lowest) == schedule.metrics.value_ticks(Objective.DEVICE_SPAN) == 22


def test_with_every_device_kept_only_the_data_flow_is_left() -> None:
    """Nothing is implied by dropped stages when there are none."""
    pipeline = replace(Pipeline(stages=3, batches=4), mem_limit=None)
    subset = DeviceSubset(RouteTimes(Instance.uniform(pipeline, fused=False)), frozenset(range(3)))
    flow = {
        (str(pipeline.op(before)), str(pipeline.op(after)), lag)
        for before, after, lag in zip(
            *(column.tolist() for column in device_relaxation.implied_precedence(subset)),
            strict=True,
        )
    }
    assert ("0F1", "1F1", 0) in flow
    assert ("1B1", "0B1", 0) in flow
    assert ("2F3", "2B3", 0) in flow
    assert len(flow) == 3 * 3 * 3 + 2 * 2 * 4 + 3 * 2 * 4  # order, links, F-B and B-W


def test_a_model_takes_time_to_build_for_every_operation_of_the_problem_and_of_the_subset() -> None:
    """Half of the operations are those of one device of two."""
    pipeline = Pipeline(stages=2, batches=4)
    problem = Problem(pipeline, Objective.MAKESPAN, BackwardKind.SPLIT)
    params = RelaxationParams(operation_seconds=3.0, cut_seconds=1.0)
    operations = problem.num_operations
    relaxation = RelaxationBound(problem, params)
    assert relaxation._building_seconds(frozenset({1})) == 3 * operations / 2 + operations
    assert relaxation._building_seconds(frozenset({0, 1})) == 3 * operations + operations
