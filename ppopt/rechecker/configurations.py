"""Checks a claim over all partitions or placements: what arithmetic leaves open, one by one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from time import monotonic

from ppopt.problem.partition import SEARCH
from ppopt.problem.traits import unhandled
from ppopt.rechecker import microbatches, partitions, placements
from ppopt.rechecker.arithmetic import by_arithmetic, over_limit
from ppopt.rechecker.claim import Claim
from ppopt.rechecker.mixed import of_one_kind
from ppopt.rechecker.verdict import Recheck, Verdict

Check = Callable[[Claim, float], Recheck]
"""Checks the claim of one configuration within so many seconds."""
AT_ONCE = 2.0
"""Most seconds of arithmetic over all partitions where no search is asked for."""


def confirmed_at_once(stated: Claim) -> str | None:
    """Why a claim of all partitions or choices holds by arithmetic alone.

    None if that takes a search.
    """
    left = partitions.left_to_search(stated, monotonic() + AT_ONCE)
    return None if left is None or left else _of_all(0, stated)


def check_partitions(stated: Claim, time_limit: float, check: Check) -> Recheck:
    """Check a claim of all partitions, or choices: those no device rules out, one by one."""
    began = monotonic()
    every = tuple(range(stated.pipeline.num_devices))
    left = partitions.left_to_search(stated, began + time_limit / 2)
    if left is None:
        return _check_own(stated, began, time_limit, check)
    claims = {
        str(partition): partitions.claim_of_partition(stated, partition) for partition in left
    }

    found = _check_each(claims, check, began + time_limit)
    return found or Recheck(
        Verdict.CONFIRMED, _of_all(len(left), stated), every, monotonic() - began
    )


def _check_own(stated: Claim, began: float, time_limit: float, check: Check) -> Recheck:
    """Check a claim of too many partitions, or choices, for that of its schedule alone.

    The claim is not confirmed thereby, but wrong where this one is.
    """
    reason = f"over all {stated.every} it takes more searches than can be done again"
    every = tuple(range(stated.pipeline.num_devices))
    if stated.bound is None or stated.pipeline.partition == SEARCH:
        return Recheck(Verdict.UNDECIDED, reason, every, monotonic() - began)
    own = partitions.claim_of_partition(stated, partitions.Left(stated.pipeline.counts))
    found = check(own, max(0.01, began + time_limit - monotonic()))
    if found.verdict is Verdict.WRONG:
        return found
    alone = "this partition" + (f" and choice of {stated.layers_do}" if stated.layers_do else "")
    words = f"{reason}; for {alone} it is {found.verdict}: {found.reason}"
    return Recheck(Verdict.UNDECIDED, words, found.devices, monotonic() - began)


def check_placements(stated: Claim, time_limit: float, check: Check) -> Recheck:
    """Check a claim of all placements: those that arithmetic does not confirm, one by one."""
    began = monotonic()
    every = tuple(range(stated.pipeline.num_devices))

    def undecided(reason: str) -> Recheck:
        return Recheck(Verdict.UNDECIDED, reason, every, monotonic() - began)

    if trait := next(iter(unhandled(stated.traits, placements.HANDLES)), None):
        return undecided(f"the enumeration of placements knows no {trait.label}")
    if not placements.within_reach(stated):
        return undecided("there are more placements than can be enumerated")
    claims, confirmed = {}, 0
    for hosts in placements.every(stated):
        if monotonic() > began + time_limit / 2:
            return undecided("the time was up before all placements were bounded")
        claim = placements.claim_of_placement(stated, hosts)
        if not claim.of_layers and _holds_by_arithmetic(of_one_kind(claim)):
            confirmed += 1
        else:
            claims[f"placement {','.join(map(str, hosts))}"] = claim

    reason = (
        f"of {confirmed + len(claims)} placements, permutations of devices that are alike left "
        f"out, arithmetic rules out {confirmed}; the schedules of {len(claims)} were searched"
    )
    found = _check_each(claims, check, began + time_limit)
    return found or Recheck(Verdict.CONFIRMED, reason, every, monotonic() - began)


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
    claims = microbatches.claims_of_orders(stated)
    if claims is None:
        reason = "there are more orders of the microbatches than can be enumerated"
        return Recheck(Verdict.UNDECIDED, reason, every, monotonic() - began)
    found = _check_each(claims, check, began + time_limit)
    reason = f"the schedules of all {len(claims)} orders of the microbatches were searched"
    return found or Recheck(Verdict.CONFIRMED, reason, every, monotonic() - began)


def _holds_by_arithmetic(claim: Claim) -> bool:
    return next(over_limit(claim), None) is not None or by_arithmetic(claim) is not None


def _check_each(claims: Mapping[str, Claim], check: Check, until: float) -> Recheck | None:
    """Check claims one by one: the first that is wrong, else one left open; None: all hold.

    `until` is an instant of `time.monotonic`.
    """
    began, left = monotonic(), None
    for number, (name, stated) in enumerate(claims.items()):
        seconds = max(0.01, until - monotonic()) / (len(claims) - number)
        found = check(stated, seconds)
        found = replace(found, reason=f"{name}: {found.reason}", seconds=monotonic() - began)
        if found.verdict is Verdict.WRONG:
            return found
        if found.verdict is Verdict.UNDECIDED:
            left = found
    return left


def _of_all(searched: int, stated: Claim) -> str:
    """How a claim of all partitions, or choices of recompute, holds, in words."""
    words = ", ".join(
        part
        for part, said in (
            ("whatever recomputes", stated.recompute),
            ("whatever offloads", stated.offload),
            ("in every partition of the layers", stated.partitions),
        )
        if said
    )
    words += " one device alone needs as long, or too much memory"
    return words + (f", but in {searched}, whose schedules were searched" if searched else "")
