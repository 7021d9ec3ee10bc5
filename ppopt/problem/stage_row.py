"""The costs of the stages of one pipeline as integers, and the ticks that follow from them.

A row has ticks in which no number is lost, for a device of speed 1. The ticks of a pipeline are the
coarsest that lose nothing of it, its factors on microbatches included.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from itertools import chain
from math import lcm
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np

from ppopt.errors import ConflictError
from ppopt.problem import exact
from ppopt.problem.arrays import Bools, Ints
from ppopt.problem.cost_table import STAGE_COSTS
from ppopt.problem.costs import MAX_TICKS, StageArrays, StageCosts, Ticks, by_kind, flat, is_matrix
from ppopt.problem.distinct import map_distinct
from ppopt.problem.units import Unit

if TYPE_CHECKING:
    from ppopt.problem.pipeline import Pipeline

AMOUNTS = {Unit.TIME: "times", Unit.MEMORY: "memory"}
"""Names of sums in messages."""
_ROWS = 32
"""More than there are costs of one unit."""
_PAIRS = tuple(cost.field for cost in STAGE_COSTS if cost.of_pairs)


class Devices(NamedTuple):
    """The devices of the stages of a pipeline, and their speeds."""

    ratio: int
    """Ticks of time on devices in one tick of a time at speed 1."""
    slowness: tuple[int, ...]
    """By how much ticks at speed 1 are multiplied on a device."""
    of_stages: Ints
    """The same for the device of each stage."""
    hosting: Bools
    """Whether a device runs a stage of a route: `[device, route and stage]`."""

    @classmethod
    def of(cls, pipeline: Pipeline) -> Devices:
        """The devices of a pipeline."""
        hosts, speeds = np.array(pipeline.hosts), pipeline.device_speed
        ratio = lcm(*(speed.numerator for speed in speeds))
        slowness = tuple(int(ratio / speed) for speed in speeds)
        hosting = np.arange(pipeline.num_devices)[:, None] == hosts.ravel()
        return cls(ratio, slowness, np.array(slowness)[hosts[0]], hosting)


class StageRow(NamedTuple):
    """Costs of the stages of one pipeline, for one slice, at speed 1."""

    costs: Mapping[str, Any]
    """By field, `[stage]`; times of pairs also `[stage of F, stage of the backward]`, or absent."""
    delays: Any
    """Between stages: `[way, route, boundary]`."""
    stated: Any
    """All delays that the user gave, also those that are between no stages."""
    per_unit: Mapping[Unit, int]
    """Ticks in one unit, of time at speed 1 and of memory."""
    devices: Devices

    @classmethod
    def of_stages(cls, pipeline: Pipeline) -> StageRow:
        """The row of a pipeline whose stages state their costs; its integers are Python's."""
        costs, (stated, *ways) = pipeline.costs, pipeline.links
        numbers = {Unit.TIME: [*stated], Unit.MEMORY: []}
        for cost in STAGE_COSTS:
            numbers[cost.unit] += flat(costs[cost.field])
        per_unit = {unit: exact.common_denominator(row) for unit, row in numbers.items()}
        rows = {
            cost.field: _scaled(costs[cost.field], per_unit[cost.unit])
            for cost in STAGE_COSTS
            if costs[cost.field]
        }
        delays = _scaled(tuple(ways), per_unit[Unit.TIME])
        of_links = delays, _scaled(stated, per_unit[Unit.TIME])
        return cls(rows, *of_links, per_unit, Devices.of(pipeline))

    def ticks(
        self,
        pipeline: Pipeline,
        allocated: Iterable[Fraction],
        pieces: int,
        divisors: Mapping[Unit, int],
    ) -> Ticks:
        """The costs of the pipeline in the coarsest ticks that lose nothing.

        `allocated` has amounts of memory that do not follow from the costs; they are whole ticks,
        too. `pieces` is the number of microbatches times slices, and `divisors` the number of ticks
        into which the common tick of times, and that of memory, is divided. Raises ConflictError if
        times or memory are so large, or so finely divided, that sums of ticks would exceed
        `MAX_TICKS`.
        """
        limits, (ratio, _, slowness, hosting) = pipeline.limits, self.devices
        timed, memory = (
            [cost for cost in STAGE_COSTS if cost.unit is unit and cost.field in self.costs]
            for unit in Unit
        )
        times = {
            cost.field: (self.costs[cost.field].T * (slowness if cost.on_compute else ratio)).T
            for cost in timed
        }
        rows, amounts = [times], {cost.field: self.costs[cost.field] for cost in memory}
        if (slowness != ratio).any():
            rows.append({field: self.costs[field] * ratio for field in times})
        delays, per_unit = self.delays * ratio, self.per_unit[Unit.TIME] * ratio
        all_times = _flat(delays, *chain(*(row.values() for row in rows)))
        common = np.gcd.reduce(self.stated * ratio, initial=per_unit)
        time = Fraction(divisors[Unit.TIME], int(np.gcd.reduce(all_times, initial=common)))
        stated, known = self.per_unit[Unit.MEMORY], exact.common_denominator(limits or ())
        all_amounts = _flat(*amounts.values())
        needed = lcm(stated // int(np.gcd.reduce(all_amounts, initial=stated)), known)
        needed = lcm(divisors[Unit.MEMORY] * needed, exact.common_denominator(allocated))
        amount = Fraction(needed, stated)
        largest = {
            Unit.TIME: int(int(abs(all_times).max()) * time),
            Unit.MEMORY: int(int(abs(all_amounts).max()) * amount),
        }
        for unit, value in largest.items():
            if value >= MAX_TICKS:
                refuse_large(unit, value)
        amounts = {field: _times(each, amount) for field, each in amounts.items()}
        tables = [{f: _times(each, time) for f, each in row.items()} | amounts for row in rows]
        costs = [
            StageCosts[int](**dict.fromkeys(_PAIRS, ()) | {f: _tuples(table[f]) for f in table})
            for table in tables
        ]
        down, up = _tuples(_times(delays, time))
        ticks = Ticks(
            **by_kind(costs[0], StageArrays(tables[0])),
            per_unit=int(per_unit * time),
            memory_per_unit=needed,
            down=down,
            up=up,
            static=_tuples(hosting @ np.tile(amounts["static"], pipeline.routes)),
            limits=None
            if limits is None
            else map_distinct(lambda limit: exact.whole(limit * needed), limits),
        )
        bound = max(*largest.values(), *(ticks.limits or ()))
        if _ROWS * pieces * len(slowness) * bound >= MAX_TICKS:
            for scaled in costs:
                check_range(ticks, scaled, pieces)
        return ticks


def _scaled(values: tuple[Any, ...], per_unit: int) -> Any:
    """Numbers, in rows of any depth, as whole ticks, which are integers of Python."""
    if is_matrix(values):
        return np.array([_scaled(row, per_unit) for row in values])
    ticks = map_distinct(lambda value: value.numerator * (per_unit // value.denominator), values)
    return np.array(ticks, dtype=object)


def _flat(*values: Any) -> Any:
    """All numbers of some arrays in a row."""
    return np.concatenate([each.ravel() for each in values])


def _times(values: Any, factor: Fraction) -> Any:
    """Values times a factor, which are whole."""
    numerator, denominator = factor.as_integer_ratio()
    return values if numerator == denominator else values // denominator * numerator


def _tuples(values: Any) -> tuple[Any, ...]:
    """An array as tuples of its rows."""
    return tuple(map(_tuples, values)) if values.ndim > 1 else tuple(values.tolist())


def check_range(ticks: Ticks, scaled: Mapping[str, tuple[Any, ...]], pieces: int) -> None:
    """Check the sums of all times and of all memory; `scaled` are the costs of stages, by field.

    `pieces` is the number of microbatches times slices. Raises ConflictError if a sum is not below
    `MAX_TICKS`.
    """
    total = dict.fromkeys(Unit, 0)
    for cost in STAGE_COSTS:
        count = pieces if cost.per_microbatch else 1
        rows = scaled[cost.field]
        longest = map(max, rows) if is_matrix(rows) else map(abs, rows)
        total[cost.unit] += count * sum(longest)
    links = max(sum(down) + sum(up) for down, up in zip(ticks.down, ticks.up, strict=True))
    total[Unit.TIME] += pieces * links
    total[Unit.MEMORY] += max(*ticks.static, *(ticks.limits or (0,)))
    for unit, sum_of in total.items():
        if sum_of >= MAX_TICKS:
            refuse_large(unit, sum_of)


def refuse_large(unit: Unit, ticks: int) -> NoReturn:
    """Raise ConflictError for a sum of too many ticks of time or of memory."""
    raise ConflictError(
        f"{AMOUNTS[unit]}: too large or too finely divided to stay exact "
        f"({ticks} ticks, at most 2^53); use fewer digits or fewer batches"
    )
