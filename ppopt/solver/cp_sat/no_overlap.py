"""Parts for operations on resources: durations by mode, overlapped pairs, no overlap."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ortools.sat.python import cp_model

from ppopt.cancellation import each
from ppopt.problem.instance import ABSENT
from ppopt.solver.cp_sat.variables import Task, TaskMode, Variables
from ppopt.solver.relaxation.pairs import Pair


class Pairs(NamedTuple):
    """Two operations of a pair start together: pair => start(forward) = start(backward)."""

    candidates: Iterable[Pair]

    def build(self, variables: Variables) -> None:
        """Add a literal of every pair, and what it implies; before `OperationIntervals`."""
        cp, start = variables.cp, variables.start
        for pair in each(self.candidates):
            chosen = variables.pairs[pair] = cp.new_bool_var("")
            cp.add(start[pair.forward] == start[pair.backward]).only_enforce_if(chosen)


class Partner(NamedTuple):
    """The other operation of an overlapped pair."""

    chosen: cp_model.IntVar
    """Whether the pair runs as one."""
    time: int
    """Duration of the pair in ticks."""
    leads: bool
    """Whether the operation is the F of the pair."""


class OperationIntervals(NamedTuple):
    """end = start + the duration of the mode, or of the pair of the operation.

    A pair uses the interval of its F; its backward has no interval.
    """

    tasks: Sequence[Task]

    def build(self, variables: Variables) -> None:
        """Add ends and intervals."""
        partners: dict[int, list[Partner]] = {}
        for pair, chosen in each(variables.pairs.items()):
            for code, leads in ((pair.forward, True), (pair.backward, False)):
                partners.setdefault(code, []).append(Partner(chosen, pair.time, leads))
        for task in each(self.tasks):
            group = variables.intervals.setdefault(task.resource, [])
            beside = [partners.get(mode.code, []) for mode in task.modes]
            if len(task.modes) > 1 or any(beside):
                group += _with_modes(variables, task, beside)
            else:
                begin, (_, duration) = variables.start[task.code], task.modes[0]
                group.append(variables.cp.new_fixed_size_interval_var(begin, duration, ""))


def _with_modes(
    variables: Variables, task: Task, partners: list[list[Partner]]
) -> list[cp_model.IntervalVar]:
    """Intervals of a task that has modes or may be in a pair; partners by mode."""
    cp, begin, base = variables.cp, variables.start[task.code], task.modes[-1].duration
    end = cp.new_int_var(0, variables.latest, "")
    extra_times = [
        (partner.chosen, partner.time - mode.duration)
        for mode, mode_partners in zip(task.modes, partners, strict=True)
        for partner in mode_partners
    ]
    if task.choice is not None:
        extra_times.append((variables.choices[task.choice], task.modes[0].duration - base))
    cp.add(end == begin + base + sum(chosen * ticks for chosen, ticks in extra_times))
    variables.set_end(task, end)
    if partners[0] and partners[0][0].leads:
        cp.add_at_most_one(partner.chosen for partner in partners[0])
        changes = [0, *(ticks for _, ticks in extra_times)]
        size = cp.new_int_var(base + min(changes), base + max(changes), "")
        return [cp.new_interval_var(begin, size, end, "")]
    return [
        _alone(variables, begin, mode, mode_partners)
        for mode, mode_partners in zip(task.modes, partners, strict=True)
        if mode.code != ABSENT
    ]


def _alone(
    variables: Variables, begin: cp_model.IntVar, mode: TaskMode, partners: list[Partner]
) -> cp_model.IntervalVar:
    """Interval of an operation in one mode, if it is in no pair."""
    cp, presence = variables.cp, variables.present[mode.code]
    if not partners:
        assert presence is not None
        return cp.new_optional_fixed_size_interval_var(begin, mode.duration, presence, "")
    by_itself = cp.new_bool_var("")
    absent = [] if presence is None else [presence.negated()]
    cp.add_exactly_one(by_itself, *(partner.chosen for partner in partners), *absent)
    return cp.new_optional_fixed_size_interval_var(begin, mode.duration, by_itself, "")


class NoOverlap(NamedTuple):
    """A resource runs one operation, or one pair, at a time."""

    resource: int

    def build(self, variables: Variables) -> None:
        """Add the constraint; after `OperationIntervals`."""
        variables.cp.add_no_overlap(variables.intervals.get(self.resource, []))
