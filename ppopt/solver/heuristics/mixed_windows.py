"""Windows that also choose: every backward inside is split or whole, whichever is better.

A window is that of `ppopt.solver.heuristics.window`, on a network of one choice. A backward may
change its kind where all of it, B with W or BW with its instant, is inside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from random import Random

from ortools.sat.python import cp_model

from ppopt.problem.instance import Holding
from ppopt.problem.objective import Objective
from ppopt.problem.problem import Problem
from ppopt.schedule.schedule import Schedule
from ppopt.solver import interrupts
from ppopt.solver.budget import Budget, SolverLimits
from ppopt.solver.heuristics.mixed_network import MixedNetwork, network_of
from ppopt.solver.heuristics.window import (
    NO_BETTER_ORDER,
    SemiActiveSchedule,
    Window,
    WindowResult,
    run_cp_sat,
)
from ppopt.solver.heuristics.window_lns import WindowSearch
from ppopt.solver.incumbent import Incumbent
from ppopt.solver.method import Outcome, is_plain
from ppopt.solver.parameters import WindowParams


@dataclass(frozen=True)
class MixedSchedule(SemiActiveSchedule):
    """A schedule of a network of one choice."""

    network: MixedNetwork

    @cached_property
    def order(self) -> list[int]:
        """All operations by their starts; instants come before what starts with them."""
        time = self.network.time
        return sorted(range(self.network.size), key=lambda op: (self.start[op], time[op] > 0, op))

    def changed(self, order: list[int], flips: Sequence[int]) -> MixedSchedule:
        """The schedule in another order, with other kinds of some backwards."""
        network = self.network.with_flips(flips) if flips else self.network
        return MixedSchedule(network, network.earliest_starts(order))


@dataclass(frozen=True)
class MixedWindow(Window):
    """A window of a network of one choice."""

    @property
    def network(self) -> MixedNetwork:
        """The network of the present choice."""
        network = self.whole.schedule.network
        assert isinstance(network, MixedNetwork)
        return network

    @cached_property
    def cannot_improve(self) -> bool:
        """Whether a critical path passes the window by: a single operation may become shorter."""
        first, second = self.whole.critical
        return bool(((first < self.first) & (second >= self.after)).any())

    @interrupts.deferred()
    def reoptimise(self, limits: SolverLimits) -> WindowResult:
        """Search for an order and kinds of backwards that make the schedule shorter.

        Raises KeyboardInterrupt on Ctrl-C.
        """
        if self.cannot_improve:
            return NO_BETTER_ORDER
        model = _WindowModel(self)
        solver, result = run_cp_sat(model.cp, limits)
        if solver is None:
            return result
        place = {op: solver.value(begin) for op, begin in model.start.items()}
        split = {slot: bool(solver.value(there)) for slot, there in model.split.items()}
        flips = tuple(slot for slot, new in split.items() if new != self.network.split[slot])
        order = sorted(self.inside, key=lambda op: (place[op], model.lasts(op, split), op))
        return result._replace(order=order, flips=flips)


class _WindowModel:
    """The CP-SAT model of a window."""

    def __init__(self, window: MixedWindow) -> None:
        self._window = window
        self._network = network = window.network
        self._most = window.whole.schedule.value - 1
        inside = set(window.inside)
        self.cp = cp_model.CpModel()
        self.start = {op: self.cp.new_int_var(0, self._most, "") for op in window.inside}
        self.split: dict[int, cp_model.IntVar] = {
            slot: self.cp.new_bool_var("")
            for slot in range(network.slots)
            if {network.backward(slot), network.weight(slot)} <= inside
        }
        """Whether the backward of a slot is split, where it may change."""
        self._end: dict[int, cp_model.LinearExprT] = {
            op: begin + network.time[op] for op, begin in self.start.items()
        }
        self._intervals: list[list[cp_model.IntervalVar]] = [[] for _ in window.by_device]
        self._add_operations()
        self._add_precedence()
        for device in network.tight:
            self._add_memory(device)

    def lasts(self, op: int, split: Mapping[int, bool]) -> bool:
        """Whether an operation takes time, with these kinds of backwards; else it is an instant."""
        network = self._network
        slot = op - network.weight(0)
        return split[slot] if slot in split else network.time[op] > 0

    def _add_operations(self) -> None:
        """Operations in their times, one at a time on every device; instants take none."""
        network, start, base = self._network, self.start, self._window.whole.schedule.start
        for slot, split in self.split.items():
            self._add_slot(slot, split)
            self.cp.add_hint(split, bool(network.split[slot]))
        free = {network.backward(slot) for slot in self.split}
        free |= {network.weight(slot) for slot in self.split}
        for op, begin in start.items():
            self.cp.add_hint(begin, base[op])
            if op not in free and network.time[op]:
                interval = self.cp.new_fixed_size_interval_var(begin, network.time[op], "")
                self._intervals[network.device[op]].append(interval)
        for group in self._intervals:
            self.cp.add_no_overlap(group)

    def _add_slot(self, slot: int, split: cp_model.IntVar) -> None:
        network, cp = self._network, self.cp
        backward, weight = network.backward(slot), network.weight(slot)
        partial, last, full = network.times(slot)
        for op, length in (
            (backward, full + split * (partial - full)),
            (weight, split * last),
        ):
            self._end[op] = end = cp.new_int_var(0, self._most, "")
            cp.add(end == self.start[op] + length)
        self._intervals[network.device[slot]] += [
            cp.new_optional_fixed_size_interval_var(self.start[op], time, there, "")
            for op, time, there in (
                (backward, partial, split),
                (backward, full, split.negated()),
                (weight, last, split),
            )
        ]

    def _add_precedence(self) -> None:
        """After what lies before the window, before what lies after it; least value first."""
        window, network, cp = self._window, self._network, self.cp
        schedule = window.whole.schedule
        value = cp.new_int_var(0, self._most, "")
        for op, begin in self.start.items():
            device = network.device[op]
            earliest = window.free[device]
            for other, apart in network.precedence.predecessors[op]:
                if window.begun(other):
                    earliest = max(earliest, schedule.start[other] + apart)
            cp.add(begin >= earliest)
            cp.add(value >= self._end[op] + window.following[device])
            for other, apart in network.successors[op]:
                lag = apart - network.time[op]
                if other in self.start:
                    cp.add(self.start[other] >= self._end[op] + lag)
                else:
                    cp.add(value >= self._end[op] + lag + schedule.tails[other])
        cp.minimize(value)

    def _add_memory(self, device: int) -> None:
        """As in `Window`; what a backward that may change holds depends on its kind."""
        network = self._network
        room = network.problem.instance.room(device)
        assert room is not None
        items, amounts = [], []
        for slot in range(network.slots):
            if network.device[slot] != device:
                continue
            split = self.split.get(slot)
            if split is None:
                held = network.held(slot, split=bool(network.split[slot]))
                room -= sum(one.amount for one in held if self._spans(one))
                made = [(one, self._lasting(one)) for one in held if self._touches(one)]
            else:
                made = [
                    (one, self._lasting(one, there))
                    for kind, there in ((True, split), (False, split.negated()))
                    for one in network.held(slot, split=kind)
                ]
            items += [interval for _, interval in made]
            amounts += [one.amount for one, _ in made]
        self.cp.add_cumulative(items, amounts, room)

    def _spans(self, one: Holding) -> bool:
        """Whether it is held during the whole window."""
        return self._window.begun(one.taker) and self._window.later(one.giver)

    def _touches(self, one: Holding) -> bool:
        """Whether it is taken or given back in the window."""
        return one.taker in self.start or one.giver in self.start

    def _lasting(
        self, one: Holding, there: cp_model.LiteralT | None = None
    ) -> cp_model.IntervalVar:
        """From the start of the taker to the end of the giver."""
        begin, end = self.start.get(one.taker, 0), self._end.get(one.giver, self._most)
        size = self.cp.new_int_var(0, self._most, "")
        if there is None:
            return self.cp.new_interval_var(begin, size, end, "")
        return self.cp.new_optional_interval_var(begin, size, end, there, "")


class MixedWindowLNS:
    """Window LNS over orders and kinds of backwards, from the best schedule and from others."""

    name = "mixed window LNS"

    def __init__(
        self, problem: Problem, others: Sequence[Incumbent], rng: Random, params: WindowParams
    ) -> None:
        """`others`: incumbents of one kind of backward, from which it starts too."""
        self._problem = problem
        self._others = others
        self._rng = rng
        self._params = params
        self._search: WindowSearch | None = None
        self._turn = 0

    def supports(self, problem: Problem) -> bool:
        """Mixed makespan problems without slices, overlapped pairs and operations of no length."""
        problem = self._problem
        plain = problem.mixed and is_plain(problem) and problem.objective is Objective.MAKESPAN
        return plain and not problem.instance.has_instants

    def run(self, incumbent: Incumbent, budget: Budget) -> Outcome:
        """Search from the best schedule, then from the best of one kind of backward."""
        before, spent = incumbent.value, 0.0
        others = [one.best for one in self._others if one.best not in (None, incumbent.best)]
        starts = [incumbent.best, *others[self._turn % max(1, len(others)) :][:1]]
        self._turn += 1
        for start in starts:
            if start is not None and not budget.search_over:
                part = budget.part(1 / len(starts))
                self._searched(start, incumbent, part)
                spent += part.spent
        return Outcome(spent, fruitful=incumbent.value != before)

    def _searched(self, schedule: Schedule, incumbent: Incumbent, budget: Budget) -> None:
        network, start = network_of(self._problem, schedule)
        current = MixedSchedule(network, start)
        current = current.changed(current.order, ())
        if self._search is None:
            self._search = WindowSearch(network, self._rng, self._params, MixedWindow)

        def submit(found: SemiActiveSchedule) -> None:
            assert isinstance(found, MixedSchedule)
            if incumbent.value is None or found.value < incumbent.value:
                incumbent.submit_orders(found.network.orders(found.start))

        self._search.improve(current, budget, submit)
