"""List scheduling and local search: what they build is valid, within limits, and repeats itself."""

import time
from random import Random

import pytest

from ppopt import Pipeline, verify
from ppopt.cancellation import scope
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.instance import Instance
from ppopt.schedule import timing
from ppopt.schedule.list_scheduling import (
    ListScheduler,
    PriorityRule,
    RuleStyle,
    _RuleSimulation,
    one_at_a_time,
)
from ppopt.solver.bounds.device_bounds import infeasibility, minimum_memory
from ppopt.solver.heuristics.priority_rules import priority_rules


def draw(rng: Random, **fixed: object) -> Pipeline:
    """A pipeline of unequal stages; activations of 2, so that B can free half.

    With `frozen`, some stages are, mostly the first ones.
    """
    size = rng.randint(1, 5)
    if fixed.get("frozen"):
        first = rng.randint(0, size)
        fixed["frozen"] = [index < first or rng.random() < 0.3 for index in range(size)]
    costs = {
        "forward": [rng.randint(1, 5) for _ in range(size)],
        "backward_input": [rng.randint(0, 5) for _ in range(size)],
        "weight": [rng.randint(0, 5) for _ in range(size)],
        "p2p": rng.randint(0, 2),
        "activation": 2,
        "memory_b": rng.choice([0, -1]),
        "mem_limit": rng.choice([2, 4, 6, 9, None]),
    }
    return Pipeline(stages=size, batches=2 * rng.randint(1, 4), **(costs | fixed))


def split(pipeline: Pipeline) -> Instance:
    return Instance(pipeline, BackwardKind.SPLIT)


def draw_rule(rng: Random, pipeline: Pipeline) -> PriorityRule:
    style = RuleStyle(
        forward_first=rng.random() < 0.4,
        patience=rng.choice([0, 50, 99]),
        memory_first=rng.random() < 0.4,
        prompt=rng.random() < 0.4,
    )
    return PriorityRule.of((rng.randint(1, 6) for _ in range(pipeline.num_stages)), style)


def test_the_short_loop_is_the_long_one() -> None:
    """`plain` leaves out what plain pipelines do not need, and nothing else."""
    rng, plain = Random(1), 0
    for index in range(160):
        pipeline = draw(rng, frozen=index % 2 == 1)
        scheduler = ListScheduler(Instance.uniform(pipeline, fused=rng.random() < 0.3))
        rule = draw_rule(rng, pipeline)
        assert scheduler.plain or index % 2
        if scheduler.plain:
            plain += index % 2
            assert scheduler.build(rule) == _RuleSimulation(scheduler, rule).result()
    assert plain > 10


@pytest.mark.parametrize(
    "fixed",
    [
        {},
        {"memory_b": 1},
        {"placement": "v"},
        {"placement": "interleaved", "chunks": 3},
        {"routes": 2},
        {"frozen": True},
        {"frozen": True, "memory_b": 0, "mem_limit": 6},
        {"placement": "v", "memory_b": 1, "mem_limit": 8},
    ],
)
def test_what_is_built_is_valid_and_no_slower_than_simulated(fixed: dict) -> None:
    rng = Random(2)
    built = 0
    for _ in range(20):
        pipeline = draw(rng, **fixed)
        fused = rng.random() < 0.3
        if infeasibility(Instance.uniform(pipeline, fused=fused)):
            continue
        orders = ListScheduler(Instance.uniform(pipeline, fused=fused)).build(
            draw_rule(rng, pipeline)
        )
        if orders is None:
            continue
        built += 1
        schedule = timing.schedule(pipeline, orders.arrays())
        assert verify(schedule) == []
        assert schedule.metrics.makespan_ticks <= orders.makespan  # a held-back W may start sooner
    assert built > 10


@pytest.mark.parametrize("chunks", [1, 2])
def test_building_ends_with_its_scope(chunks: int) -> None:
    scheduler = ListScheduler(split(Pipeline(stages=4, batches=6, chunks=chunks, placement="v")))
    rule = next(iter(priority_rules(scheduler.instance)))
    with scope(time.monotonic() - 1) as entered:
        scheduler.build(rule)
    assert entered.ended


def test_the_rules_never_get_stuck_on_split_linear_pipelines() -> None:
    rng = Random(3)
    for _ in range(25):
        pipeline = draw(rng)
        assert all(
            ListScheduler(split(pipeline)).build(rule) for rule in priority_rules(split(pipeline))
        )


def order(pipeline: Pipeline, device: int, style: RuleStyle) -> str:
    orders = ListScheduler(split(pipeline)).build(PriorityRule.of([9] * pipeline.num_stages, style))
    ops = map(pipeline.op, orders.orders[device])
    return " ".join(f"{op.kind.name}{op.microbatch}" for op in ops)


def test_w_goes_first_where_memory_stops_a_forward() -> None:
    pipeline = Pipeline(stages=3, batches=4, forward=1, backward_input=1, weight=2, mem_limit=2)
    late, first = (
        order(pipeline, 0, RuleStyle(True, memory_first=memory_first))
        for memory_first in (False, True)
    )
    assert late == "F0 F1 B0 B1 W0 F2 W1 F3 B2 W2 B3 W3"
    assert first == "F0 F1 B0 W0 F2 B1 W1 F3 B2 W2 B3 W3"


def test_a_prompt_w_delays_no_forward() -> None:
    """W0 of stage 1, from 5 to 7, ends after F1 comes at 6, by as much as patience allows."""
    pipeline = Pipeline(stages=2, batches=3, forward=(3, 1), backward_input=(1, 1), weight=(1, 2))
    slow, prompt = (
        order(pipeline, 1, RuleStyle(True, 50, prompt=prompt)) for prompt in (False, True)
    )
    assert slow == "F0 B0 W0 F1 B1 F2 B2 W1 W2"
    assert prompt == "F0 B0 F1 B1 F2 B2 W0 W1 W2"


@pytest.mark.parametrize(
    "fixed", [{}, {"placement": "v"}, {"routes": 2}, {"memory_b": 1}, {"frozen": True}]
)
@pytest.mark.parametrize("fused", [False, True])
def test_one_at_a_time_needs_the_least_memory(fixed: dict, *, fused: bool) -> None:
    rng = Random(4)
    for _ in range(8):
        pipeline = draw(rng, backward_input=1, **({"mem_limit": None} | fixed))
        instance = Instance.uniform(pipeline, fused=fused)
        schedule = timing.schedule(pipeline, one_at_a_time(instance))
        assert list(schedule.metrics.peak_memory_ticks) == minimum_memory(instance)
