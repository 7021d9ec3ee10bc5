"""Hosting: which device runs each stage on every route, as a pipeline's placement says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ppopt.errors import ConflictError, InputError
from ppopt.problem import placement
from ppopt.problem.field_values import as_list, check_count

MAX_DEVICES = 1024
"""Maximum number of devices of a pipeline."""
Hosts = tuple[tuple[int, ...], ...]
"""Device of every stage, per route: `hosts[route][stage]`."""
Layout = tuple[Hosts, int]
"""The device of every stage, and the number of slices of a microbatch."""


def read_placement(value: object, chunks: int | None, stages: int) -> Any:
    """Check a placement: None, a name, or as a tuple the device of each of so many stages.

    Raises InputError on anything else, or if `chunks` does not go with it.
    """
    if value is None or isinstance(value, str):
        if value is not None and value not in placement.NAMED:
            raise InputError(
                f"placement: {value!r} is unknown; use {', '.join(placement.NAMED)}, "
                "or a list of devices such as 0,1,1,0"
            )
        if value == "linear" and (chunks or 1) > 1:
            raise InputError(
                f"chunks: {chunks} does not go with placement linear; "
                "use placement interleaved or v"
            )
        return value
    if chunks is not None:
        raise InputError("chunks: does not go with a placement list; leave it out")
    devices = placement.explicit(as_list(value, "placement"))
    check_count("placement", devices, stages, "stage")
    return devices


def check_devices(devices: int) -> None:
    """Raise InputError if a pipeline has too many devices."""
    if devices > MAX_DEVICES:
        raise InputError(f"stages: {devices} devices are above {MAX_DEVICES}")


def check_routes(routes: object, batches: int) -> None:
    """Raise InputError if the number of routes is not 1, or 2 for an even number of batches."""
    if isinstance(routes, bool) or routes not in (1, 2):
        raise InputError(f"routes: {routes!r} is neither 1 nor 2")
    if routes == 2 and batches % 2:
        raise ConflictError(f"batches: {batches} is odd; two routes need an even number")


def on_routes(first: tuple[int, ...], routes: int) -> Hosts:
    """Device of every stage on every route; the second route is the first one mirrored."""
    last = max(first)
    mirrored = tuple(last - device for device in first)
    return (first, mirrored)[:routes]


def hosted_of(hosts: Sequence[int], devices: int) -> tuple[tuple[int, ...], ...]:
    """Stages of every device, ascending."""
    stages_of_device: list[list[int]] = [[] for _ in range(devices)]
    for stage, device in enumerate(hosts):
        stages_of_device[device].append(stage)
    return tuple(map(tuple, stages_of_device))
