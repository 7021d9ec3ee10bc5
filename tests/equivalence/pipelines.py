"""Pipelines whose backwards are all split or all whole: costs, placements and limits are given.

Every draw returns the arguments of `ppopt.Pipeline` and those of `ppopt.solve`. Backwards are split
where the draw does not say otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

Fields = dict[str, Any]
Draw = Callable[[Random], tuple[Fields, Fields]]
WHOLE = {"backward_kind": "whole"}
SPLIT = {"backward_kind": "split"}


def linear(rng: Random) -> tuple[Fields, Fields]:
    """Draw one stage per device, without memory limits."""
    devices = rng.randint(1, 6)
    fields = {
        "stages": devices,
        "batches": rng.randint(1, 3 * devices + 2),
        "p2p": rng.choice((0, 0, 1, "0.5")),
        **times(rng, devices),
    }
    return fields, _options(rng)


def limited(rng: Random) -> tuple[Fields, Fields]:
    """Draw one stage per device with limits from two activations to the whole of 1F1B's."""
    fields, options = linear(rng)
    devices = fields["stages"]
    fields["mem_limit"] = rng.choice(
        ("1f1b", devices, devices + 1, max(2, devices - 1), 2, [devices] * devices)
    )
    return fields, options


def infeasible(rng: Random) -> tuple[Fields, Fields]:
    """Draw a pipeline of any placement whose limit is below what one microbatch needs."""
    fields, options = rng.choice((linear, chunked, explicit))(rng)
    entries = fields["stages"]
    fields["activation"] = [rng.randint(2, 5) for _ in range(entries)]
    fields["static"] = [rng.randint(0, 3) for _ in range(entries)]
    fields["mem_limit"] = rng.choice((1, "1.5", 0))
    return fields, options


def chunked(rng: Random, placement: str | None = None) -> tuple[Fields, Fields]:
    """Draw two or three stages per device, in a named placement."""
    devices, chunks = rng.choice(((2, 2), (2, 2), (2, 3), (3, 2), (4, 2)))
    fields = {
        "stages": devices,
        "chunks": chunks,
        "batches": rng.randint(1, 4 if chunks * devices > 4 else 6),
        "placement": placement or rng.choice(("v", "interleaved")),
        "p2p": rng.choice((0, 0, 1, 2)),
        **times(rng, devices, whole=chunks),
    }
    if rng.random() < 0.6:
        # In activations of a whole share: at least one, cut into chunks or not.
        fields["mem_limit"] = rng.choice(("1f1b", 1, 2, devices, devices + 1))
    return fields, _options(rng)


def explicit(rng: Random) -> tuple[Fields, Fields]:
    """Draw a list of devices, of as many stages each or not."""
    devices = rng.randint(2, 4)
    hosts = [*range(devices), *rng.choices(range(devices), k=rng.randint(0, 3))]
    rng.shuffle(hosts)
    fields = {
        "stages": len(hosts),
        "placement": hosts,
        "batches": rng.randint(1, 5),
        "p2p": rng.choice((0, 1, matrix_of(rng, devices))),
        **times(rng, len(hosts)),
    }
    if rng.random() < 0.5:
        most = max(hosts.count(device) for device in range(devices))
        fields["mem_limit"] = most + rng.randint(0, 3)
    return fields, _options(rng)


def matrix(rng: Random) -> tuple[Fields, Fields]:
    """Draw links of unequal times, other ones on the way back."""
    fields, options = rng.choice((linear, limited, chunked))(rng)
    fields["p2p"] = matrix_of(rng, fields["stages"])
    return fields, options


def unequal(rng: Random) -> tuple[Fields, Fields]:
    """Draw stages that differ in every cost."""
    devices = rng.randint(2, 5)
    fields = {
        "stages": devices,
        "batches": rng.randint(2, 2 * devices),
        "p2p": rng.choice((0, "0.25", 1)),
        **lists(rng, devices),
        "activation": [rng.randint(1, 4) for _ in range(devices)],
        "static": [rng.randint(0, 5) for _ in range(devices)],
        "mem_limit": [rng.randint(9, 16) for _ in range(devices)],
    }
    return fields, _options(rng)


