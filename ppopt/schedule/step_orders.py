"""The order of the operations that a device runs once in a step, for an order of its compute.

First come those that compute waits for, in the order in which it needs them; then those that wait
for compute, in the order in which it is done; then the optimizer. With one route this loses nothing
if memory does not matter: all unshards end before the first W or BW of any stage of the device
starts, and two neighbours out of order may be exchanged (earliest due date for unshards, earliest
release for syncs: Jackson, and Horn, in Pinedo, Scheduling, section 3.2).

`delay_until_memory_fits` delays operations of a timed schedule that allocate memory before compute
needs it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np

from ppopt.problem.arrays import Ints
from ppopt.problem.instance import ABSENT, SPLIT_MODE, WHOLE_MODE, Instance
from ppopt.problem.kinds import RECORDS, ResourceKind
from ppopt.problem.operation import ONCE
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.metrics import memory_of, memory_profile
from ppopt.schedule.operations import Operations, split_codes
from ppopt.schedule.orders import Orders, codes
from ppopt.schedule.schedule import Schedule

_OPENING = next(record.kind for record in RECORDS if record.precedes_compute)


def step_orders(instance: Instance, position: Ints) -> list[Ints]:
    """Numbers of the operations that devices run once in a step, in order, per device that has any.

    `position` has for every number of a compute operation a value that grows along the order of its
    device.
    """

    def key(class_id: int) -> tuple[int, int]:
        before = _compute(instance, position, instance.predecessors[class_id])
        after = _compute(instance, position, instance.successors[class_id])
        on_compute = instance.resources[instance.classes[class_id].resource].kind
        if on_compute is ResourceKind.COMPUTE:
            return 2, 0
        return (1, max(before)) if before else (0, min(after, default=0))

    hosted: list[list[int]] = [[] for _ in range(instance.pipeline.num_devices)]
    for class_id in instance.auxiliary_classes:
        if not instance.classes[class_id].per_microbatch:
            hosted[instance.device(class_id)].append(class_id)
    return [
        np.array(
            [instance.codes[number][0] for number in sorted(class_ids, key=key)], dtype=np.int64
        )
        for class_ids in hosted
        if class_ids
    ]


def lookahead_waits(pipeline: Pipeline, orders: Orders, ahead: int) -> tuple[Ints, Ints]:
    """Waits of unshards if device r gathers only its next r + `ahead` stages.

    Numbers of operations that end before others start. A stage is among the next ones of a row if
    fewer than that many other stages are computed before it. Its unshard follows the operation from
    which on it is (torchtitan's `pipeline_parallel_unshard_lookahead`: `auto` is r + 2; PyTorch
    pull request 196706). Weights are gathered once, so that of a stage its first operation counts.
    """
    waits = [
        (code, int(pipeline.code(_OPENING, stage, first)))
        for device, order in enumerate(orders)
        for stage, first, code in _issues(pipeline, order, device + ahead)
    ]
    before, after = np.array(waits, dtype=np.int64).reshape(-1, 2).T
    return before, after


def _issues(pipeline: Pipeline, order: Ints, window: int) -> Iterator[tuple[int, int, int]]:
    """Stage, first microbatch of its route and number of the operation that its unshard waits for.

    One for every stage that is not among the first `window` ones of the row.
    """
    _, stage, microbatch, _ = split_codes(pipeline, codes(order))
    each = pipeline.batches // pipeline.routes
    first = microbatch // each * each
    starts = np.flatnonzero(order >= 0)
    keys = list(zip(stage.tolist(), first.tolist(), strict=True))
    computed = [set(keys[low:high]) for low, high in pairwise((*starts.tolist(), len(keys)))]
    for key in dict.fromkeys(keys):
        place = next(index for index, stages in enumerate(computed) if key in stages)
        between: set[tuple[int, int]] = set()
        while place and len(between | computed[place - 1]) < window:
            place -= 1
            between |= computed[place]
        if place:
            yield *key, int(order[starts[place - 1]])


def releases(instance: Instance, position: Ints, named: Ints) -> dict[int, int]:
    """Earliest starts of compute because of operations once per step, in ticks.

    By `named`, which has a name for every operation number; `position` as in `step_orders`.
    """
    class_of = {
        int(instance.codes[class_id][0]): class_id for class_id in instance.auxiliary_classes
    }
    earliest: dict[int, int] = {}
    for order in step_orders(instance, position):
        end = 0
        for class_id in (class_of[code] for code in order.tolist()):
            kind = instance.classes[class_id].kind
            if kind is None or not RECORDS[kind].precedes_compute:
                break
            end += instance.times(class_id)[0]
            for after, _ in instance.successors[class_id]:
                if after not in instance.auxiliary_classes:
                    earliest[int(named[instance.codes[after][0]])] = end
    return earliest


def _compute(instance: Instance, position: Ints, links: tuple[tuple[int, int], ...]) -> list[int]:
    """Positions of the operations of the classes of compute among some classes."""
    positions: list[int] = []
    for class_id, _ in links:
        if class_id not in instance.auxiliary_classes:
            for option in (SPLIT_MODE, WHOLE_MODE):
                codes = instance.codes_in(class_id, option)
                present = position[codes[codes != ABSENT]]
                positions += present[present != ABSENT].tolist()
    return positions


def delay_until_memory_fits(schedule: Schedule) -> Schedule:
    """The same schedule, without peaks over the limit from memory that is allocated too early.

    Only operations that allocate memory before compute move. On every device over its limit they
    start, in their order, as early as their memory fits the limit until compute needs them.
    """
    limits = schedule.pipeline.ticks.limits
    if limits is None or schedule.fits_limits:
        return schedule
    peaks = schedule.metrics.peak_memory_ticks
    late = [device for device, limit in enumerate(limits) if peaks[device] > limit]
    start = schedule.operations.start.copy()
    for device in late:
        _delay(schedule, device, limits[device], start)
    return schedule.with_starts(start)


def _delay(schedule: Schedule, device: int, limit: int, start: Ints) -> None:
    """Delay the operations of a device that precede its compute, in `start`, until memory fits."""
    table = schedule.operations
    once = (table.device == device) & (table.microbatch == ONCE)
    opens = once & table.of(lambda record: record.precedes_compute)
    rows = np.flatnonzero(opens).tolist()
    closing = int(table.start[once & ~opens].min(initial=schedule.end.max()))
    allocated, _ = memory_of(table)
    memory = memory_profile(replace(schedule, operations=table.where(~once)), device)
    latest = _latest_starts(table, rows, closing)
    live = free = 0
    for row in rows:
        live += int(allocated[row])
        full = (memory.time < latest[row]) & (memory.level + live > limit)
        begin = free
        if full.any():
            last = int(np.flatnonzero(full)[-1])
            begin = max(free, min(latest[row], int(np.append(memory.time, latest[row])[last + 1])))
        start[row] = begin
        free = begin + int(table.end[row] - table.start[row])


def _latest_starts(table: Operations, rows: list[int], until: int) -> dict[int, int]:
    """Last starts of rows, in their order, that end by then and delay no compute, by row.

    In ticks.
    """
    latest: dict[int, int] = {}
    for row in reversed(rows):
        needed = table.computed & (table.stage == table.stage[row])
        needed &= table.route == table.route[row]
        until = min(until, int(table.start[needed].min()))
        until -= int(table.end[row] - table.start[row])
        latest[row] = until
    return latest
