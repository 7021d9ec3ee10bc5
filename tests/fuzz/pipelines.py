"""Random pipelines as plain data, over every dimension, and smaller variants of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from math import gcd, lcm
from random import Random
from typing import Any

from ppopt import Pipeline
from tests.fuzz.category import Case

SCALES = (1, 1, 1, 1, 1, Decimal("0.5"), Decimal("0.000001"), 10**6, 10**9)
"""What all times, or all amounts of memory, are multiplied by: up to the largest and finest."""
WORKSPACES = (
    *("workspace", "forward_workspace", "input_workspace", "weight_workspace"),
    "backward_workspace",
)
LINKS = ("p2p", "backward_p2p")
SIZES = ("stages", "batches", "chunks", "routes", "slices")


def draw(
    rng: Random,
    *,
    ops: int,
    fused: bool,
    devices: Sequence[int] = (1, 2, 2, 3, 3),
    instants: bool = True,
    routes: Sequence[int] = (1, 1, 1, 1, 2),
    slices: Sequence[int] = (1,),
    overlap: bool = False,
    free: bool = False,
) -> dict[str, Any]:
    """Draw the fields of a pipeline of at most `ops` operations.

    `instants` allows B and W of no length; `overlap` draws times of pairs; with `free` BW may be
    any time, not only one from the longer of B and W to their sum.
    """
    kinds = 2 if fused else 3
    while True:
        count = rng.choice(devices)
        stages, placed = _placement(rng, count)
        ways, parts = rng.choice(routes), rng.choice(slices)
        max_batches = ops // (stages * kinds * parts * ways)
        if max_batches:
            break
    entries, cut = (count, placed["chunks"]) if "chunks" in placed else (stages, 1)
    cut *= parts
    fields = {
        "stages": entries,
        "batches": ways * rng.randint(max(1, max_batches - 2), max_batches),
        **placed,
        **_times(rng, entries, cut, instants=instants, overlap=overlap, free=free),
        **_memory(rng, entries, cut, count),
    }
    _draw_links(rng, fields, count, stages)
    if "chunks" not in placed and rng.random() < 0.25:
        fields["frozen"] = draw_frozen(rng, stages)
    if rng.random() < 0.2:
        speeds = [rng.choice((1, 2, "0.5", "1.5")) for _ in range(count)]
        fields["device_speed"] = speeds[0] if ways > 1 else speeds
    return (
        fields | ({"routes": ways} if ways > 1 else {}) | ({"slices": parts} if parts > 1 else {})
    )


def draw_frozen(rng: Random, size: int) -> list[bool]:
    """Draw which of so many stages or layers are frozen, mostly the first ones."""
    first = rng.randint(0, size)
    return [index < first or rng.random() < 0.2 for index in range(size)]


def _placement(rng: Random, devices: int) -> tuple[int, dict[str, Any]]:
    name = rng.choice(("linear", "linear", "linear", "v", "interleaved", "list", "list"))
    if name == "linear":
        return devices, rng.choice(({}, {"placement": "linear"}))
    if name != "list":
        chunks = rng.choice((2, 2, 2, 3))
        return chunks * devices, {"placement": name, "chunks": chunks}
    hosts = [*range(devices), *rng.choices(range(devices), k=rng.randint(0, 2))]
    rng.shuffle(hosts)
    return len(hosts), {"placement": hosts}


def _times(
    rng: Random, entries: int, cut: int, *, instants: bool, overlap: bool, free: bool
) -> dict[str, Any]:
    """Draw times, whole numbers of one scale once cut; BW is sometimes less than B + W.

    `p2p` is that scale, until links are drawn.
    """
    shortest = rng.choice((0, 1, 1)) if instants else 1
    scale = rng.choice(SCALES)
    inputs = [rng.randint(shortest, 4) for _ in range(entries)]
    weights = [rng.randint(shortest, 4) for _ in range(entries)]
    forward = [rng.randint(1, 4) for _ in range(entries)]
    full = [
        max(b, w) + rng.randint(0, min(b, w)) if rng.random() < 0.3 else b + w
        for b, w in zip(inputs, weights, strict=True)
    ]
    if free:
        full = [
            max(0, b + w - rng.choice((-1, 0, 1, 1, 2, 9)))
            for b, w in zip(inputs, weights, strict=True)
        ]
    columns = {"forward": forward, "backward_input": inputs, "weight": weights, "backward": full}
    if overlap:
        both = zip(forward, full, strict=True)
        columns["overlap"] = [max(f, b) + rng.randint(0, min(f, b)) for f, b in both]
        if rng.random() < 0.4:
            columns["overlap"] = [rng.randint(1, f + b) for f, b in zip(forward, full, strict=True)]
    if rng.random() < 0.2:
        columns["recompute_time"] = [rng.randint(0, 2) for _ in range(entries)]
    values: dict[str, Any] = {
        name: [_scaled(cut * time, scale) for time in row] for name, row in columns.items()
    }
    if overlap and rng.random() < 0.3:
        rows = [[rng.randint(1, f + b) for b in full] for f in forward]
        values["overlap"] = [[_scaled(cut * time, scale) for time in row] for row in rows]
    if overlap and rng.random() < 0.3:
        times = [rng.randint(1, f + b) for f, b in zip(forward, inputs, strict=True)]
        values["overlap_input"] = [_scaled(cut * time, scale) for time in times]
    return {**values, "p2p": scale}


def _draw_links(rng: Random, fields: dict[str, Any], devices: int, stages: int) -> None:
    """Draw p2p times: a number, one per boundary between stages, or one per pair of devices."""
    scale, size = fields["p2p"], range(devices)
    for name in LINKS if rng.random() < 0.2 else LINKS[:1]:
        form = rng.random()
        link: Any = _scaled(rng.choice((0, 0, 1, 2, 3)), scale)
        if form < 0.2:
            link = [_scaled(rng.randint(0, 3), scale) for _ in range(stages - 1)]
        elif form < 0.45:
            link = [
                [0 if a == b else _scaled(rng.randint(0, 3), scale) for b in size] for a in size
            ]
        fields[name] = link


def _memory(rng: Random, entries: int, cut: int, devices: int) -> dict[str, Any]:
    """Draw memory of one scale, and limits around what one to three microbatches need."""
    scale = rng.choice(SCALES)
    taken = [rng.randint(0, 3) for _ in range(entries)]
    change = [rng.choice((0, -rng.randint(0, much), rng.randint(0, 2))) for much in taken]
    static = [rng.randint(0, 3) for _ in range(entries)]
    fields: dict[str, Any] = {"activation": [_scaled(cut * memory, scale) for memory in taken]}
    if rng.random() < 0.5:
        fields["memory_b"] = [_scaled(cut * memory, scale) for memory in change]
    if rng.random() < 0.3:
        fields["static"] = [_scaled(memory, scale) for memory in static]
    if rng.random() < 0.2:
        fields["kept"] = [_scaled(cut * rng.randint(0, memory), scale) for memory in taken]
    for name in WORKSPACES:
        if rng.random() < 0.1:
            fields[name] = [_scaled(rng.choice((0, 0, 1, 2)), scale) for _ in range(entries)]
    match rng.randrange(6):
        case 0:
            return fields
        case 1:
            return fields | {"mem_limit": "1f1b"}
        case 2:
            return fields | {"mem_limit": _scaled(rng.randint(0, 12), scale)}
        case _:
            rooms = [_scaled(rng.randint(1, 14), scale) for _ in range(devices)]
            return fields | {"mem_limit": rooms}


def _scaled(value: int, scale: int | Decimal) -> int | str:
    """Multiply a value; a decimal becomes text, which is read exactly."""
    scaled = value * scale
    return scaled if isinstance(scaled, int) else f"{scaled:f}"


def pipeline_of(case: Case) -> Pipeline:
    """The pipeline of a case."""
    return Pipeline(**case["pipeline"])


def reduced(pipeline: Pipeline, parts: int = 1) -> tuple[Pipeline, Fraction]:
    """The same pipeline with times of few ticks, and its tick in ticks of the first.

    Times are written out for devices of speed 1, and have no common divisor but `parts`. Only their
    ratios matter to an optimum, while an oracle may try every tick.
    """
    speeds = _speeds(pipeline)
    columns: dict[str, Any] = {
        name: tuple(_divided(time, speed) for time, speed in zip(row, speeds, strict=True))
        for name in TIMES
        if (row := getattr(pipeline, name))
    }
    links = [link for link in (pipeline.p2p, pipeline.backward_p2p) if link is not None]
    times = [time for row in (*columns.values(), *links) for time in _leaves(row) if time]
    whole = lcm(*(time.denominator for time in times))
    unit = Fraction(gcd(*(int(time * whole) for time in times)), whole * parts)
    if unit == 1 and set(speeds) == {1}:
        return pipeline, Fraction(1)
    scaled = replace(
        pipeline,
        **{name: _divided(row, unit) for name, row in columns.items()},
        p2p=_divided(pipeline.p2p, unit),
        backward_p2p=_divided(pipeline.backward_p2p, unit),
        device_speed=1,
        grid=None,
    )
    return scaled, unit * pipeline.ticks.per_unit / scaled.ticks.per_unit


TIMES = (
    *("forward", "backward_input", "weight", "backward"),
    *("overlap", "overlap_input", "recompute_time"),
)


def _speeds(pipeline: Pipeline) -> list[Fraction]:
    """Speed of the device of every entry of a list of costs."""
    hosts = pipeline.placement
    if not isinstance(hosts, tuple):
        hosts = range(pipeline.num_devices)
    return [pipeline.device_speed[host] for host in hosts]


def _leaves(value: Any) -> Iterator[Fraction]:
    if isinstance(value, tuple):
        for entry in value:
            yield from _leaves(entry)
    else:
        yield value


def _divided(value: Any, unit: Fraction) -> Any:
    if value is None:
        return None
    if isinstance(value, tuple):
        return tuple(_divided(entry, unit) for entry in value)
    return value / unit


def parts_of_a_tick(pipeline: Pipeline) -> int:
    """Into how many parts to divide a tick so that some start of each is best for device span.

    For given orders the least largest span is a largest cycle ratio: the length of a cycle of
    waits by the number of devices whose span it passes. So its denominator is at most the number
    of devices.
    """
    return lcm(*range(1, pipeline.num_devices + 1))
