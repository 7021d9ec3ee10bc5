"""Which layers of a stage recompute or offload: the choices of a stage, their costs and savings.

Recompute makes the backward longer, and F keeps less. B allocates the rest at its start. BW runs
the layers one at a time, from the last to the first: while a layer runs, its whole activation and
its workspace are live, and of the layers before it what F keeps.

An embedding or a head recomputes only if the model says so; any other layer may. A layer may
offload if it states the time. A layer recomputes or offloads, not both, and neither if it has no
backward. Instead of the whole layer, any of its modules may do either, if none of them contains or
excludes another one; their times and memory add up, and B and BW need at least the largest of their
workspaces. Offloaded memory is not live between F and the backward; here F frees it at its end, and
the backward allocates it at its start. A schedule stays feasible if a stage takes less time, keeps
less memory (with and without what is offloaded), has a lower peak in BW, and offloads in less time.
So a bound for a point that saves at least as much memory in at most as much time holds for a
choice, and a non-dominated choice can replace all those that it dominates.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate, pairwise, product
from math import prod
from operator import or_, sub
from typing import NamedTuple

from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.decisions import Decisions
from ppopt.problem.layer import Layer
from ppopt.problem.modules import Chosen
from ppopt.rechecker.claim import Claim
from ppopt.verifier.modules import of_layer, recomputed_workspace

MAX_POINTS = 12
"""Maximum number of points of a stage that exclude partitions."""
MAX_CHOICES = 4096
"""Maximum number of choices of a stage that are enumerated."""


class RecomputePoint(NamedTuple):
    """Costs and savings of a choice, in ticks: lower bounds on its times, upper ones on savings."""

    time: int
    """Added to the backward."""
    saved: int
    """Memory that is not live between F and the backward."""
    moving: Fraction = Fraction(0)
    """Time of each transfer to or from the host, in the user's unit."""
    unkept: int = 0
    """Part of what is saved that F does not keep."""
    peak: int = 0
    """Peak memory of a microbatch while BW runs; 0: it does not matter."""
    workspace: int = 0
    """Largest workspace of modules that are computed again."""

    def plus(self, right: RecomputePoint, peak: int = 0) -> RecomputePoint:
        """The point of two sets of layers together, with their joint peak."""
        return RecomputePoint(
            self.time + right.time,
            self.saved + right.saved,
            self.moving + right.moving,
            self.unkept + right.unkept,
            peak,
            max(self.workspace, right.workspace),
        )

    def replaces(self, right: RecomputePoint) -> bool:
        """Whether every schedule with `right` is feasible with this point."""
        no_worse = self.time <= right.time and self.moving <= right.moving
        no_worse &= self.saved >= right.saved and self.unkept >= right.unkept
        return no_worse and self.peak <= right.peak and self.workspace <= right.workspace


NONE = RecomputePoint(0, 0)
LayerSet = frozenset[tuple[int, Chosen]]
"""Layers, each with True or with the modules of it."""
Layers = tuple[LayerSet, LayerSet]
"""Layers that recompute, and layers that offload."""


class Recompute:
    """Choices of runs of layers, in ticks of time and memory per unit."""

    def __init__(self, claim: Claim, per_unit: Fraction, memory_per_unit: int) -> None:
        """Read the claim's layers; if it is not of every choice, they have no options."""
        model, decisions = claim.pipeline.model, claim.decisions
        of_layers = bool(decisions & Decisions.OF_STRATEGY)

        def points(layer: Layer) -> list[tuple[RecomputePoint, Layer]]:
            now, choices = of_layer(layer), []
            for chosen in choices_of(layer, decisions):
                time, retained, offloaded, moving, _ = map(sub, of_layer(chosen), now)
                amounts = offloaded - retained, -retained, recomputed_workspace(chosen)
                saved, unkept, workspace = (int(each * memory_per_unit) for each in amounts)
                point = RecomputePoint(int(time * per_unit), saved, moving, unkept, 0, workspace)
                choices.append((point, chosen))
            return choices

        trained = accumulate((not layer.frozen for layer in model.layers), or_)
        """Whether some layer so far is not frozen: the others have no backward."""
        self._layers: list[list[tuple[RecomputePoint, Layers]]] = [
            [(point, _layers(index, chosen)) for point, chosen in own] if has_backward else []
            for index, (own, has_backward) in enumerate(
                zip(model.each(points) if of_layers else (), trained, strict=False)
            )
        ]
        """What every layer may do, besides nothing."""
        self._memory = [
            (int(own.activation * memory_per_unit), int(own.backward_workspace * memory_per_unit))
            for own in (model.costed if of_layers else ())
        ]
        by_layer = Decisions.RECOMPUTE in decisions and model.recompute_unit == "layer"
        self._peaks = by_layer and claim.backward_kind is not BackwardKind.SPLIT
        """Whether the peak of BW differs from choice to choice."""
        self.points = lru_cache(maxsize=None)(self._points)

    def _points(self, low: int, high: int) -> list[RecomputePoint]:
        """A few points; for every choice of these layers, one takes no more and saves no less."""
        points = {NONE}
        for options in self._layers[low:high]:
            extended = {
                RecomputePoint(p.time + option.time, p.saved + option.saved)
                for p in points
                for option, _ in options
            }
            points = set(_coarsened(_front(points | extended)))
        return sorted(points)

    def choices(self, low: int, high: int) -> dict[RecomputePoint, Layers] | None:
        """The non-dominated choices of these layers; None if there are too many."""
        none: Layers = frozenset(), frozenset()
        front, whole = {NONE: none}, 0
        for index in range(low, high):
            activation, workspace = self._memory[index]
            whole += activation
            choices: dict[RecomputePoint, Layers] = {}
            for p, (recomputed, offloaded) in front.items():
                for option, (recompute, offload) in ((NONE, none), *self._layers[index]):
                    during = whole - p.unkept + max(workspace, option.workspace)
                    live = whole - p.unkept - option.unkept
                    peak = max(p.peak, during, live) if self._peaks else 0
                    choices.setdefault(
                        p.plus(option, peak), (recomputed | recompute, offloaded | offload)
                    )
            front = {p: choices[p] for p in _front(set(choices))}
            if len(front) > MAX_CHOICES:
                return None
        return front


