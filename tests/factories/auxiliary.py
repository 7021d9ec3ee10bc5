"""Random schedules with work around the microbatches or moves to the host, timed here alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from hypothesis import assume
from hypothesis import strategies as st

from ppopt.problem.operation import AuxiliaryKind
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.schedule import Schedule
from tests.factories.schedules import BW, F, W, limited, schedules, table
from tests.factories.tables import joined

UNSHARD, SYNC = AuxiliaryKind.UNSHARD, AuxiliaryKind.GRADIENT_SYNC
OPTIMIZER = AuxiliaryKind.OPTIMIZER
AuxiliaryRow = tuple[int, ...]
"""A row of `tests.factories.tables.auxiliary_table`."""


@st.composite
def with_gradient_work(
    draw: st.DrawFn, problems: st.SearchStrategy[Pipeline], backwards: Sequence[str]
) -> Schedule:
    """Draw a valid schedule, and add unshards before all of it and the rest behind."""
    schedule = draw(schedules(problems, backwards))
    times = {field: draw(st.integers(1, 3)) for field in ("unshard", "gradient_sync", "optimizer")}
    pipeline = replace(
        schedule.pipeline,
        **times,
        unshard_memory=draw(st.integers(0, 2)),
        optimizer_barrier=draw(st.booleans()),
        mem_limit=None,
    )
    return _surrounded(limited(schedule, None), pipeline, Random(draw(st.integers(0, 2**32 - 1))))


def _surrounded(schedule: Schedule, pipeline: Pipeline, random: Random) -> Schedule:
    ticks, finer = pipeline.ticks, pipeline.ticks.per_unit // schedule.pipeline.ticks.per_unit
    places = [
        (route, stage, device)
        for route, hosts in enumerate(pipeline.hosts)
        for stage, device in enumerate(hosts)
    ]
    random.shuffle(places)
    free = [0] * pipeline.num_devices
    added: list[AuxiliaryRow] = []

    def add(kind: int, slot: tuple[int, int, int], earliest: int, time: int) -> int:
        route, stage, device = slot
        start = max(free[device], earliest)
        free[device] = start + time
        added.append((kind, stage, device, start, free[device], route))
        return free[device]

    for slot in places:
        add(UNSHARD, slot, 0, ticks.costs.unshard[slot[1]])
    begin = max(free)
    rows = [
        (*row[:4], begin + finer * row[4], begin + finer * row[5], *row[6:])
        for row in table(schedule)
    ]
    last: dict[tuple[int, int], int] = {}
    for row in rows:
        if row[0] in (W, BW):
            key = pipeline.route(row[2]), row[1]
            last[key] = max(last.get(key, 0), row[5])
    ends = {
        slot: add(SYNC, slot, last[slot[:2]], ticks.costs.gradient_sync[slot[1]]) for slot in places
    }
    for device in range(pipeline.num_devices):
        own_places = [slot for slot in places if slot[2] == device]
        waits = places if pipeline.optimizer_barrier else own_places
        time = sum(ticks.costs.optimizer[slot[1]] for slot in own_places)
        free[device] = 0
        add(OPTIMIZER, min(own_places), max(ends[slot] for slot in waits), time)
    return joined(pipeline, rows, auxiliary=added)


# Random schedules with moves to the host, independent of the package's own timing.


OFFLOAD, RELOAD = AuxiliaryKind.OFFLOAD, AuxiliaryKind.RELOAD


@st.composite
def with_offload(
    draw: st.DrawFn, problems: st.SearchStrategy[Pipeline], backwards: Sequence[str]
) -> Schedule:
    """Draw a valid schedule, and add every OFFLOAD right after its F, every RELOAD just in time."""
    schedule = limited(draw(schedules(problems, backwards)), None)
    smallest = min(schedule.pipeline.kept or schedule.pipeline.activation)
    assume(smallest > 0)
    pipeline = replace(
        schedule.pipeline,
        offload_memory=smallest / draw(st.integers(1, 3)),
        offload_time=draw(st.integers(1, 3)),
        host_link=draw(st.sampled_from(("duplex", "shared"))),
        mem_limit=None,
    )
    return _with_transfers(schedule, pipeline)


def _with_transfers(schedule: Schedule, pipeline: Pipeline) -> Schedule:
    """The schedule with starts so many times as late that two moves fit between operations."""
    ticks, finer = pipeline.ticks, pipeline.ticks.per_unit // schedule.pipeline.ticks.per_unit
    factor = 2 * max(ticks.costs.offload_time) + 1
    rows = [
        (*row[:4], begin := factor * finer * row[4], begin + finer * (row[5] - row[4]), *row[6:])
        for row in table(schedule)
    ]
    moves = []
    for kind, stage, microbatch, device, start, end, slice_index, _ in rows:
        if kind != W:
            time = ticks.costs.offload_time[stage]
            move, begin = (OFFLOAD, end) if kind == F else (RELOAD, start - time)
            slot = (pipeline.route(microbatch), microbatch, slice_index)
            moves.append((move, stage, device, begin, begin + time, *slot))
    backs = [move[2:4] for move in moves if move[0] == RELOAD]
    assume(len(backs) == len(set(backs)))
    return joined(pipeline, rows, auxiliary=moves)
