"""Durations and memory that differ by microbatch in the instance alone.

The factors of these tests are put into `Instance.operation_modes`, for pipelines with a unit of
time: every microbatch has its own durations and memory, the shortest and the smallest those of the
pipeline. Nothing else knows them, so whatever takes the amounts of a class for those of its
operations shows here. Schedules are checked, and their memory summed, in plain Python. Optima come
from all orders of all devices.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate, islice, product
from random import Random
from typing import Any

import pytest

from ppopt import Objective, SolveParams, Status, solve
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.instance import SPLIT_MODE, Instance
from ppopt.problem.kinds import ResourceKind
from ppopt.problem.operation import AuxiliaryKind, Op, OpKind
from ppopt.problem.operation_classes import Mode, OperationClass
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.problem import Problem
from ppopt.schedule import timing
from ppopt.schedule.list_scheduling import ListScheduler, _RuleGeneration, one_at_a_time
from ppopt.schedule.operations import Operation
from ppopt.schedule.schedule import Schedule
from ppopt.solver import incumbent, search
from ppopt.solver.bounds.device_bounds import device_bound
from ppopt.solver.heuristics.construction import initial_schedules
from ppopt.solver.heuristics.moves import State
from ppopt.solver.heuristics.priority_rules import priority_rules
from ppopt.solver.heuristics.repair import repair
from ppopt.solver.portfolio import NAMES
from ppopt.strategies import Options, names, resolve
from ppopt.strategies.schedules import schedules
from tests.factories import searches
from tests.factories.tables import besides_of
from tests.oracles.different_exhaustive import Different, least_makespan

TIMES = (2, 1, 4, 3, 1, 2, 5, 1) * 32
"""Factor of every microbatch on durations."""
MEMORY = (1, 3, 2, 1, 2, 1, 1, 4) * 32
"""Factor of every microbatch on memory; enough for a run of 64 microbatches made longer."""
UNEQUAL = {
    "time_unit": "ms",
    "forward": [3, 5, 4, 3],
    "backward": [8, 9, 7, 8],
    "weight": [2, 4, 3, 3],
    "activation": [3, 4, 5, 4],
    "p2p": 1,
}
F, B, W, BW = OpKind
Amounts = tuple[int, int]
"""Memory allocated at the start and freed at the end."""


@pytest.fixture(autouse=True)
def _factors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the factors into every instance, and let the search check schedules by them."""
    alike, pair_time = Instance.operation_modes, Instance.pair_time

    def differing(self: Instance, number: int, option: int = SPLIT_MODE) -> tuple[Mode, ...]:
        op_class = self.classes[number]
        modes = alike(self, number, option)
        if self.pipeline.time_unit is None or not op_class.per_microbatch:
            return modes
        first = op_class.route * self.batches
        return tuple(
            mode._replace(
                duration=mode.duration * TIMES[microbatch],
                takes=mode.takes * MEMORY[microbatch],
                gives=mode.gives * MEMORY[microbatch],
            )
            for mode in modes
            for microbatch in range(first, first + op_class.size)
        )

    def differing_pair_time(self: Instance, forward: int, backward: int) -> int:
        time = pair_time(self, forward, backward)
        both = (self.pipeline.op(forward).microbatch, self.pipeline.op(backward).microbatch)
        return time * (max(TIMES[place] for place in both) if self.pipeline.time_unit else 1)

    monkeypatch.setattr(Instance, "operation_modes", differing)
    monkeypatch.setattr(Instance, "pair_time", differing_pair_time)
    for module in (incumbent, search):
        monkeypatch.setattr(module, "checked", checked)


def checked(schedule: Schedule) -> Schedule:
    """Return a schedule that keeps every rule."""
    check(schedule)
    limits, most = schedule.pipeline.ticks.limits, peaks(schedule)
    if limits is not None:
        assert all(peak <= limit for peak, limit in zip(most, limits, strict=True)), most
    assert list(schedule.metrics.peak_memory_ticks) == most
    return schedule


