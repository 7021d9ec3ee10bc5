"""Checks a claim over all partitions or placements; those open after arithmetic one by one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import comb
from time import monotonic

from ppopt.problem.decisions import Decisions
from ppopt.problem.traits import unhandled
from ppopt.rechecker import equal_microbatches, partitions, placements, sets_of_modules
from ppopt.rechecker.arithmetic import by_arithmetic, over_limit
from ppopt.rechecker.claim import Claim
from ppopt.rechecker.mixed import with_one_kind
from ppopt.rechecker.verdict import Recheck, Verdict

Check = Callable[[Claim, float], Recheck]
"""Checks the claim of one configuration within so many seconds."""
ARITHMETIC_SECONDS = 2.0
"""Maximum seconds of arithmetic over all partitions if no search was requested."""


def confirmed_without_search(stated: Claim) -> str | None:
    """Why a claim of all partitions or choices holds by arithmetic alone; else None."""
    open_partitions = partitions.open_partitions(stated, monotonic() + ARITHMETIC_SECONDS)
    return None if open_partitions is None or open_partitions else _of_all(0, stated)


def check_partitions(stated: Claim, time_limit: float, check: Check) -> Recheck:
    """Check a claim of all partitions or choices; those that no device excludes, one by one."""
    began = monotonic()
    every = tuple(range(stated.pipeline.num_devices))
    open_partitions = partitions.open_partitions(stated, began + time_limit / 2)
    if open_partitions is None:
        return _check_own(stated, began, time_limit, check)
    claims = {
        str(partition): partitions.claim_of_partition(stated, partition)
        for partition in open_partitions
    }

    outcome = _check_each(claims, check, began + time_limit)
    return outcome or Recheck(
        Verdict.CONFIRMED, _of_all(len(open_partitions), stated), every, monotonic() - began
    )


def _check_own(stated: Claim, began: float, time_limit: float, check: Check) -> Recheck:
    """Check a claim of too many partitions or choices for the schedule's own one only.

    This cannot confirm the claim, but it can refute it.
    """
    reason = f"not all {_count_scope(stated)} can be searched again"
    every = tuple(range(stated.pipeline.num_devices))
    if stated.bound is None or Decisions.PARTITION in stated.pipeline.open_decisions:
        return Recheck(Verdict.UNDECIDED, reason, every, monotonic() - began)
    own = partitions.claim_of_partition(stated, partitions.OpenPartition(stated.pipeline.counts))
    outcome = check(own, max(0.01, began + time_limit - monotonic()))
    if outcome.verdict is Verdict.WRONG:
        return outcome
    text = f"{reason}; for that of this schedule it is {outcome.verdict}: {outcome.reason}"
    return Recheck(Verdict.UNDECIDED, text, outcome.devices, monotonic() - began)


def check_sets(stated: Claim, time_limit: float, check: Check) -> Recheck:
    """Check a claim of all sets of modules that all layers recompute, each by itself."""
    began = monotonic()
    every = tuple(range(stated.pipeline.num_devices))
    pipelines = sets_of_modules.pipelines_of_sets(stated)
    if pipelines is None:
        reason = "there are more sets of modules than can be enumerated"
        return Recheck(Verdict.UNDECIDED, reason, every, monotonic() - began)
    decisions = stated.decisions & ~Decisions.RECOMPUTE_SET
    claims = {
        name: stated.for_pipeline(pipeline)._replace(decisions=decisions)
        for name, pipeline in pipelines.items()
    }
    outcome = _check_each(claims, check, began + time_limit)
    reason = f"all {len(claims)} sets of modules that all layers recompute are excluded"
    return outcome or Recheck(Verdict.CONFIRMED, reason, every, monotonic() - began)


def check_combinations(stated: Claim, time_limit: float, check: Check) -> Recheck:
    """Check a claim of every combination of decisions for the schedule's own configuration only.

    This cannot confirm the claim, but it can refute it.
    """
    outcome = check(stated.for_pipeline(stated.pipeline), time_limit)
    if outcome.verdict is Verdict.WRONG:
        return outcome
    reason = "combinations of decisions are not enumerated; for the configuration of this schedule"
    text = f"{reason} it is {outcome.verdict}: {outcome.reason}"
    return replace(outcome, verdict=Verdict.UNDECIDED, reason=text)


def check_placements(stated: Claim, time_limit: float, check: Check) -> Recheck:
    """Check a claim of all placements: those that arithmetic does not confirm, one by one."""
    began = monotonic()
    every = tuple(range(stated.pipeline.num_devices))

    def undecided(reason: str) -> Recheck:
        return Recheck(Verdict.UNDECIDED, reason, every, monotonic() - began)

    if trait := next(iter(unhandled(stated.traits, placements.HANDLES)), None):
        return undecided(f"the enumeration of placements does not handle {trait.label}")
    if not placements.within_reach(stated):
        return undecided("there are more placements than can be enumerated")
    claims, confirmed = {}, 0
    for hosts in placements.every(stated):
        if monotonic() > began + time_limit / 2:
            return undecided("the time was up before all placements were bounded")
        claim = placements.claim_of_placement(stated, hosts)
        if not claim.decisions and _holds_by_arithmetic(with_one_kind(claim)):
            confirmed += 1
        else:
            claims[f"placement {','.join(map(str, hosts))}"] = claim

    reason = (
        f"all {confirmed + len(claims)} placements, without permutations of equal devices, are "
        f"excluded: {confirmed} by arithmetic, {len(claims)} by search"
    )
    outcome = _check_each(claims, check, began + time_limit)
    return outcome or Recheck(Verdict.CONFIRMED, reason, every, monotonic() - began)


def check_orders(
    stated: Claim, known: tuple[int, str] | None, time_limit: float, check: Check
) -> Recheck:
    """Check a claim of all orders of the microbatches, each by itself.

    `known`: a device that proves it by arithmetic, whatever the order, and how.
    """
    began = monotonic()
    if known is not None:
        reason = f"in any order of the microbatches, {known[1]}"
        return Recheck(Verdict.CONFIRMED, reason, known[:1], monotonic() - began)
    every = tuple(range(stated.pipeline.num_devices))
    claims = equal_microbatches.claims_of_orders(stated)
    if claims is None:
        reason = "there are more orders of the microbatches than can be enumerated"
        return Recheck(Verdict.UNDECIDED, reason, every, monotonic() - began)
    outcome = _check_each(claims, check, began + time_limit)
    reason = f"the schedules of all {len(claims)} orders of the microbatches were searched"
    return outcome or Recheck(Verdict.CONFIRMED, reason, every, monotonic() - began)


def _holds_by_arithmetic(claim: Claim) -> bool:
    return next(over_limit(claim), None) is not None or by_arithmetic(claim) is not None


def _check_each(claims: Mapping[str, Claim], check: Check, until: float) -> Recheck | None:
    """Check claims one by one: the first wrong one, else an undecided one; None: all hold.

    `until` is an instant of `time.monotonic`.
    """
    began, undecided = monotonic(), None
    for index, (name, stated) in enumerate(claims.items()):
        seconds = max(0.01, until - monotonic()) / (len(claims) - index)
        outcome = check(stated, seconds)
        outcome = replace(outcome, reason=f"{name}: {outcome.reason}", seconds=monotonic() - began)
        if outcome.verdict is Verdict.WRONG:
            return outcome
        if outcome.verdict is Verdict.UNDECIDED:
            undecided = outcome
    return undecided


def _of_all(searched: int, stated: Claim) -> str:
    """Text that says why a claim of all partitions, or choices of recompute, holds."""
    by_search = f"{searched} by search, the others because" if searched else "in each,"
    return (
        f"all {_count_scope(stated)} are excluded: {by_search} one device alone needs as long or "
        "exceeds its memory limit"
    )


def _count_scope(stated: Claim) -> str:
    """What a claim is of, with the number of partitions, and both if it is of both."""
    scope = stated.decisions.configurations
    if Decisions.PARTITION not in stated.decisions:
        return scope
    cuts = comb(len(stated.pipeline.model) - 1, stated.pipeline.num_stages - 1)
    return f"{cuts:,} {scope}"
