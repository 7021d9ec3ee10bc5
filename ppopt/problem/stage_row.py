"""The costs of the stages of one pipeline as integers, and the ticks that follow from them."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from math import ceil, lcm
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ppopt.errors import ConflictError
from ppopt.problem import exact
from ppopt.problem.arrays import Bools, Ints
from ppopt.problem.cost_table import STAGE_COSTS
from ppopt.problem.costs import MAX_TICKS, StageArrays, StageCosts, Ticks, by_kind, is_matrix
from ppopt.problem.delays import delays_of
from ppopt.problem.distinct import map_distinct
from ppopt.problem.grid import Grid
from ppopt.problem.operation import OpKind
from ppopt.problem.units import Unit

if TYPE_CHECKING:
    from ppopt.problem.pipeline import Pipeline

TIME = Unit.TIME
AMOUNTS = {TIME: "times", Unit.MEMORY: "memory"}
"""Names of sums in messages."""
_ROWS = 32
"""More than there are costs of one unit."""
_PAIRS = tuple(cost.field for cost in STAGE_COSTS if cost.of_pairs)


class TooFineError(ConflictError):
    """Sums of times, or of memory, exceed `MAX_TICKS` on the grid of a pipeline."""

    def __init__(self, unit: Unit, ticks: int) -> None:
        super().__init__(
            f"{AMOUNTS[unit]}: too large or too finely divided to stay exact "
            f"({ticks} ticks, at most 2^53); use fewer digits or fewer batches"
        )
        self.unit = unit


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

    def per_unit_at_speed_1(self, grid: Grid) -> dict[Unit, int]:
        """Ticks in one unit, of time at speed 1 and of memory."""
        return {Unit.TIME: grid.time // self.ratio, Unit.MEMORY: grid.memory}


class StageRow(NamedTuple):
    """Costs of the stages of one pipeline, for one slice, at speed 1."""

    costs: Mapping[str, Any]
    """By field, `[stage]`; times of pairs also `[stage of F, stage of the backward]`, or absent."""
    delays: Any
    """Between stages: `[way, route, boundary]`."""
    devices: Devices

    @classmethod
    def of_stages(cls, pipeline: Pipeline) -> StageRow:
        """The row of a pipeline whose stages state their costs; its integers are Python's."""
        costs, devices = pipeline.costs, Devices.of(pipeline)
        per_unit = devices.per_unit_at_speed_1(pipeline.grid)
        rows = {
            cost.field: _scaled(costs[cost.field], per_unit[cost.unit])
            for cost in STAGE_COSTS
            if costs[cost.field]
        }
        delays = delays_of(pipeline, per_unit[Unit.TIME])
        delays[1] *= np.array(pipeline.has_operations[OpKind.B])[:-1]
        return cls(rows, delays, devices)

    def ticks(self, pipeline: Pipeline) -> Ticks:
        """The costs of the pipeline in ticks of its grid.

        Raises TooFineError if times or memory are so large, or so finely divided, that sums of
        ticks would exceed `MAX_TICKS`.
        """
        (ratio, _, slowness, hosting), limits = self.devices, pipeline.limits
        delays, tables = self.delays * ratio, [self._times(slowness)]
        if (slowness != ratio).any():
            tables.append(self._times(ratio))
        memory = {own.field: self.costs[own.field] for own in STAGE_COSTS if own.unit is not TIME}
        largest = (
            _largest(TIME, delays, *chain(*(table.values() for table in tables))),
            _largest(Unit.MEMORY, *memory.values()),
        )
        tables = [table | memory for table in tables]
        costs = {field: _tuples(row) for field, row in tables[0].items()}
        down, up = _tuples(delays)
        ticks = Ticks(
            **by_kind(StageCosts[int](**dict.fromkeys(_PAIRS, ()) | costs), StageArrays(tables[0])),
            per_unit=pipeline.grid.time,
            memory_per_unit=pipeline.grid.memory,
            down=down,
            up=up,
            static=_tuples(hosting @ np.tile(memory["static"], pipeline.routes)),
            limits=None
            if limits is None
            else map_distinct(lambda limit: exact.whole(limit * pipeline.grid.memory), limits),
        )
        pieces = _pieces(pipeline)
        if _ROWS * pieces * len(slowness) * max(*largest, *(ticks.limits or ())) >= MAX_TICKS:
            for table in tables:
                check_range(ticks, table, pieces)
        return ticks

    def _times(self, slowness: Any) -> dict[str, Any]:
        """Times by field, on devices of this slowness if the devices compute."""
        return {
            cost.field: (row.T * (slowness if cost.on_compute else self.devices.ratio)).T
            for cost in STAGE_COSTS
            if cost.unit is TIME and (row := self.costs.get(cost.field)) is not None
        }


def _pieces(pipeline: Pipeline) -> int:
    """Upper bound on the slices of a step, each as often as its factors say."""
    factors = (pipeline.microbatch_times or (), pipeline.microbatch_memory or ())
    pieces = max(pipeline.batches, *(ceil(sum(each)) for each in factors))
    return pieces * max(pipeline.num_slices, ceil(sum(pipeline.slice_times or ())))


def _largest(unit: Unit, *rows: Any) -> int:
    """Largest of some arrays of ticks; raises TooFineError if it is too large."""
    largest = int(abs(np.concatenate([row.ravel() for row in rows])).max())
    if largest >= MAX_TICKS:
        raise TooFineError(unit, largest)
    return largest


def _scaled(values: tuple[Any, ...], per_unit: int) -> Any:
    """Numbers, in rows of any depth, as whole ticks, which are integers of Python."""
    if is_matrix(values):
        return np.array([_scaled(row, per_unit) for row in values])
    ticks = map_distinct(lambda value: value.numerator * (per_unit // value.denominator), values)
    return np.array(ticks, dtype=object)


def _tuples(values: Any) -> tuple[Any, ...]:
    """An array as tuples of its rows."""
    return tuple(map(_tuples, values)) if values.ndim > 1 else tuple(values.tolist())


def check_range(ticks: Ticks, table: Mapping[str, Any], pieces: int) -> None:
    """Check the sums of all times and of all memory; `table` has the costs of stages, by field.

    `pieces` is the number of microbatches times slices. Raises TooFineError if a sum is not below
    `MAX_TICKS`.
    """
    total = dict.fromkeys(Unit, 0)
    for cost in STAGE_COSTS:
        if cost.field in table:
            longest = abs(table[cost.field]).reshape(len(table["forward"]), -1).max(axis=1)
            total[cost.unit] += int(longest.sum()) * (pieces if cost.per_microbatch else 1)
    links = max(sum(down) + sum(up) for down, up in zip(ticks.down, ticks.up, strict=True))
    total[Unit.TIME] += pieces * links
    total[Unit.MEMORY] += max(*ticks.static, *(ticks.limits or (0,)))
    for unit, sum_of in total.items():
        if sum_of >= MAX_TICKS:
            raise TooFineError(unit, sum_of)
