"""Every partition of a pipeline's layers into its stages: costs in whole ticks, one row each.

The layers are read once. A search over partitions gathers the costs of thousands of them at a time
(`PartitionTable.costs`); a pipeline is one row (`PartitionTable.row`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from fractions import Fraction
from operator import add
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ppopt.errors import NotApplicableError
from ppopt.problem.arrays import Floats, Ints
from ppopt.problem.backward_memory import RecomputeUnit
from ppopt.problem.cost_table import STAGE_COSTS
from ppopt.problem.costs import (
    MAX_TICKS,
    StageArrays,
    StageCosts,
    times,
)
from ppopt.problem.delays import delays_of
from ppopt.problem.distinct import map_distinct
from ppopt.problem.first_backward import FirstBackward, in_weight
from ppopt.problem.grid import ADDED, Grid, delays_of_cuts, of_model, sized_delays
from ppopt.problem.layer_table import LayerTable
from ppopt.problem.stage_row import AMOUNTS, Devices, StageRow, TooFineError
from ppopt.problem.units import Unit

if TYPE_CHECKING:
    from ppopt.problem.layers import Layers
    from ppopt.problem.pipeline import Pipeline

_OF_STAGES = tuple(cost for cost in STAGE_COSTS if not cost.of_pairs)
_PAIRS = tuple(cost.field for cost in STAGE_COSTS if cost.of_pairs)
_SAFETY_FACTOR = 4
"""Safety factor below 2^53 that keeps sums of columns exact."""
_LARGEST = 2**58
"""Bound on the costs of all layers in ticks: sums of a few fit into 64 bits."""


class CostTable(NamedTuple):
    """Costs of pipelines of one shape, one pipeline per column, in ticks of time and of memory.

    Rows of a kind and a stage are numbered kind x stages + stage. Numbers are whole and below 2^53;
    they are floats, because products of matrices of floats are fast.
    """

    durations: Floats
    """Time of an operation, recompute included: `[kind and stage, pipeline]`."""
    links: Floats
    """Delay between stages: `[id of the link (link_number), pipeline]`; row 0 is 0."""
    allocates: Floats
    """Memory that an operation allocates at its start: `[kind and stage, pipeline]`. Memory that an
    operation of zero duration frees at once is left out."""
    retained: Floats
    """Memory of a microbatch from the end of F to the start of B, or BW: `[stage, pipeline]`."""
    pending: Floats
    """Memory of a microbatch from the end of B to the end of W: `[stage, pipeline]`."""
    static: Floats
    """Static memory: `[device, pipeline]`."""


class Recomputed(NamedTuple):
    """Costs of the stages of pipelines with recompute, in ticks: `[..., stage]`."""

    time: Ints
    """Added to B and BW, at speed 1 (`PartitionTable.per_unit_at_speed_1`)."""
    retained: Ints
    """Activation that F retains."""
    workspace: Ints
    """Workspace of B."""
    peak: Ints
    """Largest live memory of a microbatch while BW runs."""

    @property
    def costs(self) -> dict[str, Ints]:
        """The costs that it changes, by field."""
        return {
            "recompute_time": self.time,
            "kept": self.retained,
            "recompute_memory": self.peak - self.retained,
            "input_workspace": self.workspace,
            "backward_workspace": np.zeros_like(self.peak),
        }


def link_number(pipeline: Pipeline, route: Any, stage: Any, back: Any) -> Any:
    """Number, 1 or more, of the link after a stage on a route; works on integers and on arrays.

    `back` is 0 for the way forward and 1 for the way back.
    """
    return 1 + (pipeline.routes * back + route) * pipeline.num_stages + stage


class PartitionTable:
    """The costs of the stages of a pipeline under every partition of its layers."""

    def __init__(self, pipeline: Pipeline) -> None:
        """The partition of the pipeline does not matter; its model is in layers.

        Raises TooFineError if costs are too large or too finely divided.
        """
        model, self._slices = pipeline.model, pipeline.num_slices
        self.devices = Devices.of(pipeline)
        self._at_speed_1 = self.devices.per_unit_at_speed_1(Grid.of(pipeline))
        """Ticks in one unit, of time at speed 1, and of memory."""
        slowest = {Unit.TIME: max(self.devices.ratio, *self.devices.slowness), Unit.MEMORY: 1}
        numbers = of_model(pipeline)
        for unit in Unit:
            largest = int(numbers.largest(unit) * self._at_speed_1[unit])
            largest *= len(model) * slowest[unit]
            if largest >= _LARGEST:
                raise TooFineError(unit, largest)
        self.layers = LayerTable.of(
            model,
            {
                cost.field: Fraction(
                    self._at_speed_1[cost.unit], self._slices if cost.per_microbatch else 1
                )
                for cost in ADDED
            },
        )
        """Costs of the layers for one slice, at speed 1."""
        self._sized = sized_delays(pipeline)
        """Delays that follow from the sizes of outputs, by field and number of layers before."""
        self.delays_by_cut = self._delays_by_cut(pipeline)
        """Delay after a stage, by the number of layers before: `[way, route, stage, number]`."""
        self._in_weight = pipeline.first_backward is FirstBackward.WEIGHT

    def _delays_by_cut(self, pipeline: Pipeline) -> Ints:
        """No gradient goes back over a cut before which no layer runs a backward."""
        stated = delays_of(pipeline, self.per_unit_at_speed_1)
        cuts, hosts = len(pipeline.model) + 1, np.array(pipeline.hosts)
        apart = (hosts[:, :-1] != hosts[:, 1:])[..., None]
        table = np.zeros((2, *hosts.shape, cuts), dtype=np.int64)
        back = "p2p" if pipeline.backward_p2p is None else "backward_p2p"
        for way, field in enumerate(("p2p", back)):
            row = self._sized.get(field)
            each = stated[way, ..., None]
            table[way, :, :-1] = each if row is None else apart * self._in_ticks(row)
        if pipeline.model.num_forward_only_layers:
            table[1, ..., : pipeline.model.num_forward_only_layers + 1] = 0
        return table

    def _in_ticks(self, delays: Iterable[Fraction]) -> Ints:
        per_unit = self._at_speed_1[Unit.TIME]
        return np.array(map_distinct(lambda delay: int(delay * per_unit), delays), dtype=np.int64)

    @property
    def per_unit_at_speed_1(self) -> int:
        """Ticks in one unit of time at speed 1, which `devices` multiply."""
        return self._at_speed_1[Unit.TIME]

    def having(self, model: Layers) -> PartitionTable:
        """The table of the same layers with another choice of what they recompute and offload."""
        table = copy(self)
        table.layers = self.layers.having(model)
        return table

    # One pipeline.

    def row(self, pipeline: Pipeline) -> StageRow:
        """Costs of the stages of a pipeline of this table."""
        high, per_unit = _ends(pipeline.counts), self.per_unit_at_speed_1
        costs = self.layers.stages(high - pipeline.counts, high)
        if self._in_weight:
            layer_by_layer = self.layers.recompute_unit is RecomputeUnit.LAYER
            costs = in_weight(costs, layer_by_layer=layer_by_layer)
        costs["overlap"] = costs["forward"] + costs["backward"]
        for field, times_of_pairs in self._pair_times(pipeline).items():
            costs[field] = np.array(times(times_of_pairs, per_unit), dtype=np.int64)
        delays = self.delays(high)[1:].reshape(2, pipeline.routes, -1)[..., :-1]
        return StageRow(costs, delays, self.devices)

    def allocated(self, counts: Sequence[int], factor: Fraction) -> list[int]:
        """Memory that BW of stages allocates for a microbatch with this factor, in ticks."""
        high = _ends(counts)
        amounts: list[int] = self.layers.multiplied(factor).allocated(high - counts, high).tolist()
        return amounts

    def delays_of(self, counts: Sequence[int]) -> dict[str, tuple[Fraction, ...]]:
        """Delays between stages that follow from the sizes of outputs, by field."""
        return delays_of_cuts(self._sized, counts)

    def costs(self, pipeline: Pipeline) -> StageCosts[Fraction]:
        """The costs of a pipeline of this table in the user's units."""
        rows: dict[str, Any] = {}
        for cost in _OF_STAGES:
            ticks = pipeline.stage_row.costs[cost.field].tolist()
            per_unit = self._at_speed_1[cost.unit]
            known = {amount: Fraction(amount, per_unit) for amount in set(ticks)}
            rows[cost.field] = tuple(map(known.__getitem__, ticks))
        rows["overlap"] = tuple(map(add, rows["forward"], rows["backward"]))
        return StageCosts(**rows | {"overlap_input": ()} | self._pair_times(pipeline))

    def _pair_times(self, pipeline: Pipeline) -> dict[str, Any]:
        """Stated times of pairs for one slice, at speed 1, in the user's unit, by field."""
        stated = {field: getattr(pipeline, field) for field in _PAIRS}
        part = Fraction(1, self._slices)
        return {field: times(row, part) for field, row in stated.items() if row is not None}

    # Many pipelines.

    def delays(self, high: Ints) -> Ints:
        """Delays of links, `[link, ...]`, if stages end after `high` layers, `[stage, ...]`.

        In ticks at speed 1.
        """
        stage = np.arange(len(high)).reshape(-1, *(1,) * (high.ndim - 1))
        links = self.delays_by_cut[:, :, stage, high].reshape(-1, *high.shape[1:])
        return np.concatenate([np.zeros_like(links[:1]), links])

    @property
    def lengthless(self) -> bool:
        """Whether an operation of some partition may have zero duration."""
        times = ("forward", "backward_input", "weight", "backward")
        return any((self.layers.amounts[field] == 0).any() for field in times)

    def refuse_inexact_sums(self, pieces: int) -> None:
        """Raise NotApplicableError if sums of columns for so many microbatches may not be exact.

        The slices of a microbatch count as microbatches.
        """
        delays = int(self.delays_by_cut.max(axis=-1).sum()) * self.devices.ratio
        slowest = {Unit.TIME: int(self.devices.of_stages.max()), Unit.MEMORY: 1}
        for unit, added in ((Unit.TIME, delays), (Unit.MEMORY, 0)):
            sums = (self.layers.total(cost.field) for cost in ADDED if cost.unit is unit)
            if _SAFETY_FACTOR * pieces * (sum(sums) * slowest[unit] + added) >= MAX_TICKS:
                raise NotApplicableError(
                    f"{AMOUNTS[unit]}: too large or too finely divided to search partitions "
                    "exactly; use fewer digits or fewer batches"
                )

    def table(self, counts: Ints, recomputed: Recomputed | None = None) -> CostTable:
        """The costs of partitions, `counts[pipeline, stage]` layers each.

        `recomputed`: the costs of recompute, if they are not those that the layers state.
        """
        high = np.cumsum(counts, axis=1).T
        costs = self.layers.stages(high - counts.T, high)
        costs["offload_memory"] = np.zeros_like(high)
        if recomputed is not None:
            costs |= {field: row.T for field, row in recomputed.costs.items()}
        stages = StageArrays(costs)
        slowness = self.devices.of_stages[:, None]
        durations = np.concatenate([time * slowness for time in stages.durations])
        allocated, freed = np.concatenate(stages.allocates), np.concatenate(stages.frees)
        at_once = np.where(durations == 0, np.minimum(allocated, freed), 0)
        static = np.tile(costs["static"], (len(self.delays_by_cut[0]), 1))
        columns = (
            durations,
            self.delays(high) * self.devices.ratio,
            allocated - at_once,
            stages.retained,
            costs["activation"] + costs["memory_b"],
            self.devices.hosting.astype(np.float64) @ static,
        )
        return CostTable(*(column.astype(np.float64) for column in columns))


def _ends(counts: Sequence[int]) -> Ints:
    """Number of layers before the end of every stage."""
    return np.cumsum(np.array(counts, dtype=np.int64))
