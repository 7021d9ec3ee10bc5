"""The least memory of any configuration of a plan within a given slowdown of the best one."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from ppopt.solver.choices.enumeration import Complete, Enumeration, Partial, lower_bound_of
from ppopt.solver.deadline import Deadline
from ppopt.studies.plan_candidate import PlanCandidate
from ppopt.studies.plan_result import WithinShare


def within_share(
    candidates: Sequence[PlanCandidate],
    max_time: Fraction,
    deadline: Deadline,
) -> WithinShare | None:
    """Minimise the memory of every configuration whose time per microbatch is at most `max_time`.

    The configurations of least memory so far come first, each with an equal part of the time left
    until the deadline. Returns None if no configuration is fast enough, or if Ctrl-C ends the
    search before the first. The bound covers all configurations; it is None if one may be fast
    enough but no such schedule of it was found.
    """
    waiting = sorted(
        (candidate for candidate in candidates if _reaches(candidate, max_time)),
        key=lambda candidate: (candidate.peak, candidate.configuration),
    )
    results: list[WithinShare] = []
    for index, candidate in enumerate(waiting):
        share = deadline.share(1 / (len(waiting) - index))
        result = candidate.least_within(max_time * candidate.configuration.batches, share)
        if result is not None:
            results.append(result)
        if candidate.interrupted:
            break
    least = min(results, key=lambda result: (result.memory, result.value), default=None)
    if least is None:
        return None
    bounds = _bounds(results, candidates, max_time)
    proved = lower_bound_of(bounds) if isinstance(bounds, Complete) else None
    return least._replace(lower_bound=proved)


def _reaches(candidate: PlanCandidate, max_time: Fraction) -> bool:
    return candidate.value is not None and candidate.per_microbatch(candidate.value) <= max_time


def _bounds(
    results: Sequence[WithinShare], candidates: Sequence[PlanCandidate], max_time: Fraction
) -> Enumeration[Fraction]:
    """Lower bounds of the memory; complete if they cover all schedules that are fast enough."""
    bounded = {
        result.configuration: result.lower_bound
        for result in results
        if result.lower_bound is not None
    }
    open_configurations = {
        candidate.configuration
        for candidate in candidates
        if not candidate.impossible and candidate.bound_per_microbatch <= max_time
    }
    bounds = tuple(bounded.values())
    return Complete(bounds) if open_configurations <= bounded.keys() else Partial(bounds)
