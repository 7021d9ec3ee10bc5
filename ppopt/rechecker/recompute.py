"""Which layers of a stage recompute or offload: the choices of a stage, their costs and savings.

Recompute makes the backward longer, and F keeps less. B takes the rest at its start. BW runs the
layers one at a time, from the last to the first: while one of them runs, its whole activation and
its workspace are live, and of the layers before it what F keeps.

An embedding or a head recomputes only if the model says that it does; any other layer may. A layer
that gives its time may offload; a layer does one of both, and none where it runs no backward. What
has moved to the host is not held between F and the backward; here it is gone as F ends, and there
again as the backward starts. A schedule stays one where a stage takes less time, keeps less memory,
with and without what moves, has a lower peak in BW, and moves in less time. So a bound for a saving
of at least as much memory in at most as much time holds for a choice, and a non-dominated choice is
as good as all those that it dominates.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import NamedTuple

from ppopt.problem.layer import Layer
from ppopt.rechecker.claim import Claim

MOST_POINTS = 12
"""Most points of a stage by which partitions are ruled out."""
MOST_CHOICES = 4096
"""Most choices of a stage that are looked at one by one."""


class RecomputePoint(NamedTuple):
    """What layers do, in ticks: it takes these times or more, and saves this much or less."""

    time: int
    """Added to the backward."""
    saved: int
    """Memory that is not held between F and the backward."""
    moving: Fraction = Fraction(0)
    """Time of each way to the host, in the user's unit."""
    unkept: int = 0
    """Part of what is saved that F does not keep."""
    peak: int = 0
    """Most memory of a microbatch while BW runs; 0: it does not matter."""

    def plus(self, other: RecomputePoint, peak: int = 0) -> RecomputePoint:
        """That of two sets of layers, which together have this peak."""
        return RecomputePoint(
            self.time + other.time,
            self.saved + other.saved,
            self.moving + other.moving,
            self.unkept + other.unkept,
            peak,
        )

    def replaces(self, other: RecomputePoint) -> bool:
        """Whether a schedule with the other is one with this."""
        less = self.time <= other.time and self.moving <= other.moving
        less &= self.saved >= other.saved and self.unkept >= other.unkept
        return less and self.peak <= other.peak


NONE = RecomputePoint(0, 0)
Layers = tuple[frozenset[int], frozenset[int]]
"""Layers that recompute, and layers that offload."""


class Recompute:
    """What runs of layers may do, in given ticks of time and memory per unit."""

    def __init__(self, claim: Claim, per_unit: Fraction, memory_per_unit: int) -> None:
        """Read the claim's layers; if it is not of every choice, no choice is left."""

        def recomputed(layer: Layer) -> RecomputePoint:
            saved = int((layer.activation - layer.kept) * memory_per_unit)
            return RecomputePoint(int(layer.recompute_time * per_unit), saved, unkept=saved)

        def moved(layer: Layer) -> RecomputePoint:
            saved = int(layer.offload_memory * memory_per_unit)
            return RecomputePoint(0, saved, moving=layer.offload_time)

        layers = claim.pipeline.model.layers if claim.of_layers else ()
        trained = False
        """Whether some layer so far is not frozen: the others have no backward."""
        self._layers: list[list[tuple[RecomputePoint, Layers]]] = []
        """What every layer may do, besides nothing."""
        for number, layer in enumerate(layers):
            mine: list[tuple[RecomputePoint, Layers]] = []
            self._layers.append(mine)
            trained |= not layer.frozen
            if not trained:
                continue
            own, none = frozenset((number,)), frozenset[int]()
            free = layer.recompute_given or layer.role not in ("embedding", "head")
            if claim.recompute and free and not layer.offload:
                mine.append((recomputed(layer), (own, none)))
            if claim.offload and layer.offload_time and not layer.recompute:
                mine.append((moved(layer), (none, own)))
        costed = claim.pipeline.model.costed if claim.of_layers else ()
        self._memory = [
            (int(own.activation * memory_per_unit), int(own.backward_workspace * memory_per_unit))
            for own in costed
        ]
        by_layer = claim.recompute and claim.pipeline.model.recompute_unit == "layer"
        self._peaks = by_layer and (claim.fused or claim.either)
        """Whether the peak of BW differs from choice to choice."""
        self.points = lru_cache(maxsize=None)(self._points)

    def _points(self, low: int, high: int) -> list[RecomputePoint]:
        """Few points; every choice of these layers takes no less and saves no more than one."""
        found = {NONE}
        for mine in self._layers[low:high]:
            more = {
                RecomputePoint(p.time + option.time, p.saved + option.saved)
                for p in found
                for option, _ in mine
            }
            found = set(_few(_front(found | more)))
        return sorted(found)

    def choices(self, low: int, high: int) -> dict[RecomputePoint, Layers] | None:
        """The non-dominated choices of these layers, by layers; None: there are too many."""
        none = frozenset[int](), frozenset[int]()
        front, whole = {NONE: none}, 0
        for number in range(low, high):
            activation, workspace = self._memory[number]
            whole += activation
            found: dict[RecomputePoint, Layers] = {}
            for p, (again, moved) in front.items():
                for option, (recompute, offload) in ((NONE, none), *self._layers[number]):
                    during = whole - p.unkept + workspace
                    held = whole - p.unkept - option.unkept
                    peak = max(p.peak, during, held) if self._peaks else 0
                    found.setdefault(p.plus(option, peak), (again | recompute, moved | offload))
            front = {p: found[p] for p in _front(set(found))}
            if len(front) > MOST_CHOICES:
                return None
        return front


def without(claim: Claim) -> Claim:
    """The claim with layers that do nothing of what is chosen; its limits and its cut stay."""
    pipeline = claim.pipeline
    layers = tuple(
        replace(
            layer,
            recompute=layer.recompute and not claim.recompute,
            offload=layer.offload and not claim.offload,
        )
        for layer in pipeline.model.layers
    )
    made = replace(
        pipeline,
        model=replace(pipeline.model, layers=layers),
        recompute=None,
        offload=None,
        partition=pipeline.partition if claim.partitions else pipeline.counts,
        mem_limit=pipeline.limits,
    )
    return claim._replace(pipeline=made)


def runs_of(counts: tuple[int, ...]) -> list[tuple[int, int]]:
    """First layer and end of every stage."""
    return list(pairwise(accumulate(counts, initial=0)))


def _front(points: set[RecomputePoint]) -> list[RecomputePoint]:
    """The points that no other one replaces."""
    found: list[RecomputePoint] = []
    for point in sorted(points, key=lambda p: (p.time, p.moving, -p.saved, -p.unkept)):
        if not any(known.replaces(point) for known in reversed(found)):
            found.append(point)
    return found


def _few(front: list[RecomputePoint]) -> list[RecomputePoint]:
    """The points of a front; neighbours are one point, of the first's time, the last's savings."""
    step = -(-len(front) // MOST_POINTS)
    groups = (front[start : start + step] for start in range(0, len(front), step))
    return [RecomputePoint(group[0].time, group[-1].saved) for group in groups]
