"""Studies that Ctrl-C ends at a drawn function call, against the same ones without it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from random import Random
from unittest.mock import patch

import ppopt
from ppopt import Pipeline, Progress, Result, Status, interrupts
from ppopt.studies import strategy_search
from ppopt.studies.plan_result import RowStatus
from tests.factories.interruptions import interrupted
from tests.fuzz.category import Case, Category, Finding, SkippedError

PROVED = (Status.OPTIMAL, Status.INFEASIBLE)
COSTS = {
    "forward": (1, 4), "backward": (3, 7), "weight": (1, 3), "activation": (1, 2), "kept": (0, 1),
    "static": (0, 1),
}  # fmt: skip
"""Least and largest cost of a layer."""
ONE_CHUNK = ("1f1b", "zb-1p")
STRATEGIES = (*ONE_CHUNK, "interleaved", "zbv")
EVALUATION_LIMITS = (0, strategy_search.MAX_EVALUATED)
"""Most points that a strategy tries one after the other: none, so that bounds prove, or all."""
ALL_CALLS, MOST_SIGNALS = 1_000_000, 20
"""Calls of all runs of a case, about, and most runs that a signal ends."""
SECONDS = 20.0
"""Time limit of a study; the tiny ones here end far earlier."""


@dataclass(frozen=True)
class Claim:
    """What is said of the schedules of one search, in the user's unit."""

    value: Fraction | None
    """Best value found; None: no schedule was found."""
    bound: Fraction | None
    proved: bool
    """Whether the value is said to be the least, or, without one, that there is no schedule."""


@dataclass(frozen=True)
class Claims:
    """What a study says."""

    searches: dict[str, Claim]
    """By what they are of."""
    points: dict[Fraction, Claim] = field(default_factory=dict)
    """Of a frontier, by limit: its points, and bounds within a limit."""
    minimal: tuple[Fraction, ...] = ()
    """Limits below which every value is said to be larger."""
    complete: bool = False
    """Whether all points are said to be found and proved."""


def _of_result(result: Result) -> Claim:
    return Claim(result.value, result.lower_bound, result.status in PROVED)


def _solve(pipeline: Pipeline, _: str) -> Claims:
    return Claims({"solve": _of_result(ppopt.solve(pipeline, workers=1, time_limit=SECONDS))})


def _best_choice(pipeline: Pipeline, strategy: str) -> Claims:
    choice = ppopt.best_choice(pipeline, strategy, time_limit=SECONDS)
    fits = choice.schedule.fits_limits
    claim = Claim(choice.value if fits else None, choice.lower_bound, choice.proved)
    return Claims({strategy: claim})


def _compare(pipeline: Pipeline, _: str) -> Claims:
    comparison = ppopt.compare(pipeline, workers=1, time_limit=SECONDS)
    return Claims({"compare": _of_result(comparison.optimum)})


def _frontier(pipeline: Pipeline, _: str) -> Claims:
    reported: list[Fraction] = []

    def follow(state: Progress) -> None:
        reported.extend([] if state.value is None else [state.value])

    frontier = ppopt.frontier(pipeline, workers=1, time_limit=SECONDS, progress=follow)
    points = {point.limit: _of_result(point.result) for point in frontier.points}
    values = [claim.value for claim in points.values() if claim.value is not None]
    if reported and min(values, default=max(reported) + 1) > min(reported):
        raise AssertionError("a report told a value that is lost")
    if any(baseline.ratio is not None for baseline in frontier.baselines) and not points:
        raise AssertionError("hand strategies are points of a frontier")
    for limit, bound in frontier.bounds:
        points.setdefault(limit, Claim(None, bound, proved=False))
    minimal = tuple(point.limit for point in frontier.points if point.limit_proved)
    return Claims({}, points, minimal, frontier.status in PROVED)


def _plan(pipeline: Pipeline, strategy: str) -> Claims:
    plan = ppopt.plan(
        pipeline, chunks=1 if strategy in ONE_CHUNK else 2, strategies=f"searched,{strategy}",
        workers=1, time_limit=SECONDS,
    )  # fmt: skip
    claims = {"plan": Claim(plan.value, plan.lower_bound, plan.status in PROVED)}
    for row in plan.rows:
        ended = row.status in (RowStatus.OPTIMAL, RowStatus.INFEASIBLE)
        claims[str(row.configuration)] = Claim(row.value, row.lower_bound, ended)
    return Claims(claims)


STUDIES: dict[str, Callable[[Pipeline, str], Claims]] = {
    "solve": _solve,
    "best_choice": _best_choice,
    "compare": _compare,
    "frontier": _frontier,
    "plan": _plan,
}