def check(schedule: Schedule, *, earliest: bool = False) -> None:
    """Durations, data flow, one operation at a time, and the order of microbatches.

    `earliest`: every operation starts as soon as the one before it and its inputs have ended.
    """
    pipeline, rows = schedule.pipeline, list(schedule.rows())
    ends = {row.op: row.end for row in rows}
    last: dict[tuple[int, ...], int] = {}
    free: dict[int, int] = defaultdict(int)
    for unit in units(rows):
        begin, end, device = unit[0].start, unit[0].end, unit[0].device
        assert end - begin == length(pipeline, [row.op for row in unit]), unit
        soonest = free[device]
        for row in unit:
            key = (row.kind, row.stage, pipeline.route(row.microbatch), row.slice)
            assert last.get(key, -1) < row.microbatch, f"{row.op} is out of order"
            last[key] = row.microbatch
            waits = inputs(pipeline, ends, row.op)
            soonest = max([soonest, *(ends[before] + lag for before, lag in waits)])
        assert begin == soonest if earliest else begin >= soonest, unit
        free[device] = end


def units(rows: list[Operation]) -> Iterator[list[Operation]]:
    """Operations in their order, the two of a pair together."""
    for place, row in enumerate(rows):
        if row.pair < 0:
            yield [row]
        elif row.pair == rows[place - 1].pair and place:
            assert (row.start, row.end) == (rows[place - 1].start, rows[place - 1].end)
            yield [rows[place - 1], row]


def length(pipeline: Pipeline, ops: list[Op]) -> int:
    """Ticks of an operation, or of a pair."""
    if len(ops) == 1:
        return duration(pipeline, ops[0])
    forward, backward = ops
    factor = max(TIMES[forward.microbatch], TIMES[backward.microbatch])
    return factor * pipeline.ticks.pair_time(forward.stage, backward.kind, backward.stage)


def duration(pipeline: Pipeline, op: Op) -> int:
    """Ticks of an operation."""
    return pipeline.ticks.durations[op.kind][op.stage] * TIMES[op.microbatch]


def memory(pipeline: Pipeline, op: Op) -> Amounts:
    """What an operation allocates and frees."""
    amounts = pipeline.ticks.held_alone(op.kind, op.stage, with_host=pipeline.has_offload)
    return amounts[0] * MEMORY[op.microbatch], amounts[1] * MEMORY[op.microbatch]


def inputs(pipeline: Pipeline, there: dict[Op, int], op: Op) -> Iterator[tuple[Op, int]]:
    """What an operation waits for, and the lag."""
    route, last = pipeline.route(op.microbatch), pipeline.num_stages - 1
    if op.kind is F:
        if op.stage:
            yield op._replace(stage=op.stage - 1), pipeline.ticks.down[route][op.stage - 1]
        if op.slice:
            yield op._replace(slice=op.slice - 1), 0
        return
    if op.kind is W:
        yield op._replace(kind=B), 0
        return
    yield op._replace(kind=F), 0
    others = []
    if op.stage < last:
        others.append((op.stage + 1, op.slice, pipeline.ticks.up[route][op.stage]))
    if op.slice < pipeline.num_slices - 1:
        others.append((op.stage, op.slice + 1, 0))
    for stage, part, lag in others:
        both = (Op(kind, stage, op.microbatch, part) for kind in (B, BW))
        yield next(other for other in both if other in there), lag


def peaks(schedule: Schedule) -> list[int]:
    """Most memory of every device; at one instant it is first freed, then allocated."""
    pipeline = schedule.pipeline
    events: list[list[tuple[int, int]]] = [[] for _ in range(pipeline.num_devices)]
    for row in schedule.rows():
        allocated, freed = memory(pipeline, row.op)
        events[row.device] += [(row.start, allocated), (row.end, -freed)]
    for moved in besides_of(schedule).rows():
        amount = pipeline.ticks.costs.offload_memory[moved.stage] * MEMORY[moved.microbatch]
        back = moved.kind is AuxiliaryKind.RELOAD
        events[moved.device].append((moved.start, amount) if back else (moved.end, -amount))
    statics = zip(events, pipeline.ticks.static, strict=True)
    return [
        max(accumulate((amount for _, amount in sorted(mine)), initial=static))
        for mine, static in statics
    ]