def memory_b(rng: Random) -> tuple[Fields, Fields]:
    """Draw a B that takes memory, gives some back, or does both on different stages."""
    fields, options = rng.choice((limited, chunked, explicit))(rng)
    entries = fields["stages"]
    fields["activation"] = 4
    fields["memory_b"] = [rng.choice((-4, -2, 0, 1, 2)) for _ in range(entries)]
    fields["mem_limit"] = 4 * rng.randint(1, 4) + rng.choice((0, 2, 8))
    return fields, options


def instant(rng: Random) -> tuple[Fields, Fields]:
    """Draw B and W of no length."""
    fields, options = rng.choice((linear, limited, explicit))(rng)
    fields.pop("backward", None)
    entries = fields["stages"]
    fields["backward_input"] = rng.choice((0, [rng.randint(0, 1) for _ in range(entries)]))
    fields["weight"] = [rng.randint(0, 2) for _ in range(entries)]
    return fields, options


def spans(rng: Random) -> tuple[Fields, Fields]:
    """Draw a pipeline of any kind under device span."""
    fields, options = rng.choice((linear, limited, chunked, explicit, unequal))(rng)
    return fields, {**options, "objective": "device-span"}


def fused(rng: Random) -> tuple[Fields, Fields]:
    """Draw a pipeline of any kind whose backwards are whole."""
    fields, options = rng.choice((linear, limited, chunked, explicit, unequal))(rng)
    return fields, {**options, **WHOLE}


def paired(rng: Random) -> tuple[Fields, Fields]:
    """Draw a forward and a backward that take less time together."""
    devices = rng.randint(1, 3)
    forward, backward = rng.choice(((1, 2), (2, 3), (2, 4)))
    fields: Fields = {
        "stages": devices,
        "batches": rng.randint(2, 5 if devices < 3 else 3),
        "forward": forward,
        "backward": backward,
        "overlap": rng.choice((backward, forward + backward - 1)),
        "p2p": rng.choice((0, 0, 1)),
        "mem_limit": rng.choice((None, 2, 3)),
    }
    if devices == 2 and rng.random() < 0.3:
        fields |= {"placement": rng.choice(("v", "interleaved")), "batches": 2}
    options = _options(rng)
    return fields, {**options, **(WHOLE if rng.random() < 0.7 else SPLIT)}


def routes(rng: Random) -> tuple[Fields, Fields]:
    """Draw two routes: half of the microbatches run the stages in mirrored placement."""
    devices = rng.randint(2, 4)
    fields = {
        "stages": devices,
        "routes": 2,
        "batches": 2 * rng.randint(1, 4 if devices < 4 else 2),
        "p2p": rng.choice((0, 0, 1)),
        **times(rng, devices),
        "mem_limit": rng.choice((None, None, devices, devices + 1, 2)),
    }
    return fields, _options(rng)


def slices(rng: Random) -> tuple[Fields, Fields]:
    """Draw microbatches that run in slices."""
    devices, parts = rng.randint(1, 4), rng.choice((2, 2, 3))
    fields = {
        "stages": devices,
        "slices": parts,
        "batches": rng.randint(1, 3),
        "p2p": rng.choice((0, 0, 1)),
        **times(rng, devices, whole=parts),
        "mem_limit": rng.choice((None, 1, 2, devices)),
    }
    return fields, _options(rng)


def long(rng: Random) -> tuple[Fields, Fields]:
    """Draw many microbatches on a few devices, at limits of p activations and above."""
    devices = rng.choice((2, 4, 4, 8))
    fields = {
        "stages": devices,
        "batches": rng.choice((64, 128, 256)),
        "p2p": rng.choice((0, "0.408", 1)),
        "mem_limit": rng.choice((None, devices, devices + 2, 2 * devices)),
        **_measured(rng, devices),
    }
    return fields, {}


