"""The re-checker: confirms or refutes a lower bound, whatever proved it.

It shares no code with the search. From the pipeline alone it derives lower bounds on the waiting
time, work and live memory of each device. If there are few partial schedules, it enumerates them.
Then it asks CP-SAT for a schedule below the bound, on a model of the verifier's rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from time import monotonic
from typing import Protocol, runtime_checkable

from ppopt import processors
from ppopt.errors import InputError, check_type
from ppopt.problem.decisions import Decisions
from ppopt.problem.traits import FORMS, ArgumentClass, Trait, rechecked, unhandled
from ppopt.rechecker import claim, equal_microbatches, mixed
from ppopt.rechecker.arithmetic import by_arithmetic
from ppopt.rechecker.claim import Claim
from ppopt.rechecker.quantities import horizon
from ppopt.rechecker.verdict import Recheck, Verdict, outcome_of, searched, value_of
from ppopt.schedule.origin import SEARCHED
from ppopt.schedule.timetable import Timetable

__all__ = ["Recheck", "Verdict", "confirmed", "recheck"]

MODELLED = rechecked(ArgumentClass.EVERY_OPERATION, FORMS) | {Trait.BLOCKING}
"""Traits that the models for CP-SAT state."""
TIME_LIMIT = 60.0
"""Default seconds of a re-check."""
MIN_TIME = 0.01
"""Minimum seconds of a re-check that begins late."""
ENUMERATION_SHARE = 0.75
"""Share of the time for dynamic programming over partial schedules."""
SEED = 20_240_229
"""Seed of CP-SAT; it differs from the search's default."""


@runtime_checkable
class HasClaim(Protocol):
    """An object that states a bound: a result of `ppopt.solve`."""

    @property
    def claim(self) -> Claim | None:
        """Its claim; None if it states no bound."""


def recheck(
    result: HasClaim | Timetable,
    *,
    time_limit: float = TIME_LIMIT,
    workers: int | None = None,
    seed: int = SEED,
    progress: Callable[[int], None] = lambda _: None,
    began: float | None = None,
) -> Recheck:
    """Check the bound of a search, or of a schedule read from a file, without trusting it.

    The certificate says where to look first; it is never trusted. `time_limit` is in seconds from
    `began` (an instant of `time.monotonic`; default: now). Ctrl-C ends the re-check, and the bound
    is then not confirmed. `workers` default to the available processors. Only the bound of a
    schedule is checked: use `ppopt.verify` for the rest. Raises InputError if no bound is stated.
    """
    began = monotonic() if began is None else began
    check_type("schedule", result, Timetable, HasClaim)
    stated = claim.of_schedule(result) if isinstance(result, Timetable) else result.claim
    if stated is None:
        raise InputError(_no_bound(result))
    workers = processors.checked_workers(time_limit, workers, seed)
    remaining = max(MIN_TIME, began + time_limit - monotonic())
    try:
        outcome = check(stated, remaining, workers, seed, progress)
        if Trait.MICROBATCHES not in stated.traits or stated.decisions == Decisions.ORDER:
            return outcome
        source = "file" if isinstance(result, Timetable) else "result"
        return replace(outcome, reason=f"{outcome.reason}, in the order of the {source}")
    except KeyboardInterrupt:
        return Recheck(Verdict.UNDECIDED, "stopped early", (), monotonic() - began)


def _no_bound(result: HasClaim | Timetable) -> str:
    """Why there is nothing to check, and what finds a bound."""
    strategy = result.origin.strategy if isinstance(result, Timetable) else None
    if strategy in (None, SEARCHED):
        return "there is no bound to check: none is stated; ppopt solve finds one"
    return (
        f"there is no bound to check: this is a schedule of the strategy {strategy}, which "
        "states none. A plan of strategies has its bound in `ppopt plan --json`: it is of all "
        "partitions. `ppopt solve --hint FILE` finds a bound for the partition of this schedule"
    )


def confirmed(schedule: Timetable) -> str | None:
    """Why a schedule's stated bound holds, if arithmetic alone proves it; else None.

    None also if the schedule states no bound or the bound of another schedule, if the bound is
    wrong, or if the schedule claims to be optimal and does not reach the bound.
    """
    stated = claim.stated_by(schedule)
    if stated is None or stated.bound is None or claim.fault(stated, schedule) is not None:
        return None
    value = value_of(stated, schedule)
    optimal = schedule.origin.status == "optimal"
    if value < stated.bound or (optimal and value > stated.bound):
        return None
    if stated.decisions and stated.decisions in Decisions.OF_STRATEGY:
        from ppopt.rechecker.configurations import confirmed_without_search  # noqa: PLC0415  loads on use

        return confirmed_without_search(stated)
    several = stated.decisions & ~Decisions.ORDER
    known = None if several else proof_without_search(stated)
    if known is None:
        return None
    return f"{known[1]}, where every backward is one operation" if stated.fused else known[1]


