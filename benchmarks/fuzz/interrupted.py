"""Studies that Ctrl-C ends at a drawn function call, beside the same ones without it."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any, NamedTuple

import ppopt
from benchmarks.fuzz.category import Case, Category, Finding, SkippedError
from ppopt import Pipeline, Result, Status
from ppopt.solver import interrupts
from ppopt.studies.plan_result import RowStatus

PACKAGE = str(Path(ppopt.__file__).parent)
PROVED = (Status.OPTIMAL, Status.INFEASIBLE)
COSTS = {
    "forward": (1, 4), "backward": (3, 7), "weight": (1, 3), "activation": (1, 2), "kept": (0, 1),
    "static": (0, 1),
}  # fmt: skip
"""Least and largest cost of a layer."""
ALL_CALLS, MOST_SIGNALS = 1_000_000, 20
"""Calls of all runs of a case, about, and most runs that a signal ends."""
SECONDS = 20.0
"""Time limit of a study; the tiny ones here end far earlier."""


class Claim(NamedTuple):
    """What is said of the schedules of one search, in the user's unit."""

    value: Fraction | None
    """Best value found; None: no schedule was found."""
    bound: Fraction | None
    proved: bool
    """Whether the value is said to be the least, or, without one, that there is no schedule."""


Claims = dict[str, Claim]
"""The claims of a study, by what they are of."""


def _of_result(result: Result) -> Claim:
    return Claim(result.value, result.lower_bound, result.status in PROVED)


def _solve(pipeline: Pipeline) -> Claims:
    return {"solve": _of_result(ppopt.solve(pipeline, workers=1, time_limit=SECONDS))}


def _best_choice(pipeline: Pipeline) -> Claims:
    found = ppopt.best_choice(pipeline, "1f1b", time_limit=SECONDS)
    fits = found.schedule.fits_limits
    return {"1f1b": Claim(found.value if fits else None, found.lower_bound, found.proved)}


def _compare(pipeline: Pipeline) -> Claims:
    found = ppopt.compare(pipeline, workers=1, time_limit=SECONDS)
    return {"compare": _of_result(found.optimum)}


def _frontier(pipeline: Pipeline) -> Claims:
    found = ppopt.frontier(pipeline, workers=1, time_limit=SECONDS)
    if found.baselines and not found.points:
        raise AssertionError("hand strategies are points of a frontier")
    claims = {"frontier": Claim(None, None, found.status in PROVED)}
    claims |= {str(point.limit): _of_result(point.result) for point in found.points}
    for limit, bound in found.bounds:
        claims.setdefault(str(limit), Claim(None, bound, proved=False))
    return claims


def _plan(pipeline: Pipeline) -> Claims:
    found = ppopt.plan(pipeline, workers=1, time_limit=SECONDS)
    claims = {"plan": Claim(found.value, found.lower_bound, found.status in PROVED)}
    for row in found.rows:
        ended = row.status in (RowStatus.OPTIMAL, RowStatus.INFEASIBLE)
        claims[str(row.configuration)] = Claim(row.value, row.lower_bound, ended)
    return claims


STUDIES: dict[str, Callable[[Pipeline], Claims]] = {
    "solve": _solve,
    "best_choice": _best_choice,
    "compare": _compare,
    "frontier": _frontier,
    "plan": _plan,
}


class _Calls:
    """Counts the calls of a study's functions, and sends Ctrl-C at one of them."""

    def __init__(self, at: int | None) -> None:
        self.number, self.at = 0, at

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        """Be the profiler: a signal takes effect where a function is called or C code returns."""
        if event in ("call", "c_return") and frame.f_code.co_filename.startswith(PACKAGE):
            self.number += 1
            if self.number == self.at:
                signal.raise_signal(signal.SIGINT)


def _run(case: Case, at: int | None) -> tuple[Claims, int]:
    """Claims of a study, and how many calls it takes; Ctrl-C comes at call `at`."""
    pipeline, calls = Pipeline(**case["pipeline"]), _Calls(at)
    with interrupts.recorded(inner=True):
        sys.setprofile(calls)
        try:
            claims = STUDIES[case["study"]](pipeline)
        finally:
            sys.setprofile(None)
    return claims, calls.number


class Interrupted(Category):
    """Ctrl-C at any function call of a study: what is said of the schedules holds."""

    name = "interrupted"
    goal = 200
    tries = 0

    def draw(self, rng: Random) -> Case:
        """Draw a study of a model of few layers, and the seed by which calls are drawn."""
        count, study = rng.randint(4, 6), rng.choice(tuple(STUDIES))
        pipeline = {
            "stages": rng.choice((2, 3)),
            "batches": rng.randint(2, 4),
            "p2p": rng.randint(0, 1),
            "model": [
                {name: rng.randint(*ends) for name, ends in COSTS.items()} for _ in range(count)
            ],
            "partition": "search",
            "mem_limit": rng.choice((None, 8, 10, 14)),
        }
        if study != "frontier" and pipeline["mem_limit"] and rng.random() < 0.5:
            pipeline["recompute"] = "search"
        return {"study": study, "pipeline": pipeline, "seed": rng.randrange(10**6)}

    def check(self, case: Case) -> Iterator[Finding]:
        """Run the study to its end, then again to each signal, and compare what is said."""
        whole, calls = _run(case, None)
        if not next(iter(whole.values())).proved:
            raise SkippedError("nothing is proved, so nothing can be compared")
        number = min(max(ALL_CALLS // calls, 2), MOST_SIGNALS)
        for at in Random(case["seed"]).sample(range(1, calls + 1), min(number, calls)):
            try:
                cut, _ = _run(case, at)
            except KeyboardInterrupt:
                yield Finding("interrupt-not-caught", f"{case['study']}, call {at} of {calls}")
                return
            yield from _compared(case["study"], cut, whole)


def _compared(study: str, cut: Claims, whole: Claims) -> Iterator[Finding]:
    """Compare the claims of a study that was cut with those of the whole one."""
    for name, claim in cut.items():
        least = _within(name, whole) if study == "frontier" else whole.get(name)
        if least is not None and least.proved:
            yield from _against(f"{study}, {name}", claim, least)


def _within(limit: str, whole: Claims) -> Claim | None:
    """The least value within a limit, by all points of a frontier; None: the name is no limit."""
    if limit == "frontier":
        return None
    points = [claim for name, claim in whole.items() if _is_within(name, limit) and claim.value]
    return min(points, key=lambda claim: claim.value or 0, default=Claim(None, None, proved=True))


def _is_within(name: str, limit: str) -> bool:
    return name != "frontier" and Fraction(name) <= Fraction(limit)


def _against(name: str, claim: Claim, least: Claim) -> Iterator[Finding]:
    """Compare a claim with a proved one of the same schedules."""
    words = f"{name}: value {claim.value}, bound {claim.bound}; the least value is {least.value}"
    if claim.proved and claim.value != least.value:
        yield Finding("wrong-proof", words)
    if claim.value is not None and (least.value is None or claim.value < least.value):
        yield Finding("below-optimum", words)
    if claim.bound is not None and least.value is not None and claim.bound > least.value:
        yield Finding("wrong-bound", words)
