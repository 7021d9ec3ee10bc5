"""What devices run besides compute: searches beside every schedule, and beside the re-checker."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from math import floor
from random import Random
from typing import Any

import ppopt
from ppopt import Pipeline, Status, Verdict, verify
from ppopt.formats import schedule_json
from ppopt.problem.link_mode import LinkMode
from ppopt.rechecker import check
from tests.fuzz import judge, layers, pipelines
from tests.fuzz.category import Case, Category, Finding, SkippedError
from tests.oracles.gradient_exhaustive import least_value
from tests.oracles.offload_choices import least_of_all

WORK = ("unshard", "gradient_sync", "optimizer", "unshard_memory")
KINDS = ("split", "whole", "mixed")
TINY = 10
"""Most operations of compute that the oracle schedules."""
MOST_CODES, MOST_LIMITS = 36, 12
"""Most numbers of operations of a frontier, and most limits at which it is searched again."""


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
        fields |= self.further(rng, fields)
        options = {
            "objective": rng.choice(("makespan", "makespan", "device-span")),
            "backward_kind": "whole" if tiny else rng.choice(KINDS),
            "time_limit": 5,
        }
        return {"pipeline": fields, "options": options}

    def further(
        self,
        rng: Random,
        fields: dict[str, Any],  # noqa: ARG002
    ) -> dict[str, Any]:
        """Draw what devices run besides compute."""
        work = {name: rng.randint(0, 4) for name in WORK if rng.random() < 0.7}
        return work | {"optimizer_barrier": rng.random() < 0.3}

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


class Offload(GradientWork):
    """Searches with activations that move to the host, half of them with gradient work, too."""

    name = "offload"

    def further(self, rng: Random, fields: dict[str, Any]) -> dict[str, Any]:
        """Draw parts of what F keeps, times of the ways, and the link to the host."""
        moved = [self._part(rng, most) for most in fields.get("kept", fields["activation"])]
        ways = {
            "offload_memory": moved,
            "offload_time": [rng.randint(1, 3) if float(one) else 0 for one in moved],
            "host_link": rng.choice(("duplex", "duplex", "shared")),
        }
        return ways | (super().further(rng, fields) if rng.random() < 0.5 else {})

    def _part(self, rng: Random, most: int | str) -> int | str:
        """Draw none, all or half of an amount of memory."""
        if isinstance(most, int) and rng.random() < 0.3:
            return most // 2
        return rng.choice((0, most, most))


class StepFrontiers(Offload):
    """Frontiers of such pipelines, beside a search at every limit from their least one on."""

    name = "step-frontiers"
    goal = 150

    def draw(self, rng: Random) -> Case:
        """Draw a tiny pipeline without limits."""
        case = super().draw(rng)
        while pipelines.made(case).num_codes > MOST_CODES:
            case = super().draw(rng)
        case["pipeline"].pop("mem_limit", None)
        return case

    def check(self, case: Case) -> Iterator[Finding]:
        """Compare the values at every limit, and the last point without any."""
        pipeline, options = pipelines.made(case), case["options"] | {"workers": 1}
        found = ppopt.frontier(pipeline, **options)
        if found.status is not Status.OPTIMAL:
            raise SkippedError("the frontier is not proved")
        least, most = (floor(found.points[place].limit) for place in (0, -1))
        for limit in (*range(least + 1, min(most, least + MOST_LIMITS) + 1), None):
            best = ppopt.solve(pipeline, mem_limit=limit, **options)
            within = [one for one in found.points if limit is None or one.limit <= limit]
            if best.value is not None and best.value < min(
                one.result.value for one in within if one.result.value is not None
            ):
                yield Finding("missing-point", f"{best.value} at {limit}")


class OffloadChoices(Category):
    """Offload and recompute chosen with the schedule, beside every choice of the layers."""

    name = "offload-choices"
    goal = 200

    def draw(self, rng: Random) -> Case:
        """Draw two or three layers on one or two devices, and limits at which choices matter."""
        stages, count, batches = rng.choice(((1, 2, 2), (1, 3, 1), (2, 2, 1), (2, 3, 1)))
        layers = [self._layer(rng) for _ in range(count)]
        layers[-1] |= {"offload_time": 1, "offload_memory": 1}
        fields = {
            "stages": stages,
            "batches": batches,
            "model": layers,
            "partition": [count] if stages == 1 else [1, count - 1],
            "host_link": rng.choice(("duplex", "shared")),
            "offload": rng.choice(("search", "search", "all")),
            "recompute": rng.choice((None, "none", "search", "search")),
            "mem_limit": rng.randint(1, 9),
        }
        options = {"backward_kind": "whole", "objective": "makespan", "time_limit": 20}
        return {"pipeline": fields, "options": options}

    def _layer(self, rng: Random) -> dict[str, Any]:
        activation, time = rng.randint(1, 3), rng.randint(0, 2)
        return {
            "forward": rng.randint(1, 2),
            "backward": rng.randint(1, 3),
            "activation": activation,
            "workspace": rng.choice((0, 0, 1)),
            "recompute_time": rng.randint(0, 2),
            "kept": rng.randint(0, 1),
            "recompute": rng.random() < 0.2,
            "offload_time": time,
            "offload_memory": rng.randint(1, activation) if time else 0,
        }

    def check(self, case: Case) -> Iterator[Finding]:
        """Search, and ask the oracle for the least of all choices."""
        pipeline = pipelines.made(case)
        found = ppopt.solve(pipeline, workers=1, **case["options"])
        least = least_of_all(pipeline, whole=True)
        yield from judge.values(
            found, None if least is None else least * found.pipeline.ticks.per_unit
        )
        if found.status not in (Status.OPTIMAL, Status.INFEASIBLE):
            yield Finding("no-proof", f"{found.status} after {found.solve_seconds:.1f} s")
        if found.schedule is not None:
            for violation in verify(found.schedule)[:1]:
                yield Finding("invalid-schedule", str(violation))
        if ppopt.recheck(found, time_limit=20, workers=1).verdict is Verdict.WRONG:
            yield Finding("true-bound-refuted", f"the bound {found.lower_bound} is refuted")
        stated = found.claim
        if stated is not None and stated.bound_time is not None and least is not None:
            above = check(stated._replace(bound_time=least + 1), 20, 1, 0, lambda _: None)
            if above.verdict is Verdict.CONFIRMED:
                yield Finding("inflated-bound-confirmed", f"{least + 1}: {above.reason}")

    def smaller(self, case: Case) -> Iterator[Case]:
        """Yield the case with a simpler pipeline."""
        yield from layers.smaller_cases(case)


def _size(pipeline: Pipeline, options: dict[str, Any]) -> int:
    """Operations of compute where the oracle knows the rules; else more than it takes."""
    simple = (
        not any(pipeline.frozen_stages)
        and pipeline.routes == pipeline.num_slices == 1
        and not any(pipeline.links.given)
    )
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
