"""The fixed suite of instances that proofs at scale are measured on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fractions import Fraction
from itertools import chain, islice, product
from random import Random
from typing import Any, NamedTuple

from ppopt.problem.objective import Objective
from ppopt.problem.pipeline import Pipeline

MEMORY = (Fraction(3, 4), Fraction(1), Fraction(5, 4), Fraction(3, 2), Fraction(2), None)
"""Limits in activations per device, as multiples of the number of devices; None: no limit."""
CORE_STEPS = {"linear": 8, "two_chunks": 5, "spans": 1, "large": 1}
"""The core takes every n-th instance of these lists, the first one included: 8 has no factor in
common with the 7 cost profiles, 5 none with the 6 pairs of placement and profile, so that each size
meets each of them."""
COSTS = ("unit", "1.5b", "28.3b", "long-w", "heavy-last", "random-1", "random-2")


class Instance(NamedTuple):
    """One pipeline to solve."""

    name: str
    group: str
    pipeline: Pipeline
    objective: Objective = Objective.MAKESPAN
    backward_kind: str | None = None


def is_proved(status: str) -> bool:
    """Whether a search of this status ended in a proof."""
    return status in ("optimal", "infeasible")


def mean_gap(ends: Iterable[tuple[float | None, float | None]]) -> float:
    """Mean of (value - bound) / value in percent; 0 for what has no schedule or no bound."""
    gaps = [(value - bound) / value if value and bound is not None else 0 for value, bound in ends]
    return 100 * sum(gaps) / max(1, len(gaps))


def costs(profile: str, devices: int) -> dict[str, Any]:
    """Times and link of a profile; 1.5b and 28.3b: arXiv 2401.10241, table 9, first rows."""
    match profile:
        case "unit":
            return {"forward": 1, "backward_input": 1, "weight": 1}
        case "1.5b":
            return {
                "forward": "18.522",
                "backward_input": "18.086",
                "weight": "9.337",
                "p2p": "0.601",
            }
        case "28.3b":
            return {
                "forward": "10.419",
                "backward_input": "10.207",
                "weight": "7.715",
                "p2p": "0.408",
            }
        case "long-w":
            return {"forward": 10, "backward_input": 10, "weight": 14, "p2p": 2}
        case "heavy-last":
            rest = devices - 1
            return {
                "forward": [10] * rest + [14],
                "backward_input": [11] * rest + [15],
                "weight": [9] * rest + [12],
                "p2p": 1,
            }
    rng = Random(f"{profile} {devices}")
    draws = [[rng.randint(8, 14) for _ in range(3)] for _ in range(devices)]
    forward, backward_input, weight = map(list, zip(*draws, strict=True))
    return {"forward": forward, "backward_input": backward_input, "weight": weight, "p2p": 1}


def linear(
    devices: tuple[int, ...] = (4, 8, 16, 32), ratios: tuple[int, ...] = (1, 2, 4, 8)
) -> Iterator[Instance]:
    """One stage per device, memory freed at W."""
    for size, ratio, memory, profile in product(devices, ratios, MEMORY, COSTS):
        limit = None if memory is None else int(memory * size)
        name = f"{profile} p={size} m={ratio * size} K={limit or 'none'}"
        kind = "linear" if memory is None or memory >= 1 else "linear below p"
        pipeline = Pipeline(
            stages=size, batches=ratio * size, mem_limit=limit, name=name, **costs(profile, size)
        )
        yield Instance(name, f"{kind} p={size}", pipeline)


def two_chunks() -> Iterator[Instance]:
    """Two stages per device; limits in chunks."""
    sizes = [(4, m, K) for m in (4, 8, 16) for K in (4, 5, 6, 7, 8, None)]
    sizes += [(8, m, K) for m in (8, 16, 32) for K in (8, 10, 12, 14, 16, None)]
    for (size, batches, limit), placement, profile in product(
        sizes, ("v", "interleaved"), ("unit", "long-w", "1.5b")
    ):
        name = f"{placement} {profile} p={size} m={batches} K={limit or 'none'} chunks"
        pipeline = Pipeline(
            stages=size,
            batches=batches,
            placement=placement,
            activation=2,
            mem_limit=limit,
            name=name,
            **costs(profile, size),
        )
        yield Instance(name, f"two chunks p={size}", pipeline)


def large() -> Iterator[Instance]:
    """64 devices, 1024 microbatches."""
    for profile, limit in product(("28.3b", "random-1"), (64, 96)):
        name = f"{profile} p=64 m=1024 K={limit}"
        pipeline = Pipeline(
            stages=64, batches=1024, mem_limit=limit, name=name, **costs(profile, 64)
        )
        yield Instance(name, "large", pipeline)


def drawn() -> Iterator[Instance]:
    """40 pipelines unlike those that the search was tuned on, by a fixed seed.

    8 to 64 devices, up to four chunks and 1,024 microbatches, unequal stages, and a matrix of p2p
    times: 1 within a node of eight devices, up to 8 between nodes. Limits are shares of what all
    chunks of a microbatch per device allocate.
    """
    rng = Random("drawn")
    for index in range(40):
        size, chunks = rng.choice((8, 16, 32, 64)), rng.choice((1, 1, 2, 3, 4))
        batches = size * rng.choice((1, 2, 4, 8, 16))
        share = rng.choice((Fraction(3, 4), Fraction(1), Fraction(3, 2)))
        between = rng.randint(1, 8)
        times = [[chunks * rng.randint(8, 14) for _ in range(size)] for _ in range(3)]
        placement = "linear" if chunks == 1 else rng.choice(("v", "interleaved"))
        limit = int(share * size * chunks)
        name = f"drawn {index}: {placement} p={size} m={batches} K={limit} chunks={chunks}"
        pipeline = Pipeline(
            stages=size,
            batches=batches,
            forward=times[0],
            backward_input=times[1],
            weight=times[2],
            p2p=[
                [0 if a == b else 1 if a // 8 == b // 8 else between for b in range(size)]
                for a in range(size)
            ],
            placement=placement,
            chunks=chunks,
            activation=chunks,
            mem_limit=limit,
            name=name,
        )
        yield Instance(name, "drawn", pipeline)


def spans() -> Iterator[Instance]:
    """Device span on the measured pipelines of the zero-bubble paper, at p and 2p activations."""
    from ppopt.formats.config import pipeline_of  # noqa: PLC0415
    from ppopt.formats.models import model_names, read_settings  # noqa: PLC0415

    for model in model_names():
        if not model.startswith("zb-"):
            continue
        settings = read_settings(model)
        for times in (1, 2):
            limit = times * settings["stages"] * settings["activation"]
            pipeline = pipeline_of(settings | {"mem_limit": limit})
            name = f"{model} {times}p"
            yield Instance(name, "device span", pipeline, Objective.DEVICE_SPAN)


def lists() -> dict[str, Iterator[Instance]]:
    """The four lists that make up the suite."""
    return {"linear": linear(), "two_chunks": two_chunks(), "spans": spans(), "large": large()}


def full() -> Iterator[Instance]:
    """The whole suite."""
    return chain(*lists().values())


def core() -> Iterator[Instance]:
    """The part of it for every day: chosen by place in the lists, not by result."""
    for name, instances in lists().items():
        yield from islice(instances, 0, None, CORE_STEPS[name])


TRAITS: dict[str, dict[str, Any]] = {
    "mixed": {"memory_b": "0.5"},
    "recompute": {"recompute_time": 4, "kept": "0.25"},
    "step work": {"unshard": 30, "gradient_sync": 40, "optimizer": 15, "optimizer_barrier": True},
    "offload": {"offload_memory": "0.5", "offload_time": 9},
    "streams": {"link_mode": "streams", "p2p": 5},
    "exclusive links": {"link_mode": "exclusive", "p2p": 6},
    "routes": {"routes": 2},
    "routes with pairs": {"routes": 2, "overlap": 27},
    "slices": {"slices": 2},
    "frozen": {"frozen": True},
    "microbatches": {"microbatch_times": True},
    "device span": {},
    "whole": {},
    "long": {"batches": 300},
}
"""Fields of the pipelines of `varied`, by what they have and plain pipelines lack."""


def varied() -> Iterator[Instance]:
    """Pipelines with what the other lists lack: two sizes, and two limits where memory is tight."""
    for trait, size, share in product(TRAITS, (4, 8), (Fraction(3, 4), Fraction(5, 4))):
        rng, fields = Random(f"{trait} {size} {share}"), dict(TRAITS[trait])
        rows = ([rng.randint(8, 14) for _ in range(size)] for _ in range(3))
        forward, backward_input, weight = rows
        fields = {"batches": 3 * size - size % 2, "p2p": 1, "mem_limit": int(share * size)} | fields
        if trait == "mixed":
            both = zip(backward_input, weight, strict=True)
            fields["backward"] = [sum(pair) - rng.randint(1, 6) for pair in both]
        if "frozen" in fields:
            fields["frozen"] = [stage < size // 2 for stage in range(size)]
        if "microbatch_times" in fields:
            fields["microbatch_times"] = rng.choices(("0.5", 1, 1, "1.5"), k=fields["batches"])
            fields["microbatch_memory"] = [1] * fields["batches"]
        name = f"{trait} p={size} K={fields['mem_limit']}"
        pipeline = Pipeline(
            stages=size,
            forward=forward,
            backward_input=backward_input,
            weight=weight,
            name=name,
            **fields,
        )
        span = trait == "device span"
        objective = Objective.DEVICE_SPAN if span else Objective.MAKESPAN
        kind = "whole" if trait in ("whole", "recompute") else "mixed" if trait == "mixed" else None
        yield Instance(name, trait, pipeline, objective, kind)


def race() -> Iterator[Instance]:
    """The part of the core that plain CP-SAT may prove: makespan, at most 800 operations."""
    for instance in core():
        makespan = instance.objective is Objective.MAKESPAN
        if makespan and operations(instance.pipeline) <= 800:
            yield instance


def operations(pipeline: Pipeline) -> int:
    """Number of its operations, every backward split."""
    return 3 * pipeline.num_stages * pipeline.batches
