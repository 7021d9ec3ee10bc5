"""Timing of a fixed order under many columns of operation times at once.

Operations are grouped in topological levels: the level of an operation is one above the highest
level of those it waits for, including its predecessor on the device. Operations of one level do
not wait for each other, so numpy runs a whole level, for all columns, in a few calls. One numpy
call per operation, in start order, takes 1.0 to 1.3 times as long at 4 x 8 and 2.3 to 3.9 times as
long at 16 x 512 (devices x microbatches; CPU time of the strategies and samples at once of
`benchmarks.speed jitter`, which measures the speed of this file).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ppopt.problem.arrays import Bools, Floats, Ints
from ppopt.problem.objective import Objective
from ppopt.problem.operation import OpKind
from ppopt.problem.operation_classes import Constraints
from ppopt.problem.partition_table import CostTable, link_number
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.traits import FORMS, ArgumentClass, Trait, handled
from ppopt.schedule.fixed_order import FREE, FixedOrder
from ppopt.schedule.host_orders import Prefetch, own_moves
from ppopt.schedule.link_queues import queues_of_schedule
from ppopt.schedule.operations import split_codes
from ppopt.schedule.order_memory import OrderMemory
from ppopt.schedule.orders import Orders
from ppopt.schedule.schedule import Schedule
from ppopt.schedule.timing import Network

CELLS = 2**18
"""Approximate number of steps times pipelines that are timed together; caches are small."""
BY_COSTS = handled(ArgumentClass.EQUAL_COMPUTE, (Trait.SLICES, Trait.ROUTES))
"""Traits of the pipelines whose orders are timed correctly for every partition at once."""
BY_FACTORS = handled(ArgumentClass.EVERY_OPERATION, FORMS) - {
    *(Trait.ROUTES, Trait.OFFLOAD, Trait.LINKS),
}
"""Traits of the schedules whose orders of microbatches are timed as a strategy runs them.

