"""Links that carry one transfer at a time."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from math import inf
from random import Random
from typing import Any

from ppopt import Objective, Pipeline, Result, Schedule
from ppopt.problem.link_mode import LinkMode
from ppopt.solver.parameters import RoundParams, SolveParams
from tests.factories.streams import LINK_MODES, append_all
from tests.fuzz import judge, pipelines
from tests.fuzz.category import Case, Finding, SkippedError
from tests.fuzz.searches import Search
from tests.oracles.streams_exhaustive import UndecidedError, least_makespan, least_mixed

MOST_STATES = 40_000
"""States after which the oracle gives up."""


class Streams(Search):
    """Tiny searches over links, against every order of devices and links."""

    name = "streams"
    goal = 1500
    proved = inf
    params = SolveParams(rounds=RoundParams(max_rounds=2))

    def draw(self, rng: Random) -> Case:
        """Draw two to four stages, how they are searched, and perhaps a schedule to start from."""
        options = {
            "objective": rng.choice(("makespan", "makespan", "makespan", "device-span")),
            "backward_kind": rng.choice(("split", "whole", "mixed")),
            "time_limit": rng.choice((0.02, 5, 5, 5)),
            "seed": rng.randrange(3),
        }
        hint = rng.randrange(1000) if rng.random() < 0.3 else None
        fields = self.fields(rng, fused=False)
        return {"pipeline": fields, "options": options, "hint": hint, "more": rng.randint(0, 2)}

    def fields(self, rng: Random, *, fused: bool) -> dict[str, Any]:
        """Draw a pipeline of several devices; over streams on one route and without slices."""
        mode = rng.choice(LINK_MODES)
        several = (1,) if mode == LinkMode.STREAMS else (1, 1, 2)
        return {"link_mode": str(mode)} | pipelines.draw(
            rng,
            ops=rng.choice((6, 9, 12)),
            fused=fused,
            devices=(2, 2, 3),
            routes=several,
            slices=several,
            free=rng.random() < 0.3,
        )

    def hint(self, pipeline: Pipeline, seed: int, kind: str) -> Schedule:
        """A random valid schedule with its transfers."""
        return append_all(pipeline, Random(seed), kind).schedule

    def optimum(self, pipeline: Pipeline, case: Case) -> int | None:
        """Least makespan in ticks; None if nothing keeps the limit."""
        if pipeline.limits is not None and any(0 in row for row in pipeline.ticks.durations):
            raise SkippedError("the oracle has no limits at instants")
        kind = case["options"]["backward_kind"]
        try:
            if kind == "mixed":
                return least_mixed(pipeline, max_states=MOST_STATES)
            return least_makespan(pipeline, whole=kind == "whole", max_states=MOST_STATES)
        except UndecidedError as many:
            raise SkippedError(str(many)) from None

    def judged(
        self, result: Result, expected: int | None, case: Case, *, proof: bool
    ) -> Iterator[Finding]:
        """Of device spans the oracle knows only that the least is at most the least makespan."""
        per_unit, above = result.pipeline.ticks.per_unit, None
        if result.objective is Objective.MAKESPAN or expected is None:
            yield from judge.result(result, expected, proof=proof)
            if case["more"] and expected is not None:
                above = Fraction(expected + case["more"], per_unit)
        else:
            if result.schedule is not None:
                yield from judge.broken(result.schedule)
            best = Fraction(expected, per_unit)
            yield from judge.claimed("", None, result.lower_bound, best)
        yield from judge.rechecked(result, above, seconds=10, decided=False)
