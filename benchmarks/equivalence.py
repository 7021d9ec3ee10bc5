"""The same answers before and after a change: status, value and bound of instances of all kinds.

python -m benchmarks.equivalence record OUT [--tree DIR]
python -m benchmarks.equivalence compare BEFORE AFTER

`record` solves every instance with one worker and seed 0 and writes one JSON line for each, after
a head with date, commit and machine. `--tree` takes `ppopt` from another checkout. The script uses
`ppopt.Pipeline` and `ppopt.solve` alone, so old and new checkouts both run it. `compare` prints the
differences of two records and exits with code 1 where there is one.

Every instance ends by proof within about 10 s on commit 8b795a5; OPEN lists the drawn ones that
do not. Values and bounds are exact fractions, as text.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any, NamedTuple
from unittest import mock

from benchmarks.machine import commit, processor

TIME_LIMIT = 30.0
"""Seconds of the processor for one instance, far above what any needs: no load of the machine, and
no clock, decides."""
SPLIT = {"fused": False}
"""Backwards are split unless an instance says otherwise: the default of the older checkouts."""
COMPARED = ("pipeline", "options", "status", "value", "lower_bound")
"""What must be equal in two records."""
Fields = dict[str, Any]


class Instance(NamedTuple):
    """One pipeline to solve, as arguments of `Pipeline` and of `solve`."""

    name: str
    pipeline: Fields
    options: Fields


def instances() -> Iterator[Instance]:
    """All instances, in a fixed order; each is drawn from a seed of its own, its name."""
    for group, (count, draw) in GROUPS.items():
        for number in range(count):
            name = f"{group}-{number:02}"
            if name not in OPEN:
                yield Instance(name, *draw(Random(name)))


def linear(rng: Random) -> tuple[Fields, Fields]:
    """Draw one stage per device, without memory limits."""
    devices = rng.randint(1, 6)
    fields = {
        "stages": devices,
        "batches": rng.randint(1, 3 * devices + 2),
        "p2p": rng.choice((0, 0, 1, "0.5")),
        **_times(rng, devices),
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
        **_times(rng, devices, whole=chunks),
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
        "p2p": rng.choice((0, 1, _matrix(rng, devices))),
        **_times(rng, len(hosts)),
    }
    if rng.random() < 0.5:
        most = max(hosts.count(device) for device in range(devices))
        fields["mem_limit"] = most + rng.randint(0, 3)
    return fields, _options(rng)


def matrix(rng: Random) -> tuple[Fields, Fields]:
    """Draw links of unequal times, other ones on the way back."""
    fields, options = rng.choice((linear, limited, chunked))(rng)
    fields["p2p"] = _matrix(rng, fields["stages"])
    return fields, options


def unequal(rng: Random) -> tuple[Fields, Fields]:
    """Draw stages that differ in every cost."""
    devices = rng.randint(2, 5)
    fields = {
        "stages": devices,
        "batches": rng.randint(2, 2 * devices),
        "p2p": rng.choice((0, "0.25", 1)),
        **_lists(rng, devices),
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
    return fields, {**options, "fused": True}


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
    return fields, {**_options(rng), "fused": rng.random() < 0.7}


def routes(rng: Random) -> tuple[Fields, Fields]:
    """Draw two routes: half of the microbatches run the stages in mirrored placement."""
    devices = rng.randint(2, 4)
    fields = {
        "stages": devices,
        "routes": 2,
        "batches": 2 * rng.randint(1, 4 if devices < 4 else 2),
        "p2p": rng.choice((0, 0, 1)),
        **_times(rng, devices),
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
        **_times(rng, devices, whole=parts),
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
        options["fused"] = True
    if rng.random() < 0.15:
        options["objective"] = "device-span"
    return options


def _times(rng: Random, entries: int, whole: int = 1) -> Fields:
    """Draw times, equal on all stages or not; multiples of `whole`, so that they can be cut."""
    if rng.random() < 0.4:
        return _lists(rng, entries, whole)
    forward, backward, weight = rng.choice(((1, 2, 1), (2, 3, 1), (1, 3, 2), (3, 5, 3)))
    return {"forward": whole * forward, "backward": whole * backward, "weight": whole * weight}


def _lists(rng: Random, entries: int, whole: int = 1) -> Fields:
    names = ("forward", "backward_input", "weight")
    return {name: [whole * rng.randint(1, 4) for _ in range(entries)] for name in names}


def _matrix(rng: Random, devices: int) -> list[list[int]]:
    size = range(devices)
    return [[0 if here == there else rng.randint(0, 3) for there in size] for here in size]


GROUPS: dict[str, tuple[int, Callable[[Random], tuple[Fields, Fields]]]] = {
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


def record(path: Path, tree: Path | None, only: str) -> None:
    """Solve the instances whose names begin with `only` and write a line for each."""
    ppopt = _package(tree)
    with path.open("w", encoding="utf-8") as file:
        print(json.dumps(_head(Path(ppopt.__file__).parent)), file=file, flush=True)
        for instance in instances():
            if not instance.name.startswith(only):
                continue
            row = _solved(ppopt, instance)
            print(json.dumps(row), file=file, flush=True)
            found = [row["name"], row["status"], row["value"], row["lower_bound"]]
            print(*found, f"{row['seconds']} s", flush=True)


def _package(tree: Path | None) -> Any:
    """Import ppopt, from a checkout where one is given."""
    if tree is not None:
        sys.path.insert(0, str(tree.resolve()))
    ppopt = import_module("ppopt")
    if tree is not None and not Path(ppopt.__file__ or "").is_relative_to(tree.resolve()):
        raise SystemExit(f"{tree}: holds no ppopt")
    return ppopt


def _head(package: Path) -> Fields:
    return {
        "date": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC",
        "commit": commit(package),
        "python": platform.python_version(),
        "processor": processor(),
    }


def _solved(ppopt: Any, instance: Instance) -> Fields:
    """Status, value and bound of an instance, or the words of the error."""
    began = time.process_time()
    try:
        pipeline = ppopt.Pipeline(**instance.pipeline)
        options = {**SPLIT, **instance.options}
        with mock.patch.object(time, "monotonic", time.process_time):
            found = ppopt.solve(pipeline, time_limit=TIME_LIMIT, workers=1, seed=0, **options)
        outcome = (found.status.value, _exact(found.value), _exact(found.lower_bound))
    except Exception as error:  # a crash is a difference to be shown, not an end
        outcome = (f"{type(error).__name__}: {error}", None, None)
    return {
        **instance._asdict(),
        **dict(zip(("status", "value", "lower_bound"), outcome, strict=True)),
        "seconds": round(time.process_time() - began, 2),
    }


def _exact(value: object) -> str | None:
    return None if value is None else str(value)


def differences(before: Path, after: Path) -> Iterator[str]:
    """Say in one line each what differs between two records."""
    old, new = _rows(before), _rows(after)
    for name in [*old, *(name for name in new if name not in old)]:
        if name not in old or name not in new:
            yield f"{name}: only in {before if name in old else after}"
            continue
        for field in COMPARED:
            if old[name][field] != new[name][field]:
                yield f"{name}: {field} {old[name][field]} became {new[name][field]}"


def _rows(path: Path) -> dict[str, Fields]:
    rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return {row["name"]: row for row in rows if "name" in row}


def compare(before: Path, after: Path) -> int:
    """Print the differences of two records; 1 where there is one, or nothing to compare."""
    found = list(differences(before, after))
    print(*found, sep="\n", end="\n" if found else "")
    count = len(_rows(after))
    print(f"{count} instances, {len(found)} differences")
    return 1 if found or not count else 0


def main() -> int:
    """Record or compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record")
    recording.add_argument("out", type=Path)
    recording.add_argument("--tree", type=Path, help="checkout to take ppopt from")
    recording.add_argument("--only", default="", help="instances whose names begin so")
    comparing = commands.add_parser("compare")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    given = parser.parse_args()
    if given.command == "compare":
        return compare(given.before, given.after)
    record(given.out, given.tree, given.only)
    return 0


if __name__ == "__main__":
    sys.exit(main())