@pytest.mark.parametrize("name", names())
def test_orders_of_every_strategy_are_timed_and_measured(name: str) -> None:
    strategy = resolve(name)
    pipeline = strategy.apply(Pipeline(stages=4, batches=8, **UNEQUAL), Options())
    for made in schedules(strategy, pipeline, Objective.MAKESPAN, Options()):
        check(made, earliest=True)
        assert list(made.metrics.peak_memory_ticks) == peaks(made)


PLAIN = {"stages": 4, "batches": 8, **UNEQUAL}
TRANSIENT = {**PLAIN, "memory_b": 2}
V = {**PLAIN, "chunks": 2, "placement": "v"}
V_TRANSIENT = {**TRANSIENT, "chunks": 2, "placement": "v"}
FIELDS = {"plain": PLAIN, "transient": TRANSIENT, "v": V, "v-transient": V_TRANSIENT}


def limits(fields: dict[str, Any], *, fused: bool) -> Iterator[Pipeline]:
    """The pipeline with the limit that one microbatch at a time needs, and somewhat more."""
    instance = Instance.uniform(Pipeline(**fields), fused=fused)
    alone = timing.schedule(instance.pipeline, one_at_a_time(instance))
    check(alone, earliest=True)
    for more in (0, 1, 3, 7, 15):
        yield replace(instance.pipeline, mem_limit=max(peaks(alone)) + more)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("fields", FIELDS.values(), ids=FIELDS)
def test_repaired_orders_fit_the_limits(fields: dict[str, Any], *, fused: bool) -> None:
    free = Pipeline(**fields)
    kind = BackwardKind.uniform(fused=fused)
    initial = list(filter(None, initial_schedules(Problem(free, Objective.MAKESPAN, kind))))
    for pipeline in limits(fields, fused=fused):
        for _, schedule in initial:
            repaired = repair(schedule, Instance(pipeline, kind))
            assert repaired is not None
            checked(timing.schedule(pipeline, repaired))


def test_one_microbatch_at_a_time_splits_what_holds_less_split() -> None:
    """BW allocates 5 beside the activation of 4, B and W allocate 1 each."""
    pipeline = Pipeline(
        time_unit="ms",
        stages=2,
        batches=4,
        activation=4,
        input_workspace=1,
        weight_workspace=1,
        backward_workspace=5,
    )
    made = timing.schedule(pipeline, one_at_a_time(Instance(pipeline, BackwardKind.MIXED)))
    assert BW not in made.kind
    assert list(made.metrics.peak_memory_ticks) == [5 * max(MEMORY[:4])] * 2


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
                assert built == _RuleGeneration(scheduler, rule).result()
            if built is not None:
                schedule = checked(timing.schedule(pipeline, built.arrays()))
                assert built.makespan >= schedule.metrics.makespan_ticks
                count += 1
    assert count > 5


@pytest.mark.parametrize("prefetch", ["late", "early"])
def test_moves_to_the_host_take_the_memory_of_their_microbatch(prefetch: str) -> None:
    pipeline = Pipeline(
        time_unit="ms",
        stages=2,
        batches=6,
        activation=4,
        offload_memory=3,
        offload_time=1,
        mem_limit=30,
    )
    orders = resolve("1f1b").build(pipeline, Options())
    made = timing.schedule(pipeline, orders, prefetch=timing.Prefetch(prefetch))
    assert made.operations.on(ResourceKind.HOST).any()
    checked(made)


WHOLE = {BackwardKind.SPLIT: False, BackwardKind.WHOLE: True, BackwardKind.MIXED: None}


def least(pipeline: Pipeline, kind: BackwardKind) -> int | None:
    """Least makespan in ticks, from all orders of all devices, one stage each; None: none fits."""
    zeros, limits = (0,) * pipeline.num_stages, pipeline.limits
    best = least_makespan(
        Different(
            *(pipeline.forward, pipeline.backward_input, pipeline.weight, pipeline.backward),
            *(pipeline.activation, zeros, zeros, pipeline.p2p),
            *(TIMES[: pipeline.batches], MEMORY[: pipeline.batches]),
            None if limits is None else limits[0],
        ),
        whole=WHOLE[kind],
    )
    return None if best is None else int(best * pipeline.ticks.per_unit)


