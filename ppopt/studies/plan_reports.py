"""Additional reports of a plan: queries on its search, each with a share of the time limit.

The reports state the minimum memory for the value of the plan, or for a slowdown, and the effect of
more memory.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

from ppopt.cancellation import checkpoint, equal_part, over, part, seconds_left, turns, within
from ppopt.schedule.schedule import Schedule
from ppopt.solver.choices.enumeration import Complete, Enumeration, Partial, Unlisted
from ppopt.solver.parameters import PlanParams
from ppopt.studies.frontier_problem import FrontierProblem
from ppopt.studies.frontier_search import ParetoSearch
from ppopt.studies.plan_candidate import PlanCandidate
from ppopt.studies.plan_result import LeastMemory, MoreMemory, Plan, WithinShare
from ppopt.studies.plan_search import PlanSearch
from ppopt.studies.plan_space import PlanConfiguration, PlanSpace


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
        best = self.search.best
        if best is None:
            return self.search.plan()
        reports: dict[str, Any] = {
            "least_memory": self._least_memory(best),
            "within": self._memory_within(),
            "more_memory": self._more_memory(),
        }
        plan = self.search.baselines.add_to(self.search.plan())
        return replace(plan, **reports, solve_seconds=self._options.spent)

    def _useful(self, share: float, factor: float) -> float:
        """Seconds for a report: a share of the limit or, by the clock, of the time so far."""
        spent = factor * self._options.spent if self.search.by_clock else 0.0
        return max(share * self._limit, spent)

    def _least_memory(self, best: PlanCandidate) -> LeastMemory | None:
        """The minimum memory for the value of the plan that a short search finds.

        Its schedule is then the best one. By the clock, this takes about as long as the plan so
        far, if that much time remains besides that of the reports that follow.
        """
        if over():
            return None
        params, limit, strategy = self._params, self._limit, best.strategy
        later = share_of_reports(self.search.set_up.space, self._slowdown, params)
        free = max(params.min_memory_share * limit, seconds_left() - later * limit)
        with within(min(free, self._useful(params.memory_share, 1))):
            if strategy is not None and strategy.conclusive:
                assert best.peak is not None
                return LeastMemory(best.peak, best.peak)
            schedule, _, memory = self._minimize_memory(best)
            limits = best.problem.pipeline.limits
            best.take(schedule.limited(schedule.pipeline.having(mem_limit=limits)))
            return memory
        return None

    def _minimize_memory(
        self, candidate: PlanCandidate, goal: int = 0
    ) -> tuple[Schedule, Fraction, LeastMemory]:
        """Minimise memory at the goal, or at the best value of a configuration if that is larger.

        The search starts from all known schedules of the configuration, and from those of a search
        in the partition and recompute of the best one, which is much faster. Returns the schedule
        of minimum memory, its value, and its peak.
        """
        options = candidate.options.in_scope(lambda state: self.search.tell(state.phase))
        best, schedules = candidate.schedule, candidate.schedules
        assert best is not None
        problem = FrontierProblem(candidate.problem, candidate.strategy)
        search = ParetoSearch([problem], options, self._params.memory_max_level, goal)
        alone = problem.of_configuration(best)
        if alone is not None:
            narrow = replace(search, problems=[alone])
            with part(self._params.memory_alone):
                narrow.minimize_memory([best])
            schedules = [*schedules, *(point.schedule for point in narrow.curve.points)]
        search.minimize_memory(schedules)
        point = search.min_memory_point
        memory = LeastMemory(problem.memory(point.limit), problem.memory(search.min_limit))
        return point.schedule, problem.time(point.value), memory

    def _memory_within(self) -> WithinShare | None:
        """The minimum memory of any configuration at most the slowdown slower than the best.

        Configurations that are fast enough are searched, that of minimum memory so far first, each
        in an equal part of the time. None if no time is left for the first.
        """
        if self._slowdown is None or over():
            return None
        best = self.search.state.end
        assert best is not None
        max_time = int(best * (1 + self._slowdown))
        candidates = self.search.candidates
        fast = [each for each in candidates if each.value is not None and each.value <= max_time]
        fast.sort(key=lambda each: (each.min_peak(max_time), each.configuration))
        results, lower_bounds = list[WithinShare](), list[Fraction]()
        with within(self._params.slowdown_share * self._limit):
            for candidate, turn in turns(fast, equal_part):
                with turn:
                    goal = max_time // candidate.weight
                    _, value, memory = self._minimize_memory(candidate, goal)
                    results.append(WithinShare(candidate.configuration, value, *memory))
                    lower_bounds.append(memory.lower_bound)
                checkpoint()
        if not results:
            return None
        bounds = self._bounds_of_all(
            lower_bounds, {each.configuration for each in results}, max_time
        )
        proved = min(bounds.members) if isinstance(bounds, Complete) else None
        minimum = min(results, key=lambda each: (each.memory, each.value))
        return minimum._replace(lower_bound=proved)

    def _bounds_of_all(
        self, bounds: list[Fraction], searched: set[PlanConfiguration], max_time: int
    ) -> Enumeration[Fraction]:
        """Lower bounds of the memory of configurations that were searched.

        They are complete if all other configurations are proved to be too slow.
        """
        late = self.search.set_up.late
        is_late = isinstance(late, Unlisted) and late.bound <= max_time
        covers = not is_late and all(
            each.infeasible or each.open_bound > max_time or each.configuration in searched
            for each in self.search.candidates
        )
        return Complete(bounds) if covers else Partial(bounds)

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
                space, set_up.objective, set_up.backward_kind, self._options.in_scope(),
                [row.schedule for row in self.search.plan().rows if row.schedule is not None],
            )  # fmt: skip
            search.state.cutoff = value
            search.run(0)
        value, lower_bound = search.state.end, search.lower_bound
        assert value is not None and lower_bound is not None
        return MoreMemory(raised_limits, value, lower_bound, self.search.per_unit)
