"""Precedence constraints as data: the only place that knows the data flow.

A constraint (before, after, lag) says: start[after] >= end[before] + lag. Operations are numbers
given by `Pipeline.code`. The rules are those of synchronous pipeline training (zero-bubble paper,
arXiv 2401.10241, section 2):

    F(s-1, j) -> F(s, j)      activations arrive, after the link's delay
    X(s+1, j) -> X(s, j)      gradients arrive, after the link's delay; X is B or BW
    F(s, j)   -> X(s, j)
    B(s, j)   -> W(s, j)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ppopt.errors import InputError
from ppopt.op import OpKind
from ppopt.pipeline import Pipeline
from ppopt.schedule import Ints

Orders = Sequence[Ints]
"""For every device, the numbers of its operations in the order in which it runs them."""

Split = npt.NDArray[np.bool_]
"""Whether the backward of [stage, microbatch] is split into B and W (else it is one BW)."""


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
    stage = np.arange(pipeline.num_stages)[:, None]
    microbatch = np.arange(pipeline.batches)[None, :]
    split = np.broadcast_to(split, (pipeline.num_stages, pipeline.batches))
    forward = pipeline.code(OpKind.F, stage, microbatch)
    weight = pipeline.code(OpKind.W, stage, microbatch)
    backward = pipeline.code(np.where(split, OpKind.B, OpKind.BW), stage, microbatch)
    where = devices(pipeline)
    p2p = np.array(pipeline.ticks.p2p, dtype=np.int64)
    parts = (
        (forward[:-1], forward[1:], p2p[where[:-1], where[1:]]),
        (backward[1:], backward[:-1], p2p[where[1:], where[:-1]]),
        (forward, backward, np.zeros_like(forward)),
        (backward[split], weight[split], np.zeros(int(split.sum()), dtype=np.int64)),
    )
    return Constraints(*(np.concatenate([part[i].ravel() for part in parts]) for i in range(3)))


def device_order(orders: Orders) -> Constraints:
    """A device runs one operation at a time, in its order: each ends before the next starts."""
    before = np.concatenate([order[:-1] for order in orders])
    after = np.concatenate([order[1:] for order in orders])
    return Constraints(before, after, np.zeros(len(before), dtype=np.int64))


def split_of(pipeline: Pipeline, orders: Orders) -> Split:
    """Tell which backwards the orders split, after checking that the orders are complete.

    Raises InputError where an operation is missing, repeated, of both forms, or on a device that
    does not host its stage.
    """
    count = np.bincount(np.concatenate(list(orders)), minlength=pipeline.num_codes)
    shape = (len(OpKind), pipeline.num_stages, pipeline.batches)
    forward, backward, weight, full = count.reshape(shape)
    wrong = (forward != 1) | (backward + full != 1) | (weight != backward)
    if wrong.any():
        stage, microbatch = (int(index) for index in np.argwhere(wrong)[0])
        found = [f"{count.reshape(shape)[kind, stage, microbatch]} {kind.name}" for kind in OpKind]
        raise InputError(
            f"stage {stage} microbatch {microbatch}: the orders hold {', '.join(found)}; "
            "each needs one F and either one BW or one B and one W"
        )
    _check_devices(pipeline, orders)
    return np.asarray(backward == 1)


def _check_devices(pipeline: Pipeline, orders: Orders) -> None:
    host = np.tile(devices(pipeline).ravel(), len(OpKind))
    for device, order in enumerate(orders):
        strange = order[host[order] != device]
        if len(strange):
            op = pipeline.op(strange[0])
            raise InputError(
                f"device {device}: {op} is in its order, but stage {op.stage} of microbatch "
                f"{op.microbatch} sits on device {host[strange[0]]}"
            )
