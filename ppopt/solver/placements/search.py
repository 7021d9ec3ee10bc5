"""The search over placements: the placement and the schedule of least value, with a bound over all.

Where there are few placements, all are bounded one by one, and most are ruled out by that. Where
there are many, one bound holds for all of them; the placements that have names are searched, and
those that exchange two devices or move one stage of the best.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from random import Random

from ppopt.problem import exact
from ppopt.schedule.origin import Argument, Certificate
from ppopt.solver import interrupts
from ppopt.solver.bounds import device_bounds
from ppopt.solver.configurations import Configuration, Configurations, Request
from ppopt.solver.placements.space import Hosts, PlacementSpace
from ppopt.solver.result import Result

FIRST = 20
"""Placements of least bounds that are scheduled quickly before any is searched."""
MOST_MOVES = 60
"""Most placements that are scheduled quickly as moves of the best one, each time it is searched."""
TOGETHER = 3
"""Placements of the best values that are searched at a level of effort, where not all are known."""
KICK = 4
"""Random moves away from the best placement, where not all are known and moves gain no more."""
MOST_KICKS = 50
"""Kicks in a row that may end at placements that are known."""
MOST_MEASURED = 1000
"""Most placements whose least memory limits are compared, where none keeps the limits."""


def search_placements(request: Request) -> Result:
    """Search placement and schedule; raises InputError where placements cannot be searched."""
    search = PlacementSearch(request)
    try:
        with interrupts.heard(), suppress(TimeoutError):
            search.run()
    except KeyboardInterrupt:
        search.all.interrupted = True
    return search.result()


class PlacementSearch:
    """One search over placements."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._space = PlacementSpace(request.problem)
        listed = self._space.listed
        self.all = Configurations(
            self._space, request, unknown=self._space.least if listed is None else None
        )
        """The placements known."""
        simple = self._space.simple()
        self._begin = [*simple, *map(self._space.descended, simple)] if listed is None else simple
        """Placements that are scheduled first."""
        self._add(self._begin if listed is None else listed)
        self._random = Random(request.provenance.seed)

    def run(self) -> None:
        """Search until proof or until the time is up; KeyboardInterrupt may end it."""
        for hosts in dict.fromkeys(map(self._space.representative, self._begin)):
            self.all.solve(self.all.known[hosts], 0)
        for one in self.all.open()[:FIRST]:
            self.all.solve(one, 0)
        level = 1
        while not self.all.over:
            self._move()
            chosen = self._chosen()
            for one in chosen:
                self.all.solve(one, level)
            if chosen:
                level += 1
            elif not self._kick():
                return

    def _add(self, placements: list[Hosts]) -> None:
        representatives = dict.fromkeys(map(self._space.representative, placements))
        fresh = [hosts for hosts in representatives if hosts not in self.all.known]
        self.all.add(self._space.configurations(fresh))

    def _kick(self) -> bool:
        """Schedule a placement some random moves away, and moved on; False: no new one is found."""
        if self._space.listed is not None:
            return False
        best = self.all.best or next(iter(self.all.known.values()))
        for _ in range(MOST_KICKS):
            hosts = best.key
            for _ in range(KICK):
                hosts = self._random.choice(list(self._space.moves(hosts)))
            hosts = self._space.representative(self._space.descended(hosts))
            if hosts not in self.all.known or self.all.known[hosts].level < 0:
                self._add([hosts])
                self.all.solve(self.all.known[hosts], 0)
                return True
        return False

    def _move(self) -> None:
        """Exchange two devices or move one stage of the best placement while that is better.

        Where no schedule is known yet: of the first placement.
        """
        tried = 0
        while not self.all.over:
            best = self.all.best
            begin = best or next(iter(self.all.known.values()))
            moves = list(dict.fromkeys(self._space.moves(begin.key)))
            self._add(moves)
            fresh = [self.all.known[hosts] for hosts in moves]
            fresh = [one for one in fresh if one.level < 0 and self.all.is_open(one)]
            for one in sorted(fresh, key=lambda one: (one.bound, one.key)):
                if self.all.over or tried >= MOST_MOVES:
                    return
                self.all.solve(one, 0)
                tried += 1
            if self.all.best is best:
                return

    def _chosen(self) -> list[Configuration]:
        """The placements to search next: the best one, then all that are open.

        Where not all placements are known, the few of the best values.
        """
        best, waiting = self.all.best, self.all.open()
        if self._space.listed is None:
            valued = [one for one in waiting if one.value is not None]
            return sorted(valued, key=lambda one: (one.value, one.key))[:TOGETHER] or waiting
        first = [] if best is None or best not in waiting else [best]
        return first + [one for one in waiting if one is not best]

    def result(self) -> Result:
        """The best schedule, with the bound over all placements and its argument."""
        return self.all.result(
            self._infeasible() if self.all.none else self._proof(),
            Certificate(Argument.PLACEMENTS),
        )

    def _proof(self) -> str:
        known = self.all.known.values()
        searched = [one for one in known if one.level >= 0]
        if self._space.listed is None:
            return (
                f"over all {self._scope}: the work of all devices together, the stages that fit "
                "on them, the stage of most work, or the way of one microbatch takes that long; "
                f"{len(searched)} were searched"
            )
        ruled_out = sum(one.level < 0 and not self.all.is_open(one) for one in known)
        left = sum(map(self.all.is_open, known))
        words = (
            f"over all {self._scope}: {ruled_out} are ruled out by bounds alone (memory for one "
            f"microbatch, head, work and forced idle time of a device, one microbatch's way), "
            f"{len(searched)} were searched"
        )
        if left and not self.all.closed:
            words += f"; {left} may still be better, none of them below the bound"
        return words

    @property
    def _scope(self) -> str:
        """How many placements there are, in words."""
        space, listed = self._space, self._space.listed
        words = (
            f"{space.size} placements of {space.num_stages} stages that use all "
            f"{space.num_devices} devices"
        )
        if listed is not None and len(listed) < space.size:
            words += f", {len(listed)} once devices that are alike are exchanged"
        if space.cut_anew:
            words += ", the layers cut anew by balanced for each"
        return words

    def _infeasible(self) -> str:
        """Why no placement has a schedule, with the least limit where that is known."""
        words = f"none of the {self._scope} keeps the memory limits"
        if len(self.all.known) > MOST_MEASURED:
            return words
        needs, problem = [], self._request.problem
        for hosts in self.all.known:
            pipeline = self._space.pipeline(hosts)
            least = max(device_bounds.minimum_memory(replace(problem, pipeline=pipeline).instance))
            needs.append((pipeline.ticks.memory(least), hosts))
        need, hosts = min(needs)
        return (
            f"{words}; the least limit for every device that works for any is about "
            f"{exact.plain(need)}, of placement {','.join(map(str, hosts))}"
        )
