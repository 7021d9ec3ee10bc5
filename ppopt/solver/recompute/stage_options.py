"""Pareto-optimal sets of recomputed or offloaded layers of one stage: time against memory.

An option is a set of layers that recompute or offload. Recompute adds time to every backward of the
stage; offload uses the host link for some time, each way. Both save memory between F and the
backward. While a whole backward runs, the position of the layers that recompute matters
(`ppopt.problem.backward_memory`): among equal layers in a row, recompute of the first ones has the
smallest peak.

An option is dominated if another option of its stage needs no more time, and no more memory at any
instant. Dominated options are removed. The dominating option can replace a dominated one in any
schedule without changing start times, except that reloads keep their ends.
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

MAX_CACHED = 4096
"""Maximum number of stages whose options are cached."""


class StageOption(NamedTuple):
    """Layers of a stage that recompute or offload; times and memory in the user's units."""

    time: Fraction
    """Time added to B and BW."""
    moving: Fraction
    """Time of the moves to the host, each way."""
    stashed: Fraction
    """Activations of the stage that are retained after F."""
    resident: Fraction
    """Retained activations that stay on the device."""
    peak: Fraction
    """Largest live memory of a microbatch while BW of the stage runs."""
    layers: frozenset[int]
    """Indices, within the stage, of the layers that recompute."""
    offloaded: frozenset[int]
    """Indices, within the stage, of the layers that offload."""

    def costs_no_more(self, reference: StageOption) -> bool:
        """Whether the option needs no more time than the reference, and no longer moves."""
        return self.time <= reference.time and self.moving <= reference.moving

    def uses_no_more(self, reference: StageOption) -> bool:
        """Whether every schedule with the reference is also valid with this option."""
        less_memory = (
            self.stashed <= reference.stashed
            and self.resident <= reference.resident
            and self.peak <= reference.peak
        )
        return less_memory and self.costs_no_more(reference)


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
        """Search `recompute`, `offload` or both; the other one is as stated by the layers.

        Without a memory limit, layers that need not recompute or offload do neither. `full`: full
        recompute is always included. It may be dominated, but an order that depends on times may
        need less memory with it.
        """
        stated = _stated_option(model.layers, model.recompute_unit)
        self.bare = model.with_choice(
            () if recompute else stated.layers, () if offload else stated.offloaded
        )
        """Model without the recompute or offload that is searched."""
        self._limited, self._full = limited, full and recompute
        self._searched = recompute, offload
        self.of = lru_cache(maxsize=MAX_CACHED)(self._of)
        """Options of the stage of the layers `low` to `high` - 1, the shortest first."""

    def _of(self, low: int, high: int) -> list[StageOption]:
        layers = self.bare.costed[low:high]
        recompute, offload = self._searched
        unit = self.bare.recompute_unit
        options = stage_options(layers, unit, recompute=recompute, offload=offload)
        if not self._limited:
            return options[:1]
        if not self._full:
            return options
        full = full_recompute(layers, unit)
        return (
            options if any(option.layers == full.layers for option in options) else [*options, full]
        )

    @property
    def leaves_out(self) -> bool:
        """Whether options may be dominated: not if all layers that may recompute are equal."""
        layers = [layer for layer in self.bare.layers if layer.recomputable]
        costs = {(layer.recompute_time, layer.saved) for layer in layers}
        return len(costs) > 1 or any(time <= 0 or saved <= 0 for time, saved in costs)

    def of_partition(self, counts: Counts) -> list[list[StageOption]]:
        """Options of every stage of a partition."""
        return [self.of(*ends) for ends in ends_of(counts)]

    def model(self, counts: Counts, numbers: Sequence[int]) -> Model:
        """Model in which the layers of these options recompute or offload."""
        recomputed: set[int] = set()
        offloaded: set[int] = set()
        for (low, high), option_id in zip(ends_of(counts), numbers, strict=True):
            choice = self.of(low, high)[option_id]
            recomputed |= {low + index for index in choice.layers}
            offloaded |= {low + index for index in choice.offloaded}
        return self.bare.with_choice(recomputed, offloaded)

    def numbers(self, pipeline: Pipeline) -> tuple[int, ...] | None:
        """Number of the option of every stage that equals or dominates that of a pipeline.

        None if a stage has no such option.
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
        """Option of a stage that equals the option stated by these layers, or dominates it.

        None if there is none. Without a memory limit only times are compared.
        """
        stated = _stated_option(layers, self.bare.recompute_unit)
        same = (option for option in front if option[-2:] == stated[-2:])
        dominating = (
            option
            for option in front
            if option.uses_no_more(stated) or (not self._limited and option.costs_no_more(stated))
        )
        return next(same, None) or next(dominating, None)


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

    Among equal layers in a row the first ones recompute, and the next ones offload. An option that
    is dominated for the first layers of the stage stays dominated with all further layers: times
    and memory add up, and the peak grows with the retained activations of the layers before.
    """
    front, start = [_stated_option((), unit)], 0
    for _, run in groupby(layers, _costs_of_option):
        equal = tuple(run)
        layer, count = equal[0], len(equal)
        own = _stated_option((layer,), RecomputeUnit.LAYER)
        may_offload = offload and layer.offload_memory > 0 and not layer.recompute
        front = _non_dominated(
            _followed(
                option, layer, own, range(start, start + count), num_recomputed, num_offloaded
            )
            for option in front
            for num_recomputed in range(count + 1 if recompute and layer.saved > 0 else 1)
            for num_offloaded in range(count - num_recomputed + 1 if may_offload else 1)
        )
        start += count
    if unit is RecomputeUnit.STAGE:
        peak = _peak(layers, unit)
        front = _non_dominated(option._replace(peak=peak) for option in front)
    return front


