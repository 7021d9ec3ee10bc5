"""Precedence constraints as data: the only place that knows the data flow.

A constraint (before, after, lag) says: start[after] >= end[before] + lag. Operations are numbers
given by `Pipeline.code`. The rules are those of synchronous pipeline training (zero-bubble paper,
arXiv 2401.10241, section 2):

    F(s-1, j) -> F(s, j)      activations arrive, after the link's delay
    X(s+1, j) -> X(s, j)      gradients arrive, after the link's delay; X is B or BW
    F(s, j)   -> X(s, j)
    B(s, j)   -> W(s, j)

Slices of a microbatch along the sequence keep causal order at every stage (Seq1F1B, arXiv
2406.03488, section 3.2): F of slice q after F of slice q - 1, X of slice q after X of slice q + 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ppopt.errors import InputError
from ppopt.op import OpKind
from ppopt.pipeline import Pipeline
from ppopt.schedule import Ints, Schedule

Orders = Sequence[Ints]
"""For every device, the numbers of its operations in the order in which it runs them.

A negative entry ~code says that this operation runs as one with the entry before it: an
overlapped pair of an F and a B or BW of different microbatches.
"""

Split = npt.NDArray[np.bool_]
"""Whether the backward of [stage, microbatch, slice] is split into B and W (else one BW)."""


class Constraints(NamedTuple):
    """start[after[i]] >= end[before[i]] + lag[i], lag in ticks."""

    before: Ints
    after: Ints
    lag: Ints


def devices(pipeline: Pipeline) -> Ints:
    """Device of every [stage, microbatch]."""
    route = np.arange(pipeline.batches) * pipeline.routes // pipeline.batches
    return np.array(pipeline.hosts, dtype=np.int64)[route].T


def data_flow(pipeline: Pipeline, split: Split | bool) -> Constraints:
    """Every constraint between operations that follows from the model's data flow."""
    shape = (pipeline.num_stages, pipeline.batches, pipeline.num_slices)
    place = np.ogrid[tuple(slice(size) for size in shape)]
    split = np.broadcast_to(split, shape)
    forward = pipeline.code(OpKind.F, *place)
    weight = pipeline.code(OpKind.W, *place)
    backward = pipeline.code(np.where(split, OpKind.B, OpKind.BW), *place)
    where = devices(pipeline)[:, :, None]
    p2p = np.array(pipeline.ticks.p2p, dtype=np.int64)
    links = (
        (forward[:-1], forward[1:], p2p[where[:-1], where[1:]]),
        (backward[1:], backward[:-1], p2p[where[1:], where[:-1]]),
    )
    within = (
        (forward, backward),
        (backward[split], weight[split]),
        (forward[:, :, :-1], forward[:, :, 1:]),
        (backward[:, :, 1:], backward[:, :, :-1]),
    )
    parts = [(a, b, np.broadcast_to(lag, a.shape)) for a, b, lag in links]
    parts += [(a, b, np.zeros_like(a)) for a, b in within]
    return Constraints(*(np.concatenate([part[i].ravel() for part in parts]) for i in range(3)))


def split_of(pipeline: Pipeline, orders: Orders) -> Split:
    """Tell which backwards the orders split, after checking that the orders are complete.

    Raises InputError where an operation is missing, repeated, of both forms, or on a device that
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


def splits(schedule: Schedule) -> Split:
    """Tell which backwards a complete schedule splits."""
    pipeline = schedule.pipeline
    split = np.zeros((pipeline.num_stages, pipeline.batches, pipeline.num_slices), dtype=bool)
    partial = schedule.kind == OpKind.B
    places = (schedule.stage, schedule.microbatch, schedule.slice)
    split[tuple(column[partial] for column in places)] = True
    return split


def rows(schedule: Schedule) -> Ints:
    """Row of every operation number of a complete schedule."""
    places = (schedule.stage, schedule.microbatch, schedule.slice)
    row = np.empty(schedule.pipeline.num_codes, dtype=np.int64)
    row[schedule.pipeline.code(schedule.kind, *places)] = np.arange(len(schedule))
    return row


def codes(order: Ints) -> Ints:
    """Numbers of the operations of an order, whether alone or in a pair."""
    return np.where(order < 0, ~order, order)


def pairs(pipeline: Pipeline, orders: Orders) -> Ints:
    """Numbers of the operations that run as one, shape [pairs, 2]: F, then B or BW.

    Raises InputError where two that run as one are no such pair of different microbatches.
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


def _check_pairs(pipeline: Pipeline, device: int, both: Ints, loose: Split) -> None:
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
