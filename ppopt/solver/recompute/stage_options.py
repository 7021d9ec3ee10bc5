"""Pareto-optimal sets of recomputed or offloaded layers of one stage: time against memory.

An option is one of the options of every layer (`ppopt.problem.layer_options`): what it recomputes
and offloads. Recompute adds time to every backward of the stage; offload uses the host link for
some time, each way. Both save memory between F and the backward. While a whole backward runs, the
position of the layers that recompute matters (`ppopt.problem.backward_memory`): the peak of equal
layers in a row is smallest if the activation retained, minus the workspace, ascends.

An option is dominated if another option of its stage needs no more time, and no more memory at any
instant. Dominated options are removed. The dominating option can replace a dominated one in any
schedule without changing start times, except that reloads keep their ends.

Unequal layers may have very many non-dominated options. The options are then those of a greedy
order (`greedy_options`), and a relaxed option between each two of them covers all others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, chain, groupby, pairwise
from math import prod
from typing import NamedTuple

import numpy as np

from ppopt.cancellation import over
from ppopt.problem.arrays import Ints
from ppopt.problem.backward_memory import RecomputeUnit
from ppopt.problem.decisions import Decisions
from ppopt.problem.distinct import distinct, map_distinct
from ppopt.problem.layer import Layer
from ppopt.problem.layer_options import LayerOption, convex_hull, option_of, options_of
from ppopt.problem.layer_table import LayerTable
from ppopt.problem.modules import Chosen
from ppopt.problem.partition import Counts
from ppopt.problem.pipeline import Model, Pipeline
from ppopt.solver.recompute.option_front import OptionFront, Run

MAX_CACHED = 4096
"""Maximum number of stages whose options are cached."""
GREEDY_LEVELS = 32
"""Maximum number of steps from no layer to all layers, if options are too many to enumerate."""


LayerChoice = frozenset[tuple[int, Chosen]]
"""What some layers recompute, or offload: pairs of their index and the choice."""
NUM_COSTS = 6
"""Number of costs of an option."""


class StageOption(NamedTuple):
    """Layers of a stage that recompute or offload; times and memory in ticks of `LayerTable`."""

    time: int
    """Time added to B and BW."""
    moving: int
    """Time of the moves to the host, each way."""
    stashed: int
    """Activations of the stage that are retained after F."""
    resident: int
    """Retained activations that stay on the device."""
    workspace: int
    """Workspace of B of the stage."""
    peak: int
    """Largest live memory of a microbatch while BW of the stage runs."""
    layers: LayerChoice
    """What the layers that recompute do, by their indices within the stage."""
    offloaded: LayerChoice
    """What the layers that offload do, by their indices within the stage."""

    def costs_no_more(self, reference: StageOption) -> bool:
        """Whether the option needs no more time than the reference, and no longer moves."""
        return self.time <= reference.time and self.moving <= reference.moving

    def uses_no_more(self, reference: StageOption) -> bool:
        """Whether every schedule with the reference is also valid with this option."""
        less_memory = (
            self.stashed <= reference.stashed
            and self.resident <= reference.resident
            and self.workspace <= reference.workspace
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

    def __init__(self, pipeline: Pipeline, *, full: bool = False, timed: bool = False) -> None:
        """Search what is open of recompute and offload; the other one is as stated by the layers.

        Without a memory limit, layers that need not recompute or offload do neither. `full`: full
        recompute is always included. It may be dominated, but an order that depends on times may
        need less memory with it. `timed`: when time is up, options are not enumerated.
        """
        self._decisions = pipeline.open_decisions & Decisions.OF_LAYERS
        self._table = pipeline.partitions.layers
        self.bare: Model = pipeline.model.undecided(self._decisions)
        """Model without the recompute or offload that is searched."""
        self._limited, self._full = pipeline.limits is not None, full
        self._timed = timed
        self.front = lru_cache(maxsize=MAX_CACHED)(self._front)
        """Options of the stage of the layers `low` to `high` - 1."""
        self.complete = True
        """Whether no non-dominated option of a stage so far was omitted."""

    def of(self, low: int, high: int) -> list[StageOption]:
        """Options of the stage of the layers `low` to `high` - 1, the shortest first."""
        return self.front(low, high).options

    def _front(self, low: int, high: int) -> StageFront:
        layers, table = self.bare.costed[low:high], self._table
        options = stage_options(layers, table, self._decisions, timed=self._timed)
        if options is None:
            front = greedy_options(layers, table, self._decisions)
            self.complete &= not self._limited
        else:
            front = StageFront(options, options)
        if not self._limited:
            return StageFront(*[front.options[:1]] * 2)
        if self._full and Decisions.RECOMPUTE in self._decisions:
            full = full_recompute(layers, table)
            if all(option.layers != full.layers for option in front.options):
                front.options.append(full)
        return front

    @property
    def leaves_out(self) -> bool:
        """Whether options may be dominated: not if all layers that may recompute are equal."""
        layers = [layer for layer in self.bare.distinct if layer.recomputable]
        costs = {(layer.recompute_time, layer.saved) for layer in layers}
        modules = any(layer.modules for layer in layers)
        return modules or len(costs) > 1 or any(time <= 0 or saved <= 0 for time, saved in costs)

    def of_partition(self, counts: Counts) -> list[list[StageOption]]:
        """Options of every stage of a partition."""
        return [self.of(*ends) for ends in ends_of(counts)]

    def model(self, counts: Counts, numbers: Sequence[int]) -> Model:
        """Model in which the layers of these options recompute or offload."""
        recomputed: dict[int, Chosen] = {}
        offloaded: dict[int, Chosen] = {}
        for (low, high), option_id in zip(ends_of(counts), numbers, strict=True):
            choice = self.of(low, high)[option_id]
            recomputed |= {low + index: chosen for index, chosen in choice.layers}
            offloaded |= {low + index: chosen for index, chosen in choice.offloaded}
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
        stated = _stated_option(layers, self._table)
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
                for cost in StageOption._fields[:NUM_COSTS]
            }
        )
        for group in groups
    ]


def ends_of(counts: Counts) -> Iterator[tuple[int, int]]:
    """First layer and end of every stage of a partition."""
    return pairwise(accumulate(counts, initial=0))


def stage_options(
    layers: Sequence[Layer],
    table: LayerTable,
    decisions: Decisions = Decisions.RECOMPUTE,
    *,
    timed: bool = False,
) -> list[StageOption] | None:
    """Non-dominated options of a stage in time, moves and memory, the shortest first.

    An option that is dominated for the first layers of the stage stays dominated with all further
    layers: times and memory add up, and the peak grows with the retained activations of the layers
    before.

    None if there are too many to enumerate; `timed`: or if time is up.
    """
    at_once = table.recompute_unit is RecomputeUnit.STAGE
    whole = sum(map_distinct(table.activation_of, layers)) if at_once else 0
    front, runs = OptionFront(at_once=at_once), []
    costs_of = {
        id(layer): (table.activation_of(layer), _of_layer(layer, table, decisions))
        for layer in distinct(layers)
    }
    of_layers = (costs_of[id(layer)] for layer in layers)
    for (activation, own), equal in groupby(of_layers):
        run = Run.of(_in_ticks(own, table), activation, len([*equal]), at_once=at_once)
        extended = None if run is None or (timed and over()) else front.followed_by(run.costs)
        if run is None or extended is None:
            return None
        front = extended
        runs.append((own, run.counts))
    options = []
    for costs, picks in zip(front.costs.tolist(), front.picks.tolist(), strict=True):
        chosen = [
            option
            for (own, counts), pick in zip(runs, picks, strict=True)
            for option, count in zip(own, counts[pick].tolist(), strict=True)
            for _ in range(count)
        ]
        *sums, peak = costs
        options.append(StageOption._make((*sums, whole + peak, *_choices(chosen))))
    return options


def _of_layer(layer: Layer, table: LayerTable, decisions: Decisions) -> list[LayerOption]:
    """Options of a layer in the order in which equal layers have the smallest peak.

    If the whole stage recomputes at once, the order does not matter.
    """
    options = options_of(layer, decisions)
    if table.recompute_unit is RecomputeUnit.STAGE:
        return list(options)
    return sorted(options, key=lambda own: (own.retained - own.backward_workspace, not own.offload))


def _choices(options: Iterable[LayerOption]) -> tuple[LayerChoice, LayerChoice]:
    """What the layers of a stage recompute, and what they offload."""
    options = list(options)
    recompute = frozenset((n, own.recompute) for n, own in enumerate(options) if own.recompute)
    offload = frozenset((n, own.offload) for n, own in enumerate(options) if own.offload)
    return recompute, offload


def greedy_options(layers: Sequence[Layer], table: LayerTable, decisions: Decisions) -> StageFront:
    """Options that recompute, or that offload, what saves the most memory per time.

    Up to `GREEDY_LEVELS` steps lead from no option to the largest savings of every layer. Every
    step changes a layer to the next option on the convex hull of its options; the steps save their
    memory in the minimum time, also if they could be divided (Dantzig, Operations Research 5, 1957;
    Zemel, Operations Research 28, 1980, for several options per layer). So any option that saves at
    least as much as a step and less than the next one needs at least the time of the step, and is
    covered by an option with this time that saves as much as the next one. If layers may recompute
    or offload, one relaxed option covers all.
    """
    chains = [_greedy_steps(layers, table, decision) for decision in decisions]
    first, last = chains[0][0], chains[0][-1]
    minima = map_distinct(lambda layer: _minima(layer, decisions), layers)
    floor = _option_of(layers, minima, table)
    if len(chains) == 1:
        relaxed = [
            step._replace(
                stashed=following.stashed,
                resident=following.resident,
                workspace=floor.workspace,
                peak=max(floor.peak, following.stashed),
            )
            for step, following in pairwise([*chains[0], last])
        ]
    else:
        relaxed = [floor._replace(time=first.time, moving=first.moving)]
    return StageFront(sorted(dict.fromkeys(chain(*chains)), key=lambda step: step[:2]), relaxed)


def _minima(layer: Layer, decisions: Decisions) -> LayerOption:
    """The minimum of every cost over the options of a layer."""
    options = options_of(layer, decisions)
    costs = [min(column) for column in zip(*(own.costs for own in options), strict=True)]
    return LayerOption._make((*costs, False, False))


def _greedy_steps(
    layers: Sequence[Layer], table: LayerTable, decision: Decisions
) -> list[StageOption]:
    """Options with more and more of the steps on the convex hulls of the layers' options."""
    steps = []
    for index, layer in enumerate(layers):
        hull = convex_hull(options_of(layer, decision))
        steps += [(before.rate(after), index, after) for before, after in pairwise(hull)]
    steps.sort(key=lambda step: step[:2])
    sizes = {len(steps) * level // GREEDY_LEVELS for level in range(GREEDY_LEVELS + 1)}
    options = []
    current = [options_of(layer, decision)[0] for layer in layers]
    done = 0
    for size in sorted(sizes):
        for _, index, option in steps[done:size]:
            current[index] = option
        done = size
        options.append(_option_of(layers, current, table))
    return options


def full_recompute(layers: tuple[Layer, ...], table: LayerTable) -> StageOption:
    """Option in which all layers of a stage recompute that may, even if it saves nothing."""
    full = map_distinct(
        lambda layer: layer.having(recompute=layer.recompute or layer.recomputable), layers
    )
    return _stated_option(full, table)


def _stated_option(layers: Sequence[Layer], table: LayerTable) -> StageOption:
    """Option that the layers of a stage state."""
    return _option_of(layers, [option_of(layer) for layer in layers], table)


def _option_of(
    layers: Sequence[Layer], chosen: Sequence[LayerOption], table: LayerTable
) -> StageOption:
    """Option of a stage whose layers have these options."""
    time, moving, stashed, resident, workspace, during = _in_ticks(chosen, table).T
    activation = np.array(map_distinct(table.activation_of, layers), dtype=np.int64)
    if table.recompute_unit is RecomputeUnit.STAGE:
        peak = activation.sum() + during.max(initial=0)
    else:
        live = stashed.cumsum() - stashed + activation + during
        peak = max(stashed.sum(), live.max(initial=0))
    sums = (row.sum() for row in (time, moving, stashed, resident))
    costs = map(int, (*sums, workspace.max(initial=0), peak))
    return StageOption._make((*costs, *_choices(chosen)))


def _in_ticks(options: Sequence[LayerOption], table: LayerTable) -> Ints:
    """Costs of options of layers: `[option, cost]`."""
    rows = map_distinct(table.ticks_of_option, options)
    return np.array(rows, dtype=np.int64).reshape(-1, NUM_COSTS)