def _run(case: Case, at: int | None) -> tuple[Claims, int]:
    """Claims of a study, and how many calls it takes; Ctrl-C comes at call `at`, if it is reached.

    Ctrl-C is recorded as in a command, which tells what is known when it comes.
    """
    pipeline = Pipeline(**case["pipeline"])
    with (
        patch.multiple(
            strategy_search, MAX_EVALUATED=case["few"], MAX_EVALUATED_ORDERS=min(case["few"], 30)
        ),
        interrupts.recorded(),
        interrupted(at) as calls,
    ):
        claims = STUDIES[case["study"]](pipeline, case["strategy"])
    return claims, calls.number


class Interrupted(Category):
    """Ctrl-C at any function call of a study: what is said of the schedules holds."""

    name = "interrupted"
    goal = 200
    tries = 0

    def draw(self, rng: Random) -> Case:
        """Draw a study of a model of few layers, and the seed by which calls are drawn."""
        study = rng.choice(tuple(STUDIES))
        small = study == "plan"  # it searches many configurations
        count = rng.randint(4, 4 if small else 6)
        pipeline = {
            "stages": rng.randint(2, 2 if small else 3),
            "batches": rng.randint(2, 2 if small else 4),
            "p2p": rng.randint(0, 1),
            "model": [
                {name: rng.randint(*ends) for name, ends in COSTS.items()} for _ in range(count)
            ],
            "partition": "search",
            "mem_limit": rng.choice((None, 8, 10, 14)),
        }
        if study not in ("frontier", "plan") and pipeline["mem_limit"] and rng.random() < 0.5:
            pipeline["recompute"] = "search"
        return {
            "study": study,
            "strategy": rng.choice(STRATEGIES),
            "few": rng.choice(EVALUATION_LIMITS),
            "pipeline": pipeline,
            "seed": rng.randrange(10**6),
        }

    def check(self, case: Case) -> Iterator[Finding]:
        """Run the study to its end, then again to each signal, and compare what is said."""
        try:
            whole, calls = _run(case, None)
        except ppopt.NotApplicableError:
            raise SkippedError("the strategy does not apply") from None
        count, sent = min(max(ALL_CALLS // calls, 2), MOST_SIGNALS), 0
        for at in Random(case["seed"]).sample(range(1, calls + 1), min(count, calls)):
            try:
                cut, reached = _run(case, at)
            except KeyboardInterrupt:
                yield Finding("interrupt-not-caught", f"{case['study']}, call {at} of {calls}")
                return
            sent += reached >= at
            for kind, difference in _differences(cut, whole):
                yield Finding(kind, f"{case['study']}, call {at} of {calls}: {difference}")
        if not sent:
            raise SkippedError("every run ended before its signal")


def _differences(cut: Claims, whole: Claims) -> Iterator[Finding]:
    """Compare the claims of a study that was cut with those of the whole one."""
    for name, claim in cut.searches.items():
        if name in whole.searches:
            yield from _against(name, claim, whole.searches[name])
    for limit, claim in cut.points.items():
        yield from _against(f"within {limit}", claim, _within(limit, whole))
    for limit in cut.minimal:
        value = cut.points[limit].value
        if any(_is_as_good(own, value) for at, own in whole.points.items() if at < limit):
            yield Finding("wrong-least-limit", f"less than {limit} is enough for {value}")
    if cut.complete and _values(cut) != _values(whole):
        yield Finding("wrong-frontier", f"points {_values(cut)}, not {_values(whole)}")


def _within(limit: Fraction, whole: Claims) -> Claim:
    """The best of a whole frontier within a limit."""
    values = [value for at, value in _values(whole).items() if at <= limit]
    value = min(values, default=None)
    return Claim(value, value if whole.complete else None, proved=whole.complete)


def _values(claims: Claims) -> dict[Fraction, Fraction]:
    """Limit and value of every point of a frontier."""
    values = {limit: claim.value for limit, claim in claims.points.items()}
    return {limit: value for limit, value in values.items() if value is not None}


def _is_as_good(claim: Claim, value: Fraction | None) -> bool:
    return claim.value is not None and value is not None and claim.value <= value


def _against(name: str, claim: Claim, whole: Claim) -> Iterator[Finding]:
    """Compare a claim with that of the whole study, whose value has a schedule."""
    message = f"{name}: {claim}, in the whole study {whole}"
    if whole.value is None:
        if whole.proved and claim.value is not None:
            yield Finding("schedule-of-nothing", message)
        return
    if claim.proved and (claim.value is None or claim.value > whole.value):
        yield Finding("wrong-proof", message)
    if claim.bound is not None and claim.bound > whole.value:
        yield Finding("wrong-bound", message)
    bound = whole.value if whole.proved else whole.bound
    if claim.value is not None and bound is not None and claim.value < bound:
        yield Finding("below-optimum", message)
