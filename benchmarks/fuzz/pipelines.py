"""Random pipelines as plain data, over every dimension, and smaller variants of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from math import gcd, lcm
from random import Random
from typing import Any

from benchmarks.fuzz.category import Case
from ppopt import InputError, Pipeline

SCALES = (1, 1, 1, 1, 1, Decimal("0.5"), Decimal("0.000001"), 10**6, 10**9)
"""What all times, or all amounts of memory, are multiplied by: up to the largest and finest."""
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
) -> dict[str, Any]:
    """Draw the fields of a pipeline of at most `ops` operations.

    `instants` allows B and W of no length; `overlap` draws times of pairs.
    """
    kinds = 2 if fused else 3
    while True:
        count = rng.choice(devices)
        stages, placed = _placement(rng, count)
        ways, parts = rng.choice(routes), rng.choice(slices)
        most = ops // (stages * kinds * parts * ways)
        if most:
            break
    entries, cut = (count, placed["chunks"]) if "chunks" in placed else (stages, 1)
    cut *= parts
    fields = {
        "stages": entries,
        "batches": ways * rng.randint(max(1, most - 2), most),
        **placed,
        **_times(rng, entries, cut, count, instants=instants, overlap=overlap),
        **_memory(rng, entries, cut, count),
    }
    return (
        fields | ({"routes": ways} if ways > 1 else {}) | ({"slices": parts} if parts > 1 else {})
    )


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
    rng: Random, entries: int, cut: int, devices: int, *, instants: bool, overlap: bool
) -> dict[str, Any]:
    """Draw times, whole numbers of one scale once cut; BW is sometimes less than B + W."""
    shortest = rng.choice((0, 1, 1)) if instants else 1
    scale = rng.choice(SCALES)
    inputs = [rng.randint(shortest, 4) for _ in range(entries)]
    weights = [rng.randint(shortest, 4) for _ in range(entries)]
    forward = [rng.randint(1, 4) for _ in range(entries)]
    full = [
        max(b, w) + rng.randint(0, min(b, w)) if rng.random() < 0.3 else b + w
        for b, w in zip(inputs, weights, strict=True)
    ]
    columns = {"forward": forward, "backward_input": inputs, "weight": weights, "backward": full}
    if overlap:
        both = zip(forward, full, strict=True)
        columns["overlap"] = [max(f, b) + rng.randint(0, min(f, b)) for f, b in both]
    size = range(devices)
    link: Any = _scaled(rng.choice((0, 0, 1, 2, 3)), scale)
    if rng.random() < 0.3:
        link = [[0 if a == b else _scaled(rng.randint(0, 3), scale) for b in size] for a in size]
    values = {name: [_scaled(cut * one, scale) for one in row] for name, row in columns.items()}
    return {**values, "p2p": link}


def _memory(rng: Random, entries: int, cut: int, devices: int) -> dict[str, Any]:
    """Draw memory of one scale, and limits around what one to three microbatches need."""
    scale = rng.choice(SCALES)
    taken = [rng.randint(0, 3) for _ in range(entries)]
    change = [rng.choice((0, -rng.randint(0, much), rng.randint(0, 2))) for much in taken]
    static = [rng.randint(0, 3) for _ in range(entries)]
    fields: dict[str, Any] = {"activation": [_scaled(cut * one, scale) for one in taken]}
    if rng.random() < 0.5:
        fields["memory_b"] = [_scaled(cut * one, scale) for one in change]
    if rng.random() < 0.3:
        fields["static"] = [_scaled(one, scale) for one in static]
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
    found = value * scale
    return found if isinstance(found, int) else f"{found:f}"


def made(case: Case) -> Pipeline:
    """The pipeline of a case."""
    return Pipeline(**case["pipeline"])


def reduced(pipeline: Pipeline, parts: int = 1) -> tuple[Pipeline, Fraction]:
    """The same pipeline with times of few ticks, and its tick in ticks of the first.

    The times have no common divisor but `parts`. Only their ratios matter to an optimum, while an
    oracle may try every tick.
    """
    names = ("forward", "backward_input", "weight", "backward", "overlap")
    columns: dict[str, Any] = {
        name: getattr(pipeline, name) for name in names if getattr(pipeline, name)
    }
    links = pipeline.p2p if isinstance(pipeline.p2p, tuple) else ((pipeline.p2p,),)
    times = [time for row in (*columns.values(), *links) for time in row if time]
    whole = lcm(*(time.denominator for time in times))
    unit = Fraction(gcd(*(int(time * whole) for time in times)), whole * parts)
    link = tuple(tuple(time / unit for time in row) for row in links)
    shorter: dict[str, Any] = {
        name: tuple(time / unit for time in row) for name, row in columns.items()
    }
    shorter["p2p"] = link if isinstance(pipeline.p2p, tuple) else link[0][0]
    made = replace(pipeline, **shorter)
    return made, unit * pipeline.ticks.per_unit / made.ticks.per_unit


def parts_of_a_tick(pipeline: Pipeline) -> int:
    """Into how many parts to divide a tick so that some start of each is best for device span.

    For given orders the least largest span is a largest cycle ratio: the length of a cycle of
    waits by the number of devices whose span it passes. So its denominator is at most the number
    of devices.
    """
    return lcm(*range(1, pipeline.num_devices + 1))


def smaller(case: Case) -> Iterator[Case]:
    """Yield the case with simpler pipelines: fewer microbatches, fields left out, small numbers."""
    for fields in _simpler(case["pipeline"]):
        try:
            Pipeline(**fields)
        except InputError:
            continue
        yield case | {"pipeline": fields}


def _simpler(fields: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for size in ("batches", "slices", "chunks"):
        for value in (1, 2, fields.get(size, 1) - 1):
            if 1 <= value < fields.get(size, 1):
                yield fields | {size: value}
    yield from _without_a_stage(fields)
    for name in fields.keys() - {"stages", "batches"}:
        yield {key: value for key, value in fields.items() if key != name}
    for name, value in fields.items():
        if name not in SIZES and isinstance(value, list) and name != "placement":
            for index, entry in enumerate(value):
                for less in _less(entry):
                    yield fields | {name: [*value[:index], less, *value[index + 1 :]]}


def _without_a_stage(fields: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Leave out a stage of an explicit list, or the last device of a named placement."""
    hosts, entries = fields.get("placement"), fields["stages"]
    for gone in range(entries) if isinstance(hosts, list) else (entries - 1,):
        cut = {
            name: [*value[:gone], *value[gone + 1 :]]
            for name, value in fields.items()
            if isinstance(value, list) and len(value) == entries and name != "p2p"
        }
        if isinstance(fields.get("p2p"), list) and not isinstance(hosts, list):
            cut["p2p"] = [row[:-1] for row in fields["p2p"][:-1]]
        yield fields | cut | {"stages": entries - 1}


def _less(entry: object) -> Iterator[object]:
    if isinstance(entry, list):
        for index, one in enumerate(entry):
            for less in _less(one):
                yield [*entry[:index], less, *entry[index + 1 :]]
    elif entry not in (0, 1):
        yield from (0, 1)
    elif entry == 1:
        yield 0
