"""Order literals: memory limits of a device by the order of its operations.

For two operations a and b of a device, the literal x(a, b) says that a comes first:
x(a, b) => end(a) <= start(b). If both are present, exactly one of x(a, b) and x(b, a) holds.
A device runs one operation at a time, so its memory depends on its order alone. For every a:

    allocates(a) + sum over b of (allocates(b) - frees(b)) x(b, a) <= headroom

These constraints are implied by no-overlap and by memory as cumulative intervals
(`ppopt.solver.cp_sat.parts`), and they do not mention times. Without them CP-SAT raises starts and
bounds by the duration of the shortest operation at a time. If the makespan is a thousand times
that duration, it does not finish, even with ten operations.

The number of literals and constraints grows with the square of the operations of a device. So only
small models have them, and larger ones whose durations differ that much.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations, cycle
from typing import NamedTuple

from ortools.sat.python import cp_model

from ppopt.cancellation import each
from ppopt.problem.instance import SPLIT_MODE, WHOLE_MODE, Instance
from ppopt.problem.operation_classes import Mode
from ppopt.solver.cp_sat.variables import Variables
from ppopt.solver.parameters import CP_SAT, CpSatParams


class Member(NamedTuple):
    """An operation of a device, and its mode."""

    code: int
    of: Mode


class OrderLiterals(NamedTuple):
    """Memory limits of devices by order literals, unless these would be too many."""

    instance: Instance
    headroom: Mapping[int, int]
    """Headroom of every limited device, in ticks of memory."""
    horizon: int
    """Largest objective, in ticks."""
    params: CpSatParams = CP_SAT

    def build(self, variables: Variables) -> None:
        """Add the literals and what they imply."""
        instance, params = self.instance, self.params
        members = {device: _members(instance, device, variables) for device in self.headroom}
        shortest = min((slot.of.duration for row in members.values() for slot in row), default=0)
        far_apart = self.horizon > params.far_apart * max(1, shortest)
        max_literals = params.order_literals_far_apart if far_apart else params.order_literals
        literals = sum(len(row) * (len(row) - 1) // 2 for row in members.values())
        if variables.pairs or literals > max_literals:
            return
        for device, row in members.items():
            _Device(variables, row).add_memory(self.headroom[device])


def _members(instance: Instance, device: int, variables: Variables) -> list[Member]:
    """Operations that may be on a device, each once."""
    members: dict[int, Member] = {}
    for option in (SPLIT_MODE, WHOLE_MODE):
        for class_id in instance.hosted[device]:
            modes = instance.operation_modes(class_id, option)
            codes = instance.codes_in(class_id, option).tolist() if modes else []
            for code, mode in zip(codes, cycle(modes), strict=False):
                if code in variables.present:
                    members.setdefault(code, Member(code, mode))
    return list(members.values())


class _Device:
    """The literals of one device."""

    def __init__(self, variables: Variables, members: list[Member]) -> None:
        self._variables = variables
        self._members = members
        self._present = variables.present
        self._first: dict[tuple[int, int], cp_model.LiteralT] = {}
        """Literal that the first of two operations precedes the second, and both are present."""
        for first, second in each(combinations(members, 2)):
            self._add_pair(first.code, second.code)

    def _add_pair(self, first: int, second: int) -> None:
        """Constrain one of the two to precede the other if both are present."""
        variables = self._variables
        cp, start, end = variables.cp, variables.start, variables.end
        literals = (self._present[first], self._present[second])
        present = [literal for literal in literals if literal is not None]
        before = cp.new_bool_var("")
        after = cp.new_bool_var("") if present else before.negated()
        if present:
            cp.add_at_most_one(before, after)
            cp.add_bool_or(before, after).only_enforce_if(*present)
            for literal in present:
                cp.add_implication(before, literal)
                cp.add_implication(after, literal)
        cp.add(end[first] <= start[second]).only_enforce_if(before)
        cp.add(end[second] <= start[first]).only_enforce_if(after)
        self._first[first, second], self._first[second, first] = before, after

    def add_memory(self, headroom: int) -> None:
        """Constrain the live memory at the start of every operation that allocates memory.

        The constraint is not valid for operations of duration 0 that allocate memory: they may
        start at the end of an operation that frees memory, whatever the order of the two.
        """
        instants = any(not member.of.duration and member.of.allocates for member in self._members)
        if instants:
            return
        for member in each(self._members):
            if member.of.allocates:
                live = sum(
                    earlier.of.change * self._first[earlier.code, member.code]
                    for earlier in self._members
                    if earlier.of.change and (earlier.code, member.code) in self._first
                )
                limit = self._variables.cp.add(member.of.allocates + live <= headroom)
                presence = self._present[member.code]
                if presence is not None:
                    limit.only_enforce_if(presence)
