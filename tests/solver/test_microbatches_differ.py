"""Microbatches that differ, in their given order: the search against trying every schedule.

Whatever takes the amounts of a class of operations for those of one of them shows here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import islice, product
from random import Random
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ppopt import (
    Layer,
    Model,
    Objective,
    Pipeline,
    SolveParams,
    Verdict,
    evaluate,
    recheck,
    solve,
    verify,
)
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.instance import Instance
from ppopt.problem.operation import OpKind
from ppopt.problem.operation_classes import OperationClass
from ppopt.problem.problem import Problem
from ppopt.schedule import timing
from ppopt.schedule.list_scheduling import ListScheduler, _RuleSimulation, one_at_a_time
from ppopt.solver.bounds.device_bounds import device_bound, minimum_memory
from ppopt.solver.dynamic_programming.applicability import is_supported
from ppopt.solver.heuristics.moves import State
from ppopt.solver.heuristics.priority_rules import priority_rules
from ppopt.solver.parameters import RoundParams
from ppopt.solver.portfolio import NAMES, PROVING
from ppopt.solver.result import Status
from ppopt.strategies import Options, names, resolve
from ppopt.strategies.schedules import schedules
from tests.factories import searches
from tests.oracles.different_exhaustive import Different, least_makespan
from tests.oracles.rechecked import assert_proved, assert_solved
from tests.tiers import examples, first

FACTORS = (Fraction(1), Fraction(2), Fraction(1, 2), Fraction(3), Fraction(4, 3))


@st.composite
def cases(draw: st.DrawFn, max_batches: int = 3) -> Different:
    """Two stages of so many microbatches at most, or one of one more."""
    stages = draw(st.integers(1, 2))
    batches = draw(st.integers(2, max_batches + 1 if stages == 1 else max_batches))

    def row(*choices: int) -> tuple[int, ...]:
        return tuple(draw(st.sampled_from(choices)) for _ in range(stages))

    def factors() -> tuple[Fraction, ...]:
        return tuple(draw(st.sampled_from(FACTORS)) for _ in range(batches))

    b, w = row(1, 2, 3), row(0, 1, 2)
    limit = draw(st.sampled_from((None, None, 1, 2, 3, 4)))
    return Different(
        forward=row(1, 2, 3),
        backward_input=b,
        weight=w,
        backward=tuple(map(sum, zip(b, w, strict=True))),
        activation=row(1, 2),
        memory_b=row(0, 0, -1, 1),
        workspace=row(0, 0, 1),
        delay=draw(st.sampled_from((0, 1))),
        times=factors(),
        memory=factors(),
        limit=None if limit is None else Fraction(limit),
    )


def pipeline_of(case: Different) -> Pipeline:
    return Pipeline(
        stages=len(case.forward),
        batches=len(case.times),
        forward=case.forward,
        backward_input=case.backward_input,
        weight=case.weight,
        backward=case.backward,
        activation=case.activation,
        memory_b=case.memory_b,
        workspace=case.workspace,
        p2p=case.delay,
        microbatch_times=case.times,
        microbatch_memory=case.memory,
        mem_limit=case.limit,
    )


@examples(20)
@given(cases(), st.booleans())
def test_the_search_finds_the_least_makespan(case: Different, whole: bool) -> None:
    assert_solved(pipeline_of(case), least_makespan(case, whole=whole), whole=whole, span=False)


@examples(15)
@given(cases(max_batches=2), st.data())
def test_backwards_of_either_kind(case: Different, data: st.DataObject) -> None:
    whole = tuple(
        data.draw(st.integers(1, b + w + 1))
        for b, w in zip(case.backward_input, case.weight, strict=True)
    )
    case = case._replace(backward=whole)
    result = solve(pipeline_of(case), workers=1, time_limit=600)
    optimum = least_makespan(case, whole=None)
    assert result.status is (Status.INFEASIBLE if optimum is None else Status.OPTIMAL)
    assert result.value == optimum
    assert_proved(result)


W_OF_AN_EARLIER_ONE = Different(
    forward=(1, 1),
    backward_input=(1, 1),
    weight=(1, 1),
    backward=(2, 2),
    activation=(1, 1),
    memory_b=(0, 0),
    workspace=(0, 0),
    delay=2,
    times=(Fraction(3), Fraction(1), Fraction(2)),
    memory=(Fraction(1),) * 3,
    limit=Fraction(2),
)
"""Its optimum runs the W of microbatch 0 behind the BW of microbatch 1: split, it comes later."""


def test_splitting_may_lose_where_microbatches_differ() -> None:
    split = least_makespan(W_OF_AN_EARLIER_ONE, whole=False)
    either = least_makespan(W_OF_AN_EARLIER_ONE, whole=None)
    assert either is not None
    assert split is not None
    assert either < split
    result = solve(pipeline_of(W_OF_AN_EARLIER_ONE), workers=1, time_limit=600)
    assert (result.status, result.value) == (Status.OPTIMAL, either)
    assert_proved(result)


def test_a_device_needs_the_largest_microbatch_of_each_route() -> None:
    fields: dict[str, Any] = {"stages": 2, "batches": 2, "routes": 2, "activation": [1, 100]}
    pipeline = Pipeline(**fields, microbatch_memory=[10, 1], mem_limit=[150, 1100])
    assert verify(evaluate(pipeline, "chimera")) == []
    result = solve(pipeline, workers=1)
    assert result.schedule is not None
    assert verify(result.schedule) == []
    tight = solve(replace(pipeline, mem_limit=[150, 999]), workers=1)
    assert tight.status is Status.INFEASIBLE
    assert recheck(tight, workers=1).verdict is Verdict.CONFIRMED


@pytest.mark.parametrize(
    ("time", "memory", "value"), [(1, ["1", "1.5"], 13), (3, ["1", "1.5"], 23)]
)
def test_moves_to_the_host_last_as_long_as_their_memory_says(
    time: int, memory: list[str], value: int
) -> None:
    """Both values are those of the same pipeline in ticks of a tenth."""
    fields: dict[str, Any] = {"stages": 2, "batches": 2, "activation": 4, "offload_memory": 4}
    pipeline = Pipeline(**fields, offload_time=time, microbatch_memory=memory, mem_limit=9)
    result = solve(pipeline, backward_kind="split", workers=1, time_limit=600)
    assert (result.status, result.value) == (Status.OPTIMAL, value)


def test_short_moves_to_the_host() -> None:
    fields: dict[str, Any] = {"stages": 2, "batches": 2, "activation": 4, "offload_memory": 2}
    pipeline = Pipeline(**fields, offload_time=1, microbatch_memory=["0.5", "1.5"])
    result = solve(pipeline, workers=1, time_limit=600)
    assert result.status is Status.OPTIMAL
    assert_proved(result)


def test_a_backward_that_allocates_less_than_its_workspace() -> None:
    layers = [
        Layer(forward=1, activation=0, workspace=3),
        Layer(forward=1, activation=1, count=2),
    ]
    fields: dict[str, Any] = {"stages": 2, "batches": 2, "partition": [2, 1], "mem_limit": 30}
    pipeline = Pipeline(**fields, model=Model(layers), microbatch_memory=[1, 3])
    result = solve(pipeline, workers=1, time_limit=600)
    assert result.status is Status.OPTIMAL
    assert_proved(result)


def test_equal_factors_are_a_change_of_units() -> None:
    plain = solve(Pipeline(stages=3, batches=4, mem_limit="1f1b"), workers=1)
    twice = solve(
        Pipeline(stages=3, batches=4, mem_limit="1f1b", microbatch_times=2, microbatch_memory=3),
        workers=1,
    )
    assert plain.value is not None
    assert (twice.status, twice.value) == (Status.OPTIMAL, 2 * plain.value)
    assert twice.schedule is not None
    assert plain.schedule is not None
    assert max(twice.schedule.peak_memory) == 3 * max(plain.schedule.peak_memory)


TIMES, MEMORY = (2, 1, 4, 3, 1, 2, 5, 1) * 8, (1, 3, 2, 1, 2, 1, 1, 4) * 8
PLAIN = {
    "stages": 4, "batches": 8, "p2p": 1, "forward": [3, 5, 4, 3], "backward": [8, 9, 7, 8],
    "weight": [2, 4, 3, 3], "activation": [3, 4, 5, 4], "microbatch_times": TIMES[:8],
    "microbatch_memory": MEMORY[:8],
}  # fmt: skip
V = {"chunks": 2, "placement": "v"}
FIELDS = {
    "plain": PLAIN,
    "transient": PLAIN | {"memory_b": 2},
    "v": PLAIN | V,
    "v-transient": PLAIN | V | {"memory_b": 2},
}
LONG = PLAIN | {
    "stages": 2, "batches": 64, "forward": [1, 2], "mem_limit": 9, "microbatch_times": TIMES,
    "microbatch_memory": MEMORY, "backward": None, "weight": None, "activation": 1,
}  # fmt: skip


@pytest.mark.parametrize("name", names())
def test_hand_strategies_take_the_given_order(name: str) -> None:
    strategy = resolve(name)
    pipeline = strategy.apply(Pipeline(**PLAIN), Options())
    listed = list(schedules(strategy, pipeline, Objective.MAKESPAN, Options()))
    assert listed
    for schedule in listed:
        assert verify(schedule, {"peak_memory": list(schedule.metrics.peak_memory_ticks)}) == []


def limits(fields: dict[str, Any], *, fused: bool) -> Iterator[Pipeline]:
    """The pipeline with the limit that one microbatch at a time needs, and somewhat more."""
    instance = Instance.uniform(Pipeline(**fields), fused=fused)
    alone = timing.schedule(instance.pipeline, one_at_a_time(instance))
    for more in (0, 1, 3, 7, 15):
        yield replace(instance.pipeline, mem_limit=max(alone.metrics.peak_memory) + more)


def test_one_microbatch_at_a_time_splits_what_holds_less_split() -> None:
    """BW allocates 5 in addition to the activation of 4, B and W allocate 1 each."""
    pipeline = Pipeline(
        stages=2, batches=4, activation=4, input_workspace=1, weight_workspace=1,
        backward_workspace=5, microbatch_times=1, microbatch_memory=MEMORY[:4],
    )  # fmt: skip
    schedule = timing.schedule(pipeline, one_at_a_time(Instance(pipeline, BackwardKind.MIXED)))
    assert OpKind.BW not in schedule.kind
    assert schedule.metrics.peak_memory == (4 * max(MEMORY[:4]) + 1,) * 2


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("fields", FIELDS.values(), ids=FIELDS)
def test_list_scheduling_keeps_times_and_limits(fields: dict[str, Any], *, fused: bool) -> None:
    """As the event loop of every pipeline, and as that of plain ones."""
    count = 0
    for pipeline in (Pipeline(**fields), *limits(fields, fused=fused)):
        instance = Instance.uniform(pipeline, fused=fused)
        scheduler = ListScheduler(instance)
        for rule in islice(priority_rules(instance), 5):
            built = scheduler.build(rule)
            if scheduler.plain:
                assert built == _RuleSimulation(scheduler, rule).result()
            if built is not None:
                schedule = timing.schedule(pipeline, built.arrays())
                assert verify(schedule) == []
                assert built.makespan >= schedule.metrics.makespan_ticks
                count += 1
    assert count > 5


@pytest.mark.parametrize("fields", [*FIELDS.values(), LONG], ids=[*FIELDS, "long"])
@pytest.mark.parametrize("kind", first(1, sorted(BackwardKind)))
def test_schedules_of_the_whole_search(fields: dict[str, Any], kind: BackwardKind) -> None:
    """Without methods that prove, so that every heuristic has its turns."""
    pipeline = Pipeline(**{"mem_limit": 50, **fields})
    params = SolveParams(without=PROVING, rounds=RoundParams(max_rounds=1))
    result = solve(pipeline, backward_kind=kind, workers=1, time_limit=600, params=params)
    assert result.schedule is not None


@pytest.mark.parametrize("name", NAMES)
@examples(4)
@given(case=cases(), whole=st.sampled_from((True, False, None)))
def test_every_method_alone_keeps_times_and_memory(
    name: str, case: Different, whole: bool | None
) -> None:
    best = least_makespan(case, whole=whole)
    assume(best is not None)
    params = SolveParams(without=frozenset(NAMES) - {name}, rounds=RoundParams(max_rounds=2))
    kind = {True: "whole", False: "split", None: "mixed"}[whole]
    result = solve(pipeline_of(case), backward_kind=kind, workers=1, time_limit=600, params=params)
    assert result.lower_bound <= best
    assert result.value is None or result.value >= best


@given(cases(), st.booleans(), st.randoms(use_true_random=False))
def test_bounds_of_devices_and_dynamic_programs_hold(
    case: Different, whole: bool, rng: Random
) -> None:
    optimum, pipeline = least_makespan(case, whole=whole), pipeline_of(case)
    assume(optimum is not None)
    best = int(optimum * pipeline.ticks.per_unit)
    problem = Problem(pipeline, Objective.MAKESPAN, BackwardKind.uniform(fused=whole)).relaxed
    assert device_bound(problem.instance, Objective.MAKESPAN).value <= best
    every = range(pipeline.num_devices)
    some = tuple(sorted(rng.sample(every, rng.randint(1, len(every)))))
    if is_supported(problem):
        assert searches.ended(problem, some, best + 1).lower_bound <= best


def test_makers_of_orders_read_no_amount_of_a_class(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that read one would take it for that of every microbatch."""
    pipelines = [Pipeline(**fields, mem_limit=50) for fields in FIELDS.values()]
    rules = {
        (pipeline, fused): next(priority_rules(Instance.uniform(pipeline, fused=fused)))
        for pipeline, fused in product(pipelines, (False, True))
    }
    for field in ("duration", "allocates", "frees", "change"):
        monkeypatch.setattr(OperationClass, field, property(lambda _: pytest.fail("of a class")))
    for name in names():
        pipeline = resolve(name).apply(Pipeline(**PLAIN), Options())
        schedule = timing.schedule(pipeline, resolve(name).build(pipeline, Options()))
        assert schedule.metrics.makespan_ticks > 0
    for (pipeline, fused), rule in rules.items():
        instance = Instance.uniform(pipeline, fused=fused)
        built = ListScheduler(instance).build(rule)
        orders = one_at_a_time(instance) if built is None else built.arrays()
        schedule = timing.schedule(pipeline, orders)
        problem = Problem(pipeline, Objective.MAKESPAN, BackwardKind.uniform(fused=fused))
        assert State.of_schedule(problem, schedule).value == schedule.metrics.makespan_ticks


