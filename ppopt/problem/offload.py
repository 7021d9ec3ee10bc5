"""Offload: layers that move their activation to the host between F and the backward.

As the layers say, none, all that can, or chosen with the schedule.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any, TypeVar

from ppopt.errors import InputError
from ppopt.problem.exact import plain
from ppopt.problem.named_enum import NamedEnum

if TYPE_CHECKING:
    from ppopt.problem.layers import Layers

L = TypeVar("L", bound="Layers")
SEARCH_OFFLOAD = "search"
"""The value of `offload` that means: chosen with the schedule."""
CHOICES = ("none", "all", SEARCH_OFFLOAD)


class HostLink(NamedEnum):
    """What runs at once between a device and its host."""

    DUPLEX = "duplex"
    """One move each way."""
    SHARED = "shared"
    """One move."""


def refuse_offload_search(offload: object, what: str) -> None:
    """Raise InputError if offload is to be searched: `what` does not search it."""
    if offload == SEARCH_OFFLOAD:
        raise InputError(f"offload: {what} does not search it; use none or all, or solve")


def read(offload: Any, model: L) -> tuple[str | None, L]:
    """The choice that is left open, and the model whose layers say what is not.

    Raises InputError if it is not None, `none`, `all` or `search`, or if no layer can.
    """
    if offload is None:
        return None, model
    if offload not in CHOICES:
        raise InputError(f"offload: {offload!r} is unknown; use none, all or search")
    if offload != "none" and not any(layer.offload_time for layer in model.layers):
        raise InputError("offload: no layer gives its offload_time; give it in the layers")
    if offload == SEARCH_OFFLOAD:
        return offload, model
    return None, model.with_offload(offload)


def check_moves(
    memory: Sequence[Fraction] | None,
    time: Sequence[Fraction] | None,
    kept: Sequence[Fraction],
) -> None:
    """Raise InputError if a stage moves more than F keeps, or memory in no time."""
    nothing = (Fraction(0),) * len(kept)
    rows = zip(memory or nothing, time or nothing, kept, strict=True)
    for stage, (moved, taken, most) in enumerate(rows):
        if moved > most:
            raise InputError(
                f"offload_memory: stage {stage}: {plain(moved)} is more than F keeps, {plain(most)}"
            )
        if bool(moved) != bool(taken):
            what, other = ("time", "memory") if moved else ("memory", "time")
            raise InputError(
                f"offload_{what}: stage {stage}: 0, but offload_{other} is above 0; give both"
            )
