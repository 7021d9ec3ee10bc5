"""The re-checker: confirms or refutes a lower bound, whatever proved it.

It shares no code with the search. From the pipeline alone it derives what a device must wait for,
do and hold. Where there are few partial schedules, it enumerates them. Then it asks CP-SAT, on a
model of its own, for a schedule below the bound.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Protocol

from ppopt import processors
from ppopt.errors import InputError, VerificationError
from ppopt.problem.objective import Objective
from ppopt.rechecker import (
    arithmetic,
    claim,
    idle_bound,
    mixed,
    partial_schedules,
    partitions,
    placements,
)
from ppopt.rechecker.claim import Claim
from ppopt.schedule.origin import Origin
from ppopt.schedule.timetable import ALONE, Timetable
from ppopt.verifier import figures, verify

if TYPE_CHECKING:
    from ppopt.rechecker.refute import RefutationOutcome, Times
    from ppopt.schedule.schedule import Schedule

__all__ = ["Recheck", "Verdict", "confirmed", "recheck"]

TIME_LIMIT = 60.0
"""Default seconds of a re-check."""
ENUMERATION_SHARE = 0.75
"""Share of the time for dynamic programming over partial schedules."""
AT_ONCE = 2.0
"""Most seconds of arithmetic over all partitions where no search is asked for."""
SEED = 20_240_229
"""Seed of CP-SAT, another one than that of a search by default."""
MOST_WORKERS = 1024


class HasClaim(Protocol):
    """An object that states a bound: a result of `ppopt.solve`."""

    @property
    def claim(self) -> Claim | None:
        """Its claim; None if it states no bound."""


class Verdict(StrEnum):
    """How a re-check ended."""

    CONFIRMED = "confirmed"
    """No schedule is below the bound (or there is none at all, where that was claimed)."""
    UNDECIDED = "not confirmed"
    """Time ran out."""
    WRONG = "wrong"
    """Here is a schedule below the bound."""


@dataclass(frozen=True)
class Recheck:
    """Outcome of `ppopt.recheck`."""

    verdict: Verdict
    reason: str
    """What decided it, in words."""
    devices: tuple[int, ...]
    """The devices whose rules decided it; of the others only the data flow was used."""
    seconds: float
    counterexample: Schedule | None = None
    """A valid schedule below the bound, where it is wrong."""


def recheck(
    given: HasClaim | Timetable,
    *,
    time_limit: float = TIME_LIMIT,
    workers: int | None = None,
    seed: int = SEED,
    progress: Callable[[int], None] = lambda _: None,
) -> Recheck:
    """Check the bound of a search, or of a schedule read from a file, without trusting it.

    The certificate says where to look first; it is not believed. `time_limit` in seconds;
    `workers` default to the processors available. Of a schedule the bound alone is checked: for
    the rest there is `ppopt.verify`. Raises InputError where no bound is stated.
    """
    stated = claim.of_schedule(given) if isinstance(given, Timetable) else given.claim
    if stated is None:
        raise InputError("there is no bound to check: only a search states one (ppopt solve)")
    if not 0 < time_limit < inf:
        raise InputError(f"time_limit: {time_limit} is not above 0 seconds, or not finite")
    workers = processors.available() if workers is None else workers
    if not 1 <= workers <= MOST_WORKERS:
        raise InputError(f"workers: {workers} is not between 1 and {MOST_WORKERS}")
    if not 0 <= seed < 2**31:
        raise InputError(f"seed: {seed} is not between 0 and 2^31 - 1")
    return check(stated, time_limit, workers, seed, progress)


def confirmed(schedule: Timetable) -> str | None:
    """Say at once, by arithmetic alone, why the bound that a schedule states holds.

    None where it states none, where that takes a search, where the bound is wrong, and where the
    schedule is said to be optimal but does not reach it.
    """
    try:
        stated = claim.of_schedule(schedule)
    except InputError:
        return None
    if stated is None or stated.bound is None:
        return None
    value = _value(stated, schedule)
    optimal = schedule.origin.status == "optimal"
    if value < stated.bound or (optimal and value > stated.bound):
        return None
    if stated.partitions:
        left = partitions.left_to_search(stated, monotonic() + AT_ONCE)
        return None if left is None or left else _of_all_partitions(0, stated)
    known = None if stated.placements else _by_arithmetic(mixed.of_one_kind(stated))
    if known is None:
        return None
    return f"{known[1]}, where every backward is one operation" if stated.fused else known[1]


def check(
    stated: Claim, time_limit: float, workers: int, seed: int, progress: Callable[[int], None]
) -> Recheck:
    """Check a claim by arithmetic, then by search; see `recheck`."""
    began = monotonic()
    if stated.partitions:
        return _check_partitions(stated, time_limit, workers, seed, progress)
    if stated.placements:
        return _check_placements(stated, time_limit, workers, seed, progress)
    if stated.bound is not None:
        stated = stated._replace(bound=min(stated.bound, stated.horizon + 1))
    if stated.mixed:
        return _check_mixed(stated, time_limit, workers, seed, progress)
    known = _by_arithmetic(stated)
    if known is not None:
        device, reason = known
        return Recheck(Verdict.CONFIRMED, reason, (device,), monotonic() - began)
    refuted_by = partial_schedules.refuted(stated, began + ENUMERATION_SHARE * time_limit, progress)
    if refuted_by is not None:
        searched = _searched(stated, refuted_by, refuted=True)
        reason = f"{searched}; every way to begin one was followed"
        return Recheck(Verdict.CONFIRMED, reason, refuted_by, monotonic() - began)
    from ppopt.rechecker.refute import refute  # noqa: PLC0415  ortools takes long to load

    found = refute(stated, began + time_limit - monotonic(), workers, seed, progress)
    return _outcome(stated, found, monotonic() - began)


def _check_mixed(
    stated: Claim, time_limit: float, workers: int, seed: int, progress: Callable[[int], None]
) -> Recheck:
    """Check a claim of mixed backwards: where they differ, by a relaxation, then as they are."""
    began = monotonic()
    simpler = mixed.of_one_kind(stated)
    if mixed.loses_nothing(stated):
        return check(simpler, time_limit, workers, seed, progress)
    found = check(simpler, mixed.RELAXATION_SHARE * time_limit, workers, seed, progress)
    if found.verdict is Verdict.CONFIRMED:
        return replace(found, reason=f"{found.reason}; {mixed.RELAXED}")
    from ppopt.rechecker.mixed_model import refute_mixed  # noqa: PLC0415  ortools takes long to load

    left = began + time_limit - monotonic()
    return _outcome(stated, refute_mixed(stated, left, workers, seed), monotonic() - began)


def _outcome(stated: Claim, found: RefutationOutcome, seconds: float) -> Recheck:
    """The outcome of a search by CP-SAT."""
    if found.times is not None:
        made = _schedule(stated, found.times)
        return Recheck(Verdict.WRONG, _below(stated, made), found.devices, seconds, made)
    verdict = Verdict.CONFIRMED if found.refuted else Verdict.UNDECIDED
    reason = _searched(stated, found.devices, refuted=found.refuted)
    return Recheck(verdict, reason, found.devices, seconds)


def _check_partitions(
    stated: Claim, time_limit: float, workers: int, seed: int, progress: Callable[[int], None]
) -> Recheck:
    """Check a claim of all partitions: those that no device rules out, one by one."""
    began = monotonic()
    every = tuple(range(stated.pipeline.num_devices))
    left = partitions.left_to_search(stated, began + time_limit / 2)
    if left is None:
        reason = "more partitions than can be searched are ruled out by no device alone"
        return Recheck(Verdict.UNDECIDED, reason, every, monotonic() - began)
    claims = {str(one): partitions.claim_of_partition(stated, one) for one in left}

    def search(one: Claim, seconds: float) -> Recheck:
        return check(one, seconds, workers, seed, progress)

    found = _check_each(claims, search, began + time_limit)
    return found or Recheck(
        Verdict.CONFIRMED, _of_all_partitions(len(left), stated), every, monotonic() - began
    )


def _check_placements(
    stated: Claim, time_limit: float, workers: int, seed: int, progress: Callable[[int], None]
) -> Recheck:
    """Check a claim of all placements: those that arithmetic does not confirm, one by one."""
    began = monotonic()
    every = tuple(range(stated.pipeline.num_devices))

    def undecided(reason: str) -> Recheck:
        return Recheck(Verdict.UNDECIDED, reason, every, monotonic() - began)

    if not placements.within_reach(stated):
        return undecided("there are more placements than can be enumerated")
    claims, confirmed = {}, 0
    for hosts in placements.every(stated):
        if monotonic() > began + time_limit / 2:
            return undecided("the time was up before all placements were bounded")
        one = placements.claim_of_placement(stated, hosts)
        simpler = mixed.of_one_kind(one)
        if next(arithmetic.over_limit(simpler), None) is None and _by_arithmetic(simpler) is None:
            claims[f"placement {','.join(map(str, hosts))}"] = one
        else:
            confirmed += 1

    def search(one: Claim, seconds: float) -> Recheck:
        return check(one, seconds, workers, seed, progress)

    reason = (
        f"of {confirmed + len(claims)} placements, permutations of devices that are alike left "
        f"out, arithmetic rules out {confirmed}; the schedules of {len(claims)} were searched"
    )
    found = _check_each(claims, search, began + time_limit)
    return found or Recheck(Verdict.CONFIRMED, reason, every, monotonic() - began)


def _check_each(
    claims: Mapping[str, Claim], search: Callable[[Claim, float], Recheck], until: float
) -> Recheck | None:
    """Check claims one by one: the first that is wrong, else one left open; None: all hold.

    `search` checks one in so many seconds; `until` is an instant of `time.monotonic`.
    """
    began, left = monotonic(), None
    for number, (name, stated) in enumerate(claims.items()):
        seconds = max(0.01, until - monotonic()) / (len(claims) - number)
        one = search(stated, seconds)
        one = replace(one, reason=f"{name}: {one.reason}", seconds=monotonic() - began)
        if one.verdict is Verdict.WRONG:
            return one
        if one.verdict is Verdict.UNDECIDED:
            left = one
    return left


def _of_all_partitions(searched: int, stated: Claim) -> str:
    """How a claim of all partitions holds, in words."""
    words = "whatever recomputes, " if stated.recompute else ""
    words += "in every partition of the layers one device alone needs as long, or too much memory"
    return words + (f", but in {searched}, whose schedules were searched" if searched else "")


def _by_arithmetic(stated: Claim) -> tuple[int, str] | None:
    """A device that proves the claim alone, and how; None where that takes a search."""
    devices = range(stated.pipeline.num_devices)
    if stated.bound is None:
        device = next(arithmetic.over_limit(stated), None)
        if device is None:
            return None
        need = stated.pipeline.memory_text(arithmetic.least_memory(stated, device))
        return device, f"device {device} comes to hold {need}, above its limit, in every order"
    idle = [idle_bound.least_idle(stated, device) for device in devices]
    times = [arithmetic.least_time(stated, device) + idle[device] for device in devices]
    device = max(devices, key=lambda device: (times[device], -idle[device]))
    least = times[device]
    if least < stated.bound:
        return None
    back = ", the way up from its last one" if stated.fused else ""
    way = "" if stated.span else f"the way to its first operation{back} and "
    wait = " and the idle time that its memory forces at its ends" if idle[device] else ""
    took = stated.pipeline.time_text(least)
    return device, f"{way}the work of device {device}{wait} take {took}"


def _searched(stated: Claim, devices: tuple[int, ...], *, refuted: bool) -> str:
    """The outcome of a search, in words."""
    what = "no schedule" if refuted else "the time was up before a schedule was found or excluded"
    if stated.bound is not None:
        what += f" below {stated.pipeline.time_text(stated.bound)}"
    if len(devices) == stated.pipeline.num_devices:
        return f"{what}: all rules in force"
    names = " and ".join(map(str, devices))
    rules = f"device{'s' if len(devices) > 1 else ''} {names}"
    return f"{what}: all rules of {rules} in force, of the others the data flow alone"


def _value(stated: Claim, schedule: Timetable) -> int:
    """Objective of a schedule, in ticks, as the verifier computes it."""
    found = figures(schedule)
    return found.device_span if stated.span else found.makespan


def _below(stated: Claim, made: Schedule) -> str:
    """How a claim is wrong, in words."""
    value = stated.pipeline.time_text(_value(stated, made))
    if stated.bound is None:
        return f"there is a schedule that keeps the limits, of {value}"
    return f"there is a schedule of {value}, below {stated.pipeline.time_text(stated.bound)}"


def _schedule(stated: Claim, times: Times) -> Schedule:
    """The schedule found, verified: the re-checker itself may be wrong."""
    from ppopt.schedule.schedule import Schedule  # noqa: PLC0415  nothing here works with it

    pipeline = stated.pipeline
    rows = []
    pair = {op: number for number, joined in enumerate(times.joined) for op in joined}
    for op, start in times.start.items():
        end, device = times.end[op], stated.device(op)
        rows.append((*op[:3], device, start, end, op.slice, pair.get(op, ALONE)))
    origin = Origin(objective=Objective.DEVICE_SPAN if stated.span else Objective.MAKESPAN)
    made = Schedule.from_rows(pipeline, rows, origin)
    broken = verify(made)
    if broken:
        raise VerificationError(f"the re-checker's own schedule breaks a rule: {broken[0]}")
    return made
