"""Configurations of a choice in the order of their bounds."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from ppopt.solver.choices.choice import Choice, UnlistedBound
from ppopt.solver.choices.configuration import Key
from ppopt.solver.deadline import NO_DEADLINE


def listed(
    choice: Choice, known: dict[Key, Fraction], ceiling: Fraction | None = None
) -> Iterator[UnlistedBound]:
    """List configurations below a ceiling; last, if there is one, the bound of all others."""
    choice.bound(NO_DEADLINE)
    while (following := choice.unlisted_bound(known, ceiling)) is not None:
        yield following
        if following.key is None:
            return
        known[following.key] = following.bound
