"""Certificates: what a bound rests on, so that anyone may check it again (`ppopt.recheck`)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Argument(StrEnum):
    """Kinds of argument for a lower bound, or for infeasibility."""

    WORK = "work"
    """The one device named must wait for its first input (makespan), then do all its work."""
    ENDS = "ends"
    """The same, and idle at its two ends because memory holds too little to do there."""
    DEVICES = "devices"
    """The devices named need that long, all others taken as delays."""
    SEARCH = "search"
    """All orders were searched; no devices are named."""
    MEMORY = "memory"
    """No schedule keeps the memory limits; no devices are named."""


@dataclass(frozen=True)
class Certificate:
    """Why no schedule is below a bound, or why there is none at all."""

    argument: Argument
    devices: tuple[int, ...] = ()
    """The devices that the argument speaks of, ascending."""

    def to_object(self) -> dict[str, Any]:
        """Turn into an object of JSON."""
        return {"argument": self.argument.value, "devices": list(self.devices)}
