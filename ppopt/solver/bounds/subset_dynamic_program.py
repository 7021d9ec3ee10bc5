"""Lower bounds by dynamic programming on one device, then on growing subsets of devices.

CP-SAT proves little about a device of several stages, or one whose memory is tight: each microbatch
visits it several times and shares its memory. Few partial schedules of such a device are
non-dominated: a few hundred per layer for the middle device of a V. Devices with tight memory delay
each other: two or three of them often need nearly as long as all devices.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from ppopt.problem.problem import Problem
from ppopt.solver.bounds.subset_selection import (
    Devices,
    dp_subset_bound,
    evenly_spaced_subsets,
    single_devices,
)
from ppopt.solver.budget import Budget
from ppopt.solver.dynamic_programming.applicability import (
    HANDLES,
    is_supported,
    layer_seconds,
    preparing_seconds,
    state_is_small,
)
from ppopt.solver.dynamic_programming.classes import Classes
from ppopt.solver.dynamic_programming.layered import LayeredDP
from ppopt.solver.incumbent import Incumbent
from ppopt.solver.method import Outcome
from ppopt.solver.parameters import SubsetParams
from ppopt.solver.relaxation.device_relaxation import DeviceSubset
from ppopt.solver.relaxation.route_times import RouteTimes


@dataclass
class _OpenSubset:
    """A subset that is not solved yet."""

    program: LayeredDP
    """Layered DP in progress over all values below the incumbent, resumed in the next turn."""
    abandoned: bool = False
    """Whether it would take too long: other subsets come first, then it goes on."""


class SubsetDP:
    """Dynamic programming over subsets of devices, one subset after the other.

    It starts from single devices: those with several stages and, if memory is limited, all. States
    of equal counts are merged first: a few seconds bound all of them. The half with the larger
    bounds is bounded again with more states, and so on. Evenly spaced subsets follow, small ones
    first. A subset has the time until it is solved or abandoned, and goes on in the next turn. A
    solved subset is not tried again; an abandoned one comes last in the next turn. When a solved
    subset has the best bound, its union with each other device is added to the subsets to solve.
    """

    name = "subset dynamic program"
    handles = HANDLES

    def __init__(
        self, problem: Problem, params: SubsetParams, first: Sequence[Devices] = ()
    ) -> None:
        """`first`: subsets to try before all others; the best of them may be extended."""
        self._problem = problem
        self._params = params
        self._times = RouteTimes(problem.instance)
        alone = single_devices(problem.pipeline) if is_supported(problem) else []
        if problem.instance.costs.ticks.limits is None:
            alone = [devices for devices in alone if self._times.host.count(devices[0]) > 1]
        self._needs = dict.fromkeys(alone, 0)
        """Bound of every such device alone, in ticks; 0: not bounded yet."""
        self._merging = deque(self._needs)
        """Single devices to bound next by merged states."""
        self._merged: LayeredDP | None = None
        """Layered DP in progress for the first of these."""
        self._width = 1
        """Its maximum number of states per vector of counts."""
        self._widened: list[Devices] = []
        """Single devices whose bound may be larger with more states."""
        self._solved: set[Devices] = set()
        """Single devices whose states were all kept."""
        self._asked: dict[Devices, _OpenSubset] = {}
        self.base: Devices = ()
        """Last solved subset whose bound was above those of all others and the best known bound."""
        self._base_bound = 0
        """Bound of `base`, in ticks."""
        self._first = frozenset(first)
        """Subsets to try before all others."""
        self._spaced = [
            devices
            for size in params.spaced_sizes
            for devices in evenly_spaced_subsets(problem.pipeline, size)[:1]
        ]
        """Evenly spaced subsets."""
        self.open: dict[Devices, None] = {}
        """Subsets to solve, in order."""
        if self._needs:
            self.open = dict.fromkeys(first) or self._all_first

    @property
    def _all_first(self) -> dict[Devices, None]:
        """Single devices, then evenly spaced subsets."""
        return {
            devices: None
            for devices in (*self._needs, *self._spaced)
            if devices not in self._solved
        }

    def supports(self, problem: Problem) -> bool:  # noqa: ARG002
        """Whether the DP applies and memory is limited, or a device has several stages."""
        return bool(self.open)

    def run(self, incumbent: Incumbent, budget: Budget) -> Outcome:
        """Solve one subset after the other."""
        fruitful = False
        first: dict[Devices, None] = {}
        last: dict[Devices, None] = {}
        preparing = preparing_seconds(self._problem)
        if not budget.affords(preparing):
            return Outcome(exhausted=True)
        while self.open and not budget.over and budget.affords(preparing):
            if self._merging and self._first.isdisjoint(self.open):
                fruitful |= self._bounded_by_merging(incumbent, budget)
                continue
            devices, known = next(iter(self.open)), incumbent.bound.value
            del self.open[devices]
            closed = self._closed(devices, incumbent, budget)
            if closed:
                self._asked.pop(devices, None)
            elif not self._asked[devices].abandoned:
                first[devices] = None
            else:
                last[devices] = None
            fruitful |= closed or incumbent.bound.value > known
            if devices in self._first and self._first.isdisjoint((*self.open, self.base)):
                self.open |= self._all_first
        self.open = first | self.open | last
        return Outcome(budget.spent, exhausted=not self.open, fruitful=fruitful)

    def _bounded_by_merging(self, incumbent: Incumbent, budget: Budget) -> bool:
        """Bound the next single device by merged states; return whether that has ended."""
        assert incumbent.value is not None
        devices, params = self._merging[0], self._params
        if self._merged is None:
            classes = Classes(DeviceSubset(self._times, frozenset(devices)))
            self._merged = LayeredDP(classes, incumbent.value, self._width)
        program = self._merged
        program.below = incumbent.value
        ended = state_is_small(program.classes) and self._followed(
            program, budget, params.max_remaining_share
        )
        if not ended and budget.over:
            return False
        self._merging.popleft()
        self._merged = None
        if ended and program.exact:
            self._solved.add(devices)
            self.open.pop(devices, None)
            self._settle(devices, program, incumbent)
        elif ended:
            incumbent.raise_bound(dp_subset_bound(devices, program.lower_bound))
            self._needs[devices] = max(self._needs[devices], program.lower_bound)
            self._widened.append(devices)
        if not self._merging and self._width < params.max_width:
            self._width *= params.widening
            ranked = sorted(self._widened, key=lambda single: -self._needs[single])
            self._merging.extend(ranked[: -(-len(ranked) // 2)])
            self._widened = []
        return ended

    def _closed(self, devices: Devices, incumbent: Incumbent, budget: Budget) -> bool:
        """Raise the bound by the subset; return whether the subset is solved or excluded.

        A layered DP over all values below the incumbent solves the subset.
        """
        extends = len(devices) == 1 or {*self.base} < {*devices}
        if not (extends or devices in self._first or devices in self._spaced):
            return True
        assert incumbent.value is not None
        if devices not in self._asked:
            classes = Classes(DeviceSubset(self._times, frozenset(devices)))
            if not state_is_small(classes):
                return True
            self._asked[devices] = _OpenSubset(LayeredDP(classes, incumbent.value))
        asked = self._asked[devices]
        asked.program.below = incumbent.value
        max_share = inf if asked.abandoned else self._params.max_remaining_share
        if self._followed(asked.program, budget, max_share):
            self._settle(devices, asked.program, incumbent)
            return True
        asked.abandoned |= not budget.over
        return False

    def _followed(self, program: LayeredDP, budget: Budget, max_share: float) -> bool:
        """Run a layered DP to its end; returns False if time is up, or if it would take too long.

        It would take too long if the remaining layers, at the present width, exceeded a share of
        the whole search.
        """
        max_seconds = max_share * budget.seconds
        while not program.ended:
            seconds = layer_seconds(program)
            if (
                program.remaining_layers * seconds > max_seconds
                or program.entries > self._params.max_entries
            ):
                return False
            if budget.over or 2 * seconds > budget.search_left:
                return False
            try:
                program.advance()
            except TimeoutError:
                return False
            budget.pay(seconds)
        return True

    def _settle(self, devices: Devices, program: LayeredDP, incumbent: Incumbent) -> None:
        """Record the bound of a subset; if it is the best one, extend the subset by a device."""
        known = incumbent.bound.value
        incumbent.raise_bound(dp_subset_bound(devices, program.lower_bound))
        if devices in self._needs:
            self._needs[devices] = program.lower_bound
        if program.lower_bound >= known and program.lower_bound > self._base_bound:
            self._base_bound = program.lower_bound
            self._extend(devices)

    def _extend(self, devices: Devices) -> None:
        """Add the subset joined with each other device to those to solve.

        Devices with the largest bounds come first. From then on only supersets of this subset,
        single devices and evenly spaced subsets are solved. `DynamicProgram` solves all devices
        together.
        """
        self.base = devices
        if len(devices) + 1 < self._problem.pipeline.num_devices:
            for (device,) in sorted(self._needs, key=lambda single: -self._needs[single]):
                if device not in devices:
                    self.open[tuple(sorted((*devices, device)))] = None