def tight(rng: Random) -> tuple[Fields, Fields]:
    """Draw one stage per device with memory for fewer activations than devices."""
    devices = rng.randint(4, 8)
    fields = {
        "stages": devices,
        "batches": rng.randint(devices, 2 * devices),
        "p2p": rng.choice((0, "0.5", 1)),
        **_measured(rng, devices),
        "mem_limit": rng.randint(devices // 2 + 1, devices - 1),
    }
    return fields, {}


def wide(rng: Random) -> tuple[Fields, Fields]:
    """Draw many devices."""
    devices = rng.choice((8, 12, 16, 24))
    fields = {
        "stages": devices,
        "batches": rng.choice((1, 2, 4)) * devices,
        "p2p": rng.choice((0, "0.5", 1)),
        **_measured(rng, devices),
        "mem_limit": rng.choice((None, devices, 5 * devices // 4, 2 * devices)),
    }
    return fields, {"objective": "device-span"} if rng.random() < 0.3 else {}


def waves(rng: Random) -> tuple[Fields, Fields]:
    """Draw two stages on each of four devices, with memory for 4 to 8 chunks."""
    fields = {
        "stages": 4,
        "placement": rng.choice(("v", "interleaved")),
        "batches": rng.choice((4, 6, 8, 12)),
        "p2p": rng.choice((0, "0.5", 1)),
        **_measured(rng, 4),
        "activation": 2,
        "mem_limit": rng.choice((None, *range(4, 9))),
    }
    return fields, {}


def _measured(rng: Random, entries: int) -> Fields:
    """Draw times as they are measured: of other ratios than small whole numbers have."""
    costs: tuple[Fields, ...] = (
        {"forward": "18.522", "backward_input": "18.086", "weight": "9.337"},
        {"forward": "10.419", "backward_input": "10.207", "weight": "7.715"},
        {"forward": 10, "backward_input": 10, "weight": 14},
        {
            name: [rng.randint(8, 14) for _ in range(entries)]
            for name in ("forward", "backward_input", "weight")
        },
    )
    return rng.choice(costs)


def _options(rng: Random) -> Fields:
    """Draw what is no property of the pipeline: mostly the defaults."""
    options: Fields = {}
    if rng.random() < 0.15:
        options |= WHOLE
    if rng.random() < 0.15:
        options["objective"] = "device-span"
    return options


def times(rng: Random, entries: int, whole: int = 1) -> Fields:
    """Draw times, equal on all stages or not; multiples of `whole`, so that they can be cut."""
    if rng.random() < 0.4:
        return lists(rng, entries, whole)
    forward, backward, weight = rng.choice(((1, 2, 1), (2, 3, 1), (1, 3, 2), (3, 5, 3)))
    return {"forward": whole * forward, "backward": whole * backward, "weight": whole * weight}


def lists(rng: Random, entries: int, whole: int = 1) -> Fields:
    """Draw unequal times of F, B and W; multiples of `whole`."""
    names = ("forward", "backward_input", "weight")
    return {name: [whole * rng.randint(1, 4) for _ in range(entries)] for name in names}


def matrix_of(rng: Random, devices: int) -> list[list[int]]:
    """Draw the times of links [from device][to device]."""
    size = range(devices)
    return [[0 if here == there else rng.randint(0, 3) for there in size] for here in size]


GROUPS: dict[str, tuple[int, Draw]] = {
    "linear": (24, linear),
    "limited": (30, limited),
    "infeasible": (16, infeasible),
    "v": (20, partial(chunked, placement="v")),
    "interleaved": (20, partial(chunked, placement="interleaved")),
    "explicit": (26, explicit),
    "matrix": (16, matrix),
    "unequal": (20, unequal),
    "memory-b": (24, memory_b),
    "instant": (16, instant),
    "spans": (26, spans),
    "fused": (26, fused),
    "paired": (24, paired),
    "routes": (24, routes),
    "slices": (20, slices),
    "long": (14, long),
    "tight": (30, tight),
    "wide": (16, wide),
    "waves": (30, waves),
}
"""How many instances of each kind are drawn, and how."""
OPEN = frozenset(
    {
        "linear-16",
        "memory-b-05",
        *(f"tight-{number:02}" for number in (3, 5, 17, 25, 26)),
        *(f"waves-{number:02}" for number in (0, 1, 7, 8, 10, 11, 14, 16, 19, 20, 22, 25, 27, 29)),
    }
)
"""Drawn instances that are left out: their search does not end by proof within about 10 s."""
