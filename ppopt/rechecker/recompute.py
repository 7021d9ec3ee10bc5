"""Which layers of a stage recompute: the choices of a stage, and what they cost and save.

Recompute makes the backward longer, and F keeps less; the backward takes the rest at its start. An
embedding or a head recomputes only where the model says that it does; any other layer may. A
schedule stays one where a stage takes less time and keeps less memory. So a bound for a saving of
at least as much memory in at most as much time holds for a choice, and a non-dominated choice is as
good as all those that it dominates.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import NamedTuple

from ppopt.rechecker.claim import Claim

MOST_POINTS = 12
"""Most points of a stage by which partitions are ruled out."""
MOST_CHOICES = 4096
"""Most choices of a stage that are looked at one by one."""


class RecomputePoint(NamedTuple):
    """Recompute of a stage, in ticks: it takes this time or more, and saves this much or less."""

    time: int
    saved: int


NONE = RecomputePoint(0, 0)


class Recompute:
    """The recompute of runs of layers, in given ticks of time and memory per unit."""

    def __init__(self, claim: Claim, per_unit: Fraction, memory_per_unit: int) -> None:
        """Read the claim's layers; where it is not of every choice, no choice is left."""
        layers = claim.pipeline.model.layers if claim.recompute else ()
        self._layers = [
            RecomputePoint(
                int(layer.recompute_time * per_unit),
                int((layer.activation - layer.kept) * memory_per_unit),
            )
            if layer.recompute_given or layer.role not in ("embedding", "head")
            else NONE
            for layer in layers
        ]
        self.points = lru_cache(maxsize=None)(self._points)

    def _points(self, low: int, high: int) -> list[RecomputePoint]:
        """Few points; every choice of these layers takes no less and saves no more than one."""
        found = {NONE}
        for one in self._layers[low:high]:
            more = {RecomputePoint(p.time + one.time, p.saved + one.saved) for p in found}
            found = set(_few(_front(found | more)))
        return sorted(found)

    def choices(self, low: int, high: int) -> dict[RecomputePoint, frozenset[int]] | None:
        """The non-dominated choices of these layers, by layers; None: there are too many."""
        found: dict[RecomputePoint, frozenset[int]] = {NONE: frozenset()}
        for number in range(low, high):
            one = self._layers[number]
            for p, chosen in list(found.items()):
                found.setdefault(
                    RecomputePoint(p.time + one.time, p.saved + one.saved), chosen | {number}
                )
            found = {p: found[p] for p in _front(set(found))}
            if len(found) > MOST_CHOICES:
                return None
        return found


def without(claim: Claim) -> Claim:
    """The claim with layers that do not recompute; its limits stay."""
    pipeline = claim.pipeline
    model = pipeline.model.recomputing(lambda _: False)
    made = replace(pipeline, model=model, recompute=None, mem_limit=pipeline.limits)
    return claim._replace(pipeline=made)


def runs_of(counts: tuple[int, ...]) -> list[tuple[int, int]]:
    """First layer and end of every stage."""
    return list(pairwise(accumulate(counts, initial=0)))


def _front(points: set[RecomputePoint]) -> list[RecomputePoint]:
    """The points that are not dominated in time and savings."""
    found: list[RecomputePoint] = []
    for one in sorted(points, key=lambda p: (p.time, -p.saved)):
        if not found or one.saved > found[-1].saved:
            found.append(one)
    return found


def _few(front: list[RecomputePoint]) -> list[RecomputePoint]:
    """The points of a front; neighbours are one point, of the first's time, the last's savings."""
    step = -(-len(front) // MOST_POINTS)
    groups = (front[start : start + step] for start in range(0, len(front), step))
    return [RecomputePoint(group[0].time, group[-1].saved) for group in groups]
