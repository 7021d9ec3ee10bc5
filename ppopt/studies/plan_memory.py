"""Minimum memory of a plan: of its best configuration, and of any within a slowdown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from math import inf

from ppopt.cancellation import checkpoint, equal_part, scope, turns
from ppopt.solver.choices.enumeration import Complete, Enumeration, Partial
from ppopt.studies.frontier_problem import FrontierProblem
from ppopt.studies.frontier_search import ParetoSearch
from ppopt.studies.plan_candidate import PlanCandidate
from ppopt.studies.plan_result import LeastMemory, WithinShare

Tell = Callable[[str], None]
"""Receives the phases of a search."""


def minimize_memory(candidate: PlanCandidate, tell: Tell) -> LeastMemory:
    """Minimise memory at the best value or a lower one, in the time left.

    The best schedule is then that of minimum memory.
    """
    if candidate.strategy is not None and candidate.strategy.conclusive:
        assert candidate.peak is not None
        return LeastMemory(candidate.peak, candidate.peak)
    search = _search_memory(candidate, None, tell)
    point, (problem,) = search.curve.points[-1], search.problems
    pipeline = point.schedule.pipeline.having(mem_limit=candidate.problem.pipeline.limits)
    candidate.take(point.schedule.limited(pipeline))
    return LeastMemory(problem.memory(point.limit), problem.memory(search.min_limit))


def within_share(
    candidates: Sequence[PlanCandidate], max_time: int, tell: Tell
) -> WithinShare | None:
    """Minimise the memory of every configuration whose time per microbatch is at most `max_time`.

    The configurations of minimum memory so far come first, each with an equal part of the remaining
    time. Returns None if no configuration is fast enough, or if Ctrl-C ends the search before the
    first. The bound covers all configurations; it is None if a configuration may be fast enough but
    no such schedule of it was found.
    """
    waiting = sorted(
        (each for each in candidates if each.value is not None and each.value <= max_time),
        key=lambda candidate: (candidate.peak, candidate.configuration),
    )
    results: list[WithinShare] = []
    with scope(inf):
        for candidate, turn in turns(waiting, equal_part):
            with turn:
                results.append(_min_memory_within(candidate, max_time, tell))
            checkpoint()
    minimum = min(results, key=lambda result: (result.memory, result.value), default=None)
    if minimum is None:
        return None
    bounds = _memory_bounds(results, candidates, max_time)
    proved = min(bounds.members) if isinstance(bounds, Complete) else None
    return minimum._replace(lower_bound=proved)


def _memory_bounds(
    results: Sequence[WithinShare], candidates: Sequence[PlanCandidate], max_time: int
) -> Enumeration[Fraction]:
    """Lower bounds of the memory; complete if they cover all schedules that are fast enough."""
    bounded = {
        result.configuration: result.lower_bound
        for result in results
        if result.lower_bound is not None
    }
    fast_enough = {
        candidate.configuration
        for candidate in candidates
        if not candidate.infeasible and candidate.open_bound <= max_time
    }
    bounds = tuple(bounded.values())
    return Complete(bounds) if fast_enough <= bounded.keys() else Partial(bounds)


def _min_memory_within(candidate: PlanCandidate, max_time: int, tell: Tell) -> WithinShare:
    """Minimise the memory of a configuration that reaches a time per microbatch.

    The best schedule does not change.
    """
    search = _search_memory(candidate, max_time // candidate.weight, tell)
    point, (problem,) = search.min_memory_point, search.problems
    memory = map(problem.memory, (point.limit, search.min_limit))
    return WithinShare(candidate.configuration, problem.time(point.value), *memory)


def _search_memory(candidate: PlanCandidate, goal: int | None, tell: Tell) -> ParetoSearch:
    """Search for less memory, from the best schedule on; return the ended search."""
    schedule, options = candidate.schedule, candidate.options
    assert schedule is not None
    options = options.in_scope(lambda state: tell(state.phase))
    max_level = options.params.plan.memory_max_level
    problem = FrontierProblem(candidate.problem, candidate.strategy)
    search = ParetoSearch([problem], options, max_level=max_level, goal=goal)
    search.minimize_memory(schedule)
    return search
