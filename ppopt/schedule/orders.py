"""Orders: for every device, the operations in the sequence in which it runs them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ppopt.errors import InputError
from ppopt.problem.arrays import Bools, Ints
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.operation import OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.schedule import Schedule
from ppopt.schedule.timetable import ALONE

Orders = Sequence[Ints]
"""For every device, the numbers of its operations in the order in which it runs them.

A negative entry ~code says that this operation runs as one with the entry before it: an
overlapped pair of an F and a B or BW of different microbatches.
"""


def portable(schedule: Schedule) -> Orders:
    """The orders of a schedule for pipelines of other costs, where they wait in no circle.

    Where stages run no backward (`ppopt.problem.frozen`), their B, W and BW may stand anywhere
    behind their F. Elsewhere such stages may be trained. So they are put where they would run if
    they waited for the stages after them; an F that one of them ran with then runs alone.
    """
    pipeline = schedule.pipeline
    first = pipeline.forward_only
    if not first:
        return schedule.orders
    empty = (schedule.stage < first) & (schedule.kind != OpKind.F)
    last = min(first, pipeline.num_stages - 1)
    arrived = np.zeros((pipeline.batches, pipeline.num_slices), dtype=np.int64)
    there = (schedule.stage == last) & (schedule.kind != OpKind.W)
    places = schedule.microbatch, schedule.slice
    np.maximum.at(arrived, tuple(column[there] for column in places), schedule.end[there])
    begin = np.where(empty, np.maximum(schedule.start, arrived[places]), schedule.start)
    end = np.where(empty, begin, schedule.end)
    apart = np.isin(schedule.pair, schedule.pair[empty])
    pair = np.where(apart, ALONE, schedule.pair)
    columns = (schedule.kind, schedule.stage, schedule.microbatch, schedule.device)
    moved = Schedule.from_columns(pipeline, *columns, begin, end, schedule.slice, pair)
    return moved.orders


def split_of(pipeline: Pipeline, orders: Orders) -> Bools:
    """Which backwards the orders split, [stage, microbatch, slice]; checks that they are complete.

    Raises InputError if an operation is missing, repeated, of both forms, or on a device that
    does not host its stage.
    """
    count = np.bincount(codes(np.concatenate(list(orders))), minlength=pipeline.num_codes)
    shape = (len(OpKind), pipeline.num_stages, pipeline.batches, pipeline.num_slices)
    forward, backward, weight, full = count.reshape(shape)
    wrong = (forward != 1) | (backward + full != 1) | (weight != backward)
    if wrong.any():
        stage, microbatch, part = (int(index) for index in np.argwhere(wrong)[0])
        here = count.reshape(shape)[:, stage, microbatch, part]
        found = [f"{here[kind]} {kind.name}" for kind in OpKind]
        raise InputError(
            f"stage {stage} microbatch {microbatch}: the orders hold {', '.join(found)}; "
            "each needs one F and either one BW or one B and one W"
        )
    _check_devices(pipeline, orders)
    return np.asarray(backward == 1)


def split_backwards(schedule: Schedule) -> Bools:
    """Which backwards a complete schedule splits, [stage, microbatch, slice]."""
    pipeline = schedule.pipeline
    split = np.zeros((pipeline.num_stages, pipeline.batches, pipeline.num_slices), dtype=bool)
    partial = schedule.kind == OpKind.B
    places = (schedule.stage, schedule.microbatch, schedule.slice)
    split[tuple(column[partial] for column in places)] = True
    return split


def rows_by_code(schedule: Schedule) -> Ints:
    """Row of every operation number of a complete schedule; -1: it has no such operation.

    Raises InputError if an operation is missing.
    """
    pipeline = schedule.pipeline
    places = (schedule.stage, schedule.microbatch, schedule.slice)
    row = np.full(pipeline.num_codes, -1)
    row[pipeline.code(schedule.kind, *places)] = np.arange(len(schedule))
    present = row.reshape(len(OpKind), -1) >= 0
    split = present[OpKind.B] | present[OpKind.W]
    needed = np.stack((np.ones_like(split), split, split, ~split))
    missing = np.flatnonzero(needed & ~present)
    if len(missing):
        raise InputError(
            f"the schedule is incomplete: {pipeline.op(missing[0])} is missing; "
            "`ppopt verify` lists all violations"
        )
    return row


def codes(order: Ints) -> Ints:
    """Numbers of the operations of an order, whether alone or in a pair."""
    return np.where(order < 0, ~order, order)


def overlapped_pairs(pipeline: Pipeline, orders: Orders) -> Ints:
    """Numbers of the operations that run as one, shape [pairs, 2]: F, then B or BW.

    Raises InputError if two entries that run as one are not such a pair.
    """
    found: list[Ints] = [np.empty((0, 2), dtype=np.int64)]
    for device, order in enumerate(orders):
        second = np.flatnonzero(order < 0)
        if not len(second):
            continue
        first = codes(order[np.maximum(second - 1, 0)])
        both = np.sort(np.stack((first, codes(order[second])), axis=1))
        _check_pairs(pipeline, device, both, (second == 0) | (order[second - 1] < 0))
        found.append(both)
    return np.concatenate(found)


def _check_pairs(pipeline: Pipeline, device: int, both: Ints, loose: Bools) -> None:
    part = np.divmod(both // pipeline.num_slices, pipeline.batches)
    kind, microbatch = part[0] // pipeline.num_stages, part[1]
    backward = (kind[:, 1] == OpKind.B) | (kind[:, 1] == OpKind.BW)
    right = (kind[:, 0] == OpKind.F) & backward & (microbatch[:, 0] != microbatch[:, 1])
    for wrong in both[loose | ~right]:
        one, other = map(pipeline.op, wrong)
        raise InputError(
            f"device {device}: {one} and {other} cannot run as one; "
            "pair an F with a B or BW of another microbatch"
        )


def devices(pipeline: Pipeline) -> Ints:
    """Device of every [stage, microbatch]."""
    route = np.arange(pipeline.batches) * pipeline.routes // pipeline.batches
    return np.array(pipeline.hosts, dtype=np.int64)[route].T


def _check_devices(pipeline: Pipeline, orders: Orders) -> None:
    host = np.tile(np.repeat(devices(pipeline), pipeline.num_slices), len(OpKind))
    for device, order in enumerate(map(codes, orders)):
        strange = order[host[order] != device]
        if len(strange):
            op = pipeline.op(strange[0])
            raise InputError(
                f"device {device}: {op} is in its order, but stage {op.stage} of microbatch "
                f"{op.microbatch} sits on device {host[strange[0]]}"
            )


def split_whole(pipeline: Pipeline, orders: Orders) -> Orders:
    """The same orders with every BW replaced by B and, at once, W."""
    size = pipeline.num_codes // len(OpKind)
    parts = []
    for order in orders:
        alone = codes(order)
        full = alone >= OpKind.BW * size
        pair = np.stack([alone, alone], axis=1)
        pair[full] += np.array([OpKind.B - OpKind.BW, OpKind.W - OpKind.BW]) * size
        pair[order < 0, 0] = ~pair[order < 0, 0]
        keep = np.stack([np.ones_like(full), full], axis=1)
        parts.append(pair[keep])
    return parts


def of_kind(pipeline: Pipeline, orders: Orders, kind: BackwardKind) -> Orders:
    """The orders with every backward split, or whole; as they are where the kind is mixed."""
    if kind is BackwardKind.SPLIT:
        return split_whole(pipeline, orders)
    return join_split(pipeline, orders) if kind is BackwardKind.WHOLE else orders


def join_split(pipeline: Pipeline, orders: Orders) -> Orders:
    """The same orders with every B replaced by BW and every W left out.

    No new circle of waits arises: what had to come before B still does, and less after it.
    """
    size = pipeline.num_codes // len(OpKind)
    parts = []
    for order in orders:
        kind = codes(order) // size
        whole = codes(order) + (kind == OpKind.B) * (OpKind.BW - OpKind.B) * size
        parts.append(np.where(order < 0, ~whole, whole)[kind != OpKind.W])
    return parts
