"""Orders: for every device, the operations in the sequence in which it runs them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ppopt.errors import InputError
from ppopt.problem.arrays import Bools, Ints
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.operation import OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.operations import ALONE
from ppopt.schedule.schedule import Schedule

Orders = Sequence[Ints]
"""For every device, the numbers of its operations in the order in which it runs them.

A negative entry ~code says that this operation runs as one with the entry before it: an overlapped
pair of an F and a B or BW of different microbatches.
"""


def existing(pipeline: Pipeline, orders: Orders) -> Orders:
    """The orders without the operations that a pipeline does not have (`has_operations`)."""
    if pipeline.has_all_operations:
        return orders
    exists = np.repeat(
        np.array(pipeline.has_operations).ravel(), pipeline.batches * pipeline.num_slices
    )
    parts = []
    for order in orders:
        numbers = codes(order)
        present = exists[numbers]
        second = (order < 0) & np.append(False, present[:-1])[: len(order)]
        parts.append(np.where(second, ~numbers, numbers)[present])
    return parts


def portable(schedule: Schedule) -> Orders:
    """The orders of a schedule for pipelines of other costs, without circular waits.

    Stages that are frozen here may be trained there. So the orders also list the operations that
    this pipeline does not have, at positions where they could run. The B, or BW, of a stage follows
    the end of that of the next stage, and W follows B at once.
    """
    pipeline = schedule.pipeline
    if pipeline.has_all_operations:
        return schedule.orders
    backward, weight = (np.array(pipeline.has_operations[kind]) for kind in (OpKind.B, OpKind.W))
    rows = [np.stack(schedule.compute.columns[:8])]
    frozen = (schedule.kind == OpKind.B) & ~weight[schedule.stage]
    rows += [_at_end(rows[0][:, frozen], OpKind.W)]
    last = pipeline.num_stages - int(backward.sum())
    sources = (schedule.stage == last) & np.isin(schedule.kind, (OpKind.B, OpKind.BW))
    if last == pipeline.num_stages:
        sources = schedule.stage == last - 1
    ends = rows[0][:, sources]
    if last == pipeline.num_stages:  # the last slice of a microbatch runs its backward first
        ends[5] += ends[5].max() * (pipeline.num_slices - 1 - ends[6])
    for stage in range(last):
        kind = np.where(schedule.kind[sources] == OpKind.B, OpKind.B, OpKind.BW)
        own = _at_end(ends, kind)
        own[1] = stage
        own[3] = np.array(pipeline.hosts)[own[2] * pipeline.routes // pipeline.batches, stage]
        rows += [own, _at_end(own[:, kind == OpKind.B], OpKind.W)]
    return Schedule.from_columns(pipeline, *np.concatenate(rows, axis=1)).orders


def _at_end(rows: Ints, kind: OpKind | Ints) -> Ints:
    """Operations of a kind and of zero duration at the end of others of their microbatch.

    Rows are the columns of `Operation`.
    """
    copies = rows.copy()
    copies[0], copies[4], copies[7] = kind, copies[5], ALONE
    return copies


def split_of(pipeline: Pipeline, orders: Orders) -> Bools:
    """Which backwards the orders split, [stage, microbatch, slice]; checks that they are complete.

    A stage without backward splits none. Raises InputError if an operation is missing, repeated,
    of both forms, or on a device that does not host its stage.
    """
    count = np.bincount(codes(np.concatenate(list(orders))), minlength=pipeline.num_codes)
    shape = (len(OpKind), pipeline.num_stages, pipeline.batches, pipeline.num_slices)
    forward, backward, weight, full = count.reshape(shape)
    closed = weight
    if not pipeline.has_all_operations:
        exists = np.array(pipeline.has_operations)[:, :, None, None]
        closed = np.where(exists[OpKind.W], weight, weight + backward)
        full = full + ~exists[OpKind.B]
    wrong = (forward != 1) | (backward + full != 1) | (closed != backward)
    if wrong.any():
        stage, microbatch, slice_index = (int(index) for index in np.argwhere(wrong)[0])
        numbers = count.reshape(shape)[:, stage, microbatch, slice_index]
        counts = [f"{numbers[kind]} {kind.name}" for kind in OpKind]
        raise InputError(
            f"stage {stage} microbatch {microbatch}: the orders hold {', '.join(counts)}; "
            "each needs one F and either one BW or one B and one W"
        )
    _check_devices(pipeline, orders)
    return np.asarray(backward == 1)


def split_backwards(schedule: Schedule) -> Bools:
    """Which backwards a schedule splits, [stage, microbatch, slice].

    Raises InputError if an operation is missing.
    """
    pipeline = schedule.pipeline
    present = np.zeros(pipeline.num_codes, dtype=bool)
    present[schedule.compute.numbers] = True
    shape = (len(OpKind), pipeline.num_stages, pipeline.batches, pipeline.num_slices)
    present = present.reshape(shape)
    split = present[OpKind.B] | present[OpKind.W]
    needed = np.stack((np.ones_like(split), split, split, ~split))
    needed &= np.array(pipeline.has_operations)[:, :, None, None]
    missing = np.flatnonzero(needed & ~present)
    if len(missing):
        raise InputError(
            f"the schedule is incomplete: {pipeline.op(missing[0])} is missing; "
            "`ppopt verify` lists all violations"
        )
    return np.asarray(present[OpKind.B])


def codes(order: Ints) -> Ints:
    """Numbers of the operations of an order, whether alone or in a pair."""
    return np.where(order < 0, ~order, order)


def overlapped_pairs(pipeline: Pipeline, orders: Orders) -> Ints:
    """Numbers of the operations that run as one, shape [pairs, 2]: F, then B or BW.

    Raises InputError if two entries that run as one are not such a pair.
    """
    pairs: list[Ints] = [np.empty((0, 2), dtype=np.int64)]
    for device, order in enumerate(orders):
        second = np.flatnonzero(order < 0)
        if not len(second):
            continue
        first = codes(order[np.maximum(second - 1, 0)])
        both = np.sort(np.stack((first, codes(order[second])), axis=1))
        _check_pairs(pipeline, device, both, (second == 0) | (order[second - 1] < 0))
        pairs.append(both)
    return np.concatenate(pairs)


def _check_pairs(pipeline: Pipeline, device: int, both: Ints, loose: Bools) -> None:
    part = np.divmod(both // pipeline.num_slices, pipeline.batches)
    kind, microbatch = part[0] // pipeline.num_stages, part[1]
    backward = (kind[:, 1] == OpKind.B) | (kind[:, 1] == OpKind.BW)
    right = (kind[:, 0] == OpKind.F) & backward & (microbatch[:, 0] != microbatch[:, 1])
    for wrong in both[loose | ~right]:
        first, second = map(pipeline.op, wrong)
        raise InputError(
            f"device {device}: {first} and {second} cannot run as one; "
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


def is_of_kind(kinds: Ints, kind: BackwardKind) -> bool:
    """Whether schedules of a kind of backward may have operations of all these kinds."""
    excluded = {BackwardKind.SPLIT: (OpKind.BW,), BackwardKind.WHOLE: (OpKind.B,)}
    return not np.isin(kinds, excluded.get(kind, ())).any()


def convert_backwards(pipeline: Pipeline, orders: Orders, kind: BackwardKind) -> Orders:
    """The orders with every backward split, or whole; unchanged if the kind is mixed."""
    if kind is BackwardKind.SPLIT:
        return split_whole(pipeline, orders)
    return join_split(pipeline, orders) if kind is BackwardKind.WHOLE else orders


def join_split(pipeline: Pipeline, orders: Orders) -> Orders:
    """The same orders with every B replaced by BW and every W left out.

    No new circular wait arises: what had to come before B still does, and less comes after it.
    """
    size = pipeline.num_codes // len(OpKind)
    parts = []
    for order in orders:
        kind = codes(order) // size
        whole = codes(order) + (kind == OpKind.B) * (OpKind.BW - OpKind.B) * size
        parts.append(np.where(order < 0, ~whole, whole)[kind != OpKind.W])
    return parts
