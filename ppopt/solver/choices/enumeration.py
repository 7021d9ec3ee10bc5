"""Enumerations that ended, and enumerations that were cut: two types.

Time, Ctrl-C and limits of size cut an enumeration. A proof, "infeasible" and a lower bound over all
need every member of a set, so a function that makes one has a parameter of type `Complete`. The
members known before a cut are `Partial`: candidates to try, which prove nothing.

`Complete` is made only where an enumeration ends by itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Generic, TypeVar

Key = tuple[int, ...]
"""Identity of a configuration, such as the device of every stage."""
Member_co = TypeVar("Member_co", covariant=True)


@dataclass(frozen=True)
class Complete(Generic[Member_co]):
    """All members of a set: none is left out."""

    members: Collection[Member_co] = ()


@dataclass(frozen=True)
class Partial(Generic[Member_co]):
    """Some members of a set: its enumeration was cut."""

    members: Collection[Member_co] = ()


Enumeration = Complete[Member_co] | Partial[Member_co]


@dataclass(frozen=True)
class Unlisted:
    """Configurations that are left out of a list: they may be better than those in it."""

    bound: Fraction
    """Lower bound of their schedules."""
    key: Key | None = None
    """Next configuration, which has this bound; None: they have no order."""


Rest = Complete[Key] | Unlisted
"""Configurations beyond a list; complete: there are none below the ceiling."""
NONE_LEFT: Complete[Key] = Complete()


def least_of(rests: Iterable[Rest]) -> Rest:
    """Rest of several spaces together: the unlisted configurations of the least bound."""
    unlisted = [rest for rest in rests if isinstance(rest, Unlisted)]
    return min(unlisted, key=lambda rest: (rest.bound, rest.key is not None), default=NONE_LEFT)


def bounds_of_all(listed: Iterable[Fraction], rest: Rest) -> Complete[Fraction]:
    """Bounds that cover a space: those of the listed configurations, and that of the rest."""
    bounds = list(listed)
    return Complete([*bounds, rest.bound] if isinstance(rest, Unlisted) else bounds)


def lower_bound_of(bounds: Complete[Fraction]) -> Fraction | None:
    """Lower bound of a space that these bounds cover; None: no configuration is feasible."""
    return min(bounds.members, default=None)
