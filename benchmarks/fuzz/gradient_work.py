"""Work around the microbatches: searches beside every schedule, and beside the re-checker."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from random import Random
from typing import Any

import ppopt
from benchmarks.fuzz import judge, pipelines
from benchmarks.fuzz.category import Case, Category, Finding, SkippedError
from ppopt import Pipeline, Status, Verdict, verify
from ppopt.formats import schedule_json
from ppopt.problem.link_mode import LinkMode
from ppopt.rechecker import check
from tests.oracles.gradient_exhaustive import least_value

WORK = ("unshard", "gradient_sync", "optimizer", "unshard_memory")
KINDS = ("split", "whole", "mixed")
TINY = 10
"""Most operations of compute that the oracle schedules."""


class GradientWork(Category):
    """Searches with unshard, gradient sync and optimizer on one to three devices."""

    name = "gradient-work"
    goal = 400

    def draw(self, rng: Random) -> Case:
        """Draw a pipeline of every dimension; half of them are for the oracle."""
        tiny = rng.random() < 0.5
        several = (1,) if tiny else (1, 1, 2)
        fields = pipelines.draw(
            rng,
            ops=rng.choice((6, 9)) if tiny else 24,
            fused=tiny,
            routes=several,
            slices=several,
            instants=not tiny,
            overlap=not tiny and rng.random() < 0.4,
        )
        if tiny:
            dropped = ("p2p", "backward_p2p", "device_speed")
            fields = {key: value for key, value in fields.items() if key not in dropped}
        elif rng.random() < 0.2 and not {"routes", "slices"} & fields.keys():
            fields["link_mode"] = str(rng.choice(list(LinkMode)))
        fields |= {name: rng.randint(0, 4) for name in WORK if rng.random() < 0.7}
        options = {
            "objective": rng.choice(("makespan", "makespan", "device-span")),
            "backward_kind": "whole" if tiny else rng.choice(KINDS),
            "time_limit": 5,
        }
        return {"pipeline": fields | {"optimizer_barrier": rng.random() < 0.3}, "options": options}

    def check(self, case: Case) -> Iterator[Finding]:
        """Search, verify what is found and its file, re-check the bound; and ask the oracle."""
        pipeline, options = pipelines.made(case), case["options"]
        found = ppopt.solve(pipeline, workers=1, **options)
        if found.schedule is not None:
            again, claims = schedule_json.loads(schedule_json.dumps(found.schedule), "file")
            if again != found.schedule:
                yield Finding("another-file", "the schedule read is not the one written")
            for violation in verify(again, claims)[:1]:
                yield Finding("invalid-schedule", str(violation))
        if ppopt.recheck(found, time_limit=10, workers=1).verdict is Verdict.WRONG:
            yield Finding("true-bound-refuted", f"the bound {found.lower_bound} is refuted")
        if _size(pipeline, options) <= TINY:
            yield from _beside_oracle(found, options)

    def smaller(self, case: Case) -> Iterator[Case]:
        """Yield the case with a simpler pipeline."""
        yield from pipelines.smaller(case)


def _size(pipeline: Pipeline, options: dict[str, Any]) -> int:
    """Operations of compute where the oracle knows the rules; else more than it takes."""
    simple = pipeline.routes == pipeline.num_slices == 1 and not any(pipeline.links.given)
    one_kind = options["backward_kind"] == "whole" and options["objective"] == "makespan"
    whole_times = pipeline.ticks.per_unit == 1 and all(all(row) for row in pipeline.ticks.durations)
    if not (simple and one_kind and whole_times and max(pipeline.ticks.times) < TINY):
        return TINY + 1
    return 2 * pipeline.num_stages * pipeline.batches


def _beside_oracle(found: ppopt.Result, options: dict[str, Any]) -> Iterator[Finding]:
    least = least_value(found.pipeline, whole=options["backward_kind"] == "whole")
    yield from judge.values(found, None if least is None else Fraction(least))
    if found.status not in (Status.OPTIMAL, Status.INFEASIBLE):
        yield Finding("no-proof", f"{found.status} after {found.solve_seconds:.1f} s")
    if least is None:
        return
    stated = found.claim
    if stated is None:
        raise SkippedError("no bound is stated")
    above = check(stated._replace(bound=least + 1), 10, 1, 0, lambda _: None)
    if above.verdict is Verdict.CONFIRMED:
        yield Finding("inflated-bound-confirmed", f"the bound {least + 1}: {above.reason}")
