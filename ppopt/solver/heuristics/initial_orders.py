"""Orders to start from: the safe one and the hand strategies of this placement."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from math import inf

import numpy as np

from ppopt.errors import InputError
from ppopt.problem.operation import OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule import list_scheduling
from ppopt.schedule.orders import Orders, codes
from ppopt.strategies import Options, Strategy, registry

ADAPTIVE = 1e-4
"""Seconds per operation that a strategy which follows the real times may take: twice what the
slowest took on the machine on which this was measured."""


def candidates(
    pipeline: Pipeline, *, fused: bool, deadline: float = inf
) -> Iterator[Orders | None]:
    """Orders of the search space; None where a strategy does not apply.

    Those that may take beyond `deadline`, an instant of `time.monotonic`, are left out.
    """
    yield list_scheduling.one_at_a_time(pipeline, fused=fused)
    told = _told(pipeline)
    for strategy in registry().values():
        if (strategy.fused or not fused) and _in_time(strategy, pipeline, deadline):
            orders = _hand_made(strategy, told)
            yield orders if fused or orders is None else split(pipeline, orders)


def _in_time(strategy: Strategy, pipeline: Pipeline, deadline: float) -> bool:
    seconds = ADAPTIVE * pipeline.num_codes if strategy.adaptive else 0.0
    return time.monotonic() + seconds < deadline


def _told(pipeline: Pipeline) -> Pipeline:
    """The pipeline with its chunks and placement told, and no limits: one chunk is linear.

    Strategies that do not apply refuse it at once; the others need none of their own, which would
    take time to check.
    """
    if not pipeline.named_placement or pipeline.num_devices == 1:
        return replace(pipeline, mem_limit=None)
    name = "linear" if pipeline.num_chunks == 1 else pipeline.told_placement
    return replace(pipeline, chunks=pipeline.num_chunks, placement=name, mem_limit=None)


def _hand_made(strategy: Strategy, pipeline: Pipeline) -> Orders | None:
    """Orders of a strategy on exactly this pipeline, None where it does not apply."""
    try:
        placed = strategy.apply(pipeline, Options())
        return strategy.built(placed, Options()) if placed.layout == pipeline.layout else None
    except InputError:
        return None


def split(pipeline: Pipeline, orders: Orders) -> Orders:
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
