"""Placement chosen with partition or recompute: against every placement and configuration."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import combinations, pairwise, product
from random import Random
from typing import Any

import pytest

import ppopt
from ppopt import InputError, Status, Verdict

SPEEDS = {2: (1, 3), 3: (1, 2, 1)}
LIMITS = {2: (9, 14), 3: (9, 14, 8)}


def drawn(seed: int, layers: int = 5) -> ppopt.Model:
    rng = Random(seed)
    return ppopt.Model(
        [
            ppopt.Layer(
                forward=rng.randint(1, 3),
                backward=rng.randint(2, 5),
                weight=1,
                activation=rng.randint(2, 4),
                kept=1,
                static=1,
            )
            for _ in range(layers)
        ]
    )


def pipeline(model: ppopt.Model, devices: int, **more: Any) -> ppopt.Pipeline:
    """A pipeline on devices that differ in speed and memory."""
    own = {"device_speed": SPEEDS[devices], "mem_limit": LIMITS[devices], **more}
    return model.pipeline(devices=devices, batches=3, **own)


def every_value(
    model: ppopt.Model, devices: int, recompute: str, stages: int
) -> Iterator[Fraction]:
    """Values of all placements that use every device, with every partition."""
    for hosts in product(range(devices), repeat=stages):
        if len(set(hosts)) < devices:
            continue
        for cuts in combinations(range(1, len(model)), stages - 1):
            ends = (0, *cuts, len(model))
            counts = tuple(high - low for low, high in pairwise(ends))
            more = {"placement": hosts, "partition": counts, "recompute": recompute}
            found = ppopt.solve(pipeline(model, devices, **more), workers=1, time_limit=60)
            assert found.status in (Status.OPTIMAL, Status.INFEASIBLE)
            if found.value is not None:
                yield found.value


@pytest.mark.parametrize(
    ("devices", "stages", "recompute", "seed"),
    [(2, 2, "none", 0), (2, 2, "search", 1), (3, 3, "none", 1), (2, 3, "none", 2)],
)
def test_agrees_with_every_placement_and_partition(
    devices: int, stages: int, recompute: str, seed: int
) -> None:
    model = drawn(seed)
    start = tuple(stage % devices for stage in range(stages))
    given = pipeline(model, devices, placement=start, partition="search", recompute=recompute)
    found = ppopt.solve(given, placement="search", workers=1, time_limit=60)
    best = min(every_value(model, devices, recompute, stages), default=None)
    assert found.value == best
    assert found.lower_bound is None or (best is not None and found.lower_bound <= best)
    assert found.schedule is not None
    checked = ppopt.recheck(found.schedule, workers=1)
    assert checked.verdict is not Verdict.WRONG


def test_recompute_with_the_layers_cut_by_rule() -> None:
    """The least of all placements, each with its own balanced cut and choice of recompute."""
    model = drawn(3)
    more = {"partition": "balanced", "recompute": "search", "mem_limit": (12, 20)}
    found = ppopt.solve(pipeline(model, 2, placement="search", **more), workers=1)
    each = [
        ppopt.solve(pipeline(model, 2, placement=hosts, **more), workers=1).value
        for hosts in ((0, 1), (1, 0))
    ]
    assert found.status is Status.OPTIMAL
    assert found.value == min(value for value in each if value is not None)


def test_too_many_placements_are_refused_with_what_to_do() -> None:
    given = drawn(1, 12).pipeline(
        devices=6, batches=2, device_speed=(1, 2, 3, 4, 5, 6), placement="search"
    )
    with pytest.raises(InputError, match="search the placement alone, then give the one found"):
        ppopt.solve(ppopt.Pipeline(**{**fields(given), "partition": "search"}))


def fields(given: ppopt.Pipeline) -> dict[str, Any]:
    """What the pipeline was made of."""
    names = ("stages", "batches", "model", "device_speed", "placement")
    return {name: getattr(given, name) for name in names}
