"""The least memory of any configuration of a plan that is almost as fast as the best one."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from ppopt.solver.deadline import Deadline
from ppopt.studies.plan_candidate import PlanCandidate
from ppopt.studies.plan_result import WithinShare


def within_share(
    candidates: Sequence[PlanCandidate],
    most: Fraction,
    deadline: Deadline,
) -> WithinShare | None:
    """Search every configuration that takes at most so long per microbatch for less memory.

    Those of least memory so far come first, each with an equal part of the time left until the
    deadline. None where none is so fast, or Ctrl-C ends the search
    before the first. The bound is of all configurations; None where one may be so fast whose
    schedule is not.
    """
    waiting = sorted(
        (candidate for candidate in candidates if _reaches(candidate, most)),
        key=lambda candidate: (candidate.peak, candidate.configuration),
    )
    found: list[WithinShare] = []
    for place, one in enumerate(waiting):
        share = deadline.share(1 / (len(waiting) - place))
        reached = one.least_within(most * one.configuration.batches, share)
        if reached is not None:
            found.append(reached)
        if one.interrupted:
            break
    least = min(found, key=lambda one: (one.memory, one.value), default=None)
    return None if least is None else least._replace(lower_bound=_bound(found, candidates, most))


def _reaches(one: PlanCandidate, most: Fraction) -> bool:
    return one.value is not None and one.per_microbatch(one.value) <= most


def _bound(
    found: Sequence[WithinShare], candidates: Sequence[PlanCandidate], most: Fraction
) -> Fraction | None:
    """No schedule of any configuration that is so fast has less memory; None: not known."""
    searched = {one.configuration for one in found}
    open_to_all = any(
        candidate.configuration not in searched
        and not candidate.impossible
        and candidate.per_microbatch(candidate.bound) <= most
        for candidate in candidates
    )
    bounds = [one.lower_bound for one in found if one.lower_bound is not None]
    return None if open_to_all or len(bounds) < len(found) else min(bounds)
