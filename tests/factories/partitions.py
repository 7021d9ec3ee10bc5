"""Random layers to be cut into stages: small enough to try every partition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from random import Random

import numpy as np

from ppopt.problem.arrays import Ints
from ppopt.problem.pipeline import Pipeline
from ppopt.solver.partitions.space import STEP_COSTS, TIMES, PartitionSpace

PLACEMENTS = ((0, 1), (0, 1), (1, 0), (0, 1, 2), (0, 1, 1, 0), (0, 1, 0, 1), (0, 0), (0, 1, 0))
"""Device of every stage: linear, reversed, V, interleaved, one device, and one with no program."""


def draw_space(rng: Random, *, most_layers: int = 3, **fixed: object) -> PartitionSpace:
    """A space of few layers more than stages; times of 0, limits and both objectives are common."""
    hosts = rng.choice(PLACEMENTS)
    count = len(hosts) + rng.randint(1, most_layers)
    shortest = rng.choice((0, 1, 1))
    partial, weight = ([rng.randint(shortest, 5) for _ in range(count)] for _ in range(2))
    activation = [rng.randint(1, 4) for _ in range(count)]
    signed = rng.random() < 0.5
    layers = layer_costs(
        [rng.randint(1, 5) for _ in range(count)],
        partial,
        weight,
        list(map(sum, zip(partial, weight, strict=True))),
        activation,
        [rng.randint(-a, 3) if signed else 0 for a in activation],
        [rng.randint(0, 3) for _ in range(count)],
    )
    whole = rng.random() < 0.3
    settings: dict[str, object] = {
        "batches": rng.randint(1, 3 if len(hosts) < 4 else 2),
        "limits": _limits(rng, layers, max(hosts) + 1) if rng.random() < 0.7 else None,
        "split": not whole,
        "whole": whole,
        "span": rng.random() < 0.4,
    }
    delays = _delays(rng, hosts, count)
    return PartitionSpace(
        **{"layers": layers, "hosts": hosts, "delays": delays, **settings, **fixed}
    )  # type: ignore[arg-type]


def layer_costs(*rows: Sequence[int]) -> dict[str, Sequence[int]]:
    """Costs of layers: the times of F, B, W and BW, activation, change by B, and static memory."""
    return dict(zip((*TIMES, "activation", "memory_b", "static"), rows, strict=True))


def with_step_work(space: PartitionSpace, rng: Random) -> PartitionSpace:
    """A space whose layers have work once per step: each kind of it in half of the spaces."""
    rows = {
        name: [rng.randint(0, 4) for _ in range(space.num_layers)]
        for name in STEP_COSTS
        if rng.random() < 0.5
    }
    return replace(space, layers={**space.layers, **rows})


def _delays(rng: Random, hosts: tuple[int, ...], count: int) -> Ints:
    """Delays by p2p time, or by the output of every layer."""
    by_size = rng.random() < 0.5
    rows = []
    for _ in range(2):
        time = rng.choice((0, 0, 1, 3))
        times = tuple(rng.randint(0, 3) if by_size else time for _ in range(count + 1))
        none = (0,) * (count + 1)
        rows.append(tuple(times if before != after else none for before, after in pairwise(hosts)))
    return np.array(rows)


def _limits(rng: Random, layers: dict[str, Sequence[int]], devices: int) -> tuple[int, ...]:
    mean = (sum(layers["activation"]) + sum(layers["static"])) / devices
    return tuple(int(mean * rng.uniform(0.7, 2.5)) for _ in range(devices))


def pipeline_of(space: PartitionSpace, counts: tuple[int, ...]) -> Pipeline:
    """The pipeline of one partition."""
    costs = {name: _sums(row, counts) for name, row in space.layers.items()}
    cuts = list(accumulate(counts))[:-1]
    down, up = (
        [row[cut] for row, cut in zip(rows, cuts, strict=True)] for rows in space.delays.tolist()
    )
    return Pipeline(
        stages=len(counts),
        batches=space.batches,
        placement=space.hosts,
        p2p=down,
        backward_p2p=up,
        mem_limit=None if space.limits is None else list(space.limits),
        **costs,
    )


def _sums(row: Sequence[int], counts: tuple[int, ...]) -> list[int]:
    ends = [sum(counts[: stage + 1]) for stage in range(len(counts))]
    return [sum(row[end - count : end]) for end, count in zip(ends, counts, strict=True)]
