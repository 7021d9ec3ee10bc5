"""Features that no oracle knows, drawn together; claims that a schedule refutes are re-checked."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from random import Random
from typing import Any, NamedTuple

import ppopt
from ppopt import InputError, Objective, Schedule, Verdict
from ppopt.problem.backward_kind import BackwardKind
from ppopt.rechecker.claim import Claim
from tests.fuzz import layers, pipelines
from tests.fuzz.category import Case, Category, Finding, SkippedError

SECONDS = 2.0
"""Seconds of a search, and of each re-check."""
FACTORS = (1, 1, 2, "0.5", "1.5")
GRADIENT_WORK = ("unshard", "unshard_memory", "gradient_sync", "optimizer")


class Stated(NamedTuple):
    """What states a claim."""

    claim: Claim


class Features(Category):
    """Factors of microbatches, gradient work, offload, and links, in every combination.

    The value of a schedule refutes a higher bound, and its peaks refute that none fits them.
    """

    name = "features"
    goal = 1000
    tries = 60

    def draw(self, rng: Random) -> Case:
        """Draw a pipeline of stages or of layers, its features, and how it is searched."""
        options = {
            "objective": rng.choice(("makespan", "makespan", "device-span")),
            "backward_kind": rng.choice(("split", "whole", "mixed", "mixed")),
            "time_limit": SECONDS,
            "seed": rng.randrange(3),
        }
        fields = _draw_layers(rng) if rng.random() < 0.3 else _draw_stages(rng)
        fields |= _draw_factors(rng, fields["batches"])
        if rng.random() < 0.3:
            fields["link_mode"] = rng.choice(("streams", "exclusive", "blocking"))
        if rng.random() < 0.3:
            fields["host_link"] = rng.choice(("duplex", "shared"))
        if rng.random() < 0.2:
            fields["optimizer_barrier"] = True
        if rng.random() < 0.2:
            fields["mem_limit"] = "1f1b"
        return {"pipeline": fields, "options": options, "more": rng.choice((1, 1, 1, 2))}

    def check(self, case: Case) -> Iterator[Finding]:
        """Search, re-check the bound, and the claims that the schedule refutes."""
        try:
            pipeline = pipelines.pipeline_of(case)
        except InputError as refused:
            raise SkippedError(str(refused)) from None
        result = ppopt.solve(pipeline, workers=1, **case["options"])
        if result.claim is not None and _recheck(result.claim).verdict is Verdict.WRONG:
            yield Finding("true-bound-refuted", f"the bound {result.lower_bound} is refuted")
        if result.schedule is not None:
            for claim in _false_claims(result.schedule, case):
                yield from _refuted(claim)


def _draw_stages(rng: Random) -> dict[str, Any]:
    fields = pipelines.draw(
        rng,
        ops=rng.choice((6, 9)),
        fused=False,
        devices=(1, 2, 2),
        slices=(1, 1, 1, 2),
        overlap=rng.random() < 0.25,
        free=rng.random() < 0.7,
    )
    entries = range(len(fields["activation"]))
    if rng.random() < 0.3:
        stages = [_draw_offload(rng, amount) for amount in fields["activation"]]
        fields |= {name: [costs[name] for costs in stages] for name in stages[0]}
    for name in GRADIENT_WORK:
        if rng.random() < 0.2:
            fields[name] = [rng.randint(0, 2) for _ in entries]
    return fields


def _draw_layers(rng: Random) -> dict[str, Any]:
    fields = layers.draw(rng, ops=rng.choice((6, 9)), partitions=layers.FIXED, more_layers=2)
    for layer in fields["model"]:
        if rng.random() < 0.3 and layer["activation"] and "modules" not in layer:
            layer.pop("recompute", None)
            layer.update(_draw_offload(rng, layer["activation"]), offload=True)
        for name in GRADIENT_WORK:
            if rng.random() < 0.2:
                layer[name] = rng.randint(0, 2)
    if rng.random() < 0.3:
        fields["model"] = [layers.with_phases(rng, layer) for layer in fields["model"]]
    return fields


def _draw_offload(rng: Random, activation: int | str) -> dict[str, Any]:
    """Draw how much of an activation goes to the host: all, a half, or none of it."""
    amount = Decimal(activation) * rng.choice((Decimal(1), Decimal("0.5"), Decimal(0)))
    return {"offload_memory": f"{amount:f}", "offload_time": rng.randint(1, 3) if amount else 0}


def _draw_factors(rng: Random, batches: int) -> dict[str, Any]:
    """Draw factors of time and of memory, of all microbatches or of each."""
    names = (("microbatch_memory",), ("microbatch_times", "microbatch_memory"))
    fields: dict[str, Any] = {}
    for name in rng.choice(names) if rng.random() < 0.6 else ():
        each = [rng.choice(FACTORS) for _ in range(batches)]
        fields[name] = each if rng.random() < 0.5 else each[0]
    return fields


def _false_claims(schedule: Schedule, case: Case) -> Iterator[Claim]:
    """A bound above its value, also within its own peaks of memory, and that none fits these."""
    pipeline, objective = schedule.pipeline, Objective(case["options"]["objective"])
    kind = BackwardKind(case["options"]["backward_kind"])
    above = schedule.metrics.value_ticks(objective) + case["more"]
    peaks = tuple(map(pipeline.ticks.memory, schedule.metrics.peak_memory_ticks))
    span = objective is Objective.DEVICE_SPAN
    yield Claim(pipeline, span, kind, above)
    if not any(peaks):
        return
    limited = pipeline.having(mem_limit=peaks)
    yield Claim(limited, span, kind, None)
    yield Claim(limited, span, kind, above)


def _refuted(claim: Claim) -> Iterator[Finding]:
    """A claim that is false is not confirmed, and what refutes it keeps the rules."""
    outcome = _recheck(claim)
    if outcome.verdict is Verdict.CONFIRMED:
        kind = "infeasible" if claim.bound is None else "inflated-bound"
        yield Finding(f"{kind}-confirmed", f"the bound of {claim.bound} ticks: {outcome.reason}")
    elif outcome.counterexample is not None:
        for violation in ppopt.verify(outcome.counterexample)[:1]:
            yield Finding("invalid-counterexample", str(violation))


def _recheck(claim: Claim) -> ppopt.Recheck:
    return ppopt.recheck(Stated(claim), time_limit=SECONDS, workers=1)
