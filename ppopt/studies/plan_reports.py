"""Additional reports of a plan: queries on its search, each with a share of the time limit.

The plan starts from strategies and is compared with them. The reports then state the minimum memory
for its value, or for a slowdown, and the effect of more memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import partial
from math import inf

from ppopt.cancellation import over, part, seconds_left, shield, within
from ppopt.solver.parameters import PlanParams
from ppopt.studies.baselines import after_search
from ppopt.studies.plan_baselines import PlanBaselines
from ppopt.studies.plan_memory import minimize_memory, within_share
from ppopt.studies.plan_result import MoreMemory, Plan
from ppopt.studies.plan_search import PlanSearch

MORE_ROUNDS = 2
"""Rounds of the search with more memory."""


def share_of_reports(params: PlanParams, *, limited: bool, within: bool) -> float:
    """Share of the time limit for the reports, besides that on less memory at the same speed."""
    share = params.extra_memory_share if limited else 0
    return share + (params.slowdown_share if within else 0)


class PlanReports:
    """The reports of one plan."""

    def __init__(self, search: PlanSearch) -> None:
        self._search, self._options = search, search.options
        self._params, self._limit = search.options.params.plan, search.options.time_limit
        set_up = search.set_up
        self._baselines = PlanBaselines(set_up.space, set_up.objective, set_up.backward_kind)
        self._by_work = not search.by_clock
        """Whether no part is as long as the time spent before: a plan that ends by proof is then
        reproducible."""

    def start_from_baselines(self) -> None:
        """Evaluate strategies, and start every configuration from its best one.

        The strategies that gains are reported over are continued.
        """
        self._search.evaluate_first()
        params, spent = self._params, self._options.spent
        max_seconds, max_descents = inf, float(params.baseline_descents)
        if not self._by_work:
            max_seconds, max_descents = params.baseline_seconds - spent, inf
        search = partial(self._baselines.search, max_descents=max_descents, tell=self._search.tell)
        with part(params.baseline_share), within(max_seconds):
            self._for_each_count(search)
        with part(params.refinement_share), within(inf if self._by_work else self._options.spent):
            self._for_each_count(self._baselines.refine)
        self._search.start_from(baseline.schedule for baseline in self._baselines.results)

    def _for_each_count(self, run: Callable[[int], None]) -> None:
        """Run for every number of microbatches, each in an equal part of the time left."""
        counts = self._search.set_up.space.batches
        for index, batches in enumerate(counts):
            with part(1 / (len(counts) - index)):
                run(batches)

    def add_to(self, plan: Plan, slowdown: Fraction | None) -> Plan:
        """Add all reports to a plan; without a schedule, there are none."""
        if plan.value is None:
            return plan
        plan = self._with_less_memory(plan, slowdown)
        plan = self._with_more_memory(self._with_memory_within(plan, slowdown))
        return self._with_baselines(plan)

    def _with_less_memory(self, plan: Plan, slowdown: Fraction | None) -> Plan:
        """Add the minimum memory for the value of the plan that a short search finds.

        With several workers, this takes about as long as the plan so far, if that much time
        remains besides that of the reports that follow; nothing is added if none remains.
        """
        search, best, params, limit = self._search, self._search.best, self._params, self._limit
        if over():
            return plan
        assert best is not None
        useful = max(params.memory_share * limit, 0.0 if self._by_work else self._options.spent)
        limited = search.set_up.problem.pipeline.limits is not None
        later = share_of_reports(params, limited=limited, within=slowdown is not None)
        free = max(params.min_memory_share * limit, seconds_left() - later * limit)
        minimum = None
        with within(min(free, useful)):
            minimum = minimize_memory(best, search.tell)
        return replace(search.plan(), least_memory=minimum)

    def _with_memory_within(self, plan: Plan, slowdown: Fraction | None) -> Plan:
        """Add the minimum memory of any configuration at most `slowdown` slower than the best."""
        if slowdown is None or over():
            return plan
        assert self._search.ceiling is not None
        max_time, share = int(self._search.ceiling * (1 + slowdown)), None
        with within(self._params.slowdown_share * self._limit):
            share = within_share(self._search.candidates, max_time, self._search.tell)
        return replace(plan, within=share)

    def _with_more_memory(self, plan: Plan) -> Plan:
        """Add the effect of more memory, by a short search if that can be set up in time."""
        set_up = self._search.set_up
        limits = set_up.problem.pipeline.limits
        if limits is None or 2 * set_up.seconds > seconds_left():
            return plan
        assert plan.best is not None and plan.value is not None
        raised_limits = tuple(limit * self._params.more_memory_percent / 100 for limit in limits)
        spent = plan.solve_seconds / self._limit
        useful = 2 * self._params.extra_memory_share if self._by_work else spent / 2
        share = max(self._params.extra_memory_share, min(1 - spent, useful))
        space = replace(set_up.space, fields={**set_up.space.fields, "mem_limit": raised_limits})
        with within(share * self._limit):
            search = PlanSearch(
                space, set_up.objective, set_up.backward_kind, self._options.in_scope()
            )
            search.known_value = self._search.ceiling
            search.start_from(row.schedule for row in plan.rows if row.schedule is not None)
            search.run_rounds(MORE_ROUNDS)
        value, lower_bound = search.ceiling, search.lower_bound
        assert value is not None and lower_bound is not None
        weight = set_up.space.weight(plan.best.configuration.batches)
        time = set_up.problem.pipeline.ticks.time
        more = time(value) / weight, time(lower_bound) / weight
        return replace(plan, more_memory=MoreMemory(raised_limits, *more))

    def _with_baselines(self, plan: Plan) -> Plan:
        """Add the baselines; the remaining ones may slightly exceed the time limit."""
        assert plan.best is not None
        with shield(), after_search(self._limit, self._options.spent):
            self._baselines.search(plan.best.configuration.batches)
        plan = self._started_again(plan)
        return replace(self._baselines.add_to(plan), solve_seconds=self._options.spent)

    def _started_again(self, plan: Plan) -> Plan:
        """The plan with the schedules of all baselines, if one of them is better.

        The reports on less memory are for the value before, and are left out then.
        """
        before, more = self._search.ceiling, plan.more_memory
        self._search.start_from(baseline.schedule for baseline in self._baselines.results)
        if self._search.ceiling == before:
            return plan
        better = self._search.plan()
        if more is not None and better.value is not None:
            more = more._replace(value=min(more.value, better.value))
        return replace(better, more_memory=more)
