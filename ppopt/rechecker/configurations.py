"""Checks a claim over all partitions or placements; those open after arithmetic one by one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import comb
from time import monotonic
from typing import NamedTuple

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


class Cases(NamedTuple):
    """Cases of a claim, one of which holds: they are checked one by one."""

    claims: Mapping[str, Claim]
    reason: str
    """Why the claim holds if it does in every case."""


def check_configurations(stated: Claim, time_limit: float, check: Check) -> Recheck:
    """Check a claim of several partitions, placements, orders or choices of layers."""
    began, every = monotonic(), tuple(range(stated.pipeline.num_devices))
    if stated.mixes_decisions:
        reason = (
            "combinations of decisions are not enumerated; for the configuration of this schedule"
        )
        return _check_own(stated.for_pipeline(stated.pipeline), reason, time_limit, check)
    cases: Cases | str
    if Decisions.RECOMPUTE_SET in stated.decisions:
        cases = _sets(stated)
    elif stated.decisions & Decisions.OF_STRATEGY:
        left = partitions.open_partitions(stated, began + time_limit / 2)
        if left is None:
            cases = f"not all {_count_scope(stated)} can be searched again"
            if (
                stated.bound is not None
                and Decisions.PARTITION not in stated.pipeline.open_decisions
            ):
                own = partitions.OpenPartition(stated.pipeline.counts)
                claim = partitions.claim_of_partition(stated, own)
                seconds = max(0.01, began + time_limit - monotonic())
                return _check_own(claim, f"{cases}; for that of this schedule", seconds, check)
        else:
            named = {str(each): partitions.claim_of_partition(stated, each) for each in left}
            cases = Cases(named, _of_all(len(left), stated))
    elif Decisions.ORDER in stated.decisions:
        cases = _orders(stated)
    else:
        cases = _placements(stated, began + time_limit / 2)
    if isinstance(cases, str):
        return Recheck(Verdict.UNDECIDED, cases, every)
    outcome = _check_each(cases.claims, check, began + time_limit)
    return outcome or Recheck(Verdict.CONFIRMED, cases.reason, every)


def _sets(stated: Claim) -> Cases | str:
    """All sets of modules that all layers recompute; a text that says why they are not listed."""
    pipelines = sets_of_modules.pipelines_of_sets(stated)
    if pipelines is None:
        return "there are more sets of modules than can be enumerated"
    decisions = stated.decisions & ~Decisions.RECOMPUTE_SET
    claims = {
        name: stated.for_pipeline(pipeline)._replace(decisions=decisions)
        for name, pipeline in pipelines.items()
    }
    return Cases(
        claims, f"all {len(claims)} sets of modules that all layers recompute are excluded"
    )


def _placements(stated: Claim, until: float) -> Cases | str:
    """The placements that arithmetic does not confirm; a text that says why they are not listed."""
    if trait := next(iter(unhandled(stated.traits, placements.HANDLES)), None):
        return f"the enumeration of placements does not handle {trait.label}"
    if not placements.within_reach(stated):
        return "there are more placements than can be enumerated"
    claims, confirmed = {}, 0
    for hosts in placements.every(stated):
        if monotonic() > until:
            return "the time was up before all placements were bounded"
        claim = placements.claim_of_placement(stated, hosts)
        if not claim.decisions and _holds_by_arithmetic(with_one_kind(claim)):
            confirmed += 1
        else:
            claims[f"placement {','.join(map(str, hosts))}"] = claim
    reason = (
        f"all {confirmed + len(claims)} placements, without permutations of equal devices, are "
        f"excluded: {confirmed} by arithmetic, {len(claims)} by search"
    )
    return Cases(claims, reason)


def _orders(stated: Claim) -> Cases | str:
    """All orders of the microbatches; a text that says why they are not listed."""
    claims = equal_microbatches.claims_of_orders(stated)
    if claims is None:
        return "there are more orders of the microbatches than can be enumerated"
    return Cases(
        claims, f"the schedules of all {len(claims)} orders of the microbatches were searched"
    )


def _check_own(own: Claim, reason: str, seconds: float, check: Check) -> Recheck:
    """Check the claim of the schedule's own configuration: this can refute a claim of all."""
    outcome = check(own, seconds)
    if outcome.verdict is Verdict.WRONG:
        return outcome
    text = f"{reason} it is {outcome.verdict}: {outcome.reason}"
    return replace(outcome, verdict=Verdict.UNDECIDED, reason=text)


def _holds_by_arithmetic(claim: Claim) -> bool:
    return next(over_limit(claim), None) is not None or by_arithmetic(claim) is not None


def _check_each(claims: Mapping[str, Claim], check: Check, until: float) -> Recheck | None:
    """Check claims one by one: the first wrong one, else an undecided one; None: all hold.

    `until` is an instant of `time.monotonic`.
    """
    undecided = None
    for index, (name, stated) in enumerate(claims.items()):
        seconds = max(0.01, until - monotonic()) / (len(claims) - index)
        outcome = check(stated, seconds)
        outcome = replace(outcome, reason=f"{name}: {outcome.reason}")
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
