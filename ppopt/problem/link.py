"""Links by size: the delay of an output is latency + size / bandwidth."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ppopt.errors import InputError
from ppopt.problem import exact, units
from ppopt.problem.field_values import is_exact
from ppopt.problem.layers import Layers
from ppopt.problem.settings import nearest
from ppopt.problem.units import Unit

EXAMPLE = "latency=10us,bandwidth=50GB/s"
_RATE = re.compile(r"\s*([^\sA-Za-z/]+(?:[eE][-+]?[0-9]+)?)\s*([A-Za-z]+)\s*/\s*([A-Za-z]+)\s*")
_KEYS = ("latency", "bandwidth")
_BACK = "backward"


@dataclass(frozen=True)
class Link:
    """A link between two devices, in the units of its pipeline."""

    latency: Fraction
    """Time of a transfer of size 0."""
    bandwidth: Fraction
    """Memory per time, above 0."""
    backward: Link | None = None
    """The link of gradients, for the way back; None: the same."""

    def delays(self, sizes: Iterable[Fraction]) -> tuple[Fraction, ...]:
        """Time of a transfer of every size."""
        return tuple(self.latency + size / self.bandwidth for size in sizes)


def from_text(text: str) -> dict[str, Any]:
    """Read the text of a flag, such as `latency=10us,bandwidth=50GB/s,backward.bandwidth=25GB/s`.

    Raises InputError on anything else.
    """
    members: dict[str, Any] = {}
    for part in text.split(","):
        key, equals, value = (word.strip() for word in part.partition("="))
        way, dot, name = key.rpartition(".")
        if not equals or (dot and way != _BACK):
            raise InputError(f"{part.strip()[:40]!r} is no part of a link; write {EXAMPLE}")
        way_members = members.setdefault(_BACK, {}) if dot else members
        if name in way_members:
            raise InputError(f"{key} is given twice; keep one")
        way_members[name] = value
    return members


def checked(raw_link: object, keys: tuple[str, ...] = (*_KEYS, _BACK)) -> dict[str, Any]:
    """The members of a link, those of the way back under `backward`; null means not given.

    Raises InputError if the form is wrong; `read_link` checks the numbers.
    """
    if isinstance(raw_link, str):
        raw_link = from_text(raw_link)
    if not isinstance(raw_link, Mapping):
        raise InputError(f"{str(raw_link)[:40]!r} is no link; write {EXAMPLE}")
    members: dict[str, Any] = {}
    for key, value in raw_link.items():
        if key not in keys:
            hint = nearest(str(key), keys)
            raise InputError(f"unknown key {str(key)[:40]!r}; did you mean {hint}?")
        if value is not None:
            members[key] = checked(value, _KEYS) if key == _BACK else value
    return members


def read_link(raw_link: object, time_unit: str | None, memory_unit: str | None) -> Link:
    """Read a link: a mapping of `bandwidth`, `latency` (0) and `backward`, or the text of a flag.

    A number with units (`10us`, `50GB/s`) is converted exactly to the units of the pipeline; a
    plain number is in these units. Members that the way back lacks are those of the way there.
    Raises InputError, naming the member, on anything that is no link.
    """
    if isinstance(raw_link, Link):
        return raw_link
    try:
        members = checked(raw_link)
    except InputError as error:
        raise InputError(f"link: {error}") from None
    back = members.pop(_BACK, None)
    forward = _read_way(members, "link", time_unit, memory_unit)
    if back is None:
        return forward
    default = {"latency": forward.latency, "bandwidth": forward.bandwidth}
    return Link(
        forward.latency,
        forward.bandwidth,
        _read_way(default | back, "link.backward", time_unit, memory_unit),
    )


def _read_way(
    members: Mapping[str, Any], where: str, time_unit: str | None, memory_unit: str | None
) -> Link:
    """Read one direction of a link."""
    if "bandwidth" not in members:
        raise InputError(f"{where}: bandwidth is missing; write {EXAMPLE}")
    raw_latency = members.get("latency", 0)
    resolved = units.resolve(Unit.TIME, time_unit, {f"{where}.latency": raw_latency})
    if resolved.unit != time_unit:
        raise InputError(
            f"{where}.latency: {raw_latency} needs the unit of the times; give time_unit"
        )
    latency = _exact(resolved.values[f"{where}.latency"], f"{where}.latency")
    bandwidth = _bandwidth(members["bandwidth"], f"{where}.bandwidth", time_unit, memory_unit)
    if latency < 0:
        raise InputError(f"{where}.latency: {exact.plain(latency)} is negative")
    if bandwidth <= 0:
        raise InputError(f"{where}.bandwidth: {exact.plain(bandwidth)} is not above 0")
    return Link(latency, bandwidth)


def _bandwidth(
    value: object, where: str, time_unit: str | None, memory_unit: str | None
) -> Fraction:
    """Memory per time, in the pipeline's units."""
    text = value if isinstance(value, str) and not exact.is_number(value) else None
    if text is None:
        return _exact(value, where)
    parts = _RATE.fullmatch(text)
    memory, time = units.SCALES[Unit.MEMORY], units.SCALES[Unit.TIME]
    if parts is None or parts[2] not in memory or parts[3] not in time:
        raise InputError(
            f"{where}: {text[:40]!r} is no bandwidth; write 50GB/s, with a unit of memory "
            f"({', '.join(memory)}) per unit of time ({', '.join(time)})"
        )
    if time_unit is None or memory_unit is None:
        raise InputError(
            f"{where}: {text.strip()} needs the units of times and memory; "
            "give time_unit and memory_unit"
        )
    size = memory[parts[2]] / memory[memory_unit]
    return _exact(parts[1], where) * size * time[time_unit] / time[parts[3]]


def _exact(number: object, where: str) -> Fraction:
    reading = exact.read(number, where)
    if reading.rounded:
        raise InputError(f"{where}: {number} is finer than 10^-6; write it in another unit")
    return reading.value


def check_model(model: Layers | None) -> None:
    """Raise InputError if there is no model in layers, or if no layer states its output."""
    if model is None:
        raise InputError("link: needs a model in layers with `output`; stages take p2p_time")
    if not model.has_output:
        raise InputError("link: no layer gives its output; give `output` in the layers")


def ways_of(link: Link | None) -> dict[str, Link]:
    """The directions whose delays follow from sizes, by the field of the delays."""
    ways = {} if link is None else {"p2p": link, "backward_p2p": link.backward}
    return {field: way for field, way in ways.items() if way is not None}


def check_not_stated(field: str, delays: object) -> None:
    """Raise InputError if a user gave delays that the link gives.

    Those of another partition, which `replace` passes on, are none.
    """
    if delays != 0 and not is_exact(delays):
        raise InputError(f"{field}_time: link gives it; keep one of both")


def in_unit(raw_link: object, measure: Unit, old: str, new: str) -> object:
    """The same link if its plain numbers were in one unit (`old`), and now are in another."""
    members = checked(raw_link)
    scales = units.SCALES[measure]
    per = scales[old] / scales[new]
    if measure is Unit.TIME and "latency" in members:
        members["latency"] = units.attached(members["latency"], old)
    rate = members.get("bandwidth")
    if rate is not None and not (isinstance(rate, str) and not exact.is_number(rate)):
        value = exact.read(rate, "link.bandwidth").value
        members["bandwidth"] = value * per if measure is Unit.MEMORY else value / per
    if _BACK in members:
        members[_BACK] = in_unit(members[_BACK], measure, old, new)
    return members
