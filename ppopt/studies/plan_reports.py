"""Additional reports of a plan: queries on its search, each with a share of the time limit.

The reports state the minimum memory for the value of the plan, or for a slowdown, and the effect of
more memory.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

from ppopt.cancellation import over, seconds_left, within
from ppopt.solver.parameters import PlanParams
from ppopt.studies.plan_memory import minimize_memory, within_share
from ppopt.studies.plan_result import LeastMemory, MoreMemory, Plan, WithinShare
from ppopt.studies.plan_search import PlanSearch
from ppopt.studies.plan_space import PlanSpace

MORE_ROUNDS = 2
"""Rounds of the search with more memory."""


def share_of_reports(space: PlanSpace, slowdown: Fraction | None, params: PlanParams) -> float:
    """Share of the time limit for the reports that follow that on less memory at the same speed."""
    share = params.extra_memory_share if "mem_limit" in space.fields else 0
    return share + (0 if slowdown is None else params.slowdown_share)


class PlanReports:
    """The reports of one plan."""

    def __init__(self, search: PlanSearch, slowdown: Fraction | None) -> None:
        """With a slowdown, the reports include the minimum memory within it."""
        self.search, self._slowdown, self._options = search, slowdown, search.options
        self._params, self._limit = search.options.params.plan, search.options.time_limit

    def plan(self) -> Plan:
        """The plan with all reports; without a schedule, there are none."""
        if self.search.best is None:
            return self.search.plan()
        reports: dict[str, Any] = {
            "least_memory": self._least_memory(),
            "within": self._memory_within(),
            "more_memory": self._more_memory(),
        }
        plan = self.search.baselines.add_to(self.search.plan())
        return replace(plan, **reports, solve_seconds=self._options.spent)

    def _useful(self, share: float, factor: float) -> float:
        """Seconds for a report: a share of the limit or, by the clock, of the time so far."""
        spent = factor * self._options.spent if self.search.by_clock else 0.0
        return max(share * self._limit, spent)

    def _least_memory(self) -> LeastMemory | None:
        """The minimum memory for the value of the plan that a short search finds.

        By the clock, this takes about as long as the plan so far, if that much time remains besides
        that of the reports that follow.
        """
        if over():
            return None
        best = self.search.best
        assert best is not None
        params, limit = self._params, self._limit
        later = share_of_reports(self.search.set_up.space, self._slowdown, params)
        free = max(params.min_memory_share * limit, seconds_left() - later * limit)
        with within(min(free, self._useful(params.memory_share, 1))):
            return minimize_memory(best, self.search.tell)
        return None

    def _memory_within(self) -> WithinShare | None:
        """The minimum memory of any configuration at most the slowdown slower than the best."""
        if self._slowdown is None or over():
            return None
        ceiling = self.search.state.end
        assert ceiling is not None
        with within(self._params.slowdown_share * self._limit):
            max_time = int(ceiling * (1 + self._slowdown))
            return within_share(self.search.candidates, max_time, self.search.tell)
        return None

    def _more_memory(self) -> MoreMemory | None:
        """The effect of more memory, by a short search if that can be set up in time."""
        set_up = self.search.set_up
        limits, value = set_up.problem.pipeline.limits, self.search.state.end
        assert value is not None
        if limits is None or 2 * set_up.seconds > seconds_left():
            return None
        raised_limits = tuple(limit * self._params.more_memory_percent / 100 for limit in limits)
        space = replace(set_up.space, fields={**set_up.space.fields, "mem_limit": raised_limits})
        with within(self._useful(self._params.extra_memory_share, 1 / 2)):
            search = PlanSearch(
                space, set_up.objective, set_up.backward_kind, self._options.in_scope()
            )
            search.state.cutoff = value
            search.start_from(self.search.schedules)
            search.run_rounds(MORE_ROUNDS)
        value, lower_bound = search.state.end, search.lower_bound
        assert value is not None and lower_bound is not None
        return MoreMemory(raised_limits, value, lower_bound, self.search.per_unit)
