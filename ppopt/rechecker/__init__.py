"""The re-checker: confirms or refutes a lower bound, whatever proved it.

It shares no code with the search. From the pipeline alone it derives what a device must wait for,
do and hold. If there are few partial schedules, it enumerates them. Then it asks CP-SAT, on a
model of its own, for a schedule below the bound.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from time import monotonic
from typing import Protocol

from ppopt import processors
from ppopt.errors import InputError
from ppopt.problem.traits import BESIDE_COMPUTE, Trait, unhandled
from ppopt.rechecker import claim, microbatches, mixed, once
from ppopt.rechecker.arithmetic import by_arithmetic
from ppopt.rechecker.claim import Claim
from ppopt.rechecker.verdict import Recheck, Verdict, outcome_of, searched, value_of
from ppopt.schedule.origin import SEARCHED
from ppopt.schedule.timetable import Timetable

__all__ = ["Recheck", "Verdict", "confirmed", "recheck"]

MODELLED = BESIDE_COMPUTE | {
    *(Trait.MIXED, Trait.PAIRS, Trait.SHORT_PAIRS),
    *(Trait.SLICES, Trait.ROUTES, Trait.FROZEN, Trait.SPAN, Trait.MICROBATCHES),
    Trait.UNEQUAL_SLICES,
}
"""Traits that the models for CP-SAT state."""
TIME_LIMIT = 60.0
"""Default seconds of a re-check."""
LEAST = 0.01
"""Least seconds of a re-check that begins late."""
ENUMERATION_SHARE = 0.75
"""Share of the time for dynamic programming over partial schedules."""
SEED = 20_240_229
"""Seed of CP-SAT, another one than that of a search by default."""


class HasClaim(Protocol):
    """An object that states a bound: a result of `ppopt.solve`."""

    @property
    def claim(self) -> Claim | None:
        """Its claim; None if it states no bound."""


def recheck(
    given: HasClaim | Timetable,
    *,
    time_limit: float = TIME_LIMIT,
    workers: int | None = None,
    seed: int = SEED,
    progress: Callable[[int], None] = lambda _: None,
    began: float | None = None,
) -> Recheck:
    """Check the bound of a search, or of a schedule read from a file, without trusting it.

    The certificate says where to look first; it is not believed. `time_limit` in seconds, from
    `began` (of `time.monotonic`) or else from now; Ctrl-C ends it: the bound is not confirmed.
    `workers` default to the processors available. Of a schedule the bound alone is checked: for
    the rest there is `ppopt.verify`. Raises InputError if no bound is stated.
    """
    began = monotonic() if began is None else began
    stated = claim.of_schedule(given) if isinstance(given, Timetable) else given.claim
    if stated is None:
        raise InputError(_no_bound(given))
    workers = processors.checked_workers(time_limit, workers, seed)
    left = max(LEAST, began + time_limit - monotonic())
    try:
        return check(stated, left, workers, seed, progress)
    except KeyboardInterrupt:
        return Recheck(Verdict.UNDECIDED, "stopped early", (), monotonic() - began)


def _no_bound(given: HasClaim | Timetable) -> str:
    """Why there is nothing to check, and what finds a bound."""
    strategy = given.origin.strategy if isinstance(given, Timetable) else None
    if strategy in (None, SEARCHED):
        return "there is no bound to check: none is stated; ppopt solve finds one"
    return (
        f"there is no bound to check: this is a schedule of the strategy {strategy}, which "
        "states none. A plan of strategies has its bound in `ppopt plan --json`: it is of all "
        "partitions. `ppopt solve --hint FILE` finds a bound for the partition of this schedule"
    )


def confirmed(schedule: Timetable) -> str | None:
    """Say at once, by arithmetic alone, why the bound that a schedule states holds.

    None if it states none or that of another schedule, if that takes a search, if the
    bound is wrong, or if the schedule is said to be optimal but does not reach it.
    """
    stated = claim.stated_by(schedule)
    if stated is None or stated.bound is None or claim.fault(stated, schedule) is not None:
        return None
    value = value_of(stated, schedule)
    optimal = schedule.origin.status == "optimal"
    if value < stated.bound or (optimal and value > stated.bound):
        return None
    if stated.of_layers:
        from ppopt.rechecker.configurations import confirmed_at_once  # noqa: PLC0415  loads on use

        return confirmed_at_once(stated)
    known = None if stated.placements else at_once(stated)
    if known is None:
        return None
    return f"{known[1]}, where every backward is one operation" if stated.fused else known[1]


def check(
    stated: Claim, time_limit: float, workers: int, seed: int, progress: Callable[[int], None]
) -> Recheck:
    """Check a claim by arithmetic, then by search; see `recheck`."""
    began = monotonic()
    if stated.of_several:
        return _check_configurations(stated, time_limit, workers, seed, progress)
    if stated.bound is not None and stated.has_only(MODELLED):
        stated = stated._replace(bound=min(stated.bound, stated.horizon + 1))
    if stated.mixed:
        return _check_mixed(stated, time_limit, workers, seed, progress)
    known = at_once(stated)
    if known is not None:
        device, reason = known
        return Recheck(Verdict.CONFIRMED, reason, (device,), monotonic() - began)
    from ppopt.rechecker import partial_schedules  # noqa: PLC0415  loads on use

    compute = once.of_compute(stated)
    refuted_by = partial_schedules.refuted(
        compute, began + ENUMERATION_SHARE * time_limit, progress
    )
    if refuted_by is not None:
        reason = searched(stated, refuted_by, refuted=True)
        reason += ", by dynamic programming over partial schedules"
        return Recheck(Verdict.CONFIRMED, reason, refuted_by, monotonic() - began)
    if not stated.has_only(MODELLED):
        return _not_modelled(stated, monotonic() - began)
    from ppopt.rechecker.refute import refute  # noqa: PLC0415  ortools takes long to load

    found = refute(stated, began + time_limit - monotonic(), workers, seed, progress)
    return outcome_of(stated, found, monotonic() - began)


def at_once(stated: Claim) -> tuple[int, str] | None:
    """A device that proves a claim by arithmetic, and how; None if that takes a search.

    The argument holds in every order of the microbatches: it takes the work of all of them, and the
    smallest for what comes before and after.
    """
    routes: list[tuple[Claim, int | None]]
    if stated.bound is None and Trait.MICROBATCHES in stated.traits:
        routes = [(one, route) for route, one in enumerate(microbatches.of_largest(stated))]
    else:
        routes = [(one, None) for one in microbatches.simpler(stated)]
    for one, route in routes:
        simple = mixed.of_least_work(mixed.of_one_kind(one))
        known = None if simple.mixed else by_arithmetic(simple, route)
        known = known or microbatches.by_round_trip(simple, any_order=stated.orders)
        if known is not None:
            return known
    return None


def _check_configurations(
    stated: Claim, time_limit: float, workers: int, seed: int, progress: Callable[[int], None]
) -> Recheck:
    """Check a claim of all partitions, choices of recompute, placements, or orders."""
    from ppopt.rechecker import configurations  # noqa: PLC0415  loads on use

    def check_one(one: Claim, seconds: float) -> Recheck:
        return check(one, seconds, workers, seed, progress)

    if stated.of_layers:
        return configurations.check_partitions(stated, time_limit, check_one)
    if stated.orders:
        known = at_once(stated)
        return configurations.check_orders(stated, known, time_limit, check_one)
    return configurations.check_placements(stated, time_limit, check_one)


def _check_mixed(
    stated: Claim, time_limit: float, workers: int, seed: int, progress: Callable[[int], None]
) -> Recheck:
    """Check a claim of mixed backwards: if they differ, by a relaxation, then as they are."""
    began = monotonic()
    simpler = mixed.of_one_kind(stated)
    if simpler is not stated:
        if mixed.loses_nothing(stated):
            return check(simpler, time_limit, workers, seed, progress)
        found = check(simpler, mixed.RELAXATION_SHARE * time_limit, workers, seed, progress)
        if found.verdict is Verdict.CONFIRMED:
            return replace(found, reason=f"{found.reason}; {mixed.RELAXED}")
    elif (known := at_once(stated)) is not None:
        reason = f"{known[1]}; {mixed.RELAXED}"
        return Recheck(Verdict.CONFIRMED, reason, (known[0],), monotonic() - began)
    if not stated.has_only(MODELLED):
        return _not_modelled(stated, monotonic() - began)
    from ppopt.rechecker.mixed_model import refute_mixed  # noqa: PLC0415  ortools takes long to load

    left = began + time_limit - monotonic()
    return outcome_of(stated, refute_mixed(stated, left, workers, seed), monotonic() - began)


def _not_modelled(stated: Claim, seconds: float) -> Recheck:
    """The outcome where no argument applies, and the models lack a trait of the claim."""
    trait = unhandled(stated.traits, MODELLED)[0]
    reason = f"the models of the re-checker know no {trait.label}"
    return Recheck(Verdict.UNDECIDED, reason, (), seconds)
