"""Costs of the stages for many partitions of one model at once, in whole ticks.

Making a pipeline is slow: its settings are read and checked as a user gives them. A search over
partitions asks for the costs of thousands of partitions that differ only in their cuts. Here the
layers are read once, and the cost of a stage is a difference of two prefix sums.

Numbers are whole and below 2^53, and are stored as 64-bit floats: sums and products are exact, and
products of matrices are fast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import chain
from math import lcm
from typing import Any, NamedTuple

import numpy as np

from ppopt.errors import NotApplicableError
from ppopt.problem import exact
from ppopt.problem.arrays import Floats, Ints
from ppopt.problem.backward_memory import RecomputeUnit
from ppopt.problem.cost_table import LAYER_COSTS, Cost, OverLayers
from ppopt.problem.costs import MAX_TICKS, WORKSPACES, links_of, memory_by_kind
from ppopt.problem.distinct import distinct, map_distinct
from ppopt.problem.operation import OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.units import Unit

_TIMES = ("forward", "backward_input", "weight", "backward")
"""Fields of the times, in the order of the kinds of operations."""
_MEMORY = tuple(
    cost.field
    for cost in LAYER_COSTS
    if cost.unit is Unit.MEMORY and cost.over_layers is OverLayers.SUM
)
_SAFETY_FACTOR = 4
"""Safety factor below 2^53 that keeps differences of prefix sums exact."""


class CostTable(NamedTuple):
    """Costs of pipelines of one shape, one pipeline per column, in ticks of time and of memory.

    Rows of a kind and a stage are numbered kind x stages + stage.
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
    """Costs of the stages of pipelines with recompute, in ticks: `[pipeline, stage]`."""

    time: Ints
    """Added to B and BW, at speed 1 (`PartitionCosts.per_unit_at_speed_1`)."""
    retained: Ints
    """Activation that F retains."""
    peak: Ints
    """Largest live memory of a microbatch while BW runs."""


def link_number(pipeline: Pipeline, route: Any, stage: Any, back: Any) -> Any:
    """Number, 1 or more, of the link after a stage on a route; works on integers and on arrays.

    `back` is 0 for the way forward and 1 for the way back.
    """
    return 1 + (pipeline.routes * back + route) * pipeline.num_stages + stage


