"""Pareto-optimal sets of recomputed or offloaded layers of one stage: time against memory.

An option says which layers recompute or offload. Recompute costs time in every backward of the
stage; offload takes the host link for some time, each way. Both save memory between F and the
backward. While a whole backward runs, the layers that recompute matter by their place
(`ppopt.problem.backward_memory`): of equal layers in a row, recompute of the first ones has the
smallest peak.

An option is dominated if another one of its stage takes no more time, and no more memory at any
instant. Dominated options are left out. The other option can replace them in any schedule: its
backwards and its moves out at the same starts, its moves back at the same ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate, groupby, pairwise
from typing import NamedTuple

from ppopt.problem.backward_memory import BackwardPeak, RecomputeUnit
from ppopt.problem.layer import Layer, activation_of, backward_peak, retained_by_forward
from ppopt.problem.partition import Counts
from ppopt.problem.pipeline import Model, Pipeline

MOST_KEPT = 4096
"""Most stages whose options are cached."""


class StageOption(NamedTuple):
    """Layers of a stage that recompute or offload; times and memory in the user's units."""

    time: Fraction
    """Time added to B and BW."""
    moving: Fraction
    """Time of the moves to the host, each way."""
    kept: Fraction
    """Activations of the stage that F keeps."""
    left: Fraction
    """Activations kept, without those that move to the host."""
    peak: Fraction
    """Largest live memory of a microbatch while BW of the stage runs."""
    layers: frozenset[int]
    """Indices, within the stage, of the layers that recompute."""
    offloaded: frozenset[int]
    """Indices, within the stage, of the layers that offload."""

    def costs_no_more(self, other: StageOption) -> bool:
        """Whether the option takes no more time than another one, and no longer moves."""
        return self.time <= other.time and self.moving <= other.moving

    def takes_no_more(self, other: StageOption) -> bool:
        """Whether a schedule with another option is valid with this one."""
        less = self.kept <= other.kept and self.left <= other.left and self.peak <= other.peak
        return less and self.costs_no_more(other)


class StageOptions:
    """Options of all stages that partitions of a model may have."""

    def __init__(
        self,
        model: Model,
        *,
        limited: bool,
        full: bool = False,
        recompute: bool = True,
        offload: bool = False,
    ) -> None:
        """Choose `recompute`, `offload` or both; what is not chosen is as the layers say.

        Without a memory limit, layers that need not recompute or offload do neither. `full`: full
        recompute is included in any case. It may take longer than the option before and save no
        more; an order that depends on times may hold less with it.
        """
        given = _as_given(model.layers, model.recompute_unit)
        self.bare = model.with_choice(
            () if recompute else given.layers, () if offload else given.offloaded
        )
        """Model without what is chosen."""
        self._limited, self._full = limited, full and recompute
        self._searched = recompute, offload
        self.of = lru_cache(maxsize=MOST_KEPT)(self._of)
        """Options of the stage of the layers `low` to `high` - 1, the shortest first."""

    def _of(self, low: int, high: int) -> list[StageOption]:
        layers = self.bare.costed[low:high]
        recompute, offload = self._searched
        unit = self.bare.recompute_unit
        found = stage_options(layers, unit, recompute=recompute, offload=offload)
        if not self._limited:
            return found[:1]
        if not self._full:
            return found
        full = full_recompute(layers, unit)
        return found if any(option.layers == full.layers for option in found) else [*found, full]

    @property
    def leaves_out(self) -> bool:
        """Whether dominated options may be left out: not if the layers that may are all alike."""
        layers = [layer for layer in self.bare.layers if layer.recomputable]
        alike = {(layer.recompute_time, layer.saved) for layer in layers}
        return len(alike) > 1 or any(time <= 0 or saved <= 0 for time, saved in alike)

    def of_partition(self, counts: Counts) -> list[list[StageOption]]:
        """Options of every stage of a partition."""
        return [self.of(*ends) for ends in ends_of(counts)]

    def model(self, counts: Counts, numbers: Sequence[int]) -> Model:
        """Model in which the layers of the options of these numbers recompute or offload."""
        again: set[int] = set()
        moved: set[int] = set()
        for (low, high), number in zip(ends_of(counts), numbers, strict=True):
            choice = self.of(low, high)[number]
            again |= {low + place for place in choice.layers}
            moved |= {low + place for place in choice.offloaded}
        return self.bare.with_choice(again, moved)

    def numbers(self, pipeline: Pipeline) -> tuple[int, ...] | None:
        """Number of the option of every stage that does as the layers of a pipeline, or less.

        None if a stage has no option that takes no more.
        """
        layers = pipeline.model.stage_layers(pipeline.counts)
        numbers = []
        for own, front in zip(layers, self.of_partition(pipeline.counts), strict=True):
            choice = self._choice_of(own, front)
            if choice is None:
                return None
            numbers.append(front.index(choice))
        return tuple(numbers)

    def _choice_of(
        self, layers: Sequence[Layer], front: Sequence[StageOption]
    ) -> StageOption | None:
        """Option of a stage that does as these layers, or one that takes no more; None: none.

        No more means no more time, and with a memory limit no more memory.
        """
        given = _as_given(layers, self.bare.recompute_unit)
        same = (option for option in front if option[-2:] == given[-2:])
        less = (
            option
            for option in front
            if option.takes_no_more(given) or (not self._limited and option.costs_no_more(given))
        )
        return next(same, None) or next(less, None)