def cases(seed: int, count: int) -> Iterator[tuple[Pipeline, BackwardKind, int]]:
    """Pipelines of up to 3 stages of one device each, and their least makespan."""
    rng = Random(seed)
    while count:
        kind = rng.choice(list(BackwardKind))
        stages = rng.randint(1, 2 if kind is BackwardKind.MIXED else 3)
        few = kind is BackwardKind.MIXED or (kind is BackwardKind.SPLIT and stages == 3)
        pipeline = Pipeline(
            time_unit="ms",
            stages=stages,
            batches=2 if few else 3,
            forward=[rng.randint(1, 4) for _ in range(stages)],
            backward_input=[rng.randint(1, 4) for _ in range(stages)],
            weight=[rng.randint(1, 4) for _ in range(stages)],
            backward=[rng.randint(3, 6) for _ in range(stages)],
            p2p=rng.randint(0, 2),
            mem_limit=rng.choice([None, 3, 4, 5]),
        )
        best = least(pipeline, kind)
        if best is not None:
            count -= 1
            yield pipeline, kind, best


def test_searches_reach_the_optimum_and_prove_it() -> None:
    for pipeline, kind, best in cases(seed=1, count=12):
        found = solve(pipeline, backward_kind=kind, workers=1, time_limit=600)
        assert found.status is Status.OPTIMAL
        assert found.schedule.metrics.makespan_ticks == best, (pipeline, kind)


LONG = {"time_unit": "ms", "stages": 2, "batches": 64, "forward": [1, 2], "mem_limit": 9}


@pytest.mark.parametrize("fields", [PLAIN, TRANSIENT, V, LONG], ids=["plain", "held", "v", "long"])
@pytest.mark.parametrize("kind", BackwardKind)
def test_schedules_of_the_whole_search(fields: dict[str, Any], kind: BackwardKind) -> None:
    """They are larger than what ends by proof, so that every heuristic has its turns."""
    pipeline = Pipeline(**{"mem_limit": 50, **fields})
    assert solve(pipeline, backward_kind=kind, workers=1, time_limit=2).schedule is not None


@pytest.mark.parametrize("name", NAMES)
def test_every_method_alone_keeps_times_and_memory(name: str) -> None:
    params = replace(SolveParams(), without=frozenset(NAMES) - {name})
    for pipeline, kind, best in cases(seed=2, count=6):
        found = solve(pipeline, backward_kind=kind, workers=1, time_limit=0.3, params=params)
        assert found.lower_bound * pipeline.ticks.per_unit <= best, (pipeline, kind)
        if found.schedule is not None:
            assert found.schedule.metrics.makespan_ticks >= best


def test_bounds_of_devices_and_dynamic_programs_hold() -> None:
    rng = Random(5)
    for pipeline, kind, best in cases(seed=3, count=30):
        problem = Problem(pipeline, Objective.MAKESPAN, kind).relaxed
        assert device_bound(problem.instance, Objective.MAKESPAN).value <= best
        every = range(pipeline.num_devices)
        some = tuple(sorted(rng.sample(every, rng.randint(1, len(every)))))
        assert searches.ended(problem, some, best + 1).least <= best


def test_makers_of_orders_read_no_amount_of_a_class(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that read one would take it for that of every microbatch."""
    pipelines = [Pipeline(**fields, mem_limit=50) for fields in (PLAIN, TRANSIENT, V)]
    rules = {
        (pipeline, fused): next(priority_rules(Instance.uniform(pipeline, fused=fused)))
        for pipeline, fused in product(pipelines, (False, True))
    }
    for field in ("duration", "takes", "gives", "change"):
        monkeypatch.setattr(OperationClass, field, property(lambda _: pytest.fail("of a class")))
    for name in names():
        pipeline = resolve(name).apply(Pipeline(**PLAIN), Options())
        made = timing.schedule(pipeline, resolve(name).build(pipeline, Options()))
        assert made.metrics.makespan_ticks > 0
    for (pipeline, fused), rule in rules.items():
        instance = Instance.uniform(pipeline, fused=fused)
        built = ListScheduler(instance).build(rule)
        orders = one_at_a_time(instance) if built is None else built.arrays()
        made = timing.schedule(pipeline, orders)
        assert repair(made, instance) is not None
        problem = Problem(pipeline, Objective.MAKESPAN, BackwardKind.uniform(fused=fused))
        assert State.of_schedule(problem, made).value == made.metrics.makespan_ticks
