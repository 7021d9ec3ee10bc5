"""Searches against optima of other methods, and bounds that are stated too high."""

from __future__ import annotations

import time
from collections.abc import Iterator
from fractions import Fraction
from math import ceil
from random import Random
from typing import Any

import ppopt
from ppopt import (
    ConflictError,
    NotApplicableError,
    Objective,
    Pipeline,
    Result,
    Schedule,
    Status,
)
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.problem import Problem
from ppopt.solver.parameters import SolveParams
from tests.factories.schedules import build
from tests.fuzz import judge, pipelines
from tests.fuzz.category import Case, Category, Finding, SkippedError
from tests.oracles import exhaustive, exhaustive_pairs

FINE_OPERATIONS = 12
"""Most operations for which the oracle tries parts of a tick."""
FULL_TIME = 20.0
"""Seconds of a search that may end by proof."""


def draw_options(rng: Random, *, short: float) -> dict[str, Any]:
    """Draw objective, kind of backward and time; with chance `short` next to no time."""
    return {
        "objective": rng.choice(("makespan", "makespan", "device-span")),
        "backward_kind": "whole" if rng.random() < 0.3 else "split",
        "time_limit": rng.choice((0.001, 0.02, 0.1)) if rng.random() < short else FULL_TIME,
        "seed": rng.randrange(3),
    }


def is_fused(options: dict[str, Any]) -> bool:
    """Whether all backwards are whole."""
    return bool(options["backward_kind"] == "whole")


def optimum(pipeline: Pipeline, case: Case) -> int | None:
    """Least value in whole ticks, by exhaustive search; None if nothing keeps the limit.

    Starts that are no whole ticks can gain less than a tick: rounding all of them down keeps every
    wait and every limit. Raises SkippedError if that takes the oracle too long.
    """
    options = case["options"]
    same, tick = pipelines.reduced(pipeline)
    kind = BackwardKind(options["backward_kind"])
    if tick > 1 and options["objective"] == "device-span":
        if Problem(pipeline, Objective.DEVICE_SPAN, kind).num_operations > FINE_OPERATIONS:
            raise SkippedError("too many operations for an oracle that tries parts of a tick")
        same, tick = pipelines.reduced(pipeline, pipelines.parts_of_a_tick(pipeline))
    objective = options["objective"]
    if kind is BackwardKind.MIXED:
        best = exhaustive.best_mixed(same, objective=objective)
    else:
        best = exhaustive.best(same, fused=kind is BackwardKind.WHOLE, objective=objective)
    return None if best is None else ceil(best * tick)


class Search(Category):
    """A search whose least value an oracle knows."""

    ops = 15
    """Most operations of a case."""
    proved = 3.0
    """Seconds of the processor after which a search must have ended by proof."""
    params = SolveParams()

    def draw(self, rng: Random) -> Case:
        """Draw a pipeline, how it is searched, and perhaps a schedule to start from."""
        options = draw_options(rng, short=0.2)
        fields = self.fields(rng, fused=is_fused(options))
        hint = rng.randrange(1000) if rng.random() < 0.2 else None
        return {"pipeline": fields, "options": options, "hint": hint}

    def fields(self, rng: Random, *, fused: bool) -> dict[str, Any]:
        """Draw the pipeline."""
        return pipelines.draw(rng, ops=self.ops, fused=fused)

    def optimum(self, pipeline: Pipeline, case: Case) -> int | None:
        """Least value in ticks; None if nothing keeps the limit."""
        return optimum(pipeline, case)

    def hint(self, pipeline: Pipeline, seed: int, kind: str) -> Schedule:
        """A random valid schedule of the kind of backward that is searched."""
        backward = {"whole": "fused"}.get(kind, kind)
        return build(pipeline, Random(seed), backward, paired=False)

    def check(self, case: Case) -> Iterator[Finding]:
        """Search, and compare with the oracle."""
        pipeline, options = pipelines.pipeline_of(case), case["options"]
        expected, hint = self.optimum(pipeline, case), None
        if case["hint"] is not None:
            hint = self.hint(pipeline, case["hint"], options["backward_kind"])
        began = time.process_time()
        result = ppopt.solve(pipeline, workers=1, hint=hint, params=self.params, **options)
        used = time.process_time() - began
        yield from self.judged(result, expected, case, proof=used > self.proved)
        if hint is not None:
            yield from _beside(result, hint)

    def judged(
        self, result: Result, expected: int | None, case: Case, *, proof: bool
    ) -> Iterator[Finding]:
        """Say what is wrong with a result, and with what the re-checker says of it."""
        yield from judge.result(result, expected, proof=proof)
        yield from rechecked(result, case.get("more"))


