"""What few devices of several stages need, found by sweeps: one alone, then with others.

CP-SAT proves little of such a device: every microbatch comes back to it, and its stages share
memory. Of the beginnings of its own operations few are not outdone: of the device in the middle of
a V some hundred of one length, however long the run.
"""

from __future__ import annotations

from dataclasses import dataclass

from ppopt.problem.problem import Problem
from ppopt.solver.bounds.destructive_bounds import Between
from ppopt.solver.bounds.relaxation_bound import Devices, singles
from ppopt.solver.budget import Budget
from ppopt.solver.cp_sat.delays import Delays
from ppopt.solver.cp_sat.device_subset import DeviceSubset
from ppopt.solver.dynamic_programming.classes import Classes
from ppopt.solver.dynamic_programming.layered import LayeredDP
from ppopt.solver.exact.dynamic_program import applies, needed_by, small, step
from ppopt.solver.incumbent import Incumbent
from ppopt.solver.method import Outcome
from ppopt.solver.parameters import SubsetParams


@dataclass
class _Asked:
    """A set of devices under way."""

    classes: Classes
    sweep: LayeredDP | None
    """The sweep for all that is better than the best schedule; None: it was hopeless."""


class SubsetDP:
    """Dynamic programming over subsets of devices of several stages, one subset after the other.

    Each subset gets a share of the time; settled ones do not come back, and those asked in vain
    come last in the next turn. A settled subset on which the bound rests is asked together with
    each other device.
    """

    name = "subset dynamic program"

    def __init__(self, problem: Problem, params: SubsetParams) -> None:
        self._problem = problem
        self._params = params
        self._delays = Delays(problem.instance)
        alone = singles(problem.pipeline) if applies(problem) else []
        several = [one for one in alone if self._delays.host.count(one[0]) > 1]
        self._needs = dict.fromkeys(several, 0)
        """What is known of devices alone, in ticks."""
        self._asked: dict[Devices, _Asked] = {}
        self._base: Devices = ()
        """The last settled set on which the bound rested."""
        self.open: dict[Devices, None] = dict.fromkeys(self._needs)
        """The sets to ask, in order."""

    def supports(self, problem: Problem) -> bool:
        """Some device has several stages, and partial schedules are what they are taken for."""
        return applies(problem) and bool(self.open)

    def run(self, incumbent: Incumbent, budget: Budget) -> Outcome:
        """Ask one subset after the other."""
        fruitful = False
        first: dict[Devices, None] = {}
        last: dict[Devices, None] = {}
        while self.open and not budget.over:
            devices, known = next(iter(self.open)), incumbent.bound.value
            del self.open[devices]
            part = budget.part(self._params.share)
            closed = self._closed(devices, incumbent, part)
            raised = incumbent.bound.value > known
            if closed:
                self._asked.pop(devices, None)
            elif raised or self._asked[devices].sweep is not None:
                first[devices] = None
            else:
                last[devices] = None
            fruitful |= closed or raised
            budget.pay(part.spent)
        self.open = first | self.open | last
        return Outcome(budget.spent, exhausted=not self.open, fruitful=fruitful)

    def _closed(self, devices: Devices, incumbent: Incumbent, budget: Budget) -> bool:
        """Raise the bound by what a set needs; return whether nothing is left to ask of it.

        At first all that is better than the best schedule is followed, which settles it; where that
        is too much, what is nearer to the bound: there are fewer beginnings to follow.
        """
        if len(devices) > 1 and not {*self._base} < {*devices}:
            return True
        assert incumbent.value is not None
        if devices not in self._asked:
            classes = Classes(DeviceSubset(self._delays, frozenset(devices)))
            if not small(classes):
                return True
            self._asked[devices] = _Asked(classes, LayeredDP(classes, incumbent.value))
        asked = self._asked[devices]
        if asked.sweep is None:
            return self._questioned(devices, asked.classes, incumbent, budget)
        asked.sweep.below = incumbent.value
        if self._followed(asked.sweep, budget, self._params.hope * budget.clock.seconds):
            self._settle(devices, asked.sweep, incumbent)
            return True
        if not budget.over:
            asked.sweep = None
            return self._questioned(devices, asked.classes, incumbent, budget)
        return False

    def _questioned(
        self, devices: Devices, classes: Classes, incumbent: Incumbent, budget: Budget
    ) -> bool:
        """Ask from the bound up, until one question is too much; return whether it is settled."""
        assert incumbent.value is not None
        between = Between(incumbent.bound.value, incumbent.value)
        for target in between.questions(lambda: incumbent.bound.value):
            sweep, part = LayeredDP(classes, target + 1), budget.part(self._params.share)
            ended = self._followed(sweep, part, self._params.bulge * part.left)
            budget.pay(part.spent)
            if ended and sweep.best is not None:
                self._settle(devices, sweep, incumbent)
                return True
            if ended:
                incumbent.raise_bound(needed_by(devices, target + 1))
            elif budget.over or target == between.low:
                return False
            else:
                between.skip(target)
        return between.low == between.high

    def _followed(self, sweep: LayeredDP, budget: Budget, hope: float) -> bool:
        """Follow a sweep to its end; False where the time is up, or there is no hope.

        That is so where what is left would take more seconds, if there came to be no fewer
        beginnings than there are now.
        """
        while not sweep.ended:
            seconds = step(sweep)
            if sweep.left * seconds > hope or sweep.entries > self._params.most_entries:
                return False
            if budget.over or 2 * seconds > budget.clock.left:
                return False
            sweep.advance()
            budget.pay(seconds)
        return True

    def _settle(self, devices: Devices, sweep: LayeredDP, incumbent: Incumbent) -> None:
        """Take what a set needs; where the bound rests on it, ask for it with each other device.

        Those that need most come first. Sets without it are no longer asked, but devices alone. All
        devices together are no matter of few.
        """
        incumbent.raise_bound(needed_by(devices, sweep.least))
        if devices in self._needs:
            self._needs[devices] = sweep.least
        if incumbent.bound.certificate.devices != devices:
            return
        self._base = devices
        if len(devices) + 1 < self._problem.pipeline.num_devices:
            for (other,) in sorted(self._needs, key=lambda one: -self._needs[one]):
                if other not in devices:
                    self.open[tuple(sorted((*devices, other)))] = None
