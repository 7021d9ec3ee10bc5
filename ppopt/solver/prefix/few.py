"""What few devices of several stages need, found by sweeps: one alone, then with others.

CP-SAT proves little of such a device: every microbatch comes back to it, and its stages share
memory. Of the beginnings of its own operations few are not outdone: of the device in the middle of
a V some hundred of one length, however long the run.
"""

from __future__ import annotations

from ppopt.solver.budget import Budget
from ppopt.solver.chain import Chain
from ppopt.solver.incumbent import Search
from ppopt.solver.prefix.classes import Classes
from ppopt.solver.prefix.sweep import Sweep
from ppopt.solver.prefix.sweeps import EACH, MOST_ENTRIES, STEP, applies, small
from ppopt.solver.questions import Between
from ppopt.solver.relaxation import View
from ppopt.solver.relaxed import Devices, needed, singles

SHARE = 0.5
"""Largest share of a round's time for one set of devices, and of that for one question."""
HOPE = 1 / 3
"""A sweep for all that is better than the best schedule goes on while it has less left to do than
this part of the search, if there came to be no fewer beginnings than there are now."""
BULGE = 10
"""A question is followed while what is left would take at most so many times its time, if there
came to be no fewer beginnings than there are now."""


class Few:
    """Sets of devices of which it is not known yet what they need."""

    def __init__(self, search: Search) -> None:
        self._search = search
        problem = search.problem
        self._chain = Chain(problem.pipeline, problem.fused)
        alone = singles(problem.pipeline) if applies(problem) else []
        several = [one for one in alone if self._chain.host.count(one[0]) > 1]
        self._needs = dict.fromkeys(several, 0)
        """What is known of devices alone, in ticks."""
        self._begun: dict[Devices, Sweep] = {}
        """Sweeps for all that is better than the best schedule, while there is hope for them."""
        self._hopeless = set[Devices]()
        self._base: Devices = ()
        """The last settled set on which the bound rested."""
        self.open: dict[Devices, None] = dict.fromkeys(self._needs)
        """The sets to ask, in order."""
        self.fruitful = True
        """Whether the last round found out anything, or will in the next."""

    def raise_bound(self, budget: Budget) -> None:
        """Ask one set after the other, each for a share of the time; settled ones do not come back.

        Those asked in vain come last in the next round. A settled set on which the bound rests is
        asked together with each other device.
        """
        search = self._search
        search.enter("partial schedules")
        self.fruitful = False
        first: dict[Devices, None] = {}
        last: dict[Devices, None] = {}
        while self.open and not budget.over:
            devices, known = next(iter(self.open)), search.bound.value
            del self.open[devices]
            if len(devices) > 1 and not {*self._base} < {*devices}:
                continue
            part = budget.part(SHARE)
            if self._settles(devices, part):
                self.fruitful = True
                self._grow(devices)
            elif devices in self._begun or search.bound.value > known:
                first[devices] = None
            else:
                last[devices] = None
            budget.spent += part.spent
        self.open = first | self.open | last
        self.fruitful |= bool(first)

    def _grow(self, devices: Devices) -> None:
        """Ask for a set with each other device, where the bound rests on it: what needs most first.

        Sets with those on which it rested before are no longer asked.
        """
        if self._search.bound.certificate.devices != devices:
            return
        self._base = devices
        for (other,) in sorted(self._needs, key=lambda one: -self._needs[one]):
            if other not in devices:
                self.open[tuple(sorted((*devices, other)))] = None

    def _settles(self, devices: Devices, budget: Budget) -> bool:
        """Raise the bound by what a set needs; return whether that is known in full.

        At first all that is better than the best schedule is followed, which settles it; where that
        is too much, what is nearer to the bound: there are fewer beginnings to follow.
        """
        search = self._search
        assert search.value is not None
        classes = Classes(View(self._chain, frozenset(devices)))
        if not small(classes):
            return True
        if devices not in self._hopeless:
            sweep = self._begun.setdefault(devices, Sweep(classes, search.value))
            sweep.below = search.value
            while not sweep.ended and not budget.over and not self._is_hopeless(sweep):
                _advance(sweep, budget)
            if sweep.ended:
                self._note(devices, sweep)
                return True
            if not self._is_hopeless(sweep):
                return False
            self._hopeless.add(devices)
            del self._begun[devices]
        return self._questioned(devices, classes, budget)

    def _is_hopeless(self, sweep: Sweep) -> bool:
        seconds = HOPE * (self._search.deadline - self._search.began)
        return sweep.entries > MOST_ENTRIES or sweep.left * _step(sweep) > seconds

    def _note(self, devices: Devices, sweep: Sweep) -> None:
        """Take what a sweep that has ended found out."""
        least = sweep.below if sweep.best is None else sweep.best
        self._search.raise_bound(needed(devices, least, "found by following partial schedules"))
        if devices in self._needs:
            self._needs[devices] = least

    def _questioned(self, devices: Devices, classes: Classes, budget: Budget) -> bool:
        search = self._search
        assert search.value is not None
        between = Between(search.bound.value, search.value)
        for target in between.questions():
            sweep = Sweep(classes, target + 1)
            part = budget.part(SHARE)
            if sweep.left * STEP > part.left:
                return False
            ended = _followed(sweep, part)
            budget.spent += part.spent
            if not ended:
                between.skip(target)
                continue
            self._note(devices, sweep)
            if sweep.best is not None:
                return True
            between.low = target + 1
        return between.low == between.high


def _step(sweep: Sweep) -> float:
    """Seconds that the next step of a sweep takes, about."""
    return STEP + EACH * sweep.width


def _advance(sweep: Sweep, budget: Budget) -> None:
    budget.spent += _step(sweep)
    sweep.advance()


def _followed(sweep: Sweep, budget: Budget) -> bool:
    """Follow a sweep to its end; False where that takes too long."""
    while not sweep.ended:
        least = max(2.0, sweep.left / BULGE) * _step(sweep)
        if least > budget.left or sweep.entries > MOST_ENTRIES:
            return False
        _advance(sweep, budget)
    return True
