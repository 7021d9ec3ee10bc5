"""What few devices of several stages need, found by sweeps: one alone, then with others.

CP-SAT proves little of such a device: every microbatch comes back to it, and its stages share
memory. Of the beginnings of its own operations few are not outdone: of the device in the middle of
a V some hundred of one length, however long the run.
"""

from __future__ import annotations

from dataclasses import dataclass

from ppopt.solver.bounds.destructive_bounds import Between
from ppopt.solver.bounds.relaxation_bound import Devices, singles
from ppopt.solver.budget import Budget
from ppopt.solver.cp_sat.delays import Chain
from ppopt.solver.cp_sat.device_subset import View
from ppopt.solver.dynamic_programming.classes import Classes
from ppopt.solver.dynamic_programming.layered import Sweep
from ppopt.solver.exact.dynamic_program import MOST_ENTRIES, applies, needed_by, small, step
from ppopt.solver.incumbent import Search

SHARE = 0.5
"""Largest share of a round's time for one set of devices, and of that for one question."""
HOPE = 1 / 3
"""A sweep for all that is better than the best schedule goes on while it has less left to do than
this part of the search, if there came to be no fewer beginnings than there are now."""
BULGE = 10
"""A question is followed while what is left would take at most so many times its time, if there
came to be no fewer beginnings than there are now."""


@dataclass
class _Asked:
    """A set of devices under way."""

    classes: Classes
    sweep: Sweep | None
    """The sweep for all that is better than the best schedule; None: it was hopeless."""


class Few:
    """Sets of devices of several stages each of which it is not known yet what they need."""

    def __init__(self, search: Search) -> None:
        self._search = search
        problem = search.problem
        self._chain = Chain(problem.pipeline, problem.fused)
        alone = singles(problem.pipeline) if applies(problem) else []
        several = [one for one in alone if self._chain.host.count(one[0]) > 1]
        self._needs = dict.fromkeys(several, 0)
        """What is known of devices alone, in ticks."""
        self._asked: dict[Devices, _Asked] = {}
        self._base: Devices = ()
        """The last settled set on which the bound rested."""
        self.open: dict[Devices, None] = dict.fromkeys(self._needs)
        """The sets to ask, in order."""
        self.fruitful = True
        """Whether the last round settled a set or raised the bound."""

    def raise_bound(self, budget: Budget) -> None:
        """Ask one set after the other, each for a share of the time; settled ones do not come back.

        Those asked in vain come last in the next round. A settled set on which the bound rests is
        asked together with each other device.
        """
        if not self.open:
            return
        search = self._search
        search.enter("partial schedules")
        self.fruitful = False
        first: dict[Devices, None] = {}
        last: dict[Devices, None] = {}
        while self.open and not budget.over:
            devices, known = next(iter(self.open)), search.bound.value
            del self.open[devices]
            part = budget.part(SHARE)
            closed = self._closed(devices, part)
            raised = search.bound.value > known
            if closed:
                self._asked.pop(devices, None)
            elif raised or self._asked[devices].sweep is not None:
                first[devices] = None
            else:
                last[devices] = None
            self.fruitful |= closed or raised
            budget.spent += part.spent
        self.open = first | self.open | last

    def _closed(self, devices: Devices, budget: Budget) -> bool:
        """Raise the bound by what a set needs; return whether nothing is left to ask of it.

        At first all that is better than the best schedule is followed, which settles it; where that
        is too much, what is nearer to the bound: there are fewer beginnings to follow.
        """
        search = self._search
        if len(devices) > 1 and not {*self._base} < {*devices}:
            return True
        assert search.value is not None
        if devices not in self._asked:
            classes = Classes(View(self._chain, frozenset(devices)))
            if not small(classes):
                return True
            self._asked[devices] = _Asked(classes, Sweep(classes, search.value))
        asked = self._asked[devices]
        if asked.sweep is None:
            return self._questioned(devices, asked.classes, budget)
        asked.sweep.below = search.value
        if self._followed(asked.sweep, budget, HOPE * (search.deadline - search.began)):
            self._settle(devices, asked.sweep)
            return True
        if not budget.over:
            asked.sweep = None
            return self._questioned(devices, asked.classes, budget)
        return False

    def _questioned(self, devices: Devices, classes: Classes, budget: Budget) -> bool:
        """Ask from the bound up, until one question is too much; return whether it is settled."""
        search = self._search
        assert search.value is not None
        between = Between(search.bound.value, search.value)
        for target in between.questions(lambda: search.bound.value):
            sweep, part = Sweep(classes, target + 1), budget.part(SHARE)
            ended = self._followed(sweep, part, BULGE * part.left)
            budget.spent += part.spent
            if ended and sweep.best is not None:
                self._settle(devices, sweep)
                return True
            if ended:
                search.raise_bound(needed_by(devices, target + 1))
            elif budget.over or target == between.low:
                return False
            else:
                between.skip(target)
        return between.low == between.high

    def _followed(self, sweep: Sweep, budget: Budget, hope: float) -> bool:
        """Follow a sweep to its end; False where the time is up, or there is no hope.

        That is so where what is left would take more seconds, if there came to be no fewer
        beginnings than there are now.
        """
        while not sweep.ended:
            seconds = step(sweep)
            if sweep.left * seconds > hope or sweep.entries > MOST_ENTRIES:
                return False
            if budget.over or 2 * seconds > self._search.left:
                return False
            sweep.advance()
            budget.spent += seconds
        return True

    def _settle(self, devices: Devices, sweep: Sweep) -> None:
        """Take what a set needs; where the bound rests on it, ask for it with each other device.

        Those that need most come first. Sets without it are no longer asked, but devices alone. All
        devices together are no matter of few.
        """
        search = self._search
        search.raise_bound(needed_by(devices, sweep.least))
        if devices in self._needs:
            self._needs[devices] = sweep.least
        if search.bound.certificate.devices != devices:
            return
        self._base = devices
        if len(devices) + 1 < search.problem.pipeline.num_devices:
            for (other,) in sorted(self._needs, key=lambda one: -self._needs[one]):
                if other not in devices:
                    self.open[tuple(sorted((*devices, other)))] = None
