"""Windows: all operations of a stretch of time put in the best order by CP-SAT, the rest kept.

Large neighbourhood search (Shaw, CP 1998, LNCS 1520; of time windows for scheduling: Godard,
Laborie, Nuijten, ICAPS 2005). Before the window all times stand, after it the order on every
device does: what follows is a tail to every operation of the window, the longest way from its
start to the end of the run. Memory is a matter of the order on each device alone, so it needs a
look inside the window and nowhere else. Such a model has some dozen operations per device, however
long the run, and CP-SAT solves most of them to the end within a tenth of a second.

Any order that puts nothing before what it waits for can be cut so. Ordered by start, a window is a
stretch of time; by start and a slant per device, it follows a wave of operations through them.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from ortools.sat.python import cp_model

from ppopt.problem.arrays import Ints
from ppopt.solver import interrupts
from ppopt.solver.budget import Limits
from ppopt.solver.cp_sat import cpsat
from ppopt.solver.heuristics.double_justification import Shop


class Holding(NamedTuple):
    """Memory that one operation takes and another of its device gives back."""

    taker: int
    giver: int
    amount: int


class Found(NamedTuple):
    """What a window led to."""

    order: list[int] | None
    """Operations of the window in a better order; None: none found."""
    complete: bool
    """Whether nothing better is left in the window."""
    work: float
    """CP-SAT's deterministic units spent."""


NOTHING = Found(None, True, 0.0)
"""Nothing better is left, as is seen without CP-SAT."""


def holdings(shop: Shop) -> dict[int, list[Holding]]:
    """All that is held on the devices whose memory is more than a count of microbatches."""
    problem = shop.problem
    instance = problem.instance
    found: dict[int, list[Holding]] = {device: [] for device in shop.tight}
    row = {code: place for place, code in enumerate(shop.codes.tolist())}
    for taker, giver, amount in instance.holdings:
        mine = found.get(instance.classes[taker].device)
        if mine is not None:
            for first, last in zip(*instance.codes[[taker, giver]].tolist(), strict=True):
                mine.append(Holding(row[first], row[last], amount))
    for mine in found.values():
        mine.sort(key=lambda held: (shop.stage[held.taker], shop.microbatch[held.taker]))
    return found


def timed(shop: Shop, order: list[int]) -> list[int]:
    """Earliest starts of all operations, every device taking its own in the order given.

    The order must not put an operation before what it waits for.
    """
    start, free = [0] * shop.size, [0] * shop.problem.pipeline.num_devices
    for op in order:
        begin = free[shop.device[op]]
        for other, apart in shop.fixed.ahead[op]:
            begin = max(begin, start[other] + apart)
        start[op] = begin
        free[shop.device[op]] = begin + shop.time[op]
    return start


@dataclass(frozen=True)
class Run:
    """A schedule as windows see it: earliest starts, tails, and where time is lost."""

    shop: Shop
    start: list[int]
    """Of all operations, the earliest of their order."""

    @cached_property
    def value(self) -> int:
        """Ticks that the run takes."""
        return self.shop.value(self.start)

    @cached_property
    def order(self) -> list[int]:
        """All operations by their starts."""
        return sorted(range(self.shop.size), key=self.start.__getitem__)

    @cached_property
    def by_device(self) -> list[list[int]]:
        """Operations of every device, in order."""
        found: list[list[int]] = [[] for _ in range(self.shop.problem.pipeline.num_devices)]
        for op in self.order:
            found[self.shop.device[op]].append(op)
        return found

    @cached_property
    def tails(self) -> list[int]:
        """Longest way from the start of every operation to the end of the run."""
        shop, tails = self.shop, [0] * self.shop.size
        following = [0] * len(self.by_device)
        for op in reversed(self.order):
            longest = shop.time[op] + following[shop.device[op]]
            for other, apart in shop.following[op]:
                longest = max(longest, apart + tails[other])
            tails[op] = following[shop.device[op]] = longest
        return tails

    @cached_property
    def critical(self) -> list[tuple[int, int]]:
        """Every two operations next to each other on a longest way through the run.

        Before the first of such a way comes -1, after the last one the number of operations.
        """
        shop, value = self.shop, self.value
        ways = [
            (op, other, apart) for op, links in enumerate(shop.following) for other, apart in links
        ]
        for mine in self.by_device:
            ways += [(op, other, shop.time[op]) for op, other in pairwise(mine)]
        ways += [(op, shop.size, shop.time[op]) for op in self.order]
        tails = [*self.tails, 0]
        found = [
            (op, other)
            for op, other, apart in ways
            if self.start[op] + apart + tails[other] == value
        ]
        return found + [(-1, op) for op in self.order if not self.start[op] and tails[op] == value]

    @cached_property
    def late(self) -> list[list[int | None]]:
        """Operations that a device waits for, where it has about the most work and waits at all.

        What it waits for at first does not count; None is the end of the run.
        """
        shop, found = self.shop, []
        for device in shop.busy:
            mine = self.by_device[device]
            ends = (self.start[op] + shop.time[op] for op in mine)
            begins = [*(self.start[op] for op in mine[1:]), self.value]
            nexts = zip([*mine[1:], None], begins, ends, strict=True)
            found.append([op for op, begin, end in nexts if begin > end])
        return [ops for ops in found if ops]


