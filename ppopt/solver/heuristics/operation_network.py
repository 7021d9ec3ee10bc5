"""The job-shop network of a pipeline in fixed modes, and double justification on it.

Devices run one operation at a time. Everything else is precedence with a delay, including memory.
If a memory limit is a number of microbatches, its precedence is the same for all schedules
(`ppopt.solver.relaxation.device_relaxation`). Otherwise the order of allocations and frees of a
given schedule is preserved: the i-th allocation waits for the free that makes headroom for it.

Double justification moves every operation as late as possible, then as early as possible
(forward-backward improvement: Li, Willis, EJOR 56, 1992; Valls, Ballestin, Quintanilla,
"Justification and RCPSP: a technique that pays", EJOR 165, 2005). Each pass is a serial schedule
generation: it places the operations, in the order of the given schedule, into the first gap of
their device that is long enough. No pass makes a schedule longer, and most make it shorter.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from itertools import accumulate, chain, pairwise
from operator import add
from typing import NamedTuple

import numpy as np

from ppopt.cancellation import checkpoint
from ppopt.problem.arrays import Ints
from ppopt.problem.instance import ABSENT, SPLIT_MODE, WHOLE_MODE
from ppopt.problem.objective import Objective
from ppopt.problem.operation_classes import Allocation, Constraints
from ppopt.problem.problem import Problem
from ppopt.schedule.fixed_order import FREE, FixedOrder
from ppopt.schedule.generation import NEVER
from ppopt.schedule.schedule import Schedule
from ppopt.solver.heuristics.operation_table import Links, OperationTable, links_of

Sequences = list[list[int]]
"""Operations of every resource, in order."""
PLACED = 4096
"""Operations that a pass places between two checkpoints."""
BUSY_SHARE = 0.97
"""Minimum work of a busy device, as a share of the largest work of all devices. Windows are drawn
around the idle gaps of busy devices. Tuned on the core suite."""


class Precedence(NamedTuple):
    """Precedence between operations, for passes forwards and backwards in time."""

    predecessors: Links
    """Per operation: (predecessor, minimum distance of the starts in ticks)."""
    mirrored: Links
    """Precedence with time reversed: (successor, minimum distance of the ends in ticks)."""


class OperationNetwork:
    """The operations of a problem in one mode each, on all resources.

    The operations of a stage, microbatch and slice have a common mode choice (split or whole
    backward). An operation that is absent in its mode (the W of a whole backward) is an instant
    without memory. So all modes have the same operations and precedence; only times and memory
    differ.
    """

    def __init__(
        self,
        problem: Problem,
        modes: Ints | None = None,
        table: OperationTable | None = None,
    ) -> None:
        """`modes` has the mode of every choice; None: the first."""
        self.problem = problem
        self.table = table or OperationTable(problem)
        self.instance = self.table.instance
        self.size, self.choices = self.table.size, self.table.choices
        self.modes: Ints = np.zeros(self.choices, dtype=np.int64) if modes is None else modes
        self.kind, times, self._allocates, self._frees = self.table.columns(self.modes)
        self.times: Ints = times
        """Duration of every operation, in ticks."""
        self.time: list[int] = times.tolist()

    @classmethod
    def of(cls, problem: Problem, schedule: Schedule) -> OperationNetwork:
        """Create the network with the modes and pairs of a schedule."""
        table = OperationTable.of(problem, schedule)
        return cls(problem, modes=table.modes_of(table.starts(schedule)), table=table)

    @cached_property
    def resource(self) -> list[int]:
        """Resource of every operation."""
        resources: list[int] = self.table.resource.tolist()
        return resources

    @property
    def tight(self) -> list[int]:
        """Devices whose memory limit is not implied by the fixed precedence."""
        return self.table.tight

    @cached_property
    def precedence(self) -> Precedence:
        """Precedence in every schedule whose microbatches are in order."""
        before, after, lag = self.table.precedence
        return Precedence(
            links_of(self.size, after, before, self.times[before] + lag),
            links_of(self.size, before, after, self.times[after] + lag),
        )

    @property
    def _devices(self) -> range:
        return range(self.problem.pipeline.num_devices)

    def _link(self, links: Precedence, first: int, second: int, lag: int) -> None:
        links.predecessors[second].append((first, self.time[first] + lag))
        links.mirrored[first].append((second, self.time[second] + lag))

    def with_flips(self, choices: Collection[int]) -> OperationNetwork:
        """Return the network in which these choices have the other mode."""
        modes = self.modes.copy()
        modes[np.array([*choices], dtype=np.int64)] ^= SPLIT_MODE ^ WHOLE_MODE
        return self.in_modes(modes)

    def in_modes(self, modes: Ints) -> OperationNetwork:
        """Return the network in these modes."""
        if np.array_equal(modes, self.modes):
            return self
        return OperationNetwork(self.problem, modes, self.table)

    @cached_property
    def present(self) -> list[int]:
        """Operations that run: not absent in their mode, and not the second of a pair."""
        alone = self.table.node == np.arange(self.size)
        operations: list[int] = np.flatnonzero((self.kind != ABSENT) & alone).tolist()
        return operations

    @cached_property
    def absent(self) -> list[int]:
        """Operations that are absent in these modes."""
        operations: list[int] = np.flatnonzero(self.kind == ABSENT).tolist()
        return operations

    @cached_property
    def successors(self) -> Links:
        """Per operation: (successor, minimum distance of the starts in ticks)."""
        before, after, lag = self.table.precedence
        return links_of(self.size, before, after, self.times[before] + lag)

    def open_choices(self, inside: Sequence[int]) -> dict[int, int]:
        """Mode choices of some operations, if all operations of the choice are among them.

        Empty if every operation has one mode.
        """
        choices = self.table.choice
        choice = {op: int(choices[op]) for op in inside if len(self.table.times(op)) > 1}
        counts, each = Counter(choice.values()), sum(len(row) > 1 for row in self.instance.rows)
        return {op: choice_id for op, choice_id in choice.items() if counts[choice_id] == each}

    def in_first_mode(self, choice: int) -> bool:
        """Whether the operations of a choice are in their first modes."""
        return bool(self.modes[choice] == SPLIT_MODE)

    def holdings(
        self, device: int, choices: Collection[int]
    ) -> Iterator[tuple[Allocation, tuple[int, bool] | None]]:
        """Live-memory intervals on a device of `tight`, with their modes if these are open.

        For these choices the mode is (choice, whether it is the first mode).
        """
        open_choices, modes = set(choices), self.modes.tolist()
        for choice, mode, holding in self.table.holdings[device]:
            if choice in open_choices:
                yield holding, (choice, mode == SPLIT_MODE)
            elif mode == modes[choice]:
                yield holding, None

    @cached_property
    def _instant(self) -> bool:
        """Whether some operation has duration 0: starts then do not determine the order."""
        return not all(self.time)

    def precedence_of(self, start: list[int]) -> Precedence:
        """All precedence in a schedule, including the order of its memory allocations."""
        if not self.tight:
            return self.precedence
        links = Precedence(*([list(links) for links in lists] for lists in self.precedence))
        starts = np.array(start, dtype=np.int64)
        for device in self.tight:
            self._keep_memory(links, device, starts)
        return links

    def _keep_memory(self, links: Precedence, device: int, start: Ints) -> None:
        headroom = self.instance.headroom(device)
        assert headroom is not None
        operations = np.flatnonzero(self.table.home == device)
        allocations, frees = (
            operations[self._allocates[operations] > 0],
            operations[self._frees[operations] > 0],
        )
        ends = start + self.times
        allocations = allocations[np.lexsort((ends[allocations], start[allocations]))]
        frees = frees[np.lexsort((start[frees], ends[frees]))]
        freed = np.concatenate([[0], np.cumsum(self._frees[frees])])
        needed = np.searchsorted(freed, np.cumsum(self._allocates[allocations]) - headroom)
        for events in (allocations.tolist(), frees.tolist()):
            for first, second in pairwise(events):
                self._link(links, first, second, 0)
        for allocation, count in zip(allocations.tolist(), needed.tolist(), strict=True):
            if count > 0:
                self._link(links, int(frees[count - 1]), allocation, 0)

    @cached_property
    def _work(self) -> Ints:
        """Work of every resource, in ticks."""
        work = np.zeros(len(self.instance.resources), dtype=np.int64)
        np.add.at(work, self.table.resource, self.times)
        return work

    @cached_property
    def busy(self) -> list[int]:
        """Resources with about the largest work."""
        threshold = BUSY_SHARE * self._work.max()
        busy: list[int] = np.flatnonzero(self._work >= threshold).tolist()
        return busy

    def double_justified(self, start: list[int], keys: list[float] | None = None) -> list[int]:
        """Starts after one pass backwards in time and one forwards.

        `keys` replaces the order of the backward pass: larger keys go later in time.
        """
        links = self.precedence_of(start)
        late = self._backwards(start, links, keys)
        if self.tight:
            links = self.precedence_of(late)
        return self._forwards(late, links)

    def by_resource(self, order: Sequence[int]) -> Sequences:
        """Operations of every resource, in this order."""
        sequences: Sequences = [[] for _ in self.instance.resources]
        for op in order:
            sequences[self.resource[op]].append(op)
        return sequences

    def _backwards(
        self, start: list[int], links: Precedence, keys: list[float] | None
    ) -> list[int]:
        time = self.time
        if keys is not None or self._instant:
            turned = [-key for key in (keys or map(add, start, time))]
            order = _topological_order(turned, links.mirrored, links.predecessors)
            if len(order) < self.size:
                return start
        else:
            keys_of_ops = [
                (-begin - length, -begin) for begin, length in zip(start, time, strict=True)
            ]
            order = sorted(range(self.size), key=keys_of_ops.__getitem__)
        firsts = self._firsts(start)
        latest = max(firsts)
        mirrored = self._place(order, links.mirrored, [latest - first for first in firsts])
        length = max(map(add, mirrored, time))
        return [length - begin - duration for begin, duration in zip(mirrored, time, strict=True)]

    def _forwards(self, start: list[int], links: Precedence) -> list[int]:
        if self._instant:
            order = _topological_order(start, links.predecessors, links.mirrored)
            if len(order) < self.size:
                return start
        else:
            order = sorted(range(self.size), key=start.__getitem__)
        return self._place(order, links.predecessors, self._firsts(start))

    def _firsts(self, start: list[int]) -> list[int]:
        """Origin of time of every device: its first operation; for makespan always 0."""
        if self.problem.objective is Objective.MAKESPAN:
            return [0] * len(self._devices)
        firsts = self._spans(start, start)[0]
        firsts[firsts == NEVER] = 0
        released: list[int] = (firsts - firsts.min()).tolist()
        return released

    def _place(self, order: list[int], links: Links, release: list[int]) -> list[int]:
        """Place each operation, in order, into the first gap of its resource that is long enough.

        `release` is the first instant of every device; other resources are free from 0 on.
        """
        start = [0] * self.size
        num_links = len(self.instance.resources) - len(release)
        opens = [[first] for first in (*release, *[0] * num_links)]
        shuts = [[NEVER] for _ in opens]
        for low in range(0, len(order), PLACED):
            checkpoint()
            self._place_some(order[low : low + PLACED], links, start, opens, shuts)
        return start

    def _place_some(
        self,
        ops: list[int],
        links: Links,
        start: list[int],
        opens: list[list[int]],
        shuts: list[list[int]],
    ) -> None:
        """Place operations into gaps: `opens` and `shuts` are begins and ends, by resource."""
        time, resource = self.time, self.resource
        for op in ops:
            ready = 0
            for predecessor, apart in links[op]:
                reached = start[predecessor] + apart
                if reached > ready:  # noqa: PLR1730  max() costs a tenth of the whole pass
                    ready = reached
            begins, ends, length = opens[resource[op]], shuts[resource[op]], time[op]
            gap = bisect_right(ends, ready)
            while True:
                begin = begins[gap]
                if begin < ready:  # noqa: PLR1730
                    begin = ready
                end = begin + length
                if end <= ends[gap]:
                    break
                gap += 1
            start[op] = begin
            if begin == begins[gap]:
                if end == ends[gap]:
                    del begins[gap], ends[gap]
                else:
                    begins[gap] = end
            elif end == ends[gap]:
                ends[gap] = begin
            else:
                begins.insert(gap + 1, end)
                ends.insert(gap, begin)

    def value(self, start: list[int]) -> int:
        """Makespan or largest device span of these starts, in ticks."""
        ends = np.array(start, dtype=np.int64) + self.times
        if self.problem.objective is Objective.MAKESPAN:
            return int(ends.max())
        first, last = self._spans(start, ends)
        return int((last - first).max())

    def _spans(self, start: list[int], end: list[int] | Ints) -> tuple[Ints, Ints]:
        """First start and last end of every device; NEVER and 0 if it runs nothing."""
        first = np.full(len(self.instance.resources), NEVER, dtype=np.int64)
        last = np.zeros_like(first)
        np.minimum.at(first, self.table.resource, np.array(start, dtype=np.int64))
        np.maximum.at(last, self.table.resource, end)
        count = len(self._devices)
        return first[:count], last[:count]

    def sequences(self, start: list[int]) -> Sequences:
        """Operations of every resource in the order of their starts."""
        begin = np.array(start, dtype=np.int64)
        ops = np.array(self.present, dtype=np.int64)
        order = self.table.in_order(ops, begin, begin + self.times)
        return self.by_resource(order.tolist())

    def earliest(self, sequences: Sequences) -> list[int] | None:
        """Earliest starts of all operations in these orders; None if they are cyclic.

        Memory and the order of microbatches are ignored. Operations that are in no order start at
        0, and no operation waits for them.
        """
        ops = np.fromiter(chain.from_iterable(sequences), dtype=np.int64)
        position = np.full(self.size, FREE)
        position[ops] = np.arange(len(ops))
        before, after, lag = self.table.flow
        before, after = position[before], position[after]
        listed = (before != FREE) & (after != FREE)
        flow = Constraints(before[listed], after[listed], lag[listed])
        order, times = FixedOrder(np.cumsum([0, *map(len, sequences)]), flow), self.times[ops]
        ends = order.ends_or_cycle(times)
        if isinstance(ends, tuple):
            return None
        start = np.zeros(self.size, dtype=np.int64)
        start[ops] = ends - times
        starts: list[int] = start.tolist()
        return starts

    @cached_property
    def absent_rows(self) -> Sequences:
        """Operations that are absent in these modes, of every class in the order of microbatches.

        In orders that leave them out, these rows keep what waits for them in its place.
        """
        rows: dict[int, list[int]] = {}
        for op in self.absent:
            rows.setdefault(int(self.table.class_ids[op]), []).append(op)
        return [*rows.values()]

    def fits(self, start: list[int], resource: int = ABSENT) -> bool:
        """Whether these starts meet the limits of the devices whose memory a resource uses.

        Devices whose memory several resources use are checked as well, or alone by default.
        """
        return all(
            self._is_within_limit(start, device)
            for device, users in self.table.memory_users.items()
            if resource in users or len(users) > 1
        )

    def _is_within_limit(self, start: list[int], device: int) -> bool:
        """Whether a device is within its limit; simultaneous frees precede allocations."""
        events = [(start[op], allocated) for op, allocated, _ in self._changes[device]]
        events += [(start[op] + self.time[op], -freed) for op, _, freed in self._changes[device]]
        headroom = self.instance.headroom(device)
        peak = max(accumulate(amount for _, amount in sorted(events)), default=0)
        return headroom is None or peak <= headroom

    @cached_property
    def _changes(self) -> dict[int, list[tuple[int, int, int]]]:
        """Operations that allocate or free memory of limited devices, with the amounts."""
        changes: dict[int, list[tuple[int, int, int]]] = {
            resource: [] for resource in self.table.memory_users
        }
        columns = (column.tolist() for column in (self.table.home, self._allocates, self._frees))
        for op, (home, allocated, freed) in enumerate(zip(*columns, strict=True)):
            if home in changes and (allocated or freed):
                changes[home].append((op, allocated, freed))
        return changes

    def starts(self, schedule: Schedule) -> list[int]:
        """Starts of a schedule of this problem; see `OperationTable.starts`."""
        return self.table.starts(schedule)

    def with_absent(self, start: list[int]) -> list[int]:
        """Add the earliest starts of absent operations."""
        starts = list(start)
        for op in self.absent:
            before = self.precedence.predecessors[op]
            starts[op] = max(starts[predecessor] + apart for predecessor, apart in before)
        return starts

    def without_absent(self, start: list[int]) -> list[int]:
        """Set the starts of absent operations to ABSENT."""
        starts: list[int] = np.where(self.kind == ABSENT, ABSENT, start).tolist()
        return starts

    def schedule(self, start: list[int]) -> Schedule:
        """Schedule of these starts, the earliest at 0."""
        begin = np.array(start, dtype=np.int64)
        begin -= begin.min()
        return self.table.schedule(self.kind, begin, begin + self.times)


def _topological_order(keys: list[int] | list[float], before: Links, after: Links) -> list[int]:
    """Topological order of the operations by key; operations in a cycle are left out.

    Memory causes cycles if operations of duration 0 allocate and free memory at the same instant.
    """
    missing = [len(links) for links in before]
    heap = [(key, op) for op, key in enumerate(keys) if not missing[op]]
    heapq.heapify(heap)
    order = []
    while heap:
        op = heapq.heappop(heap)[1]
        order.append(op)
        for successor, _ in after[op]:
            missing[successor] -= 1
            if not missing[successor]:
                heapq.heappush(heap, (keys[successor], successor))
    return order