Routes own their microbatches, and a move to the host takes as long as its memory. A link that is a
resource serves first what comes first, here in the order of the schedule.
"""


class Wait(NamedTuple):
    """One input of each operation of a level, apart from its predecessor on the device."""

    source: Ints
    """Row that each row of the level waits for; its predecessor if it has no such input."""
    lag: Ints | None
    """Number of the lag after the end of the source, by row of the level; None: all are 0."""


class Level(NamedTuple):
    """Operations that do not wait for each other; all run on different devices."""

    rows: slice
    before: slice | Ints
    """Row of the predecessor of each operation on its device."""
    waits: tuple[Wait, ...]
    """Inputs; every row waits for its source in each of them."""


class OrderColumns:
    """An order, prepared for columns of times.

    Rows: one per machine for its release (the instant at which it may begin), then one per
    operation, by level. The two operations of an overlapped pair share a row.
    """

    def __init__(self, net: Network, lag: Ints, release: list[int]) -> None:
        """`lag` is the number of the lag of every step; 0: none.

        Raises DeadlockError if operations wait in a circle.
        """
        self.net = net
        level = net.ends(np.ones_like(net.duration), lag=np.zeros_like(lag))
        order = np.lexsort((net.machine, level))
        self.row: Ints = np.empty_like(order)
        """Row of every position of the network."""
        self.row[order] = np.arange(len(order)) + len(release)
        self.machines = len(release)
        """Number of devices, links and queues, which is the number of release rows."""
        self.duration: Ints = np.append(release, net.duration[order])
        """Ticks of every row; for a machine, its release."""
        self.levels = tuple(_levels(net, lag, self.row, order, np.bincount(level)[1:]))

    @classmethod
    def of_orders(cls, pipeline: Pipeline, orders: Orders) -> OrderColumns:
        """The order of all operations of compute, links being delays, for `values_by_costs`.

        Operations that the pipeline does not have wait as if its stages were trained. Raises
        InputError if the orders do not list all operations or wait in a circle.
        """
        if not pipeline.has_all_operations:
            pipeline = replace(pipeline.without_model(), frozen=None)
        net = Network(pipeline, orders, compute_alone=True)
        numbers = np.append(_link_numbers(pipeline, net.flow), 0)
        return cls(net, numbers[net.edge], [0] * pipeline.num_devices)

    @classmethod
    def of_schedule(cls, schedule: Schedule) -> OrderColumns:
        """The order of all resources, and the first start of every device, of a schedule."""
        pipeline, first = schedule.pipeline, [*schedule.metrics.first_ticks, 0]
        queues = queues_of_schedule(schedule) if pipeline.has_links else None
        moves = own_moves(schedule) if pipeline.has_offload else Prefetch.LATE
        net = Network(pipeline, schedule.orders, queues, prefetch=moves)
        numbers = np.where(net.lag == 0, 0, 1 + np.arange(len(net.lag)))
        return cls(net, numbers, [first[device] for device in net.owner])

    @property
    def together(self) -> int:
        """Number of columns that are timed together most efficiently."""
        return max(4, CELLS // len(self.duration))

    @cached_property
    def _lags(self) -> Floats:
        """Lags of the steps, by number from 1: `[number, 1]`."""
        return np.append(0, self.net.lag)[:, None].astype(np.float64)

    def values(self, times: Floats, objective: Objective, lags: Floats | None = None) -> Floats:
        """The objective of every column, in ticks, from times of rows, `[row, column]`.

        Overwrites `times` with the ends. `lags[number, column]` replaces the lags of the steps.
        Links have no ends: an operation waits for every transfer.
        """
        net = self.net
        opening, closing = self.row[net.starts[net.opening]], self.row[net.starts[1:] - 1]
        opened = times[opening]
        self._run(times, self._lags if lags is None else lags)
        last = times[closing[: net.pipeline.num_devices]]
        for machine, device in enumerate(net.owner):
            if device not in (FREE, machine):
                np.maximum(last[device], times[closing[machine]], out=last[device])
        if objective is Objective.DEVICE_SPAN:
            last -= times[opening] - opened
        return np.asarray(last.max(axis=0))

    def _run(self, times: Floats, lags: Floats) -> None:
        """Overwrite the times of rows with their ends."""
        shape = (max(level.rows.stop - level.rows.start for level in self.levels), times.shape[1])
        starts, arrivals = np.empty(shape), np.empty(shape)
        add, maximum, take = np.add, np.maximum, times.take
        for rows, before, waits in self.levels:
            block = times[rows]
            start, arrival = starts[: len(block)], arrivals[: len(block)]
            if isinstance(before, slice):
                free = times[before]
            else:
                free = take(before, axis=0, out=start, mode="clip")
            for source, lag in waits:
                take(source, axis=0, out=arrival, mode="clip")
                if lag is not None:
                    add(arrival, lags[lag], out=arrival)
                free = maximum(free, arrival, out=start)
            add(block, free, out=block)

    def values_by_costs(self, costs: CostTable, objective: Objective) -> Ints:
        """The makespan of every pipeline, or its device span with the earliest starts, in ticks.

        A pair takes as long as its two operations one after the other.
        """
        first, pairs, second = self._classes
        times = np.zeros((len(self.duration), costs.durations.shape[1]))
        costs.durations.take(first, axis=0, out=times[self.machines :], mode="clip")
        times[pairs] += costs.durations[second]
        return np.asarray(self.values(times, objective, costs.links), dtype=np.int64)

    @cached_property
    def _classes(self) -> tuple[Ints, Ints, Ints]:
        """Class of the first operation of every row; rows of pairs, classes of their backwards.

        A class is kind x stages + stage.
        """
        net = self.net
        classes = net.ops // (net.pipeline.batches * net.pipeline.num_slices)
        first = np.searchsorted(net.positions, np.argsort(self.row))
        return classes[first], self.row[net.positions[net.second]], classes[net.second]

    def peaks(self, costs: CostTable) -> Ints:
        """Peak memory, `[device, pipeline]`, in ticks; see `OrderMemory`."""
        return self._memory.peaks(costs)

    @cached_property
    def _memory(self) -> OrderMemory:
        return OrderMemory(self.net)

    def values_by_factors(self, factors: Floats, objective: Objective) -> Floats:
        """Makespan or device span of every order of the microbatches, in ticks.

        Index k of a schedule is run by microbatch k of its pipeline. In another order of the
        microbatches, every device keeps its order of indices. `factors[place, order]`: factor on
        the times of the microbatch at every place.
        """
        first, second, paired, saved = self._scaled
        times = np.repeat(self.duration[:, None].astype(np.float64), factors.shape[1], axis=1)
        times[: self.machines] = 0
        own = factors[first.microbatch]
        own *= first.alone
        times[first.rows] = own
        backward = factors[second.microbatch]
        smaller = np.minimum(factors[paired], backward)
        times[second.rows] += backward * second.alone - saved * smaller
        return self.values(times, objective)

    @cached_property
    def _scaled(self) -> tuple[_Scaled, _Scaled, Ints, Floats]:
        """First operations of compute rows; backwards of pairs, with microbatch of F and saving."""
        net, pipeline, ticks = self.net, self.net.pipeline, self.net.pipeline.ticks
        position = net.positions[net.positions < net.computed]
        kind, stage, microbatch, slice_index = split_codes(pipeline, net.ops[: len(position)])
        slices = [float(pipeline.slice_factor(each)) for each in range(pipeline.num_slices)]
        alone = np.array(ticks.durations)[kind, stage] * np.array(slices)[slice_index]
        both = stage[net.second - 1], kind[net.second], stage[net.second]
        pairs = zip(*(column.tolist() for column in both), strict=True)
        saved = np.array([ticks.pair_saving(*pair) for pair in pairs], dtype=np.float64)
        first, second = (
            _Scaled(self.row[position[ops]], microbatch[ops], alone[ops, None])
            for ops in (np.delete(np.arange(len(position)), net.second), net.second)
        )
        return first, second, microbatch[net.second - 1], saved[:, None]


class _Scaled(NamedTuple):
    """Operations whose times are multiples of a factor of their microbatch."""

    rows: Ints
    microbatch: Ints
    alone: Floats
    """Ticks of a microbatch with factor 1: `[operation, 1]`."""


def _link_numbers(pipeline: Pipeline, flow: Constraints) -> Ints:
    """Number of the link between two operations (`link_number`); 0: none."""
    _, before, _, _ = split_codes(pipeline, flow.before)
    kind, stage, microbatch, _ = split_codes(pipeline, flow.after)
    route = microbatch * pipeline.routes // pipeline.batches
    hosts = np.array(pipeline.hosts)
    apart = hosts[route, before] != hosts[route, stage]
    back = (kind != OpKind.F).astype(np.int64)
    numbers = link_number(pipeline, route, np.minimum(before, stage), back)
    return np.where(apart, numbers, 0)


def _levels(order: FixedOrder, lag: Ints, row: Ints, by_row: Ints, sizes: Ints) -> Iterator[Level]:
    """The levels of these sizes; `by_row` has the position of every operation row."""
    machines = len(order.starts) - 1
    previous = np.append(0, row[:-1])
    previous[order.starts[:-1]] = np.arange(machines)
    before = previous[by_row]
    source, lags, waiting = _waits(order, lag, row - machines, before)
    source[waiting] = row[source[waiting]]
    for low, high in pairwise(np.cumsum([0, *sizes]).tolist()):
        rows = slice(low, high)
        waits = tuple(
            Wait(
                source[input_index, rows],
                lags[input_index, rows] if lags[input_index, rows].any() else None,
            )
            for input_index in np.flatnonzero(waiting[:, rows].any(axis=1))
        )
        yield Level(slice(low + machines, high + machines), _as_slice(before[rows]), waits)


def _waits(order: FixedOrder, lag: Ints, row: Ints, before: Ints) -> tuple[Ints, Ints, Bools]:
    """Source, lag and whether there is an input, each [number of the input, operation row].

    The source is a position if there is an input, else the row `before`; `row` numbers
    operation rows from 0.
    """
    steps = np.flatnonzero(order.before != FREE)
    target = order.first[steps]
    input_index = np.arange(len(steps)) - np.searchsorted(target, target)
    shape = (input_index.max(initial=-1) + 1, len(before))
    sources, lags = np.tile(before, (shape[0], 1)), np.zeros(shape, dtype=np.int64)
    at = input_index, row[target]
    sources[at], lags[at] = order.before[steps], lag[steps]
    waiting = np.zeros(shape, dtype=bool)
    waiting[at] = True
    return sources, lags, waiting


def _as_slice(rows: Ints) -> slice | Ints:
    """The rows as a slice if they are consecutive, so that reading them makes no copy."""
    together = bool((np.diff(rows) == 1).all())
    return slice(int(rows[0]), int(rows[-1]) + 1) if together else rows