@dataclass(frozen=True)
class Layout:
    """An order of the operations of a run, none before what it waits for, to cut windows from."""

    run: Run
    slant: float = 0.0
    """Ticks by which each device counts as later: windows then follow waves through devices."""

    @cached_property
    def order(self) -> list[int]:
        """All operations by start and slant."""
        if not self.slant:
            return self.run.order
        device = self.run.shop.device
        keys = [begin + self.slant * device[op] for op, begin in enumerate(self.run.start)]
        return sorted(self.run.order, key=keys.__getitem__)

    @cached_property
    def place(self) -> list[int]:
        """Place of every operation in the order."""
        found = [0] * len(self.order)
        for place, op in enumerate(self.order):
            found[op] = place
        return found

    @cached_property
    def critical(self) -> tuple[Ints, Ints]:
        """Places of the first and of the second operation of every critical pair."""
        places = np.array([*self.place, len(self.order), -1], dtype=np.int64)
        first, second = places[np.array(self.run.critical, dtype=np.int64).T]
        return first, second

    @cached_property
    def rows(self) -> list[list[int]]:
        """Places of every device's operations, ascending."""
        return [[self.place[op] for op in mine] for mine in self.run.by_device]


@dataclass(frozen=True)
class Window:
    """Operations of a stretch of time, and how what is around them holds them."""

    layout: Layout
    holdings: dict[int, list[Holding]]
    first: int
    after: int
    """Its operations have the places first .. after - 1 in the order."""

    @cached_property
    def inside(self) -> list[int]:
        """Operations of the window, in order."""
        return self.layout.order[self.first : self.after]

    @cached_property
    def by_device(self) -> list[list[int]]:
        """Operations of the window on every device, in order."""
        rows = zip(self.layout.run.by_device, self._ends, strict=True)
        return [mine[low:high] for mine, (low, high) in rows]

    @cached_property
    def _ends(self) -> list[tuple[int, int]]:
        """Per device: how many of its operations lie before the window, and before its end."""
        return [
            (bisect_left(row, self.first), bisect_left(row, self.after)) for row in self.layout.rows
        ]

    @cached_property
    def _free(self) -> list[int]:
        """When every device is done with what lies before the window."""
        run = self.layout.run
        lasts = [
            mine[low - 1] if low else None
            for mine, (low, _) in zip(run.by_device, self._ends, strict=True)
        ]
        return [0 if op is None else run.start[op] + run.shop.time[op] for op in lasts]

    @cached_property
    def _following(self) -> list[int]:
        """Longest way to the end from every device's first operation after the window."""
        run = self.layout.run
        return [
            run.tails[mine[high]] if high < len(mine) else 0
            for mine, (_, high) in zip(run.by_device, self._ends, strict=True)
        ]

    def begun(self, op: int) -> bool:
        """Whether an operation lies before the window."""
        return self.layout.place[op] < self.first

    def later(self, op: int) -> bool:
        """Whether an operation lies after the window."""
        return self.layout.place[op] >= self.after

    @cached_property
    def heads(self) -> dict[int, int]:
        """Earliest starts by what lies before and by precedence."""
        run, place = self.layout.run, self.layout.place
        shop, heads = run.shop, dict[int, int]()
        for op in self.inside:
            begin = self._free[shop.device[op]]
            for other, apart in shop.fixed.ahead[op]:
                before = run.start[other] if place[other] < self.first else heads[other]
                begin = max(begin, before + apart)
            heads[op] = begin
        return heads

    @cached_property
    def tails(self) -> dict[int, int]:
        """Least times from the starts to the end of the run, by precedence and what lies after."""
        run, place = self.layout.run, self.layout.place
        shop, tails = run.shop, dict[int, int]()
        for op in reversed(self.inside):
            longest = shop.time[op] + self._following[shop.device[op]]
            for other, apart in shop.following[op]:
                behind = run.tails[other] if place[other] >= self.after else tails[other]
                longest = max(longest, apart + behind)
            tails[op] = longest
        return tails

    @cached_property
    def least(self) -> int:
        """Ticks that the run takes at least, by precedence and by the work of every device.

        Head, work and tail of one machine (Carlier, "The one-machine sequencing problem", EJOR 11,
        1982, section 2).
        """
        time, heads, tails = self.layout.run.shop.time, self.heads, self.tails
        ways = [heads[op] + tails[op] for op in self.inside]
        for mine in self.by_device:
            if mine:
                work = sum(time[op] for op in mine)
                rest = min(tails[op] - time[op] for op in mine)
                ways.append(min(heads[op] for op in mine) + work + rest)
        return max(ways, default=0)

    @cached_property
    def hopeless(self) -> bool:
        """Whether a longest way through the run has no two operations in the window."""
        first, second = self.layout.critical
        enters, leaves = first < self.first, second >= self.after
        entered, left = (
            second[enters & (second < self.after)],
            first[leaves & (first >= self.first)],
        )
        return bool((enters & leaves).any() or np.isin(entered, left).any())

    @interrupts.held()
    def better(self, limits: Limits) -> Found:
        """Look for an order that makes the run shorter.

        Raises KeyboardInterrupt on Ctrl-C.
        """
        shop, most = self.layout.run.shop, self.layout.run.value - 1
        if self.hopeless or self.least > most:
            return NOTHING
        cp = cp_model.CpModel()
        start = {
            op: cp.new_int_var(self.heads[op], most - self.tails[op], "") for op in self.inside
        }
        value = cp.new_int_var(self.least, most, "")
        for op in self.inside:
            cp.add(value >= start[op] + self.tails[op])
            for other, apart in shop.following[op]:
                if other in start:
                    cp.add(start[other] >= start[op] + apart)
            cp.add_hint(start[op], self.layout.run.start[op])
        for mine in self.by_device:
            cp.add_no_overlap(
                cp.new_fixed_size_interval_var(start[op], shop.time[op], "") for op in mine
            )
        for device in shop.tight:
            self._add_memory(cp, start, device, most)
        cp.minimize(value)
        return self._solved(cp, start, limits)

    def _add_memory(
        self, cp: cp_model.CpModel, start: dict[int, cp_model.IntVar], device: int, most: int
    ) -> None:
        """What is held across the whole window, less room; the rest as cumulative intervals."""
        shop = self.layout.run.shop
        room = shop.problem.pipeline.ticks.room(device)
        assert room is not None
        items, amounts = [], []
        for taker, giver, amount in self.holdings[device]:
            if self.later(taker) or self.begun(giver):
                continue
            if self.begun(taker) and self.later(giver):
                room -= amount
                continue
            begin = start.get(taker, 0)
            end = start[giver] + shop.time[giver] if giver in start else most
            items.append(cp.new_interval_var(begin, cp.new_int_var(0, most, ""), end, ""))
            amounts.append(amount)
        cp.add_cumulative(items, amounts, room)

    def _solved(
        self, cp: cp_model.CpModel, start: dict[int, cp_model.IntVar], limits: Limits
    ) -> Found:
        solver = cpsat.solver(limits)
        solver.parameters.symmetry_level = 0
        solver.parameters.cp_model_probing_level = 0
        status, interrupted = cpsat.run(solver, cp)
        if interrupted:
            raise KeyboardInterrupt
        done = status in (cp_model.OPTIMAL, cp_model.INFEASIBLE)
        work = solver.response_proto.deterministic_time
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return Found(None, done, work)
        found = {op: solver.value(variable) for op, variable in start.items()}
        return Found(sorted(self.inside, key=found.__getitem__), done, work)
