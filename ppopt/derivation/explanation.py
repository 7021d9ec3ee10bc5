"""The parts of a derived time: the kernels and collectives of a layer, one by one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ppopt.derivation.collectives import Collective
from ppopt.derivation.derived_layer import DerivedLayer
from ppopt.derivation.derived_model import DerivedModel
from ppopt.derivation.kernels import Kernel
from ppopt.derivation.layer_costs import Costing
from ppopt.derivation.layer_part import LayerPart

KINDS = ("F", "B", "W", "BW")
FLOPS, BYTES, MILLISECONDS = 1e-9, 1e-6, 1e3


class Item(NamedTuple):
    """A kernel or a collective of a layer."""

    layer: str
    layers: int
    """Number of such layers."""
    kind: str
    """F, B, W or BW. BW has the kernels of B and of W, in slightly less time, and its own
    collectives."""
    part: str
    name: str
    bound: str
    """Its limit: products, attention, memory, launches, or the pattern of a collective."""
    gflop: float
    megabytes: float
    milliseconds: float
    """Exposed time."""
    share: float
    """Of the time of F and BW of the layer."""


def explain(model: DerivedModel) -> list[Item]:
    """Every kernel and collective of a microbatch, layer by layer, equal layers once.

    The milliseconds of items of kind F add up to the layer's `forward`, those of B and of W to its
    `input` and `weight`, but for rounding. Its `backward` has the kernels of B and W, and the
    collectives of BW.
    """
    return [item for layer in model.layers for item in _layer(model.costing, layer)]


def _layer(costing: Costing, layer: DerivedLayer) -> Iterator[Item]:
    total = layer.forward + layer.backward
    for part in layer.parts:
        for kind, kernels, collectives in _kinds(costing, part):
            for name, bound, flops, traffic, seconds in (
                *_kernels(costing, kernels, costing.split(part) if kind in ("B", "W") else 1.0),
                *_collectives(costing, collectives),
            ):
                time = seconds * MILLISECONDS
                yield Item(
                    *(layer.name, layer.count, kind, part.name, name, bound),
                    *(flops * FLOPS, traffic * BYTES, time, time / total),
                )
    times, streamed = costing.times(layer.parts, layer.role), costing.data_parallel.streamed
    for kind, waiting, streaming, collectives in zip(
        KINDS, times.waiting, times.streaming, streamed(layer.parts), strict=True
    ):
        exposed = [("wait for the CPU", "launches", 0.0, 0.0, waiting)] if waiting else []
        rows = [*_collectives(costing, collectives)]
        share = streaming / (MILLISECONDS * sum(row[-1] for row in rows)) if rows else 0.0
        exposed += [(*row[:-1], MILLISECONDS * share * row[-1]) for row in rows]
        for name, bound, flops, traffic, time in exposed:
            yield Item(
                *(layer.name, layer.count, kind, "", name, bound),
                *(flops, traffic * BYTES, time, time / total),
            )


_Row = tuple[str, str, float, float, float]


def _kinds(
    costing: Costing, part: LayerPart
) -> Iterator[tuple[str, tuple[Kernel, ...], tuple[Collective, ...]]]:
    exchange = part.collectives
    weight = part.weight + costing.accumulation(part)
    yield "F", part.forward, exchange.forward
    yield "B", part.input, exchange.input
    yield "W", weight, exchange.weight
    yield "BW", (), exchange.backward


def _kernels(costing: Costing, kernels: tuple[Kernel, ...], split: float) -> Iterator[_Row]:
    factor = costing.scale.compute * split
    for kernel in kernels:
        seconds = factor * costing.computed([kernel])
        yield kernel.name, kernel.bound, kernel.flops, kernel.traffic, seconds


def _collectives(costing: Costing, collectives: Iterable[Collective]) -> Iterator[_Row]:
    for collective in collectives:
        group = collective.group
        where = f"{collective.pattern} of {group.ranks}"
        nodes = group.nodes(costing.node)
        where += f" in {nodes} nodes" if nodes > 1 else ""
        seconds = costing.exposed([collective])
        yield collective.name, where, 0.0, collective.repeats * collective.size, seconds