def test_offload_of_a_part_of_a_stage_for_small_microbatches() -> None:
    """The half of an activation of 4 is 2, of which 1.5 stay; 3 of the other microbatch do."""
    layers = [
        Layer(forward=1, activation=1, offload_time=1, offload_memory=1, offload=True),
        Layer(forward=1, activation=3),
    ]
    pipeline = Model(layers * 2).pipeline(
        devices=2, batches=2, microbatch_times=(1, 2), microbatch_memory=("0.5", 1), mem_limit=4
    )
    assert solve(pipeline, workers=1, time_limit=600).status is Status.OPTIMAL


def test_costs_of_stages_allocate_no_more_than_layers() -> None:
    """BW of the first layer needs 5; before, it frees what F keeps of the second layer, 2 or 4.

    So it allocates 5 - 2 = 3 for the small microbatch and 5 - 4 = 1 for the large one, whose
    activation is 6.
    """
    layers = [Layer(forward=1, activation=2, workspace={"BW": 5}), Layer(forward=1, activation=4)]
    fields = {"microbatch_times": (1, 2), "microbatch_memory": ("0.5", 1), "mem_limit": 7}
    pipeline = Model(layers).pipeline(devices=1, batches=2, **fields)
    for same in (pipeline, pipeline.without_model()):
        problem = Problem(same, Objective.MAKESPAN, BackwardKind.WHOLE)
        minimum = minimum_memory(problem.instance)
        assert list(map(same.ticks.memory, minimum)) == [7]
