"""The grid of a pipeline: ticks in one unit of time and of memory.

All pipelines of one input share it, whatever their partition, placement and recompute, so that
their times and amounts are integers that can be compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from itertools import accumulate, chain
from math import lcm, prod
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from ppopt.problem import exact, microbatches
from ppopt.problem.cost_table import LAYER_COSTS, STAGE_COSTS, ZERO, OverLayers
from ppopt.problem.costs import flat
from ppopt.problem.distinct import distinct
from ppopt.problem.link import ways_of
from ppopt.problem.modules import MEMORY, TIMES, numbers_of
from ppopt.problem.settings import LIMIT_1F1B
from ppopt.problem.units import Unit

if TYPE_CHECKING:
    from ppopt.problem.pipeline import Pipeline

Numbers = dict[Unit, list[Fraction]]
ADDED = tuple(cost for cost in LAYER_COSTS if cost.over_layers is not OverLayers.LAST)
"""Costs of layers of which those of stages consist."""


class Grid(NamedTuple):
    """Ticks in one unit of time, on any device, and of memory."""

    time: int
    memory: int

    @classmethod
    def of(cls, pipeline: Pipeline) -> Grid:
        """The coarsest grid that loses nothing of the input of a pipeline.

        It is a multiple of the grid that the pipeline already has, if it has one.
        """
        at_speed_1 = numbers_at_speed_1(pipeline)
        factors = [pipeline.microbatch_times, pipeline.slice_times]
        if at_speed_1.offloads:
            factors.append(pipeline.microbatch_memory)
        ratio = lcm(*(speed.numerator for speed in pipeline.device_speed))
        finer = prod(map(microbatches.denominator, factors))
        limit = pipeline.mem_limit
        limits = () if limit in (None, LIMIT_1F1B) else flat(limit)
        memory = at_speed_1.grid.memory * microbatches.denominator(pipeline.microbatch_memory)
        own = cls(
            at_speed_1.grid.time * ratio * finer, lcm(memory, exact.common_denominator(limits))
        )
        return own if pipeline.grid is None else own.joined(pipeline.grid)

    def joined(self, second: Grid) -> Grid:
        """The coarsest grid that loses nothing of two grids."""
        return Grid(*map(lcm, self, second))

    def amount(self, unit: Unit, ticks: int) -> Fraction:
        """Ticks of time, or of memory, in the user's unit."""
        return Fraction(ticks, self.time if unit is Unit.TIME else self.memory)


ANY_GRID = Grid(1, 1)
"""The grid of whole units."""


class NumbersAtSpeed1(NamedTuple):
    """What the costs and delays of equal microbatches, on devices of speed 1, need."""

    grid: Grid
    numbers: Mapping[Unit, Sequence[Fraction]]
    """The distinct numbers of each unit."""
    offloads: bool
    """Whether times of moves to the host count, too, which a factor on memory multiplies."""

    @classmethod
    def of(cls, numbers: Numbers, *, offloads: bool) -> Self:
        """Those of some numbers, by unit."""
        rows = {unit: distinct(numbers[unit]) for unit in Unit}
        return cls(Grid(*map(exact.common_denominator, rows.values())), rows, offloads)

    def largest(self, unit: Unit) -> Fraction:
        """Largest absolute number of a unit."""
        return max(map(abs, self.numbers[unit]), default=ZERO)


def numbers_at_speed_1(pipeline: Pipeline) -> NumbersAtSpeed1:
    """What the costs and delays of a pipeline need."""
    return of_model(pipeline) if pipeline.model is not None else _of_stages(pipeline)


def _of_stages(pipeline: Pipeline) -> NumbersAtSpeed1:
    """What a pipeline whose stages state their costs needs."""
    numbers: Numbers = {Unit.TIME: [*stated_delays(pipeline)], Unit.MEMORY: []}
    for cost in STAGE_COSTS:
        numbers[cost.unit] += flat(pipeline.costs[cost.field])
    return NumbersAtSpeed1.of(numbers, offloads=any(pipeline.costs.offload_time))


def of_model(pipeline: Pipeline) -> NumbersAtSpeed1:
    """What a model in layers needs, cached with the model."""
    grids: dict[Any, NumbersAtSpeed1] = vars(pipeline.model).setdefault("_grids", {})
    stated = tuple(stated_delays(pipeline))
    key = pipeline.num_slices, pipeline.link, stated
    if key not in grids:
        sized = chain(*sized_delays(pipeline).values())
        grids[key] = _of_layers(pipeline, chain(stated, distinct(sized)))
    return grids[key]


def _of_layers(pipeline: Pipeline, delays: Iterable[Fraction]) -> NumbersAtSpeed1:
    """What the layers of a pipeline, and delays, need."""
    model, slices = pipeline.model, pipeline.num_slices
    numbers: Numbers = {
        Unit.TIME: [*delays, *(time / slices for time in model.phase_times)],
        Unit.MEMORY: [amount / slices for amount in distinct(model.passing)],
    }
    offloads = False
    for layer in model.distinct_costed:
        for cost in ADDED:
            number = getattr(layer, cost.field)
            if number:
                per_slice = slices > 1 and cost.per_microbatch
                numbers[cost.unit].append(number / slices if per_slice else number)
        for unit, keys in ((Unit.TIME, TIMES), (Unit.MEMORY, MEMORY)) if layer.modules else ():
            own = numbers_of(layer.modules, keys)
            numbers[unit] += [number / slices for number in (*own, exact.total(own))]
        modules = (module.offload_time for module in layer.modules)
        offloads |= any((layer.offload_time, *modules))
    return NumbersAtSpeed1.of(numbers, offloads=offloads)


def delays_of_cuts(
    sized: Mapping[str, Sequence[Fraction]], counts: Sequence[int]
) -> dict[str, tuple[Fraction, ...]]:
    """Delays between stages of these layers, by field, from `sized_delays`."""
    cuts = list(accumulate(counts[:-1]))
    return {field: tuple(map(row.__getitem__, cuts)) for field, row in sized.items()}


def sized_delays(pipeline: Pipeline) -> dict[str, tuple[Fraction, ...]]:
    """Delays that follow from the sizes of outputs, by field and number of layers before."""
    model, sized = pipeline.model, {}
    sizes = [ZERO, *(layer.output / pipeline.num_slices for layer in model.distinct_costed)]
    for field, way in ways_of(pipeline.link).items():
        row = way.delays(sizes)
        sized[field] = (row[0], *(row[1 + layer] for layer in model.distinct_index))
    return sized


def stated_delays(pipeline: Pipeline) -> Iterable[Fraction]:
    """Delays of a pipeline that do not follow from sizes."""
    stated = {"p2p": pipeline.p2p, "backward_p2p": pipeline.backward_p2p or ()}
    by_size = ways_of(pipeline.link)
    return distinct(flat(tuple(row for field, row in stated.items() if field not in by_size)))
