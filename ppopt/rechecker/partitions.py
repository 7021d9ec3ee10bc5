"""Bounds over all partitions of a model: which partitions a claimed bound leaves to a search.

A claim may also be of every choice of the layers that recompute, in all partitions or in one, or of
every choice of those that offload, or both, in one. A choice of cuts is then ruled out where a
device reaches the bound whatever its layers recompute, with no recompute elsewhere.

Devices are taken one after the other, each with every choice of where its stages begin and end. A
choice is ruled out where the device alone reaches the bound by what it must wait for, do and hold
(`ppopt.rechecker.device_time`). What is left are partitions in which no device does; choices that
lead to none are remembered. Nothing here is shared with the search over partitions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise, product
from math import ceil
from time import monotonic
from typing import NamedTuple

from ppopt.problem import exact
from ppopt.problem.traits import BESIDE_COMPUTE, Trait
from ppopt.rechecker import recompute
from ppopt.rechecker.claim import Claim
from ppopt.rechecker.device_time import DeviceTime, StageRange
from ppopt.rechecker.layer_sums import LayerSums
from ppopt.rechecker.mixed import by_layers, computes

HANDLES = BESIDE_COMPUTE | {Trait.FROZEN, Trait.SPAN}
"""Traits that the bounds of devices handle, once backwards are split and pairs are computed."""
MOST_LEFT = 64
"""Most partitions that are left to searches."""
Cuts = tuple[int | None, ...]
"""Layers before the end of every stage but the last; None: not chosen yet."""


class Left(NamedTuple):
    """A partition, and the layers that recompute and offload in it; None: as the model says."""

    counts: tuple[int, ...]
    layers: frozenset[int] | None = None
    offloaded: frozenset[int] | None = None

    def __str__(self) -> str:
        words = f"partition {','.join(map(str, self.counts))}"
        for does, layers in (("recomputed", self.layers), ("offloaded", self.offloaded)):
            if layers:
                words += f", layers {','.join(map(str, sorted(layers)))} {does}"
        return words


def left_to_search(claim: Claim, deadline: float) -> list[Left] | None:
    """The partitions, with the choices of recompute, that no device alone rules out.

    None if there are more than `MOST_LEFT`, if `time.monotonic` passes the deadline, or
    if the claim is out of reach: it has a trait that is not handled, or a layer whose F computes
    nothing.
    """
    if not all(map(computes, claim.pipeline.model.layers)):
        return None
    claim = by_layers(recompute.without(claim) if claim.of_layers else claim)
    if not claim.has_only(HANDLES):
        return None
    found: list[Left] = []
    try:
        for partition in _Choices(claim, deadline).all():
            found.append(partition)
            if len(found) > MOST_LEFT:
                return None
    except TimeoutError:
        return None
    return found


def claim_of_partition(claim: Claim, left: Left) -> Claim:
    """The claim of one partition, and of one choice of recompute and offload."""
    pipeline = replace(claim.pipeline, partition=left.counts, mem_limit=claim.pipeline.limits)
    again, moved = left.layers, left.offloaded
    layers = tuple(
        replace(
            layer,
            recompute=layer.recompute if again is None else number in again,
            offload=layer.offload if moved is None else number in moved,
        )
        for number, layer in enumerate(pipeline.model.layers)
    )
    model = replace(pipeline.model, layers=layers)
    return claim.of_pipeline(replace(pipeline, model=model, recompute=None, offload=None))


class _Choices:
    """Choices of cuts, device by device."""

    def __init__(self, claim: Claim, deadline: float) -> None:
        self._sums = LayerSums(claim)
        self._times = DeviceTime(claim, self._sums)
        self._least = lru_cache(maxsize=None)(self._times.least)
        self._hosted = claim.pipeline.hosted[0]
        self._stages, self._layers = claim.pipeline.num_stages, len(claim.pipeline.model)
        time = claim.bound_time
        self._bound = None if time is None else ceil(exact.in_ticks(time, self._sums.per_unit))
        self._order = sorted(range(len(self._hosted)), key=lambda device: self._hosted[device][0])
        self._matters = [self._open_cuts(level) for level in range(len(self._order) + 1)]
        self._barren: set[tuple[int, Cuts]] = set()
        self._deadline = deadline
        own = self._sums
        self._recompute = recompute.Recompute(claim, own.recompute_per_unit, own.memory_per_unit)
        self._free = claim.recompute, claim.offload
        """Whether it is of every choice of recompute, and of offload."""
        self._counts = None if claim.partitions else claim.pipeline.counts
        """Layers of every stage, where the partition is given."""

    def all(self) -> Iterator[Left]:
        """Every partition that is left, with every choice of recompute that is.

        Raises TimeoutError after the deadline, or if there are too many choices.
        """
        open_ = (None,) * (self._stages - 1)
        for counts in [self._counts] if self._counts else self._from(0, open_):
            if not any(self._free):
                yield Left(counts)
                continue
            yield from self._with_choices(counts)

    def _with_choices(self, counts: tuple[int, ...]) -> Iterator[Left]:
        """The choices of layers of a partition that no device alone rules out."""
        runs = recompute.runs_of(counts)
        each = []
        for device, hosted in enumerate(self._hosted):
            fronts = [self._recompute.choices(*runs[stage]) for stage in hosted]
            if any(front is None for front in fronts):
                raise TimeoutError
            open_ = []
            for combination in product(*(front.items() for front in fronts if front is not None)):
                stages = tuple(
                    StageRange(stage, *runs[stage], *point[:2])
                    for stage, (point, _) in zip(hosted, combination, strict=True)
                )
                if not self._reaches(device, stages, counts[0]):
                    open_.append(_together(chosen for _, chosen in combination))
            each.append(open_)
        for chosen in product(*each):
            if monotonic() > self._deadline:
                raise TimeoutError
            layers = zip(self._free, _together(chosen), strict=True)
            yield Left(counts, *(own if free else None for free, own in layers))

    def _from(self, level: int, cuts: Cuts) -> Iterator[tuple[int, ...]]:
        if level == len(self._order):
            ends = [0, *(cut or 0 for cut in cuts), self._layers]
            yield tuple(high - low for low, high in pairwise(ends))
            return
        key = level, tuple(cuts[place] for place in self._matters[level])
        if key in self._barren:
            return
        if monotonic() > self._deadline:
            raise TimeoutError
        fruitful = False
        device = self._order[level]
        for chosen in self._chosen(cuts, self._hosted[device]):
            if self._ruled_out(device, chosen):
                continue
            for counts in self._from(level + 1, chosen):
                fruitful = True
                yield counts
        if not fruitful:
            self._barren.add(key)

    def _ruled_out(self, device: int, cuts: Cuts) -> bool:
        stages = tuple(
            StageRange(number, self._end(cuts, number - 1), self._end(cuts, number))
            for number in self._hosted[device]
        )
        points = ([*self._recompute.points(stage.low, stage.high)] for stage in stages)
        return all(
            self._reaches(
                device,
                tuple(
                    StageRange(*stage[:3], *point[:2])
                    for stage, point in zip(stages, chosen, strict=True)
                ),
                self._end(cuts, 0),
            )
            for chosen in product(*points)
        )

    def _reaches(self, device: int, stages: tuple[StageRange, ...], first: int) -> bool:
        """Whether a device alone reaches the bound, or has not enough memory."""
        if self._bound is not None and self._times.work(stages) >= self._bound:
            return True
        if self._times.over_limit(device, stages):
            return True
        return self._bound is not None and self._least(device, stages, first) >= self._bound

    def _end(self, cuts: Cuts, stage: int) -> int:
        """Layers up to the end of a stage whose cut is chosen."""
        if stage < 0:
            return 0
        cut = self._layers if stage == self._stages - 1 else cuts[stage]
        assert cut is not None
        return cut

    def _chosen(self, cuts: Cuts, stages: tuple[int, ...]) -> Iterator[Cuts]:
        """All choices of the cuts around some stages that are not chosen yet."""
        around = (cut for stage in stages for cut in (stage - 1, stage))
        free = next((c for c in around if 0 <= c < self._stages - 1 and cuts[c] is None), None)
        if free is None:
            yield cuts
            return
        below = max((c for c in range(free) if cuts[c] is not None), default=-1)
        above = min(
            (c for c in range(free + 1, self._stages - 1) if cuts[c] is not None),
            default=self._stages - 1,
        )
        low = self._end(cuts, below) + free - below
        high = self._end(cuts, above) - (above - free)
        for place in range(low, high + 1):
            yield from self._chosen((*cuts[:free], place, *cuts[free + 1 :]), stages)

    def _open_cuts(self, level: int) -> list[int]:
        """Cuts on which later devices depend: their own, and that of stage 0, where all ways end.

        Between two chosen cuts there is room for the stages between them; the nearest of those
        that are chosen decide how much.
        """
        later = {stage for device in self._order[level:] for stage in self._hosted[device]}
        own = {cut for stage in later for cut in (stage - 1, stage)}
        return sorted((own | {0}) & set(range(self._stages - 1)))


def _together(chosen: Iterable[recompute.Layers]) -> recompute.Layers:
    """The layers of several choices."""
    again, moved = zip(*chosen, strict=True)
    return frozenset[int]().union(*again), frozenset[int]().union(*moved)