def _costs_of_option(layer: Layer) -> tuple[object, ...]:
    """Costs that determine the options of a layer: layers with equal costs are equal here."""
    return (
        *(layer.activation, layer.kept, layer.saved, layer.recompute_time, layer.recompute),
        *(layer.backward_workspace, layer.offload_memory, layer.offload_time, layer.offload),
    )


def _followed(
    option: StageOption,
    layer: Layer,
    own: StageOption,
    indices: range,
    num_recomputed: int,
    num_offloaded: int,
) -> StageOption:
    """An option followed by equal layers: the first ones recompute, the next ones offload.

    The other layers have the option `own`, as stated by the layer.
    """
    cost, num_unchanged = (
        (layer.activation, layer.backward_workspace),
        len(indices) - num_recomputed - num_offloaded,
    )
    peak = BackwardPeak(option.stashed, option.peak)
    peak = peak.then(layer.kept, *cost, num_recomputed).then(
        own.stashed, *cost, num_offloaded + num_unchanged
    )
    resident = (
        num_recomputed * layer.kept
        + num_offloaded * (own.stashed - layer.offload_memory)
        + num_unchanged * own.resident
    )
    return StageOption(
        time=option.time
        + num_recomputed * layer.recompute_time
        + (num_offloaded + num_unchanged) * own.time,
        moving=option.moving + num_offloaded * layer.offload_time + num_unchanged * own.moving,
        stashed=peak.retained,
        resident=option.resident + resident,
        peak=peak.peak,
        layers=option.layers | frozenset(indices if own.layers else indices[:num_recomputed]),
        offloaded=option.offloaded
        | frozenset(
            indices if own.offloaded else indices[num_recomputed : num_recomputed + num_offloaded]
        ),
    )


def full_recompute(
    layers: tuple[Layer, ...], unit: RecomputeUnit = RecomputeUnit.LAYER
) -> StageOption:
    """Option in which all layers of a stage recompute that may, even if it saves nothing."""
    return _stated_option(
        [replace(layer, recompute=layer.recompute or layer.recomputable) for layer in layers], unit
    )


def _stated_option(layers: Sequence[Layer], unit: RecomputeUnit) -> StageOption:
    """Option that the layers of a stage state."""
    recomputed = frozenset(index for index, layer in enumerate(layers) if layer.recompute)
    offloaded = frozenset(index for index, layer in enumerate(layers) if layer.offload)
    time = sum((layers[index].recompute_time for index in recomputed), Fraction(0))
    stashed = sum(map(retained_by_forward, layers), Fraction(0))
    moving = sum((layers[index].offload_time for index in offloaded), Fraction(0))
    resident = stashed - sum(layers[index].offload_memory for index in offloaded)
    return StageOption(time, moving, stashed, resident, _peak(layers, unit), recomputed, offloaded)


def _peak(layers: Sequence[Layer], unit: RecomputeUnit) -> Fraction:
    """Largest live memory of a microbatch while BW of a stage runs."""
    if unit is RecomputeUnit.LAYER:
        return backward_peak(layers).peak
    workspace = max((layer.backward_workspace for layer in layers), default=Fraction(0))
    return activation_of(layers) + workspace


def _non_dominated(options: Iterator[StageOption]) -> list[StageOption]:
    """Options that no other option dominates."""
    front: list[StageOption] = []
    for option in sorted(options, key=lambda option: (*option[:5], *map(sorted, option[5:]))):
        if not any(known.uses_no_more(option) for known in reversed(front)):
            front.append(option)
    return front
