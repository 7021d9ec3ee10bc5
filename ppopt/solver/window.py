"""Windows: all operations of a stretch of time put in the best order by CP-SAT, the rest kept.

Large neighbourhood search (Shaw, CP 1998, LNCS 1520; of time windows for scheduling: Godard,
Laborie, Nuijten, ICAPS 2005). Before the window all times stand, after it the order on every
device does: what follows is a tail to every operation of the window, the longest way from its
start to the end of the run. Memory is a matter of the order on each device alone, so it needs a
look inside the window and nowhere else. Such a model has a hundred or two operations, whatever the
length of the run, and CP-SAT solves most of them to the end within a tenth of a second.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from ortools.sat.python import cp_model

from ppopt.solver import cpsat, interrupts, model
from ppopt.solver.justify import Shop


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


def holdings(shop: Shop) -> dict[int, list[Holding]]:
    """All that is held on the devices whose memory is more than a count of microbatches."""
    problem = shop.problem
    pipeline, fused = problem.pipeline, problem.fused
    found: dict[int, list[Holding]] = {device: [] for device in shop.tight}
    row = {code: place for place, code in enumerate(shop.codes.tolist())}
    for stage, microbatch in np.ndindex(pipeline.num_stages, pipeline.batches):
        mine = found.get(pipeline.device(stage, microbatch))
        if mine is not None:
            for first, last, amount in model.holdings(pipeline, stage, fused=fused):
                taker, giver = (row[pipeline.code(k, stage, microbatch)] for k in (first, last))
                mine.append(Holding(taker, giver, amount))
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
class Window:
    """Operations of a stretch of time, and how what is around them holds them."""

    shop: Shop
    holdings: dict[int, list[Holding]]
    before: list[int]
    inside: list[int]
    after: list[int]
    """All three in the order of their starts."""
    start: list[int]
    """Of all operations, in the schedule known."""

    @cached_property
    def _inside(self) -> frozenset[int]:
        return frozenset(self.inside)

    @cached_property
    def by_device(self) -> list[list[int]]:
        """Operations of the window on every device, in order."""
        found: list[list[int]] = [[] for _ in range(self.shop.problem.pipeline.num_devices)]
        for op in self.inside:
            found[self.shop.device[op]].append(op)
        return found

    @cached_property
    def _free(self) -> list[int]:
        """When every device is done with what lies before the window."""
        free = [0] * len(self.by_device)
        for op in self.before:
            free[self.shop.device[op]] = self.start[op] + self.shop.time[op]
        return free

    @cached_property
    def _tails(self) -> tuple[dict[int, int], list[int]]:
        """Longest way to the end from operations after the window, and from devices' first ones."""
        shop, tails = self.shop, dict[int, int]()
        following = [0] * len(self.by_device)
        for op in reversed(self.after):
            longest = shop.time[op] + following[shop.device[op]]
            for other, apart in shop.following[op]:
                longest = max(longest, apart + tails[other])
            tails[op] = following[shop.device[op]] = longest
        return tails, following

    def release(self, op: int) -> int:
        """Earliest start that what lies before allows."""
        shop = self.shop
        links = shop.fixed.ahead[op]
        arrivals = (self.start[x] + apart for x, apart in links if x not in self._inside)
        return max(self._free[shop.device[op]], *arrivals, 0)

    def tail(self, op: int) -> int:
        """Least time from the start of an operation to the end of the run, by what lies after."""
        tails, following = self._tails
        ways = (apart + tails[x] for x, apart in self.shop.following[op] if x in tails)
        return max(self.shop.time[op] + following[self.shop.device[op]], *ways, 0)

    @property
    def floor(self) -> int:
        """Ticks that the run takes by what lies around the window."""
        tails, following = self._tails
        least = max(map(sum, zip(self._free, following, strict=True)))
        for op in self.before:
            for other, apart in self.shop.following[op]:
                if other in tails:
                    least = max(least, self.start[op] + apart + tails[other])
        return least

    @interrupts.held()
    def better(self, most: int, limits: cpsat.Limits) -> Found:
        """Look for an order that leads to at most so many ticks.

        Raises KeyboardInterrupt on Ctrl-C.
        """
        releases = {op: self.release(op) for op in self.inside}
        latest = {op: most - self.tail(op) for op in self.inside}
        if self.floor > most or any(releases[op] > latest[op] for op in self.inside):
            return Found(None, True, 0.0)
        cp = cp_model.CpModel()
        start = {op: cp.new_int_var(releases[op], latest[op], "") for op in self.inside}
        value = cp.new_int_var(0, most, "")
        for op in self.inside:
            cp.add(value >= start[op] + most - latest[op])
            for other, apart in self.shop.following[op]:
                if other in self._inside:
                    cp.add(start[other] >= start[op] + apart)
            cp.add_hint(start[op], self.start[op])
        for mine in self.by_device:
            cp.add_no_overlap(
                cp.new_fixed_size_interval_var(start[op], self.shop.time[op], "") for op in mine
            )
        for device in self.shop.tight:
            self._add_memory(cp, start, device, most)
        cp.minimize(value)
        return self._solved(cp, start, limits)

    def _add_memory(
        self, cp: cp_model.CpModel, start: dict[int, cp_model.IntVar], device: int, most: int
    ) -> None:
        """What is held across the whole window, less room; the rest as cumulative intervals."""
        room = self.shop.problem.pipeline.ticks.room(device)
        assert room is not None
        begun, ended = frozenset(self.before), frozenset(self.after)
        items, amounts = [], []
        for taker, giver, amount in self.holdings[device]:
            if taker in ended or giver in begun:
                continue
            if taker in begun and giver in ended:
                room -= amount
                continue
            begin = start.get(taker, 0)
            end = start[giver] + self.shop.time[giver] if giver in start else most
            items.append(cp.new_interval_var(begin, cp.new_int_var(0, most, ""), end, ""))
            amounts.append(amount)
        cp.add_cumulative(items, amounts, room)

    def _solved(
        self, cp: cp_model.CpModel, start: dict[int, cp_model.IntVar], limits: cpsat.Limits
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
