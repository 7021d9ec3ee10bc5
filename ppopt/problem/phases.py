"""Phases of a layer: the steps of its F and of its B, on compute and on a link.

An F of a mixture of experts computes attention, sends tokens to their experts, computes these, and
sends the tokens back. Alone it takes the sum. In a pair with a backward of another microbatch, its
link phases overlap with the compute of the other (see `ppopt.problem.phase_pairs`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import Any, NamedTuple, ParamSpec

from ppopt.errors import InputError
from ppopt.problem import exact

P = ParamSpec("P")
PARTS = {"F": "forward", "B": "backward"}
"""Key of an operation in files -> field of its phases."""
NO_WEIGHT = Fraction(0)
EXAMPLE = "{on: compute, time: 4.3}"


class Machine(StrEnum):
    """The machine of a phase: it runs one phase at a time."""

    COMPUTE = "compute"
    LINK = "link"


class Phase(NamedTuple):
    """One step of F or of B."""

    on: Machine
    time: Any
    """At least 0."""
    weight: Any = NO_WEIGHT
    """Of a phase of B on compute: time of its part of W, which follows any time later."""


@dataclass(frozen=True)
class Phases:
    """The steps of F and B of a layer."""

    forward: tuple[Phase, ...]
    backward: tuple[Phase, ...]

    @classmethod
    def read(cls, value: object) -> Phases:
        """Read a mapping from F and B to lists of phases; numbers stay as they are.

        Raises InputError on anything else.
        """
        if isinstance(value, Phases):
            return value
        if not isinstance(value, Mapping) or set(value) != set(PARTS):
            stated_keys = (
                ", ".join(map(str, value)) if value and isinstance(value, Mapping) else repr(value)
            )
            raise InputError(
                f"{stated_keys} given, not F and B; write {{F: [{EXAMPLE}, ...], "
                f"B: [{EXAMPLE}, ...]}}"
            )
        return cls(**{field: tuple(_phase_list(key, value[key])) for key, field in PARTS.items()})

    def each(self, change: Callable[[Any, str], Any]) -> Phases:
        """Change every number; `change` gets it and its key, `time` or `weight`.

        The message of an InputError names the phase.
        """
        return Phases(
            *(
                tuple(_at(key, index, _changed, phase, change) for index, phase in enumerate(chain))
                for key, chain in zip(PARTS, (self.forward, self.backward), strict=True)
            )
        )

    @property
    def numbers(self) -> list[Any]:
        """Time and weight of every phase in turn."""
        return [number for phase in self._all for number in (phase.time, phase.weight)]

    def having(self, numbers: Iterable[Any]) -> Phases:
        """The phases with other numbers, in the order of `numbers`."""
        remaining = iter(numbers)
        phases = [Phase(phase.on, next(remaining), next(remaining)) for phase in self._all]
        ahead = len(self.forward)
        return Phases(tuple(phases[:ahead]), tuple(phases[ahead:]))

    @property
    def on_compute(self) -> Phases:
        """The phases on compute alone."""
        parts = (self.forward, self.backward)
        return Phases(
            *(tuple(phase for phase in chain if phase.on is Machine.COMPUTE) for chain in parts)
        )

    @property
    def in_file(self) -> dict[str, list[dict[str, Any]]]:
        """The form of files: what `read` reads."""
        return {
            key: [
                {"on": phase.on.value, "time": phase.time}
                | ({"weight": phase.weight} if phase.weight else {})
                for phase in getattr(self, field)
            ]
            for key, field in PARTS.items()
        }

    def frozen(self, *, forward_only: bool) -> Phases:
        """The phases of a frozen layer: without W; `forward_only`: without B, too."""
        backward = () if forward_only else self.backward
        return Phases(self.forward, tuple(phase._replace(weight=NO_WEIGHT) for phase in backward))

    def times(self) -> dict[str, Fraction]:
        """Times of F, B, W and BW alone, by their fields: the sums of exact numbers."""
        partial = _sum(phase.time for phase in self.backward)
        weight = _sum(phase.weight for phase in self.backward)
        return {
            "forward": _sum(phase.time for phase in self.forward),
            "backward_input": partial,
            "weight": weight,
            "backward": partial + weight,
        }

    @property
    def _all(self) -> tuple[Phase, ...]:
        return self.forward + self.backward

    def __repr__(self) -> str:
        chains = {key: ", ".join(map(_text, getattr(self, field))) for key, field in PARTS.items()}
        return f"Phases({'; '.join(f'{key}: {chain}' for key, chain in chains.items())})"


def _phase_list(key: str, value: object) -> Iterator[Phase]:
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        raise InputError(f"{key}: {value!r} is no list of phases; write [{EXAMPLE}, ...]")
    for index, entry in enumerate(value):
        yield _at(key, index, _phase, key, entry)


def _at(key: str, index: int, make: Callable[P, Phase], *args: P.args, **kwargs: P.kwargs) -> Phase:
    try:
        return make(*args, **kwargs)
    except InputError as error:
        raise InputError(f"{key}: phase {index}: {error}") from None


def _changed(phase: Phase, change: Callable[[Any, str], Any]) -> Phase:
    weight = phase.weight
    if weight is not NO_WEIGHT:
        weight = change(weight, "weight")
    return Phase(phase.on, change(phase.time, "time"), weight)


def _phase(key: str, value: object) -> Phase:
    if not isinstance(value, Mapping):
        raise InputError(f"{value!r} is no phase; write {EXAMPLE}")
    for name in value:
        if name not in Phase._fields:
            raise InputError(f"{name!r} is unknown; use {', '.join(Phase._fields)}")
    for name in ("on", "time"):
        if value.get(name) is None:
            raise InputError(f"{name}: missing; write {EXAMPLE}")
    if value["on"] not in tuple(Machine):
        raise InputError(f"on: {value['on']!r} is unknown; use {' or '.join(Machine)}")
    phase = Phase(Machine(value["on"]), value["time"])
    if value.get("weight") is None:
        return phase
    if (key, phase.on) != ("B", Machine.COMPUTE):
        raise InputError("weight: W follows a phase of B on compute; leave it out here")
    return phase._replace(weight=value["weight"])


def _sum(numbers: Iterable[Fraction]) -> Fraction:
    return sum(numbers, Fraction(0))


def _text(phase: Phase) -> str:
    time, weight = (
        exact.plain(number) if isinstance(number, Fraction) else number
        for number in (phase.time, phase.weight)
    )
    return f"{phase.on} {time}" + (f" + W {weight}" if weight else "")
