"""Layers and modules that recompute or offload, against every schedule of every choice."""

from __future__ import annotations

from fractions import Fraction
from random import Random
from typing import Any

from ppopt.problem.decisions import SEARCH
from tests.fuzz import pipelines
from tests.fuzz.category import Case
from tests.fuzz.choices import MORE, Choice
from tests.fuzz.searches import draw_options, is_fused
from tests.oracles.offload_choices import least_of_all


class Offload(Choice):
    """Offload, mostly with recompute, of one partition or all, by layer or by module."""

    name = "offload"
    goal = 300
    tries = 60

    def draw(self, rng: Random) -> Case:
        """Draw two or three layers on one or two devices, and memory limits."""
        options = draw_options(rng, short=0.1)
        stages = rng.randint(1, 2)
        count, batches = rng.choice(((2, 2), (3, 1)) if stages == 1 else ((2, 1), (3, 1)))
        model = [_layer(rng) for _ in range(count)]
        model[0] |= {"offload_time": 1, "offload_memory": 1}  # else no layer can offload
        fields = {
            "stages": stages,
            "batches": batches,
            "model": model,
            "partition": rng.choice((SEARCH, SEARCH, [1] * (stages - 1) + [count - stages + 1])),
            "host_link": rng.choice(("duplex", "shared")),
            "offload": SEARCH,
            "recompute": rng.choice((SEARCH, SEARCH, "none")),
            "mem_limit": rng.randint(2, 9),
        }
        return {"pipeline": fields, "options": options, "more": rng.choice(MORE)}

    def expected(self, case: Case) -> Fraction | None:
        """Least value over all choices, in the user's unit; None: none has a schedule."""
        options = case["options"]
        span = options["objective"] == "device-span"
        return least_of_all(pipelines.pipeline_of(case), whole=is_fused(options), span=span)


def _layer(rng: Random) -> dict[str, Any]:
    """Draw a layer, every second one with modules, of which the second may be inside the first."""
    activation, time = rng.randint(1, 3), rng.randint(0, 2)
    layer: dict[str, Any] = {
        "forward": rng.randint(1, 2),
        "backward": 2,
        "activation": activation,
        "recompute_time": rng.randint(0, 2),
        "kept": rng.randint(0, 1),
        "offload_time": time,
        "offload_memory": rng.randint(1, activation) if time else 0,
    }
    if rng.random() < 0.5:
        return layer
    inside = activation == 1 or rng.random() < 0.5
    attention = {
        "name": "attention",
        "memory": activation - (not inside),
        "time": rng.randint(0, 1),
        "offload_time": rng.randint(0, 1),
    }
    softmax = {"name": "softmax", "memory": 1, "time": rng.randint(0, 1), "offload_time": 1}
    return layer | {"modules": [attention, softmax | ({"inside": "attention"} if inside else {})]}
