"""Models in layers: partition, recompute and placement are chosen with the schedule, or by a plan.

Every draw returns the fields of `ppopt.Pipeline` and the arguments of the study. Costs of recompute
are written out, an embedding or a head says that it recomputes, and no draw asks for `full`: what a
trainer means by it is not to matter here.
"""

from __future__ import annotations

from random import Random
from typing import Any

from tests.equivalence.pipelines import Draw, Fields

ALL = ("partition", "recompute", "placement")
"""What may be chosen with the schedule."""


def layers(rng: Random, count: int, *, recompute: bool = False) -> list[Fields]:
    """Draw a model of so many layers; `recompute`: each may keep a part of its activation."""
    forward, weight = rng.choice((2, 3, 4)), rng.choice((1, 2))
    made = []
    for place in range(count):
        own = forward + rng.choice((0, 0, 1, 2))
        taken = rng.randint(2, 4)
        layer: Fields = {
            "forward": own,
            "backward": 2 * own + rng.choice((0, 0, 1)),
            "weight": weight + rng.choice((0, 0, 1)),
            "activation": taken,
            "static": rng.choice((0, 1, 2)),
            "output": 1,
        }
        if recompute:
            layer |= {"recompute_time": rng.randint(1, own), "kept": rng.randint(0, taken // 2)}
        if place == 0 and count > 4 and rng.random() < 0.5:
            layer |= {"role": "embedding", "forward": 1, "backward": 1, "weight": 1}
        if place == count - 1 and count > 4 and rng.random() < 0.5:
            layer |= {"role": "head", "workspace": 1}
        if recompute and "role" in layer:
            layer["recompute"] = True
        made.append(layer)
    return made


def chosen(rng: Random, *what: str) -> tuple[Fields, Fields]:
    """Draw a pipeline whose `what` (of `ALL`) is chosen with the schedule."""
    devices = rng.choice((2, 2, 3))
    size = rng.randint(devices + 1, 2 * devices + 1)
    placement = rng.choice((None, None, "v")) if devices == 2 else None
    stages = devices
    if "placement" in what:
        stages, placement = devices + rng.randint(0, 1), "search"
    model = layers(rng, max(size, 2 * stages), recompute="recompute" in what)
    fields: Fields = {
        "stages": stages,
        "batches": rng.randint(2, 4) if "placement" in what else rng.randint(2, 6),
        "model": model,
        "placement": placement,
        "p2p": rng.choice((0, 0, 1)),
        "mem_limit": _limit(rng, model, devices, tight="recompute" in what),
    }
    if "placement" in what and isinstance(fields["mem_limit"], list):
        fields["mem_limit"] = max(fields["mem_limit"])
    fields |= {name: "search" for name in ("partition", "recompute") if name in what}
    return fields, _options(rng)


def placements(rng: Random) -> tuple[Fields, Fields]:
    """Draw stages given by hand whose placement is chosen with the schedule."""
    stages = rng.randint(2, 4)
    fields: Fields = {
        "stages": stages,
        "batches": rng.randint(1, 4),
        "placement": "search",
        "forward": [rng.randint(1, 4) for _ in range(stages)],
        "backward_input": [rng.randint(1, 4) for _ in range(stages)],
        "weight": [rng.randint(1, 3) for _ in range(stages)],
        "p2p": rng.choice((0, 1)),
        "activation": [rng.randint(1, 3) for _ in range(stages)],
        "mem_limit": rng.choice((None, 5, 7, 9)),
    }
    return fields, _options(rng)


def streamed(rng: Random) -> tuple[Fields, Fields]:
    """Draw a search of partition or recompute over streams."""
    fields, options = chosen(rng, rng.choice(ALL[:2]))
    return {**fields, "p2p": 1, "batches": 2, "link_mode": "streams"}, options


def plans(rng: Random) -> tuple[Fields, Fields]:
    """Draw a plan of a tiny model: placements, chunks, recompute, batch counts."""
    devices = 2
    model = layers(rng, 4, recompute=True)
    recompute = rng.choice((["none"], ["none", "search"], ["search"]))
    arguments: Fields = {
        "model": model,
        "devices": devices,
        "batches": rng.choice((2, 3, [2, 4])),
        "placement": rng.choice((["linear"], ["linear", "v"], ["linear", "interleaved", "v"])),
        "recompute": recompute,
        "p2p": rng.choice((0, 1)),
    }
    if rng.random() < 0.7 or "search" in recompute:
        arguments["mem_limit"] = _limit(rng, model, devices, tight=True)
    return arguments, _options(rng)


def hand_plans(rng: Random) -> tuple[Fields, Fields]:
    """Draw a plan that also chooses among hand strategies, on the partition given."""
    arguments, options = plans(rng)
    arguments |= {
        "strategies": rng.choice((["1f1b"], ["1f1b", "zb-h1"], ["optimal", "1f1b", "gpipe"])),
        "partition": rng.choice(("balanced", "even")),
        "placement": ["linear"],
        "recompute": ["none"],
    }
    arguments.pop("mem_limit", None)
    options.pop("backward_kind", None)
    return arguments, options


def curves(rng: Random, *what: str) -> tuple[Fields, Fields]:
    """Draw a pipeline for a frontier, on which `what` (of `ALL`) is chosen with the schedule."""
    fields, options = chosen(rng, *what)
    fields |= {"mem_limit": None, "batches": rng.randint(1, 3)}
    return fields, options


def _limit(rng: Random, model: list[Fields], devices: int, *, tight: bool) -> Any:
    """No limit, one for all devices, or one each: about two microbatches of a device's share."""
    share = sum(layer["activation"] for layer in model) // devices
    static = sum(layer["static"] for layer in model) // devices
    most = static + share + rng.randint(1, share + (0 if tight else share))
    form = rng.randrange(3) if not tight else rng.randint(1, 2)
    if form == 0:
        return None
    return most if form == 1 else [most + rng.randint(0, 2) for _ in range(devices)]


def _options(rng: Random) -> Fields:
    """Draw objective and kind of backwards: mostly the defaults."""
    options: Fields = {}
    if rng.random() < 0.25:
        options["objective"] = "device-span"
    if rng.random() < 0.5:
        options["backward_kind"] = rng.choice(("split", "whole"))
    return options


def choosing(*what: str) -> Draw:
    """The draw of a pipeline whose `what` is chosen with the schedule."""
    return lambda rng: chosen(rng, *what)


def curve_over(*what: str) -> Draw:
    """The draw of a frontier over `what`."""
    return lambda rng: curves(rng, *what)
