"""Placement: which device hosts each stage."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ppopt.errors import InputError
from ppopt.problem.decisions import SEARCH
from ppopt.problem.named_enum import NamedEnum


def _linear(stage: int, devices: int) -> int:
    return stage % devices


def _v(stage: int, devices: int) -> int:
    lap, offset = divmod(stage, devices)
    return offset if lap % 2 == 0 else devices - 1 - offset


NAMED: dict[str, Callable[[int, int], int]] = {
    "linear": _linear,
    "interleaved": _linear,
    "v": _v,
    SEARCH: _linear,
}
"""Placement name -> (stage, devices) -> device. Interleaved: Megatron-LM, arXiv 2104.04473,
section 2.2; v: arXiv 2405.15362, section 3."""


class PartitionOrder(NamedEnum):
    """Order of a list of layers per stage."""

    STAGES = "stages"
    """The order of the stages, along the forward pass."""
    RANKS = "ranks"
    """All stages of device 0 first, then those of device 1, as Primus lists them."""


DEFAULT_CHUNKS = {"linear": 1, "interleaved": 2, "v": 2}


def named(name: str, devices: int, chunks: int) -> tuple[int, ...]:
    """Device of each of the `devices * chunks` stages under a named placement."""
    rule = NAMED[name]
    return tuple(rule(stage, devices) for stage in range(devices * chunks))


def name_and_chunks(hosts: Sequence[int]) -> tuple[str, int] | None:
    """Name of the placement of stages on these devices, and stages per device; None: no name."""
    chunks, rest = divmod(len(hosts), max(hosts) + 1)
    if rest or not chunks:
        return None
    for name in ("linear",) if chunks == 1 else ("interleaved", "v"):
        if named(name, len(hosts) // chunks, chunks) == tuple(hosts):
            return name, chunks
    return None


def explicit(entries: Sequence[object]) -> tuple[int, ...]:
    """Check a list of devices, one per stage; every device up to the largest must host a stage."""
    if not entries:
        raise InputError("placement: the list is empty; give one device per stage")
    devices: list[int] = []
    for stage, entry in enumerate(entries):
        if isinstance(entry, bool) or not isinstance(entry, int) or entry < 0:
            raise InputError(
                f"placement: stage {stage}: {entry!r} is not a device number (0, 1, ...)"
            )
        devices.append(entry)
    missing = sorted(set(range(min(max(devices), len(devices)) + 1)) - set(devices))
    if missing:
        raise InputError(
            f"placement: device {missing[0]} hosts no stage; "
            "number the devices 0, 1, ... without gaps"
        )
    return tuple(devices)