def check(
    stated: Claim, time_limit: float, workers: int, seed: int, progress: Callable[[int], None]
) -> Recheck:
    """Check a claim by arithmetic, then by search; see `recheck`."""
    began = monotonic()
    if stated.decisions:
        return _check_configurations(stated, time_limit, workers, seed, progress)
    if stated.bound is not None and stated.has_only(MODELLED):
        stated = stated._replace(bound=min(stated.bound, horizon(stated) + 1))
    if stated.mixed:
        return _check_mixed(stated, time_limit, workers, seed, progress)
    known = proof_without_search(stated)
    if known is not None:
        device, reason = known
        return Recheck(Verdict.CONFIRMED, reason, (device,), monotonic() - began)
    from ppopt.rechecker import partial_schedules  # noqa: PLC0415  loads on use

    until = began + ENUMERATION_SHARE * time_limit
    refuted_by = partial_schedules.refuted(stated, until, progress)
    if refuted_by is not None:
        reason = searched(stated, refuted_by, refuted=True)
        reason += ", by dynamic programming over partial schedules"
        return Recheck(Verdict.CONFIRMED, reason, refuted_by, monotonic() - began)
    return _search(stated, began, time_limit, workers, seed, progress)


def _search(
    stated: Claim,
    began: float,
    time_limit: float,
    workers: int,
    seed: int,
    progress: Callable[[int], None],
) -> Recheck:
    """Check a claim by CP-SAT."""
    if not stated.has_only(MODELLED):
        return _not_modelled(stated, monotonic() - began)
    from ppopt.rechecker.refute import refute  # noqa: PLC0415  ortools takes long to load

    outcome = refute(stated, began + time_limit - monotonic(), workers, seed, progress)
    return outcome_of(stated, outcome, monotonic() - began)


def proof_without_search(stated: Claim) -> tuple[int, str] | None:
    """A device whose work or memory proves a claim, and the argument; None if a search is needed.

    The argument holds for every order of the microbatches: it counts the work of all of them, and
    before and after it the times of the smallest.
    """
    routes: list[tuple[Claim, int | None]]
    if stated.bound is None and Trait.MICROBATCHES in stated.traits:
        routes = [
            (relaxed, route) for route, relaxed in enumerate(equal_microbatches.of_largest(stated))
        ]
    else:
        routes = [(relaxed, None) for relaxed in equal_microbatches.simpler(stated)]
    for relaxed, route in routes:
        simple = mixed.with_min_work(mixed.with_one_kind(relaxed))
        known = None if simple.mixed else by_arithmetic(simple, route)
        known = known or equal_microbatches.by_round_trip(
            simple, any_order=stated.decisions == Decisions.ORDER
        )
        if known is not None:
            return known
    return None


def _check_configurations(
    stated: Claim, time_limit: float, workers: int, seed: int, progress: Callable[[int], None]
) -> Recheck:
    """Check a claim of several configurations."""
    from ppopt.rechecker import configurations  # noqa: PLC0415  loads on use

    def check_configuration(configuration_claim: Claim, seconds: float) -> Recheck:
        return check(configuration_claim, seconds, workers, seed, progress)

    if stated.decisions == Decisions.ORDER:
        began, known = monotonic(), proof_without_search(stated)
        if known is not None:
            reason = f"in any order of the microbatches, {known[1]}"
            return Recheck(Verdict.CONFIRMED, reason, known[:1], monotonic() - began)
    return configurations.check_configurations(stated, time_limit, check_configuration)


def _check_mixed(
    stated: Claim, time_limit: float, workers: int, seed: int, progress: Callable[[int], None]
) -> Recheck:
    """Check a claim of mixed backwards: first by a relaxation, if it differs, then exactly."""
    began = monotonic()
    simpler = mixed.with_one_kind(stated)
    if simpler is not stated:
        if mixed.loses_nothing(stated):
            return check(simpler, time_limit, workers, seed, progress)
        outcome = check(simpler, mixed.RELAXATION_SHARE * time_limit, workers, seed, progress)
        if outcome.verdict is Verdict.CONFIRMED:
            return replace(outcome, reason=f"{outcome.reason}; {mixed.RELAXED}")
    elif (known := proof_without_search(stated)) is not None:
        reason = f"{known[1]}; {mixed.RELAXED}"
        return Recheck(Verdict.CONFIRMED, reason, (known[0],), monotonic() - began)
    return _search(stated, began, time_limit, workers, seed, progress)


def _not_modelled(stated: Claim, seconds: float) -> Recheck:
    """The outcome if no argument applies and the models do not handle a trait of the claim."""
    trait = unhandled(stated.traits, MODELLED)[0]
    reason = f"the models of the re-checker do not handle {trait.label}"
    return Recheck(Verdict.UNDECIDED, reason, (), seconds)
