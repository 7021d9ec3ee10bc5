"""Configurations of a choice in the order of their bounds."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from ppopt.solver.choices.choice import Choice
from ppopt.solver.choices.enumeration import Key, Unlisted


def listed(
    choice: Choice, known: dict[Key, Fraction], ceiling: Fraction | None = None
) -> Iterator[Unlisted]:
    """List configurations below a ceiling; last, if there is one, the bound of all others."""
    choice.bound()
    while isinstance(following := choice.rest(known, ceiling), Unlisted):
        yield following
        if following.key is None:
            return
        known[following.key] = following.bound
