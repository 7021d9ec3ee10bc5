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

from typing import NamedTuple

import numpy as np

from ppopt.problem.arrays import Bools, Ints
from ppopt.problem.operation import OpKind
from ppopt.problem.pipeline import Pipeline

Split = Bools
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