class PartitionCosts:
    """The costs of the stages of one pipeline under every partition of its layers."""

    def __init__(self, pipeline: Pipeline) -> None:
        """The partition of the pipeline does not matter; its model is in layers.

        Times of pairs are not among these costs, but they are whole in ticks. Raises
        NotApplicableError if times or memory are too large or too finely divided to stay exact.
        """
        self._pipeline, model, slices = pipeline, pipeline.model, pipeline.num_slices
        rows = {
            cost.field: _of_a_slice(model.costs.amounts[cost.field], cost, slices)
            for cost in LAYER_COSTS
        }
        links = {
            link_number(pipeline, route, stage, back): delays
            for route, stage, back, delays in link_delays(pipeline)
        }
        passing = map_distinct(lambda amount: amount / slices, model.passing)
        ratio = self._set_units_of_time(links.values())
        self.memory_per_unit = self._ticks_per_unit_of_memory(passing)
        """Ticks in one unit of memory."""
        speeds = [pipeline.device_speed[host] for host in pipeline.hosts[0]]
        self._slowness = np.array([[int(ratio / speed)] for speed in speeds], dtype=np.int64)
        """Per stage, by how much the times of layers are multiplied on its device."""
        self._check(rows, links.values())
        self._sums = {
            field: np.append(0, np.cumsum(_ticks(rows[field], per_unit)))
            for fields, per_unit in (
                ((*_TIMES, "recompute_time"), self.per_unit_at_speed_1),
                (_MEMORY, self.memory_per_unit),
            )
            for field in fields
        }
        """Sum of each cost over the first 0, 1, ... layers, in ticks."""
        self._links = {link_id: _ticks(delays, self.per_unit) for link_id, delays in links.items()}
        workspaces = {
            kind: _ticks(rows[field], self.memory_per_unit) for kind, field in WORKSPACES.items()
        }
        self._workspaces = {
            kind: _RangeMaximum(amounts)
            for kind, amounts in workspaces.items()
            if kind is not OpKind.BW and amounts.any()
        }
        self._peak = self._peak_of_layers(workspaces[OpKind.BW])
        self._passing = _ticks(passing, self.memory_per_unit)
        """Activation that F allocates only while it runs, of the first 0, 1, ... layers."""
        hosts = np.array([host for route in pipeline.hosts for host in route])
        self._hosting = (np.arange(pipeline.num_devices)[:, None] == hosts).astype(np.float64)

    def _set_units_of_time(self, links: Iterable[Sequence[Fraction]]) -> int:
        """Set the ticks in one unit of time; return the ratio of the two.

        The ratio is a multiple of the numerator of every speed of a device.
        """
        pipeline = self._pipeline
        ratio = lcm(*(pipeline.device_speed[host].numerator for host in pipeline.hosts[0]))
        phases = (
            time / pipeline.num_slices
            for layer in pipeline.model.distinct_costed
            if layer.phases
            for time in layer.phases.numbers
        )
        times = [cost for cost in LAYER_COSTS if cost.unit is Unit.TIME]
        at_speed, off_compute = (
            [cost for cost in times if cost.on_compute is on_compute]
            for on_compute in (True, False)
        )
        self.per_unit = lcm(
            ratio * exact.common_denominator(chain(phases, self._stated(at_speed))),
            exact.common_denominator(chain(self._stated(off_compute), *links)),
        )
        """Ticks in one unit of time, those of gradient work and of moves to the host, too."""
        self.per_unit_at_speed_1 = self.per_unit // ratio
        """The same for times at speed 1, which `_slowness` multiplies."""
        return ratio

    def _ticks_per_unit_of_memory(self, passing: Iterable[Fraction]) -> int:
        memory = self._stated(
            cost
            for cost in LAYER_COSTS
            if cost.unit is Unit.MEMORY and cost.over_layers is not OverLayers.LAST
        )
        return exact.common_denominator(chain(memory, passing, self._pipeline.limits or ()))

    def _peak_of_layers(self, workspace: Ints) -> Callable[[Ints, Ints], Ints]:
        """Largest live memory of a microbatch while BW of layers `low` to `high` - 1 runs.

        As in `ppopt.problem.backward_memory`: the layers before one retain a difference of two
        sums.
        """
        retained, activation = self._sums["kept"], self._sums["activation"]
        if self._pipeline.model.recompute_unit is RecomputeUnit.STAGE:
            largest = _RangeMaximum(workspace)
            return lambda low, high: activation[high] - activation[low] + largest.over(low, high)
        during = _RangeMaximum(retained[:-1] + np.diff(activation) + workspace)
        return lambda low, high: np.maximum(during.over(low, high), retained[high]) - retained[low]

    def _stated(self, costs: Iterable[Cost]) -> Iterator[Fraction]:
        """Costs of the layers for one slice, whether the layers recompute and offload or not."""
        for cost in costs:
            stated = (getattr(layer, cost.field) for layer in self._pipeline.model.distinct_costed)
            yield from _of_a_slice(stated, cost, self._pipeline.num_slices)

    def _check(
        self, rows: Mapping[str, Sequence[Fraction]], links: Iterable[Sequence[Fraction]]
    ) -> None:
        """Raise NotApplicableError if sums of the numbers may not be exact."""
        model, slices = self._pipeline.model, self._pipeline.num_slices
        pieces = self._pipeline.batches * slices
        slowest = int(self._slowness.max())
        recompute = model.each(lambda layer: layer.recompute_time / slices)
        times = exact.total(chain(recompute, *(rows[field] for field in _TIMES)))
        delays = sum(max(distinct(row)) for row in links)
        amounts = chain(*(rows[field] for field in _MEMORY))
        memory = exact.total(map_distinct(abs, amounts))
        memory += sum(max(distinct(rows[field])) for field in WORKSPACES.values())
        memory += model.passing[-1] / slices
        sums = {
            "times": times * self.per_unit_at_speed_1 * slowest + delays * self.per_unit,
            "memory": memory * self.memory_per_unit,
        }
        for what, ticks in sums.items():
            if _SAFETY_FACTOR * pieces * ticks >= MAX_TICKS:
                raise NotApplicableError(
                    f"{what}: too large or too finely divided to search partitions exactly; use "
                    "fewer digits or fewer batches"
                )

    @property
    def lengthless(self) -> bool:
        """Whether an operation of some partition may have zero duration."""
        return any((np.diff(self._sums[field]) == 0).any() for field in _TIMES)

    def table(self, counts: Ints, recomputed: Recomputed | None = None) -> CostTable:
        """The costs of partitions, `counts[pipeline, stage]` layers each.

        `recomputed`: the costs of recompute, if they are not those that the layers state.
        """
        high = np.cumsum(counts, axis=1).T
        low = high - counts.T
        cost = {field: row[high] - row[low] for field, row in self._sums.items()}
        if recomputed is None:
            peak = self._peak(low, high)
        else:
            cost["recompute_time"], cost["kept"] = recomputed.time.T, recomputed.retained.T
            peak = recomputed.peak.T
        durations = self._durations(cost)
        retained = cost["kept"]
        allocates, frees = memory_by_kind(
            cost["activation"], retained, peak - retained, cost["memory_b"]
        )
        pending = frees[OpKind.W]
        for kind, workspace in self._workspaces.items():
            largest = workspace.over(low, high)
            allocates[kind] = allocates[kind] + largest
            frees[kind] = frees[kind] + largest
        passing = self._passing[high] - self._passing[low]
        allocates[OpKind.F], frees[OpKind.F] = (
            allocates[OpKind.F] + passing,
            frees[OpKind.F] + passing,
        )
        allocated, freed = np.concatenate(allocates), np.concatenate(frees)
        allocated = np.where(durations == 0, allocated - np.minimum(allocated, freed), allocated)
        static = np.tile(cost["static"], (self._pipeline.routes, 1))
        return CostTable(
            durations=durations.astype(np.float64),
            links=self._delays(high),
            allocates=allocated.astype(np.float64),
            retained=cost["kept"].astype(np.float64),
            pending=pending.astype(np.float64),
            static=self._hosting @ static.astype(np.float64),
        )

    def _durations(self, cost: dict[str, Ints]) -> Ints:
        """Times of operations, `[kind and stage, pipeline]`."""
        recompute_time = cost["recompute_time"]
        added = {OpKind.B: recompute_time, OpKind.BW: recompute_time}
        rows = [
            cost[field] + added.get(kind, 0) for kind, field in zip(OpKind, _TIMES, strict=True)
        ]
        return np.concatenate([row * self._slowness for row in rows])

    def _delays(self, high: Ints) -> Floats:
        """Delays of links if every stage ends after `high` layers."""
        pipeline = self._pipeline
        last = link_number(pipeline, pipeline.routes - 1, pipeline.num_stages - 1, 1)
        table = np.zeros((last + 1, high.shape[1]))
        for link_id, delays in self._links.items():
            stage = (link_id - 1) % pipeline.num_stages
            table[link_id] = delays[high[stage]] if len(delays) > 1 else delays[0]
        return table


