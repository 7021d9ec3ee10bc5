"""The search over recompute: the choice and the schedule of least value, with a bound over all."""

from __future__ import annotations

from contextlib import suppress

from ppopt.schedule.origin import Argument, Certificate
from ppopt.solver import interrupts
from ppopt.solver.configurations import Configuration, Configurations, Request
from ppopt.solver.recompute.space import Key, RecomputeSpace
from ppopt.solver.result import Result

FIRST = 12
"""Choices of least bounds that are scheduled quickly before any is searched."""
MOST_MOVES = 60
"""Most choices that are scheduled quickly as moves of the best one, at a level of effort."""
TOGETHER = 3
"""Choices of the best values that are searched at a level of effort, where not all are known."""


def search_recompute(request: Request) -> Result:
    """Search recompute and schedule; raises InputError where recompute cannot be searched."""
    search = RecomputeSearch(request)
    try:
        with interrupts.heard(), suppress(TimeoutError):
            search.run()
    except KeyboardInterrupt:
        search.all.interrupted = True
    return search.result()


class RecomputeSearch:
    """One search over choices of recompute."""

    def __init__(self, request: Request) -> None:
        self._space = RecomputeSpace(request.problem)
        self._none = [device for device, choices in enumerate(self._space.devices) if not choices]
        """Devices without memory for one microbatch, whatever is chosen."""
        self._listed = None if self._none else self._space.listed
        unknown = None if self._none or self._listed is not None else self._space.least
        self.all = Configurations(self._space, request, unknown)
        """The choices known."""
        if not self._none:
            self._add(self._listed or self._space.simple())

    def run(self) -> None:
        """Search until proof or until the time is up; KeyboardInterrupt may end it."""
        if self._none:
            self.all.add([])
            return
        for key in self._space.simple():
            self.all.solve(self.all.known[key], 0)
        for one in self.all.open()[:FIRST]:
            self.all.solve(one, 0)
        level = 1
        while not self.all.over:
            self._move()
            chosen = self._chosen()
            for one in chosen:
                self.all.solve(one, level)
            if not chosen:
                return
            level += 1

    def _add(self, keys: list[Key]) -> None:
        self.all.add(self._space.configuration(key) for key in keys if key not in self.all.known)

    def _move(self) -> None:
        """Change the best choice by a step while that is better."""
        tried, best = 0, None
        while not self.all.over and self.all.best is not None and self.all.best is not best:
            best = self.all.best
            moves = list(self._space.moves(best.key))
            self._add(moves)
            fresh = [self.all.known[key] for key in moves]
            for one in sorted(fresh, key=lambda one: (one.bound, one.key)):
                if self.all.over or tried >= MOST_MOVES:
                    return
                if one.level < 0 and self.all.is_open(one):
                    self.all.solve(one, 0)
                    tried += 1

    def _chosen(self) -> list[Configuration]:
        """The choices to search next: the best one, then all that are open.

        Where not all choices are known, the few of the best values.
        """
        best, waiting = self.all.best, self.all.open()
        if self._listed is None:
            valued = [one for one in waiting if one.value is not None]
            return sorted(valued, key=lambda one: (one.value, one.key))[:TOGETHER] or waiting
        first = [] if best is None or best not in waiting else [best]
        return first + [one for one in waiting if one is not best]

    def result(self) -> Result:
        """The best schedule, with the bound over all choices and its argument."""
        return self.all.result(self._proof(), Certificate(Argument.SEARCH))

    def _proof(self) -> str:
        if self._none:
            return (
                f"device {self._none[0]} has no memory for one microbatch, however many of its "
                "layers recompute"
            )
        known = self.all.known.values()
        searched = sum(one.level >= 0 for one in known)
        scope = (
            f"over all {self._space.size} choices of layers that recompute (those that take more "
            "time and more memory than another left out)"
        )
        if self._listed is None:
            return (
                f"{scope}: the head, work and forced idle time of one device, with its own choice "
                f"of least bound and no recompute elsewhere, take that long; {searched} were "
                "searched"
            )
        ruled_out = sum(one.level < 0 and not self.all.is_open(one) for one in known)
        return (
            f"{scope}: {ruled_out} are ruled out by head, work and forced idle time of a device "
            f"alone, {searched} were searched"
        )
