"""The re-checker: confirms or refutes a lower bound, whatever proved it.

It shares no code with the search. From the pipeline alone it derives lower bounds on the waiting
time, work and live memory of each device. If there are few partial schedules, it enumerates them.
Then it asks CP-SAT for a schedule below the bound, on a model of the verifier's rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from time import monotonic
from typing import NamedTuple, Protocol, runtime_checkable

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
        if Trait.MICROBATCHES in stated.traits and stated.decisions != Decisions.ORDER:
            source = "file" if isinstance(result, Timetable) else "result"
            reason = f"{outcome.reason}, in the order of the {source}"
            outcome = replace(outcome, reason=reason)
    except KeyboardInterrupt:
        outcome = Recheck(Verdict.UNDECIDED, "stopped early", ())
    return replace(outcome, seconds=monotonic() - began)


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
    where = ", where every backward is one operation" if stated.fused else ""
    return f"{known.reason}{where}"


def check(
    stated: Claim, time_limit: float, workers: int, seed: int, progress: Callable[[int], None]
) -> Recheck:
    """Check a claim by arithmetic, then by search; see `recheck`."""
    return _Checks(workers, seed, progress).check(stated, time_limit)


class _Checks(NamedTuple):
    """Checks of claims, with the options of a search."""

    workers: int
    seed: int
    progress: Callable[[int], None]

    def check(self, stated: Claim, seconds: float) -> Recheck:
        """Check a claim by arithmetic, then by search."""
        began = monotonic()
        if stated.decisions:
            return self._configurations(stated, seconds)
        if stated.bound is not None and stated.has_only(MODELLED):
            stated = stated._replace(bound=min(stated.bound, horizon(stated) + 1))
        if stated.mixed:
            return self._mixed(stated, seconds)
        if (known := proof_without_search(stated)) is not None:
            return known
        from ppopt.rechecker import partial_schedules  # noqa: PLC0415  loads on use

        until = began + ENUMERATION_SHARE * seconds
        refuted_by = partial_schedules.refuted(stated, until, self.progress)
        if refuted_by is not None:
            reason = searched(stated, refuted_by, refuted=True)
            reason += ", by dynamic programming over partial schedules"
            return Recheck(Verdict.CONFIRMED, reason, refuted_by)
        return self._search(stated, began + seconds)

    def _search(self, stated: Claim, until: float) -> Recheck:
        """Check a claim by CP-SAT, if its models handle all traits of the claim."""
        for trait in unhandled(stated.traits, MODELLED):
            reason = f"the models of the re-checker do not handle {trait.label}"
            return Recheck(Verdict.UNDECIDED, reason, ())
        from ppopt.rechecker.refute import refute  # noqa: PLC0415  ortools takes long to load

        return outcome_of(stated, refute(stated, until - monotonic(), *self))

    def _configurations(self, stated: Claim, seconds: float) -> Recheck:
        """Check a claim of several configurations."""
        from ppopt.rechecker import configurations  # noqa: PLC0415  loads on use

        known = proof_without_search(stated) if stated.decisions == Decisions.ORDER else None
        if known is not None:
            return replace(known, reason=f"in any order of the microbatches, {known.reason}")
        return configurations.check_configurations(stated, seconds, self.check)

    def _mixed(self, stated: Claim, seconds: float) -> Recheck:
        """Check a claim of mixed backwards: first by a relaxation, if it differs, then exactly."""
        until, simpler = monotonic() + seconds, mixed.with_one_kind(stated)
        if simpler is stated:
            known = proof_without_search(stated)
        elif simpler.relaxed is stated.relaxed:
            return self.check(simpler, seconds)
        else:
            known = self.check(simpler, mixed.RELAXATION_SHARE * seconds)
        if known is not None and known.verdict is Verdict.CONFIRMED:
            return replace(known, reason=f"{known.reason}; {mixed.RELAXED}")
        return self._search(stated, until)


def proof_without_search(stated: Claim) -> Recheck | None:
    """The outcome if work or memory of a device proves a claim; None if a search is needed.

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
            return Recheck(Verdict.CONFIRMED, known[1], known[:1])
    return None
