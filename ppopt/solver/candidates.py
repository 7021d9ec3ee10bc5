"""Orders to start from: the safe one and the hand strategies of this placement."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ppopt.errors import InputError
from ppopt.op import OpKind
from ppopt.pipeline import Pipeline
from ppopt.precedence import Orders, codes
from ppopt.solver import construct
from ppopt.strategies import Options, Strategy, registry


def candidates(pipeline: Pipeline, *, fused: bool) -> Iterator[Orders | None]:
    """Orders of the search space; None where a strategy does not apply."""
    yield construct.one_at_a_time(pipeline, fused=fused)
    for strategy in registry().values():
        if strategy.fused or not fused:
            orders = _hand_made(strategy, pipeline)
            yield orders if fused or orders is None else split(pipeline, orders)


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