class LinkDelays(NamedTuple):
    """Delays of a link between the devices of two stages, in the user's unit."""

    route: int
    stage: int
    """The first of the stages."""
    back: int
    """0 for the way forward, 1 for the way back."""
    delays: Sequence[Fraction]
    """One; or one by the number of layers before the cut, if sizes decide."""


def link_delays(pipeline: Pipeline) -> Iterator[LinkDelays]:
    """Delays of every link between devices, whatever the partition.

    No gradient goes back over a cut before which no layer runs a backward.
    """
    back = pipeline.p2p if pipeline.backward_p2p is None else pipeline.backward_p2p
    ways = links_of(pipeline.hosts, pipeline.p2p, back, [True] * pipeline.num_stages)[1:]
    num_forward_only = pipeline.model.num_forward_only_layers
    sizes = [Fraction(0), *(layer.output / pipeline.num_slices for layer in pipeline.model.layers)]
    by_size = [None, None] if pipeline.link is None else [pipeline.link, pipeline.link.backward]
    if pipeline.link is not None and pipeline.backward_p2p is None:
        by_size[1] = by_size[1] or pipeline.link
    for back, (routes, link) in enumerate(zip(ways, by_size, strict=True)):
        delays = None if link is None else link.delays(sizes)
        for route, row in enumerate(routes):
            hosts = pipeline.hosts[route]
            for stage, delay in enumerate(row):
                if hosts[stage] == hosts[stage + 1]:
                    continue
                own_delays = delays or (delay,)
                if back and num_forward_only:
                    every = own_delays if len(own_delays) > 1 else own_delays * len(sizes)
                    first = num_forward_only + 1
                    own_delays = (Fraction(0),) * first + every[first:]
                yield LinkDelays(route, stage, back, own_delays)


class _RangeMaximum:
    """The largest of consecutive numbers: a table of the maxima of runs of 1, 2, 4, ..."""

    def __init__(self, values: Ints) -> None:
        rows = [values]
        for power in range(1, len(values).bit_length()):
            half, before = 1 << (power - 1), rows[-1]
            rows.append(np.maximum(before, np.append(before[half:], before[-1:].repeat(half))))
        self._rows = np.stack(rows)

    def over(self, low: Ints, high: Ints) -> Ints:
        """Maximum of the numbers `low` to `high` - 1, at least one."""
        power = np.log2(high - low).astype(np.int64)
        return np.asarray(
            np.maximum(self._rows[power, low], self._rows[power, high - (1 << power)])
        )


def _of_a_slice(amounts: Iterable[Fraction], cost: Cost, slices: int) -> tuple[Fraction, ...]:
    """Costs of one slice of a microbatch."""
    return (
        map_distinct(lambda amount: amount / slices, amounts)
        if cost.per_microbatch
        else tuple(amounts)
    )


def _ticks(values: Iterable[Fraction], per_unit: int | Fraction) -> Ints:
    return np.array(map_distinct(lambda value: int(value * per_unit), values), dtype=np.int64)
