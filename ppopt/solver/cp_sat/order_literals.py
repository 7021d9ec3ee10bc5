"""Order literals: memory limits of a device by the order of its operations.

For two operations a and b of a device, the literal x(a, b) says that a comes first:
x(a, b) => end(a) <= start(b). If both are there, exactly one of x(a, b) and x(b, a) holds.
A device runs one operation at a time, so its memory depends on its order alone. For every a:

    takes(a) + sum over b of (takes(b) - gives(b)) x(b, a) <= room

These constraints are implied by no-overlap and by memory as cumulative intervals
(`ppopt.solver.cp_sat.parts`), and they do not mention times. Without them CP-SAT raises starts and
bounds by the length of the shortest operation at a time: where the makespan is a thousand times
that length, it does not end, even with ten operations.

Literals and constraints grow with the square of the operations of a device, so only small models
have them, and larger ones whose times are that far apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations, cycle
from typing import NamedTuple

from ortools.sat.python import cp_model

from ppopt.problem.instance import SPLIT_MODE, WHOLE_MODE, Instance
from ppopt.problem.operation_classes import Mode
from ppopt.solver.cp_sat.variables import Variables
from ppopt.solver.parameters import CP_SAT, CpSatParams


class Member(NamedTuple):
    """An operation of a device, and its mode."""

    code: int
    of: Mode


class OrderLiterals(NamedTuple):
    """The memory limits of devices by order literals, if these are few enough."""

    instance: Instance
    room: Mapping[int, int]
    """Memory of every limited device, in ticks of memory."""
    horizon: int
    """Largest objective, in ticks."""
    params: CpSatParams = CP_SAT

    def build(self, variables: Variables) -> None:
        """Add the literals and what they imply."""
        instance, params = self.instance, self.params
        members = {device: _members(instance, device, variables) for device in self.room}
        shortest = min((slot.of.duration for row in members.values() for slot in row), default=0)
        far_apart = self.horizon > params.far_apart * max(1, shortest)
        most = params.order_literals_far_apart if far_apart else params.order_literals
        literals = sum(len(row) * (len(row) - 1) // 2 for row in members.values())
        if variables.pairs or literals > most:
            return
        for device, row in members.items():
            _Device(variables, row).add_memory(self.room[device])


def _members(instance: Instance, device: int, variables: Variables) -> list[Member]:
    """Operations that may be on a device, each once."""
    found: dict[int, Member] = {}
    for option in (SPLIT_MODE, WHOLE_MODE):
        for number in instance.hosted[device]:
            modes = instance.operation_modes(number, option)
            codes = instance.codes_in(number, option).tolist() if modes else []
            for code, mode in zip(codes, cycle(modes), strict=False):
                if code in variables.there:
                    found.setdefault(code, Member(code, mode))
    return list(found.values())


class _Device:
    """The literals of one device."""

    def __init__(self, variables: Variables, members: list[Member]) -> None:
        self._variables = variables
        self._members = members
        self._there = variables.there
        self._first: dict[tuple[int, int], cp_model.LiteralT] = {}
        """Literal that the first of two operations comes before the second, and both are there."""
        for one, other in combinations(members, 2):
            self._add_pair(one.code, other.code)

    def _add_pair(self, first: int, second: int) -> None:
        """Constrain one of the two to come first, if both are there."""
        variables = self._variables
        cp, start, end = variables.cp, variables.start, variables.end
        literals = (self._there[first], self._there[second])
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

    def add_memory(self, room: int) -> None:
        """Constrain the memory at the start of every operation that takes memory.

        An operation of no length that takes memory may share its instant with one that gives some
        back, which then comes first (ends before starts): its order alone does not tell.
        """
        instants = any(not member.of.duration and member.of.allocates for member in self._members)
        if instants:
            return
        for member in self._members:
            if member.of.allocates:
                held = sum(
                    other.of.change * self._first[other.code, member.code]
                    for other in self._members
                    if other.of.change and (other.code, member.code) in self._first
                )
                limit = self._variables.cp.add(member.of.allocates + held <= room)
                there = self._there[member.code]
                if there is not None:
                    limit.only_enforce_if(there)
