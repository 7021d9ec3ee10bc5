"""Bounds over all partitions of a model: which partitions must be searched to check a claim.

A claim can also quantify over recompute choices (in any partition), or over offload choices (in one
partition). Cuts are then excluded if a device reaches the bound whatever its layers recompute,
without recompute elsewhere.

Devices are enumerated one after the other, each with every choice of where its stages begin and
end. A choice is excluded if the waiting time, work and memory of that device alone reach the bound
(`ppopt.rechecker.device_time`). The partitions that no device excludes remain open; choices that
lead to none are memoized. Nothing here is shared with the search over partitions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache, partial
from itertools import pairwise, product
from time import monotonic
from typing import NamedTuple

from ppopt.problem.decisions import Decisions
from ppopt.problem.first_backward import FirstBackward
from ppopt.problem.modules import Chosen
from ppopt.problem.traits import ArgumentClass, Trait, rechecked
from ppopt.rechecker import recompute
from ppopt.rechecker.claim import Claim
from ppopt.rechecker.device_time import DeviceTime, StageRange
from ppopt.rechecker.layer_sums import LayerSums, computes

_FORMS = (Trait.SPAN, Trait.MIXED, Trait.PAIRS, Trait.SHORT_PAIRS)
HANDLES = rechecked(ArgumentClass.EQUAL_MICROBATCHES, _FORMS)
"""Traits that the bounds of devices handle; pairs of layers save no time on compute."""
MAX_OPEN = 64
"""Maximum number of partitions that are searched."""
Cuts = tuple[int | None, ...]
"""Layers before the end of every stage but the last; None: not chosen yet."""


class OpenPartition(NamedTuple):
    """A partition that must be searched, with the layers that recompute and offload.

    None: as the model says.
    """

    counts: tuple[int, ...]
    layers: recompute.LayerSet | None = None
    offloaded: recompute.LayerSet | None = None

    def __str__(self) -> str:
        text = f"partition {','.join(map(str, self.counts))}"
        for does, layers in (("recomputed", self.layers), ("offloaded", self.offloaded)):
            if layers:
                text += f", layers {','.join(map(_layer_text, sorted(layers)))} {does}"
        return text


def _layer_text(layer: tuple[int, Chosen]) -> str:
    index, chosen = layer
    return str(index) if chosen is True else f"{index} ({' '.join(chosen or ())})"


def open_partitions(claim: Claim, deadline: float) -> list[OpenPartition] | None:
    """The partitions and choices of recompute that no device alone excludes.

    None if there are more than `MAX_OPEN`, if `time.monotonic` passes the deadline, or if the claim
    has a trait that is not handled, a layer whose F computes nothing, or a first stage whose W runs
    its whole backward.
    """
    if claim.pipeline.first_backward is FirstBackward.WEIGHT:
        return None
    if not all(map(computes, claim.pipeline.model.layers)):
        return None
    if claim.decisions & Decisions.OF_STRATEGY:
        claim = recompute.without(claim)
    if not claim.has_only(HANDLES):
        return None
    partitions: list[OpenPartition] = []
    try:
        for partition in _Choices(claim, deadline).all():
            partitions.append(partition)
            if len(partitions) > MAX_OPEN:
                return None
    except TimeoutError:
        return None
    return partitions


def claim_of_partition(claim: Claim, partition: OpenPartition) -> Claim:
    """The claim of one partition, and of one choice of recompute and offload."""
    pipeline = claim.pipeline
    recomputed, offloaded = (
        None if chosen is None else dict(chosen)
        for chosen in (partition.layers, partition.offloaded)
    )
    layers = tuple(
        replace(
            layer,
            recompute=layer.recompute if recomputed is None else recomputed.get(index, False),
            offload=layer.offload if offloaded is None else offloaded.get(index, False),
        )
        for index, layer in enumerate(pipeline.model.layers)
    )
    model = replace(pipeline.model, layers=layers)
    decided = pipeline.without(Decisions.OF_STRATEGY, model=model, partition=partition.counts)
    return claim.for_pipeline(decided)


class _Choices:
    """Choices of cuts, device by device."""

    def __init__(self, claim: Claim, deadline: float) -> None:
        self._sums = LayerSums(claim)
        self._times = DeviceTime(claim, self._sums)
        self._lower_bound = lru_cache(maxsize=None)(self._times.lower_bound)
        self._hosted = claim.pipeline.hosted[0]
        self._stages, self._layers = claim.pipeline.num_stages, len(claim.pipeline.model)
        self._bound = claim.bound
        self._order = sorted(range(len(self._hosted)), key=lambda device: self._hosted[device][0])
        self._matters = [self._open_cuts(level) for level in range(len(self._order) + 1)]
        self._barren: dict[tuple[int, Cuts], list[tuple[int, ...]]] = {}
        """The longest F of `_rates` with which choices lead to no open partition."""
        self._rated = claim.bound is not None and not claim.span
        self._deadline = deadline
        own = self._sums
        layers = zip(own.forward, own.gradient, own.rest, strict=True)
        self._work = [claim.pipeline.batches * sum(times) for times in layers]
        """Of the first layers, on the fastest device."""
        self._recompute = recompute.Recompute(claim, own.per_unit, own.grid.memory)
        self._free = [each in claim.decisions for each in Decisions.OF_LAYERS]
        """Whether the claim is of every choice of recompute, and of offload."""
        partitions = Decisions.PARTITION in claim.decisions
        self._counts = None if partitions else claim.pipeline.counts
        """Layers of every stage, if the partition is fixed."""

    def all(self) -> Iterator[OpenPartition]:
        """Every open partition, with every open choice of recompute and offload.

        Raises TimeoutError after the deadline, or if there are too many choices.
        """
        open_ = (None,) * (self._stages - 1)
        for counts in [self._counts] if self._counts else self._from(0, open_):
            if not any(self._free):
                yield OpenPartition(counts)
                continue
            yield from self._with_choices(counts)

    def _with_choices(self, counts: tuple[int, ...]) -> Iterator[OpenPartition]:
        """The choices of layers of a partition that no device alone excludes."""
        runs = recompute.runs_of(counts)
        ends = tuple(high for _, high in runs[:-1])
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
                if not self._reaches(device, stages, ends):
                    open_.append(_union(chosen for _, chosen in combination))
            each.append(open_)
        for chosen in product(*each):
            if monotonic() > self._deadline:
                raise TimeoutError
            layers = zip(self._free, _union(chosen), strict=True)
            yield OpenPartition(counts, *(own if free else None for free, own in layers))

    def _from(self, level: int, cuts: Cuts) -> Iterator[tuple[int, ...]]:
        if level == len(self._order):
            ends = [0, *(cut or 0 for cut in cuts), self._layers]
            yield tuple(high - low for low, high in pairwise(ends))
            return
        key = level, tuple(cuts[level_cut] for level_cut in self._matters[level])
        later = sorted(stage for device in self._order[level:] for stage in self._hosted[device])
        rates = self._rates(cuts, later)
        if any(map(partial(_none_above, rates), self._barren.get(key, ()))):
            return
        if self._too_much_remains(level, cuts):
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
            self._barren.setdefault(key, []).append(rates)

    def _too_much_remains(self, level: int, cuts: Cuts) -> bool:
        """Whether one of the devices left must have too much work, even if all are the fastest."""
        chosen = [stage for device in self._order[:level] for stage in self._hosted[device]]
        work = self._work[-1] - sum(
            self._work[self._end(cuts, stage)] - self._work[self._end(cuts, stage - 1)]
            for stage in chosen
        )
        return self._bound is not None and work >= self._bound * (len(self._order) - level)

    def _ruled_out(self, device: int, cuts: Cuts) -> bool:
        stages = tuple(
            StageRange(stage_id, self._end(cuts, stage_id - 1), self._end(cuts, stage_id))
            for stage_id in self._hosted[device]
        )
        points = ([*self._recompute.points(stage.low, stage.high)] for stage in stages)
        return all(
            self._reaches(
                device,
                tuple(
                    StageRange(*stage[:3], *point[:2])
                    for stage, point in zip(stages, chosen, strict=True)
                ),
                cuts,
            )
            for chosen in product(*points)
        )

    def _reaches(self, device: int, stages: tuple[StageRange, ...], cuts: Cuts) -> bool:
        """Whether a device alone reaches the bound or exceeds its memory limit."""
        if self._bound is not None and self._times.work(stages) >= self._bound:
            return True
        if self._times.over_limit(device, stages):
            return True
        if self._bound is None:
            return False
        first = self._end(cuts, 0)
        if self._lower_bound(device, stages, first) >= self._bound:
            return True
        rates = self._rates(cuts, [stage.stage_id for stage in stages])
        return bool(rates) and self._lower_bound(device, stages, first, rates) >= self._bound

    def _rates(self, cuts: Cuts, stages: Iterable[int]) -> tuple[int, ...]:
        """Per stage, a lower bound of the longest F of earlier stages, by the cuts chosen so far.

        Empty for device span: microbatches may all arrive before the first F of a device.
        """
        chosen = [(cut, end) for cut, end in enumerate(cuts) if end is not None]
        bounds, before = [(0, 0)], (-1, 0)
        for cut, end in chosen:
            own = self._times.mean_forward(range(before[0] + 1, cut + 1), before[1], end)
            bounds.append((cut + 1, max(own, bounds[-1][1])))
            before = cut, end
        return tuple(
            max(longest for stage_after, longest in bounds if stage_after <= stage)
            for stage in stages
            if self._rated
        )

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
        for end in range(low, high + 1):
            yield from self._chosen((*cuts[:free], end, *cuts[free + 1 :]), stages)

    def _open_cuts(self, level: int) -> list[int]:
        """Cuts on which later devices depend: their own, and that of stage 0.

        The nearest chosen cuts on both sides decide how many layers remain for the stages between.
        """
        later = {stage for device in self._order[level:] for stage in self._hosted[device]}
        own = {cut for stage in later for cut in (stage - 1, stage)}
        return sorted((own | {0}) & set(range(self._stages - 1)))


def _none_above(rates: tuple[int, ...], smaller: tuple[int, ...]) -> bool:
    """Whether none of the smaller rates is above its own."""
    return all(low <= high for low, high in zip(smaller, rates, strict=True))


def _union(chosen: Iterable[recompute.Layers]) -> recompute.Layers:
    """The layers of several choices."""
    recomputed, offloaded = zip(*chosen, strict=True)
    none: recompute.LayerSet = frozenset()
    return none.union(*recomputed), none.union(*offloaded)
