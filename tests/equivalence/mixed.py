"""Pipelines on which a backward may be split or whole, and pipelines whose links are streams."""

from __future__ import annotations

from random import Random

from tests.equivalence.pipelines import Draw, Fields

KINDS = ("shorter", "longer", "memory")
"""BW takes less than B + W; B alone takes longer than BW; B takes memory."""


def mixed(rng: Random) -> tuple[Fields, Fields]:
    """Draw one or two stages per device; neither kind of backward is better on all."""
    placement = rng.choice((None, None, None, "v", "interleaved"))
    devices = rng.randint(2, 4) if placement is None else 2
    fields: Fields = {
        "stages": devices,
        "batches": rng.randint(2, 4) if placement is None else 2,
        "placement": placement,
        "p2p": rng.choice((0, 0, 1)),
        **mixed_costs(rng, devices),
    }
    if rng.random() < 0.6:
        fields["mem_limit"] = 2 * rng.randint(2, devices + 1)
    return fields, _objective(rng)


def mixed_tight(rng: Random) -> tuple[Fields, Fields]:
    """Draw more microbatches in little memory, which take a search."""
    devices = rng.choice((3, 3, 4))
    fields: Fields = {
        "stages": devices,
        "batches": rng.randint(devices, 6),
        "p2p": rng.choice((0, 1)),
        **mixed_costs(rng, devices),
        "mem_limit": 2 * (devices - 1) + 1,
    }
    return fields, _objective(rng)


def mixed_limits(rng: Random) -> tuple[Fields, Fields]:
    """Draw another memory limit for every device, and static memory."""
    fields, options = mixed(rng)
    devices = fields["stages"]
    fields["static"] = [rng.randint(0, 2) for _ in range(devices)]
    fields["mem_limit"] = [rng.randint(6, 9) for _ in range(devices)]
    return fields, options


def mixed_pairs(rng: Random) -> tuple[Fields, Fields]:
    """Draw mixed backwards, an F and a backward of which may run as one."""
    fields, options = mixed(rng)
    forward, full = fields["forward"], fields["backward"]
    fields |= {"placement": None, "batches": 2, "memory_b": 0}
    fields["overlap"] = [max(one, other) + 1 for one, other in zip(forward, full, strict=True)]
    return fields, options


def mixed_routes(rng: Random) -> tuple[Fields, Fields]:
    """Draw mixed backwards on two routes."""
    fields, options = mixed(rng)
    return {**fields, "placement": None, "routes": 2, "batches": 2}, options


def mixed_slices(rng: Random) -> tuple[Fields, Fields]:
    """Draw mixed backwards of microbatches in two slices."""
    fields, options = mixed(rng)
    for name in ("forward", "backward_input", "weight", "backward", "activation"):
        fields[name] = [2 * number for number in fields[name]]
    fields |= {"placement": None, "slices": 2, "batches": rng.randint(1, 2), "memory_b": 0}
    fields["mem_limit"] = rng.choice((None, 8, 10))
    return fields, options


def one_kind(kind: str) -> Draw:
    """The draw of the same costs with backwards of one kind alone."""

    def draw(rng: Random) -> tuple[Fields, Fields]:
        fields, options = mixed(rng)
        return fields, {**options, "backward_kind": kind}

    return draw


def streams(rng: Random) -> tuple[Fields, Fields]:
    """Draw links that are streams; backwards are split, whole or mixed."""
    fields, options = mixed(rng)
    kind = rng.choice(("split", "whole", "mixed"))
    fields |= {"link_mode": "streams", "p2p": rng.choice((1, 1, 2, "0.5"))}
    return fields, {**options, "backward_kind": kind}


def streams_open(rng: Random) -> tuple[Fields, Fields]:
    """Draw streams with long transfers between chunks, and a search of two rounds: few are proved.

    Transfers of a pair of devices wait for one another, and the bound does not know it.
    """
    fields, options = streams(rng)
    fields |= {"stages": 2, "placement": rng.choice(("v", "interleaved")), "batches": 3}
    fields |= {"p2p": rng.choice((2, 3)), **mixed_costs(rng, 2)}
    return fields, {**options, "rounds": 2}


def hinted(rng: Random) -> tuple[Fields, Fields]:
    """Draw a search from a hand strategy's schedule, made without limits or for other times."""
    fields, options = mixed(rng)
    fields["placement"] = None
    made = {key: value for key, value in fields.items() if key != "mem_limit"}
    if rng.random() < 0.4:
        made["forward"] = 1
    if rng.random() < 0.3:
        fields |= {"link_mode": "streams", "p2p": 1}
        made["p2p"] = 1
    strategy = rng.choice(("1f1b", "gpipe", "zb-h1"))
    return fields, {**options, "hint": {"pipeline": made, "strategy": strategy}}


def compared(rng: Random) -> tuple[Fields, Fields]:
    """Draw a comparison of the hand strategies with the optimum."""
    fields, options = mixed(rng)
    names = ["1f1b", "gpipe", "zb-h1", "zb-1p", "interleaved", "zbv"]
    return fields, {**options, "strategies": rng.sample(names, 4)}


def mixed_costs(rng: Random, entries: int) -> Fields:
    """Draw times and memory of one of `KINDS`."""
    forward = [rng.randint(2, 4) for _ in range(entries)]
    partial = [rng.randint(2, 4) for _ in range(entries)]
    weight = [rng.randint(2, 3) for _ in range(entries)]
    split = [one + other for one, other in zip(partial, weight, strict=True)]
    kind = rng.choice(KINDS)
    full = {
        "shorter": [one - 1 for one in split],
        "longer": [max(1, one - 1) for one in partial],
        "memory": split,
    }[kind]
    return {
        "forward": forward,
        "backward_input": partial,
        "weight": weight,
        "backward": full,
        "activation": [2] * entries,
        "memory_b": 1 if kind == "memory" else 0,
    }


def _objective(rng: Random) -> Fields:
    return {"objective": "device-span"} if rng.random() < 0.25 else {}
