"""Random pipelines for tests: seeded, small, and awkward on purpose.

Times are unequal whole ticks with B = 0 and W = 0 among them, p2p is 0..3 (a number or an
asymmetric matrix), memory_b has both signs, static memory differs, and limits reach from below
the least possible to none, so that feasible and infeasible cases are both common.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from random import Random
from typing import Any, NamedTuple

from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.pipeline import Pipeline


class Case(NamedTuple):
    """A pipeline, and whether its backward is fused (BW) or split (B and W)."""

    pipeline: Pipeline
    fused: bool

    @property
    def backward_kind(self) -> BackwardKind:
        """As `ppopt.solve` takes it."""
        return BackwardKind.uniform(fused=self.fused)


def tiny_cases(seed: int, count: int, *, ops: int = 18, **fixed: Any) -> Iterator[Case]:
    """Yield pipelines of 1..3 devices, up to 4 microbatches a route and `ops` operations, if one
    microbatch does not need more (see `draw`)."""
    rng = Random(seed)
    for _ in range(count):
        yield draw(rng, devices=rng.choice((1, 2, 2, 2, 3, 3)), batches=4, ops=ops, **fixed)


def middle_cases(seed: int, count: int, *, ops: int = 60, **fixed: Any) -> Iterator[Case]:
    """Yield pipelines of 2..4 devices, up to 8 microbatches a route and `ops` operations."""
    rng = Random(seed)
    for _ in range(count):
        yield draw(rng, devices=rng.randint(2, 4), batches=8, ops=ops, **fixed)


def draw(rng: Random, *, devices: int, batches: int, ops: int, **fixed: Any) -> Case:
    """Draw a pipeline with as many microbatches as `ops` and `batches` allow, or one less.

    `fixed` sets `fused`, or fields of Pipeline that are not to be drawn, such as `p2p=0`,
    `mem_limit=None` or `routes=2`. With `heavy`, operations have workspaces, and some stages
    recompute; with `boundaries`, every boundary between stages has delays of its own, each way.
    """
    heavy = fixed.pop("heavy", False)
    boundaries = fixed.pop("boundaries", False)
    fused = rng.random() < 0.3
    fused = fixed.pop("fused", fused)
    stages, where = _placement(rng, devices)
    entries, cut = (devices, 2) if "chunks" in where else (stages, 1)
    routes = fixed.get("routes", 1)
    max_batches = max(1, min(batches, ops // (stages * (2 if fused else 3)) // routes))
    fields: dict[str, Any] = {
        "stages": entries,
        "batches": routes * rng.randint(max(1, max_batches - 1), max_batches),
        "p2p": _p2p(rng, devices),
        "static": rng.choice((0, [2 * rng.randint(0, 3) for _ in range(entries)])),
        **where,
        **_times(rng, entries, cut),
        **_memory(rng, entries, cut),
    }
    if heavy:
        fields |= _heavy(rng, fields["activation"], cut)
    if boundaries:
        links = Pipeline(**{**fields, **fixed}).num_stages - 1
        for field in ("p2p", "backward_p2p"):
            fields[field] = [rng.choice((0, 1, 2, 3, 5)) for _ in range(links)]
    limit = _limit(rng, Pipeline(**{**fields, **fixed}))
    return Case(Pipeline(**{"mem_limit": limit, **fields, **fixed}), fused)


def _placement(rng: Random, devices: int) -> tuple[int, dict[str, Any]]:
    """Draw the number of stages and the fields that place them."""
    name = rng.choice(("linear", "linear", "linear", "v", "interleaved", "explicit"))
    if name == "linear":
        return devices, {"placement": name}
    if name != "explicit":
        return 2 * devices, {"placement": name, "chunks": 2}
    hosts = [*range(devices), *rng.choices(range(devices), k=rng.randint(0, 2))]
    rng.shuffle(hosts)
    return len(hosts), {"placement": tuple(hosts)}


def _times(rng: Random, entries: int, cut: int) -> dict[str, Any]:
    """Draw times, whole numbers once cut; BW is sometimes less than B + W."""
    shortest = rng.choice((0, 1, 1))
    inputs = [cut * rng.randint(shortest, 4) for _ in range(entries)]
    weights = [cut * rng.randint(shortest, 4) for _ in range(entries)]
    saved = [rng.choice((0, 0, min(cut, *pair))) for pair in zip(inputs, weights, strict=True)]
    return {
        "forward": [cut * rng.randint(1, 4) for _ in range(entries)],
        "backward_input": inputs,
        "weight": weights,
        "backward": [b + w - s for b, w, s in zip(inputs, weights, saved, strict=True)],
    }


def _p2p(rng: Random, devices: int) -> Any:
    if rng.random() < 0.7:
        return rng.choice((0, 0, 1, 2, 3))
    return [
        [0 if source == target else rng.randint(0, 3) for target in range(devices)]
        for source in range(devices)
    ]


def _memory(rng: Random, entries: int, cut: int) -> dict[str, Any]:
    """Draw activations and memory_b of either sign, whole numbers once cut."""
    taken = [cut * rng.randint(0, 3) for _ in range(entries)]
    change = [
        rng.choice((0, -cut * rng.randint(0, much // cut), cut * rng.randint(0, 2)))
        for much in taken
    ]
    return {"activation": taken, "memory_b": change if rng.random() < 0.6 else 0}


def _heavy(rng: Random, activation: list[int], cut: int) -> dict[str, Any]:
    """Draw workspaces, of one number or per kind, and recompute; whole numbers once cut."""
    costs: dict[str, Any] = {}
    for field in ("workspace", "forward_workspace", "weight_workspace", "backward_workspace"):
        if rng.random() < (0.6 if field == "workspace" else 0.3):
            costs[field] = [rng.choice((0, 0, 1, 2)) for _ in activation]
    if rng.random() < 0.7:
        costs["kept"] = [cut * rng.randint(0, much // cut) for much in activation]
        costs["recompute_time"] = [cut * rng.randint(0, 2) for _ in activation]
    return costs


def _limit(rng: Random, pipeline: Pipeline) -> Any:
    """Draw limits around the room that one to three microbatches of a device need."""
    if rng.random() < 0.15:
        return None
    below = rng.random() < 0.4
    limits = [_memory_limit(rng, pipeline, device, below) for device in range(pipeline.num_devices)]
    return limits if rng.random() < 0.7 else max(limits)


def _memory_limit(rng: Random, pipeline: Pipeline, device: int, below: bool) -> Fraction:
    costs = pipeline.costs
    stages = [hosted[device] for hosted in pipeline.hosted]
    live = max(sum((costs.activation[stage] for stage in row), Fraction(0)) for row in stages)
    at_b = max(Fraction(0), *(costs.memory_b[stage] for row in stages for stage in row))
    at_b += max(costs.forward_workspace[stage] for row in stages for stage in row)
    static = pipeline.ticks.memory(pipeline.ticks.static[device])
    limit = static + live + rng.choice((Fraction(0), at_b))
    if below:
        return max(limit - rng.choice((0, 0, 1, at_b + 1)), Fraction(0))
    return limit + live * rng.choice((0, Fraction(1, 2), 1, 2))


def mixed_cases(seed: int, count: int, *, ops: int = 15, **fixed: Any) -> Iterator[Pipeline]:
    """Yield tiny pipelines whose B, W and BW are free of each other, so that splitting a backward
    gains time at some stages and loses it at others; B often allocates memory."""
    rng = Random(seed)
    for _ in range(count):
        devices = rng.choice((1, 2, 2, 2, 3))
        drawn = draw(rng, devices=devices, batches=3, ops=ops, fused=False, **fixed).pipeline
        cut, entries = drawn.num_chunks, len(drawn.forward)
        inputs = [cut * rng.randint(0, 4) for _ in range(entries)]
        weights = [cut * rng.randint(0, 4) for _ in range(entries)]
        saved = [cut * rng.choice((0, 1, 1, 2, 9)) for _ in range(entries)]
        both = zip(inputs, weights, saved, strict=True)
        yield replace(
            drawn,
            backward_input=inputs,
            weight=weights,
            backward=[max(0, b + w - saving) for b, w, saving in both],
        )


class AtSpeeds(NamedTuple):
    """A pipeline on devices of unequal speeds, and the same with the times of every stage given."""

    pipeline: Pipeline
    spelled_out: Pipeline
    fused: bool

    @property
    def backward_kind(self) -> BackwardKind:
        """As `ppopt.solve` takes it."""
        return BackwardKind.uniform(fused=self.fused)


def at_speeds(cases: Iterator[Case], seed: int) -> Iterator[AtSpeeds]:
    """Give the devices of pipelines of one route speeds, two of three times unequal ones."""
    rng = Random(seed)
    for pipeline, fused in cases:
        choices = [Fraction(1), Fraction(2), Fraction(1, 2), Fraction(3, 2)]
        speeds = [rng.choice(choices) for _ in range(pipeline.num_devices)]
        costs, hosts = pipeline.costs, pipeline.hosts[0]
        scaled: dict[str, Any] = {field: list(values) for field, values in costs.items()}
        for field in ("forward", "backward", "weight", "backward_input"):
            pairs = zip(scaled[field], hosts, strict=True)
            scaled[field] = [time / speeds[host] for time, host in pairs]
        spelled_out = Pipeline(
            stages=pipeline.num_stages,
            batches=pipeline.batches,
            placement=hosts,
            p2p=pipeline.p2p,
            mem_limit=pipeline.limits,
            **(scaled | {"overlap": None}),
        )
        yield AtSpeeds(replace(pipeline, device_speed=speeds), spelled_out, fused)


V = Pipeline(
    stages=4,
    batches=16,
    placement="v",
    forward=10,
    backward_input=10,
    weight=14,
    p2p=2,
    activation=2,
    mem_limit=6,
)
"""Two stages on each of 4 devices, memory for 6 of 8 chunks, W longer than F and B."""


def instant_cases(seed: int, count: int) -> Iterator[Pipeline]:
    """Split pipelines in which most B and W have no length, so that one instant holds several,
    with memory_b mostly positive and limits around what that needs."""
    rng = Random(seed)
    for _ in range(count):
        devices = rng.choice((1, 2, 2))
        hosts = [*range(devices), *rng.choices(range(devices), k=rng.randint(0, 4 - devices))]
        rng.shuffle(hosts)
        stages = range(len(hosts))
        inputs = [rng.choice((0, 0, 0, 1)) for _ in stages]
        weights = [rng.choice((0, 0, 1, 2)) for _ in stages]
        taken = [rng.randint(0, 3) for _ in stages]
        yield Pipeline(
            stages=len(hosts),
            placement=tuple(hosts),
            batches=rng.randint(1, 2 if len(hosts) > 2 else 3),
            forward=[rng.randint(1, 3) for _ in stages],
            backward_input=inputs,
            weight=weights,
            p2p=rng.choice((0, 0, 0, 1)),
            activation=taken,
            memory_b=[rng.choice((0, -rng.randint(0, much), 1, 2, 3, 3)) for much in taken],
            mem_limit=[
                sum(much for much, host in zip(taken, hosts, strict=True) if host == device)
                + rng.randint(0, 5)
                for device in range(devices)
            ],
        )
