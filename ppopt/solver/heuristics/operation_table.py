"""Mode-independent arrays of the operations of a problem on all its resources.

If links are resources, transfers are operations. Operations are numbered 0, 1, ... in the order of
their operation numbers. The F of an overlapped pair represents the pair: its backward is absent,
and the successors of the backward wait for the F.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from graphlib import TopologicalSorter

import numpy as np

from ppopt.problem.arrays import Ints
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.instance import ABSENT, SPLIT_MODE, WHOLE_MODE
from ppopt.problem.operation import NUM_KINDS, OpKind
from ppopt.problem.operation_classes import Allocation, Constraints
from ppopt.problem.problem import Problem
from ppopt.problem.traits import BESIDE_COMPUTE, Trait
from ppopt.schedule.operations import ALONE, Operations, split_codes
from ppopt.schedule.schedule import Schedule
from ppopt.solver.relaxation import device_relaxation
from ppopt.solver.relaxation.device_relaxation import DeviceSubset
from ppopt.solver.relaxation.route_times import RouteTimes
from ppopt.solver.relaxation.symmetry import canonical, canonical_besides

Links = list[list[tuple[int, int]]]
"""Per operation: (related operation, ticks between the two)."""
ABSENT_ROW = (ABSENT, 0, 0, 0)
"""Kind, duration and memory of an operation that is absent in its mode."""
NO_PAIRS: Ints = np.empty((0, 2), dtype=np.int64)


def links_of(size: int, ops: Ints, related: Ints, ticks: Ints) -> Links:
    """Per operation: (related operation, ticks between the two)."""
    links: Links = [[] for _ in range(size)]
    for op, neighbour, apart in zip(ops.tolist(), related.tolist(), ticks.tolist(), strict=True):
        links[op].append((neighbour, apart))
    return links


class OperationTable:
    """Columns of the operations, their modes and their data flow."""

    def __init__(self, problem: Problem, pairs: Ints = NO_PAIRS) -> None:
        """`pairs` has a row per overlapped pair: the F and the backward."""
        self.problem, self.pairs = problem, pairs
        self.instance = instance = problem.full_instance
        codes, sizes = (
            np.concatenate(instance.codes),
            [op_class.size for op_class in instance.classes],
        )
        by_code = np.argsort(codes)
        self.codes: Ints = codes[by_code]
        """Operation numbers in the first modes."""
        self.class_ids: Ints = np.repeat(np.arange(len(sizes)), sizes)[by_code]
        """Class of every operation."""
        _, self.stage, self.microbatch, self.slice = split_codes(problem.pipeline, self.codes)
        self.size = len(codes)
        resources = instance.resources
        self.resource: Ints = np.array([op_class.resource for op_class in instance.classes])[
            self.class_ids
        ]
        self.home: Ints = np.array([resource.devices[0] for resource in resources])[self.resource]
        """Device whose memory an operation allocates and frees."""
        self.choices = problem.pipeline.num_codes // NUM_KINDS
        self.choice: Ints = self.codes % self.choices
        """Mode choice of every operation: a stage, microbatch and slice."""
        self._columns: Ints = np.stack(
            [self._columns_in(option, by_code) for option in (SPLIT_MODE, WHOLE_MODE)], axis=1
        )

    def _columns_in(self, option: int, by_code: Ints) -> Ints:
        """Kind, duration, and memory allocated and freed, of every operation in these modes."""
        instance = self.instance
        classes = range(len(instance.classes))
        codes = np.concatenate([instance.codes_in(class_id, option) for class_id in classes])[
            by_code
        ]
        amounts = (instance.durations, instance.allocations, instance.frees)
        columns = np.stack([codes // self.choices, *(column[codes] for column in amounts)], axis=1)
        columns[codes == ABSENT] = ABSENT_ROW
        return columns

    @classmethod
    def of(cls, problem: Problem, schedule: Schedule) -> OperationTable:
        """Create the table with the pairs of a schedule."""
        second = np.flatnonzero(schedule.seconds)
        if not len(second):
            return cls(problem)
        ops = cls(problem)._operation_of[canonical(schedule)]
        return cls(problem, np.sort(np.stack([ops[second - 1], ops[second]], axis=1), axis=1))

    def columns(self, modes: Ints) -> tuple[Ints, Ints, Ints, Ints]:
        """Kind, duration, and memory allocated and freed, in the modes of every choice."""
        rows = self._columns[np.arange(self.size), modes[self.choice]]
        kind, time, allocated, freed = rows.T.copy()
        instance = self.instance
        for first, second in self.pairs.tolist():
            both = [first, second]
            codes = kind[both] * self.choices + self.choice[both]
            time[first], time[second] = instance.pair_time(*codes.tolist()), 0
            workspace = instance.pair_workspaces[codes].sum()
            allocated[first], freed[first] = (
                allocated[both].sum() + workspace,
                freed[both].sum() + workspace,
            )
            allocated[second] = freed[second] = 0
        return kind, time, allocated, freed

    @cached_property
    def flips(self) -> list[int]:
        """Mode choice of each backward, also at the F of its pair; ABSENT: none.

        The backward of a frozen stage has none: one of its kinds is never worse.
        """
        has_weight = self.problem.pipeline.has_operations[OpKind.W]
        backward = [
            len(op_class.modes) > 1 and None not in op_class.modes and has_weight[op_class.stage]
            for op_class in self.instance.classes
        ]
        choice = np.where(np.array(backward)[self.class_ids], self.choice, ABSENT)
        choice[self.pairs[:, 0]] = choice[self.pairs[:, 1]]
        choices: list[int] = choice.tolist()
        return choices

    def weights(self, choice: int) -> list[int]:
        """Operations that are absent in a mode of a choice: the W of a whole backward."""
        may_be_absent = np.array([None in op_class.modes for op_class in self.instance.classes])[
            self.class_ids
        ]
        operations: list[int] = np.flatnonzero(may_be_absent & (self.choice == choice)).tolist()
        return operations

    @cached_property
    def memory_users(self) -> dict[int, set[int]]:
        """Per limited device: the resources whose operations allocate or free its memory."""
        used = self._columns[:, :, 2:].any(axis=(1, 2))
        users: dict[int, set[int]] = {}
        for home, resource in np.unique([self.home[used], self.resource[used]], axis=1).T.tolist():
            if self.instance.headroom(home) is not None:
                users.setdefault(home, set()).add(resource)
        return users

    def times(self, op: int) -> tuple[int | None, ...]:
        """Durations of an operation in the modes of its class, in ticks; None: it is absent."""
        modes = self.instance.classes[self.class_ids[op]].modes
        rows = zip(modes, self._columns[op].tolist(), strict=False)
        return tuple(None if mode is None else time for mode, (_, time, *_) in rows)

    @cached_property
    def node(self) -> Ints:
        """Operation that represents every operation: itself, or the F of its pair."""
        node = np.arange(self.size)
        node[self.pairs[:, 1]] = self.pairs[:, 0]
        return node

    @cached_property
    def tight(self) -> list[int]:
        """Devices whose memory limit is not implied by the fixed precedence."""
        return [
            device
            for device in range(self.problem.pipeline.num_devices)
            if self.instance.headroom(device) is not None
            and not (
                self._uniform and not device_relaxation.needs_cumulative(self.instance, device)
            )
        ]

    @property
    def _uniform(self) -> bool:
        """Whether there are only devices, and one mode."""
        return self.instance.traits.isdisjoint(BESIDE_COMPUTE | {Trait.MIXED})

    @cached_property
    def precedence(self) -> Constraints:
        """Precedence of operations in every schedule whose microbatches are in order."""
        before, after, lag = map(np.concatenate, zip(*self._constraints(), strict=True))
        return Constraints(
            np.searchsorted(self.codes, before), np.searchsorted(self.codes, after), lag
        )

    def _constraints(self) -> Iterator[Constraints]:
        """Data flow, microbatch order, and the precedence that memory limits imply."""
        pipeline, instance = self.problem.pipeline, self.instance
        if not self._uniform:
            return iter((instance.operation_flow, instance.microbatch_order))
        devices = frozenset(range(pipeline.num_devices))
        subsets = (
            DeviceSubset(RouteTimes(instance, route), devices) for route in range(pipeline.routes)
        )
        return map(device_relaxation.implied_precedence, subsets)

    @cached_property
    def holdings(self) -> dict[int, list[tuple[int, int, Allocation]]]:
        """(choice, mode, holding) on every device of `tight`, in all modes."""
        instance, choice = self.instance, self.choice.tolist()
        rows_of_class = [np.searchsorted(self.codes, codes).tolist() for codes in instance.codes]
        home = self.home.tolist()
        holdings: dict[int, list[tuple[int, int, Allocation]]] = {
            device: [] for device in self.tight
        }
        for mode in range(max(map(len, instance.rows))):
            for allocating, freeing, amounts in instance.live_memory_in(mode):
                device_holdings = holdings.get(home[rows_of_class[allocating][0]])
                if device_holdings is not None:
                    rows = zip(
                        rows_of_class[allocating], rows_of_class[freeing], amounts, strict=True
                    )
                    device_holdings += (
                        (choice[first], mode, Allocation(first, last, amount))
                        for first, last, amount in rows
                        if amount
                    )
        for device_holdings in holdings.values():
            device_holdings.sort()
        return holdings

    @cached_property
    def flow(self) -> Constraints:
        """Data flow between operations, the F of a pair for both.

        If microbatches differ, also the order of each class, because it is fixed.
        """
        instance = self.instance
        flows = [
            instance.operation_flow,
            *([] if instance.has_uniform_classes else [instance.microbatch_order]),
        ]
        *ends, lag = map(np.concatenate, zip(*flows, strict=True))
        before, after = (self.node[np.searchsorted(self.codes, codes)] for codes in ends)
        return Constraints(before, after, lag)

    @cached_property
    def before(self) -> Links:
        """Per operation: (predecessor by data flow, lag)."""
        return links_of(self.size, self.flow.after, self.flow.before, self.flow.lag)

    def in_order(self, ops: Ints, start: Ints, end: Ints) -> Ints:
        """Operations by start; simultaneous operations of duration 0 by data flow."""
        keys = self.microbatch[ops], self._depth[self.class_ids[ops]], end[ops], start[ops]
        return ops[np.lexsort(keys)]

    @cached_property
    def _depth(self) -> Ints:
        """Position of every class in a topological order."""
        waits = enumerate(self.instance.predecessors)
        sorter = TopologicalSorter(
            {class_id: [before for before, _ in links] for class_id, links in waits}
        )
        return np.argsort(list(sorter.static_order()))

    @cached_property
    def _operation_of(self) -> Ints:
        """Operation of every operation number, in any mode."""
        operations = np.full(self.instance.num_codes, ABSENT)
        operations[self.codes] = np.arange(self.size)
        for class_id, op_class in enumerate(self.instance.classes):
            if len(op_class.modes) > 1 and None not in op_class.modes:
                whole = self.instance.codes_in(class_id, WHOLE_MODE)
                operations[whole] = operations[self.instance.codes[class_id]]
        return operations

    def starts(self, schedule: Schedule) -> list[int]:
        """Starts of a schedule of this problem, its microbatches in canonical order.

        ABSENT for an operation that the schedule lacks.
        """
        start = np.full(self.size, ABSENT, dtype=np.int64)
        start[self._operation_of[canonical(schedule)]] = schedule.start
        besides = schedule.operations.where(~schedule.operations.computed)
        start[self._operation_of[canonical_besides(besides)]] = besides.start
        starts: list[int] = start.tolist()
        return starts

    def modes_of(self, start: list[int]) -> Ints:
        """Mode of every choice, from starts of which some are ABSENT.

        A frozen stage has the mode that is never worse: its B and BW are equally long.
        """
        modes = np.full(self.choices, SPLIT_MODE, dtype=np.int64)
        modes[self.choice[np.array(start, dtype=np.int64) == ABSENT]] = WHOLE_MODE
        has_weight = self.problem.pipeline.has_operations[OpKind.W]
        for stage, kind in enumerate(self.problem.choice.kinds if self.instance.mixed else ()):
            if kind is BackwardKind.WHOLE and not has_weight[stage]:
                modes[self.choice[self.stage == stage]] = WHOLE_MODE
        return modes

    def schedule(self, kind: Ints, start: Ints, end: Ints) -> Schedule:
        """Schedule with these times in ticks, without operations of kind ABSENT."""
        start, end = start[self.node], end[self.node]
        pair = np.full(self.size, ALONE, dtype=np.int64)
        pair[self.pairs] = np.arange(len(self.pairs))[:, None]
        pipeline, present = self.problem.pipeline, kind != ABSENT
        numbers = np.asarray(pipeline.code(kind, self.stage, self.microbatch, self.slice))
        columns = (column[present] for column in (numbers, start, end, pair))
        return Schedule(pipeline, Operations.of_numbers(pipeline, *columns).ordered())
