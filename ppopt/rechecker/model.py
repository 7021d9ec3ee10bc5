"""A model for CP-SAT of the schedules of a claim: all rules of some devices, fewer of the others.

Every constraint is a rule, or the time that `ppopt.rechecker.precedence` derives from the rules,
that every schedule below the bound obeys after its microbatches are renamed into order
(`ppopt.rechecker.required`). So if there is no solution even without some rules of the other
devices, there is no such schedule.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import numpy as np
from ortools.sat.python import cp_model

from ppopt.problem.arrays import Ints
from ppopt.problem.operation import OpKind
from ppopt.rechecker.precedence import Precedence
from ppopt.rechecker.required import Edge, Required
from ppopt.schedule.operations import ALONE

Literal = cp_model.IntVar


class Model:
    """The model without objective; variables by number of the operation, literals by row."""

    def __init__(
        self, required: Required, precedence: Precedence, latest: int, devices: frozenset[int]
    ) -> None:
        """All end by `latest`; the rules of resources are those of `devices`."""
        self.required, self.cp, self._latest = required, cp_model.CpModel(), latest
        self._devices, self.energy = devices, 0
        self._pairs: dict[tuple[int, int], cp_model.IntVar] = {}
        """Whether an F and a backward, by row, run as one."""
        self._partners = defaultdict[int, list[tuple[cp_model.IntVar, int]]](list)
        """The pairs of a row, with their ticks."""
        for first, then, ticks in required.pairs(sorted(devices)):
            joined = self._pairs[first, then] = self.cp.new_bool_var("")
            for row in (first, then):
                self._partners[row].append((joined, ticks))
        self._present = self._modes()
        self._alone: dict[int, Literal] = {}
        """Whether a row that has a choice runs, and by itself."""
        self._start: dict[int, cp_model.IntVar] = {}
        self._end: dict[int, cp_model.LinearExprT] = {}
        rows_of = defaultdict[int, list[int]](list)
        for row, number in enumerate(required.number.tolist()):
            rows_of[number].append(row)
        for number, rows in rows_of.items():
            self._add_operation(number, rows)
        self._add_rules([*required.edges, *precedence.between()])
        self._add_resources()
        self._add_limits()
        if required.claim.bound is not None:
            self._add_bound(precedence, required.claim.bound - 1)

    def columns(self, solver: cp_model.CpSolver) -> list[Ints]:
        """The columns of the solution, in the order of the fields of `Operation`."""
        rows = self.required.rows
        present = [bool(solver.value(self._present.get(row, True))) for row in range(len(rows))]
        numbers = self.required.number.tolist()
        times = (
            np.array([solver.value(variables[number]) for number in numbers])
            for variables in (self._start, self._end)
        )
        pair = np.full(len(rows), ALONE)
        for pair_id, (both, joined) in enumerate(self._pairs.items()):
            if solver.value(joined):
                pair[[*both]] = pair_id
        fields = rows.kind, rows.stage, rows.microbatch, rows.device
        columns = (*fields, *times, rows.slice, pair, rows.route, rows.target)
        return [column[present] for column in columns]

    def _modes(self) -> dict[int, Literal]:
        """Whether each row runs that one of two modes leaves out."""
        present: dict[int, Literal] = {}
        if self.required.mixed:
            rows = self.required.rows
            tables = (rows.index(kind).ravel().tolist() for kind in (OpKind.B, OpKind.W, OpKind.BW))
            for backward, weight, whole in zip(*tables, strict=True):
                split = self.cp.new_bool_var("")
                present |= {backward: split, weight: split, whole: split.negated()}
        return present

    def _add_operation(self, number: int, rows: list[int]) -> None:
        """An operation ends when its time is over: in its mode, alone or as one of a pair."""
        cp, table = self.cp, self.required.rows
        shortest = int(self.required.shortest[number])
        start = cp.new_int_var(0, max(0, self._latest - shortest), "")
        self._start[number] = start
        if not any(row in self._partners or row in self._present for row in rows):
            self._end[number] = start + int(table.end[number])
            return
        end = self._end[number] = cp.new_int_var(0, self._latest, "")
        cp.add(end >= start + shortest)
        for row in rows:
            alone, present = self._present.get(row), self._present.get(row)
            joined = self._partners[row]
            if joined:
                alone = cp.new_bool_var("")
                absent = [] if present is None else [present.negated()]
                cp.add_exactly_one([alone, *(literal for literal, _ in joined), *absent])
            assert alone is not None
            self._alone[row] = alone
            cp.add(end == start + int(table.end[row])).only_enforce_if(alone)
            for literal, ticks in joined:
                cp.add(end == start + ticks).only_enforce_if(literal)
            if self.required.optional[row]:
                cp.add(end == start).only_enforce_if(alone.negated())

    def _add_rules(self, edges: Iterable[Edge]) -> None:
        """The later operation starts after the earlier one ends; pairs start together."""
        cp, optional = self.cp, self.required.optional.tolist()
        absent = {row: self._present[row].negated() for row in np.flatnonzero(optional).tolist()}
        first_of_all = dict(absent)
        for first, then, lag in edges:
            rule = cp.add(self._start[then] >= self._end[first] + lag)
            if optional[then] and not optional[first]:
                rule.only_enforce_if(self._present[then])
            elif optional[then]:
                cp.add(self._start[then] == self._end[first]).only_enforce_if(absent[then])
                del first_of_all[then]
        for row, literal in first_of_all.items():
            cp.add(self._start[row] == 0).only_enforce_if(literal)
        number = self.required.number.tolist()
        for (first, then), joined in self._pairs.items():
            cp.add(self._start[number[first]] == self._start[number[then]]).only_enforce_if(joined)

    def _add_resources(self) -> None:
        """A resource runs one operation, or pair, at a time: a pair is the time of its F.

        A transfer that blocks is an operation of both devices.
        """
        cp, rows = self.cp, self.required.rows
        busy = defaultdict[int, list[cp_model.IntervalVar]](list)
        columns = (rows.resource, rows.device, rows.target, self.required.number, rows.end)
        for row, (resource, device, target, number, ticks) in enumerate(
            zip(*(column.tolist() for column in columns), strict=True)
        ):
            start, alone = self._start[number], self._alone.get(row)
            if self._devices.isdisjoint((device, target)):
                continue
            if alone is None:
                interval = cp.new_fixed_size_interval_var(start, ticks, "")
            elif rows.kind[row] == OpKind.F:
                interval = self._between(start, self._end[number])
            else:
                interval = cp.new_optional_fixed_size_interval_var(start, ticks, alone, "")
            busy[resource].append(interval)
            if rows.blocking[row]:
                busy[target].append(interval)
        for intervals in busy.values():
            cp.add_no_overlap(intervals)

    def _add_limits(self) -> None:
        """What a device holds fits into its headroom.

        If all that it holds is equal, and of one stage from F on, only the number of live
        microbatches matters, and the rules already limit it.
        """
        ticks, rows = self.required.claim.pipeline.ticks, self.required.rows
        if ticks.limits is None:
            return
        holdings = defaultdict[int, list[tuple[int, int, int]]](list)
        for begin, end, amount in self.required.live():
            holdings[int(rows.device[begin])].append((begin, end, amount))
        place, number = self.required.places(), self.required.number.tolist()
        for device in sorted(self._devices):
            capacity = ticks.limits[device] - ticks.static[device]
            equal = {(place[begin], place[end], amount) for begin, end, amount in holdings[device]}
            (first, _, amount), *different = equal or [
                ((OpKind.F, 0, 0, 0), (OpKind.F, 0, 0, 0), 0)
            ]
            if first[0] == OpKind.F and not different and amount <= capacity and not self._present:
                continue
            intervals = [
                self._between(
                    self._start[number[begin]], self._end[number[end]], self._present.get(end)
                )
                for begin, end, _ in holdings[device]
            ]
            demands = [amount for *_, amount in holdings[device]]
            self.cp.add_cumulative(intervals, demands, capacity)
            self.energy = max(self.energy, capacity * self._latest)

    def _between(
        self, start: cp_model.IntVar, end: cp_model.LinearExprT, present: Literal | None = None
    ) -> cp_model.IntervalVar:
        size = self.cp.new_int_var(0, self._latest, "")
        if present is None:
            return self.cp.new_interval_var(start, size, end, "")
        return self.cp.new_optional_interval_var(start, size, end, present, "")

    def _add_bound(self, precedence: Precedence, max_value: int) -> None:
        """No device ends later than `max_value`, counted from 0 or from its first operation."""
        claim, rows = self.required.claim, self.required.rows
        begin = [
            self.cp.new_int_var(0, self._latest if claim.span else 0, "")
            for _ in range(claim.pipeline.num_devices)
        ]
        for number, start in self._start.items():
            if rows.sends[number]:
                continue
            window = begin[int(rows.device[number])]
            if not self.required.optional[number]:
                self.cp.add(start >= window + precedence.head.of.get(number, 0))
            tail = precedence.tail.of.get(number, 0)
            self.cp.add(self._end[number] + tail <= window + max_value)