def without(claim: Claim) -> Claim:
    """The claim without the recompute and offload that are chosen; limits and partition stay."""
    pipeline = claim.pipeline
    model = pipeline.model.undecided(claim.decisions)
    return claim._replace(pipeline=pipeline.without(Decisions.OF_LAYERS, model=model))


def choices_of(layer: Layer, decisions: Decisions) -> Iterator[Layer]:
    """The layer with everything else that it may recompute, and offload, if these are open.

    What it states and is not open stays. Raises TimeoutError if there are more than `MAX_CHOICES`.
    """
    fields = (decisions & Decisions.OF_LAYERS).names
    if "recompute" in fields and may_recompute(layer):
        yield layer.having(recompute=True)
    if "offload" in fields and layer.offload_time and not layer.recompute:
        yield layer.having(offload=True)
    if True in (layer.recompute, layer.offload):
        return
    stated = {*(layer.recompute or ()), *(layer.offload or ())}
    times = {"recompute": "time", "offload": "offload_time"}
    free = {
        module.name: ["", *(own for own in fields if getattr(module, times[own]) is not None)]
        for module in layer.modules
        if module.name not in stated
    }
    if prod(map(len, free.values())) > MAX_CHOICES:
        raise TimeoutError
    for selected in product(*free.values()):
        new = {name: field for name, field in zip(free, selected, strict=True) if field}
        if new and not clash(layer, new.keys(), stated):
            names = {field: tuple(n for n in new if new[n] == field) for field in new.values()}
            yield layer.having(**names)


def may_recompute(layer: Layer) -> bool:
    """Whether all of a layer may recompute."""
    return not layer.offload and (layer.recompute_given or layer.role not in ("embedding", "head"))


def clash(layer: Layer, new: Set[str], stated: Set[str]) -> bool:
    """Whether a new module and another one of both sets contain or exclude each other."""
    by_name = {module.name: module for module in layer.modules}
    for name in new | stated:
        together = new | stated if name in new else new
        container = by_name[name].inside
        while container and container not in together:
            container = by_name[container].inside
        if container or not together.isdisjoint(by_name[name].excludes):
            return True
    return False


def _layers(index: int, layer: Layer) -> Layers:
    recomputed, offloaded = (
        frozenset(((index, chosen),) if chosen else ())
        for chosen in (layer.recompute, layer.offload)
    )
    return recomputed, offloaded


def runs_of(counts: tuple[int, ...]) -> list[tuple[int, int]]:
    """First layer and end of every stage."""
    return list(pairwise(accumulate(counts, initial=0)))


def _front(points: set[RecomputePoint]) -> list[RecomputePoint]:
    """The non-dominated points."""
    front: list[RecomputePoint] = []
    for point in sorted(points, key=lambda p: (p.time, p.moving, -p.saved, -p.unkept)):
        if not any(known.replaces(point) for known in reversed(front)):
            front.append(point)
    return front


def _coarsened(front: list[RecomputePoint]) -> list[RecomputePoint]:
    """At most `MAX_POINTS` points; neighbours merge to the first's time and the last's savings."""
    step = -(-len(front) // MAX_POINTS)
    groups = (front[start : start + step] for start in range(0, len(front), step))
    return [RecomputePoint(group[0].time, group[-1].saved) for group in groups]
