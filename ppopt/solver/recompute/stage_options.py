"""Pareto-optimal sets of recomputed or offloaded layers of one stage: time against memory.

An option is a set of layers that recompute or offload. Recompute adds time to every backward of the
stage; offload uses the host link for some time, each way. Both save memory between F and the
backward. While a whole backward runs, the position of the layers that recompute matters
(`ppopt.problem.backward_memory`): among equal layers in a row, recompute of the first ones has the
smallest peak.

An option is dominated if another option of its stage needs no more time, and no more memory at any
instant. Dominated options are removed. The dominating option can replace a dominated one in any
schedule without changing start times, except that reloads keep their ends.

Unequal layers may have very many non-dominated options. The options are then those of a greedy
order (`greedy_options`), and a relaxed option between each two of them covers all others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate, chain, groupby, pairwise
from math import prod
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from ppopt.problem import exact
from ppopt.problem.backward_memory import BackwardPeak, RecomputeUnit
from ppopt.problem.distinct import distinct
from ppopt.problem.layer import Layer, activation_of, backward_peak, retained_by_forward
from ppopt.problem.partition import Counts
from ppopt.problem.pipeline import Model, Pipeline
from ppopt.solver.deadline import NO_DEADLINE, Deadline
from ppopt.solver.recompute.option_front import LARGEST_TICKS, OptionFront

MAX_CACHED = 4096
"""Maximum number of stages whose options are cached."""
GREEDY_LEVELS = 32
"""Maximum number of steps from no layer to all layers, if options are too many to enumerate."""


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


class StageFront(NamedTuple):
    """Options of a stage, and what bounds all of its options, also those that are omitted."""

    options: list[StageOption]
    """The shortest first."""
    relaxed: list[StageOption]
    """Each option of the stage needs at least the time and memory of one of these, which may not
    exist. The same list as `options` if no non-dominated option is omitted."""

    @property
    def complete(self) -> bool:
        """Whether no non-dominated option is omitted."""
        return self.relaxed is self.options


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
        deadline: Deadline = NO_DEADLINE,
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
        self._searched, self._deadline = {"recompute": recompute, "offload": offload}, deadline
        self.front = lru_cache(maxsize=MAX_CACHED)(self._front)
        """Options of the stage of the layers `low` to `high` - 1."""
        self.complete = True
        """Whether no non-dominated option of a stage so far was omitted."""

    def of(self, low: int, high: int) -> list[StageOption]:
        """Options of the stage of the layers `low` to `high` - 1, the shortest first."""
        return self.front(low, high).options

    def _front(self, low: int, high: int) -> StageFront:
        layers, unit = self.bare.costed[low:high], self.bare.recompute_unit
        options = stage_options(layers, unit, **self._searched, deadline=self._deadline)
        if options is None:
            front = greedy_options(layers, unit, **self._searched)
            self.complete &= not self._limited
        else:
            front = StageFront(options, options)
        if not self._limited:
            return StageFront(*[front.options[:1]] * 2)
        if self._full:
            full = full_recompute(layers, unit)
            if all(option.layers != full.layers for option in front.options):
                front.options.append(full)
        return front

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


def thinned(sizes: Iterable[int], max_combinations: int) -> list[list[int]]:
    """Indices of lists of these sizes, with at most so many combinations.

    The longest lists lose every second index between their ends; then some lists keep only their
    last index.
    """
    indices = [list(range(size)) for size in sizes]
    while prod(map(len, indices)) > max_combinations:
        longest = max(indices, key=len)
        if len(longest) > 2:
            longest[1:-1] = longest[2:-1:2]
        else:
            del longest[0]
    return indices


def merged_options(options: Sequence[StageOption], max_count: int) -> list[StageOption]:
    """At most so many options; the minima of neighbours, which may not exist, replace them."""
    size = -(-len(options) // max_count)
    groups = (options[low : low + size] for low in range(0, len(options), size))
    return [
        group[0]._replace(
            **{
                cost: min(getattr(option, cost) for option in group)
                for cost in StageOption._fields[:5]
            }
        )
        for group in groups
    ]


def ends_of(counts: Counts) -> Iterator[tuple[int, int]]:
    """First layer and end of every stage of a partition."""
    return pairwise(accumulate(counts, initial=0))


def stage_options(
    layers: Sequence[Layer],
    unit: RecomputeUnit = RecomputeUnit.LAYER,
    *,
    recompute: bool = True,
    offload: bool = False,
    deadline: Deadline = NO_DEADLINE,
) -> list[StageOption] | None:
    """Non-dominated options of a stage in time, moves and memory, the shortest first.

    Among equal layers in a row the first ones recompute, and the next ones offload. An option that
    is dominated for the first layers of the stage stays dominated with all further layers: times
    and memory add up, and the peak grows with the retained activations of the layers before.

    None if there are too many to enumerate, or if the deadline or Ctrl-C ends the enumeration.
    """
    amounts = [amount for layer in distinct(layers) for amount in _costs_of_option(layer)[:-2]]
    per_unit = exact.common_denominator(amounts)
    if 2 * per_unit * len(layers) * max(amounts, default=0) > LARGEST_TICKS:
        return None
    front, runs = OptionFront(), []
    for _, equal in groupby(enumerate(layers), lambda item: _costs_of_option(item[1])):
        indices, run = zip(*equal, strict=True)
        runs.append(_options_of_run(run[0], indices, unit, recompute=recompute, offload=offload))
        costs = [[int(amount * per_unit) for amount in option[:5]] for option in runs[-1]]
        extended = None if deadline.ended else front.followed_by(np.array(costs))
        if extended is None:
            return None
        front = extended
    options = []
    for costs, picks in zip(front.costs.tolist(), front.picks.tolist(), strict=True):
        own = [run[pick] for run, pick in zip(runs, picks, strict=True)]
        layer_sets = (frozenset[int]().union(*(each[field] for each in own)) for field in (5, 6))
        amounts = [Fraction(cost, per_unit) for cost in costs]
        options.append(StageOption._make((*amounts, *layer_sets)))
    if unit is RecomputeUnit.STAGE:
        peak = _peak(layers, unit)
        options = [option._replace(peak=peak) for option in options]
    return options


def _costs_of_option(layer: Layer) -> tuple[Any, ...]:
    """Costs that determine the options of a layer: layers with equal costs are equal here."""
    return (
        *(layer.activation, layer.kept, layer.saved, layer.recompute_time),
        *(layer.backward_workspace, layer.offload_memory, layer.offload_time),
        *(layer.recompute, layer.offload),
    )


def _offloadable(layer: Layer) -> Fraction:
    """Activation that the layer may offload."""
    return Fraction(0) if layer.recompute else layer.offload_memory


def _options_of_run(
    layer: Layer, indices: Sequence[int], unit: RecomputeUnit, *, recompute: bool, offload: bool
) -> list[StageOption]:
    """Options of equal layers: the first ones recompute, the next ones offload.

    The other layers are as stated.
    """
    own, count = _stated_option((layer,), RecomputeUnit.LAYER), len(indices)
    cost = layer.activation, layer.backward_workspace
    options = []
    for recomputed in range(count + 1 if recompute and layer.saved > 0 else 1):
        for offloaded in range(count - recomputed + 1 if offload and _offloadable(layer) else 1):
            unchanged = count - recomputed - offloaded
            peak = BackwardPeak().then(layer.kept, *cost, recomputed)
            peak = peak.then(own.stashed, *cost, offloaded + unchanged)
            chosen = indices[:recomputed], indices[recomputed : recomputed + offloaded]
            option = StageOption(
                time=recomputed * layer.recompute_time + (offloaded + unchanged) * own.time,
                moving=offloaded * layer.offload_time + unchanged * own.moving,
                stashed=peak.retained,
                resident=recomputed * layer.kept
                + offloaded * (own.stashed - layer.offload_memory)
                + unchanged * own.resident,
                peak=peak.peak if unit is RecomputeUnit.LAYER else peak.retained,
                layers=frozenset(indices if own.layers else chosen[0]),
                offloaded=frozenset(indices if own.offloaded else chosen[1]),
            )
            options.append(option)
    return options


def greedy_options(
    layers: Sequence[Layer], unit: RecomputeUnit, *, recompute: bool, offload: bool
) -> StageFront:
    """Options that recompute, or that offload, the layers with the most memory per time.

    Up to `GREEDY_LEVELS` steps lead from no layer to all layers. The layers of a step save their
    memory in the minimum time, also if layers could be divided (Dantzig, Operations Research 5,
    1957). So any option that saves at least as much as a step and less than the next one needs at
    least the time of the step, and is covered by an option with this time that saves as much as the
    next one. If layers may recompute or offload, one relaxed option covers all.
    """
    costs: dict[str, Callable[[Layer], tuple[Fraction, Fraction]]] = {
        "recompute": attrgetter("recompute_time", "saved"),
        "offload": lambda layer: (layer.offload_time, _offloadable(layer)),
    }
    chains = [
        _greedy_steps(layers, unit, flag, cost)
        for (flag, cost), searched in zip(costs.items(), (recompute, offload), strict=True)
        if searched
    ]
    first, last = chains[0][0], chains[0][-1]
    if len(chains) == 1:
        relaxed = [
            step._replace(
                stashed=following.stashed,
                resident=following.resident,
                peak=max(last.peak, following.stashed),
            )
            for step, following in pairwise([*chains[0], last])
        ]
    else:
        saved = sum((max(layer.saved, _offloadable(layer)) for layer in layers), Fraction(0))
        relaxed = [last._replace(time=first.time, resident=first.resident - saved)]
    return StageFront(sorted(dict.fromkeys(chain(*chains)), key=lambda step: step[:2]), relaxed)


def _greedy_steps(
    layers: Sequence[Layer],
    unit: RecomputeUnit,
    flag: str,
    cost: Callable[[Layer], tuple[Fraction, Fraction]],
) -> list[StageOption]:
    """Options in which a flag of more and more layers is on; `cost`: time, and memory saved."""
    costs = {index: cost(layer) for index, layer in enumerate(layers)}
    order = sorted(
        (index for index, (_, saved) in costs.items() if saved > 0),
        key=lambda index: costs[index][0] / costs[index][1],
    )
    flags: dict[str, Any] = {flag: True}
    changed = {index: replace(layers[index], **flags) for index in order}
    sizes = {len(order) * step // GREEDY_LEVELS for step in range(GREEDY_LEVELS + 1)}
    return [
        _stated_option(
            [changed[index] if index in chosen else layer for index, layer in enumerate(layers)],
            unit,
        )
        for chosen in (frozenset(order[:size]) for size in sorted(sizes))
    ]


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