def ends_of(counts: Counts) -> Iterator[tuple[int, int]]:
    """First layer and end of every stage of a partition."""
    return pairwise(accumulate(counts, initial=0))


def stage_options(
    layers: Sequence[Layer],
    unit: RecomputeUnit = RecomputeUnit.LAYER,
    *,
    recompute: bool = True,
    offload: bool = False,
) -> list[StageOption]:
    """Non-dominated options of a stage in time, moves and memory, the shortest first.

    Of equal layers in a row the first ones recompute, and the next ones offload. What is dominated
    among the first layers of the stage stays so whatever follows: times and memory add up, and the
    peak grows with what F keeps of the layers before.
    """
    front, place = [_as_given((), unit)], 0
    for _, run in groupby(layers, _costs_of_option):
        equal = tuple(run)
        layer, count = equal[0], len(equal)
        own = _as_given((layer,), RecomputeUnit.LAYER)
        may_offload = offload and layer.offload_memory > 0 and not layer.recompute
        front = _non_dominated(
            _followed(option, layer, own, range(place, place + count), again, moved)
            for option in front
            for again in range(count + 1 if recompute and layer.saved > 0 else 1)
            for moved in range(count - again + 1 if may_offload else 1)
        )
        place += count
    if unit is RecomputeUnit.STAGE:
        peak = _peak(layers, unit)
        front = _non_dominated(option._replace(peak=peak) for option in front)
    return front


def _costs_of_option(layer: Layer) -> tuple[object, ...]:
    """What decides the options of a layer: layers with the same are equal here."""
    return (
        *(layer.activation, layer.kept, layer.saved, layer.recompute_time, layer.recompute),
        *(layer.backward_workspace, layer.offload_memory, layer.offload_time, layer.offload),
    )


def _followed(
    option: StageOption, layer: Layer, own: StageOption, places: range, again: int, moved: int
) -> StageOption:
    """An option followed by equal layers: `again` recompute, the next `moved` offload.

    The others do as the layer says, which is the option `own`.
    """
    cost, others = (layer.activation, layer.backward_workspace), len(places) - again - moved
    peak = BackwardPeak(option.kept, option.peak)
    peak = peak.then(layer.kept, *cost, again).then(own.kept, *cost, moved + others)
    left = again * layer.kept + moved * (own.kept - layer.offload_memory) + others * own.left
    return StageOption(
        time=option.time + again * layer.recompute_time + (moved + others) * own.time,
        moving=option.moving + moved * layer.offload_time + others * own.moving,
        kept=peak.retained,
        left=option.left + left,
        peak=peak.peak,
        layers=option.layers | frozenset(places if own.layers else places[:again]),
        offloaded=option.offloaded
        | frozenset(places if own.offloaded else places[again : again + moved]),
    )


def full_recompute(
    layers: tuple[Layer, ...], unit: RecomputeUnit = RecomputeUnit.LAYER
) -> StageOption:
    """Option in which all layers of a stage recompute that may, also if it saves nothing."""
    return _as_given(
        [replace(layer, recompute=layer.recompute or layer.recomputable) for layer in layers], unit
    )


def _as_given(layers: Sequence[Layer], unit: RecomputeUnit) -> StageOption:
    """Option of a stage whose layers do as they say."""
    again = frozenset(place for place, layer in enumerate(layers) if layer.recompute)
    moved = frozenset(place for place, layer in enumerate(layers) if layer.offload)
    time = sum((layers[place].recompute_time for place in again), Fraction(0))
    kept = sum(map(retained_by_forward, layers), Fraction(0))
    moving = sum((layers[place].offload_time for place in moved), Fraction(0))
    left = kept - sum(layers[place].offload_memory for place in moved)
    return StageOption(time, moving, kept, left, _peak(layers, unit), again, moved)


def _peak(layers: Sequence[Layer], unit: RecomputeUnit) -> Fraction:
    """Largest live memory of a microbatch while BW of a stage runs."""
    if unit is RecomputeUnit.LAYER:
        return backward_peak(layers).peak
    workspace = max((layer.backward_workspace for layer in layers), default=Fraction(0))
    return activation_of(layers) + workspace


def _non_dominated(options: Iterator[StageOption]) -> list[StageOption]:
    """Options that no other one dominates."""
    front: list[StageOption] = []
    for option in sorted(options, key=lambda option: (*option[:5], *map(sorted, option[5:]))):
        if not any(known.takes_no_more(option) for known in reversed(front)):
            front.append(option)
    return front
