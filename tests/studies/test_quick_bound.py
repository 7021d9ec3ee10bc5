"""The quick bound of a plan space, by hand and against the optimum of tiny models."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations
from random import Random
from typing import Any

import pytest

from ppopt import Model
from ppopt.studies.plan_space import PlanSpace
from ppopt.studies.quick_bound import quick_bound
from tests.oracles.exhaustive import best_mixed
from tests.tiers import first


def space(layers: list[dict[str, Any]], limit: int | None, **more: Any) -> PlanSpace:
    fields: dict[str, Any] = {} if limit is None else {"mem_limit": limit}
    fields |= {"offload": more.pop("offload", None)}
    options = {"devices": 2, "batches": (3,), "placements": ("linear",), "chunks": (1,)} | more
    return PlanSpace(Model(layers), **options, fields=fields)


def bound(layers: list[dict[str, Any]], limit: int | None, **more: Any) -> Fraction | None:
    return quick_bound(
        space(layers, limit, **more), None if limit is None else (Fraction(limit),) * 2
    )


TWO = [{"forward": 1, "activation": 2, "static": 1, "kept": 1} for _ in range(2)]
"""F 1, B 1, W 1: the first layer keeps 2 for 4, the second for 2."""


def test_work_over_devices_by_hand() -> None:
    """Three microbatches of two layers of 3, on two devices; an optimizer of 1."""
    assert bound(TWO, None) == 9
    assert bound([{"forward": 1, "optimizer": 1}, {"forward": 1}], None) == Fraction(19, 2)
    assert bound([{"forward": 1, "backward": 4, "weight": 3, "input": 2}] * 2, None) == 15


@pytest.mark.parametrize(
    ("limit", "recompute", "minimum"),
    [(100, "none", 9), (2, "none", 18), (2, "full", 12), (1, "none", None), (0, "full", None)],
)
def test_memory_by_hand(limit: int, recompute: str, minimum: int | None) -> None:
    """Limits of 2 leave headroom of 2: 3 x (2 x 4 + 2 x 2) / 2 = 18. With recompute
    each layer keeps half, 9, and the work is 3 x 8 / 2 = 12."""
    assert bound(TWO, limit, recompute=(recompute,)) == minimum


def test_a_choice_of_recompute_by_hand() -> None:
    """Both at limit 2: work 9 + 3/2 a + 3/2 b, memory 18 - 6 a - 3 b for shares a, b. The first
    layer saves more: all of it leaves 12 above 10.5; then b = 1/3 makes both 11."""
    assert bound(TWO, 2, recompute=("none", "full", "search")) == 11


def test_a_choice_of_offload_by_hand() -> None:
    """Half of the first activation moves: the memory needs 3 x (1 x 4 + 2 x 2) / 2 = 12."""
    layers = [TWO[0] | {"offload_memory": 1, "offload_time": 9}, TWO[1]]
    assert bound(layers, 2, recompute=("none",), offload="search") == 12
    assert bound(layers, 2, recompute=("none",), offload="none") == 18


def test_microbatches_that_differ_by_hand() -> None:
    """Factors on times 1 + 4 + 1 = 6, products with those on memory 1 + 8 + 1 = 10."""
    factors = [(Fraction(time), Fraction(memory)) for time, memory in ((1, 1), (4, 2), (1, 1))]
    unlimited, limited = space(TWO, None), space(TWO, 2, recompute=("none",))
    assert quick_bound(unlimited, None, factors) == 6 * 6 / 2
    assert quick_bound(limited, (Fraction(2),) * 2, factors) == Fraction(10 * 12, 2)


@pytest.mark.parametrize("seed", first(25, range(120)))
def test_no_bound_is_above_the_optimum(seed: int) -> None:
    """Tiny random models in tight memory: every partition and choice of recompute, exhaustively."""
    rng = Random(seed)
    layers = [
        {
            "forward": rng.randint(1, 3),
            "backward": rng.randint(1, 5),
            "weight": rng.randint(0, 2),
            "input": rng.randint(0, 3),
            "activation": (activation := rng.randint(index == 0, 4)),
            "kept": rng.randint(0, activation),
            "static": rng.randint(0, 1),
        }
        for index in range(3)
    ]
    total = sum(layer["activation"] + layer["static"] for layer in layers)
    limit = rng.randint(1 + total // 3, 2 + total)
    modes = rng.choice((("none",), ("full",), ("search",), ("none", "full")))
    plan_space = space(layers, limit, recompute=modes, batches=(rng.randint(1, 3),))
    choices = {"none": [()], "full": [(0, 1, 2)]}
    choices["search"] = [c for n in range(4) for c in combinations(range(3), n)]
    optima = [
        None if optimum is None else pipeline.ticks.time(optimum)
        for chosen in {choice for mode in modes for choice in choices[mode]}
        for counts in ((1, 2), (2, 1))
        for pipeline in [
            plan_space.model.with_choice(dict.fromkeys(chosen, True), {}).pipeline(
                devices=2, batches=plan_space.batches[0], partition=counts, mem_limit=limit
            )
        ]
        for optimum in [best_mixed(pipeline, objective="makespan")]
    ]
    lower = quick_bound(plan_space, (Fraction(limit),) * 2)
    reached = [optimum for optimum in optima if optimum is not None]
    if reached:
        assert lower is not None and lower <= min(reached)