def _beside(result: Result, hint: Schedule) -> Iterator[Finding]:
    """A result is there, and no worse, where the schedule it starts from keeps the limit."""
    if not hint.fits_limits:
        return
    own = hint.metrics.value_ticks(Objective(result.objective))
    if result.value is None:
        yield Finding("hint-lost", f"{result.status}, though the hint of {own} ticks fits")
    elif judge.ticks(result.pipeline, result.value) > own:
        yield Finding("worse-than-hint", f"value {result.value}, the hint takes {own} ticks")


class Tiny(Search):
    """Tiny pipelines, against exhaustive search over partial schedules."""

    name = "tiny"
    goal = 14000


class Pairs(Search):
    """Overlapped pairs and slices, against every combination of orders."""

    name = "pairs"
    goal = 300

    def fields(self, rng: Random, *, fused: bool) -> dict[str, Any]:
        """Draw very few operations: the oracle writes every order down."""
        return pipelines.draw(
            rng,
            ops=9,
            fused=fused,
            devices=(1, 2, 2),
            instants=False,
            routes=(1, 1, 2),
            slices=(1, 1, 2),
            overlap=rng.random() < 0.8,
        )

    def draw(self, rng: Random) -> Case:
        """Draw a case of makespan alone: the oracle's spans rest on the product's timing."""
        case = super().draw(rng)
        return case | {"options": case["options"] | {"objective": "makespan"}}

    def optimum(self, pipeline: Pipeline, case: Case) -> int | None:
        """Least makespan in ticks."""
        return exhaustive_pairs.best(pipeline, fused=is_fused(case["options"])).makespan


class Bounds(Category):
    """True bounds, which the re-checker must not refute, and inflated ones, which it must."""

    name = "bounds"
    goal = 500

    def draw(self, rng: Random) -> Case:
        """Draw a pipeline and by how many ticks its bound is raised."""
        options = draw_options(rng, short=0.0)
        overlap = rng.random() < 0.2
        fields = pipelines.draw(rng, ops=13, fused=is_fused(options), overlap=overlap)
        return {"pipeline": fields, "options": options, "more": rng.choice((0, 1, 1, 1, 2, 5))}

    def check(self, case: Case) -> Iterator[Finding]:
        """Search, state another bound, and re-check it."""
        pipeline = pipelines.pipeline_of(case)
        result = ppopt.solve(pipeline, workers=1, **case["options"])
        if result.status not in (Status.OPTIMAL, Status.INFEASIBLE):
            raise SkippedError("the search was not done in time")
        yield from rechecked(result, case["more"])


def rechecked(result: Result, more: int | None) -> Iterator[Finding]:
    """Re-check the bound of a search that ended, and that bound raised by some ticks.

    `more` is None: neither is re-checked.
    """
    if more is None or result.status not in (Status.OPTIMAL, Status.INFEASIBLE):
        return
    above = None
    if more and result.lower_bound is not None:
        above = result.lower_bound + Fraction(more, result.pipeline.ticks.per_unit)
    yield from judge.rechecked(result, above, seconds=FULL_TIME)


class Strategies(Category):
    """Every strategy on pipelines of every kind."""

    name = "strategies"
    goal = 900

    def draw(self, rng: Random) -> Case:
        """Draw a strategy and a pipeline."""
        from ppopt.strategies import registry  # noqa: PLC0415  loads every strategy

        fields = pipelines.draw(
            rng,
            ops=rng.choice((20, 60)),
            fused=False,
            devices=(1, 2, 3, 4, 6),
            slices=(1, 1, 1, 2),
            overlap=rng.random() < 0.3,
        )
        if rng.random() < 0.7 and not isinstance(fields.get("placement"), list):
            fields = {key: fields[key] for key in fields if key not in ("placement", "chunks")}
        objective = rng.choice(("makespan", "device-span"))
        return {
            "pipeline": fields,
            "strategy": rng.choice(sorted(registry())),
            "objective": objective,
        }

    def check(self, case: Case) -> Iterator[Finding]:
        """Evaluate it, and hold the schedule against the rules."""
        try:
            pipeline = pipelines.pipeline_of(case)
        except ConflictError as refused:  # delays of a placement that the draw left out
            raise SkippedError(str(refused)) from None
        try:
            schedule = ppopt.evaluate(pipeline, case["strategy"], Objective(case["objective"]))
        except NotApplicableError as refused:
            raise SkippedError(str(refused)) from None
        yield from judge.broken(schedule, limit=False)
