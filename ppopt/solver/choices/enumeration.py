"""Two types for complete and for partial enumerations.

The time limit, Ctrl-C and size limits cut an enumeration. A proof, "infeasible" and a lower
bound over all configurations need every member of a set, so a function that returns one has a
parameter of type `Complete`. The members of a cut enumeration are `Partial`: candidates to
try, which prove nothing.

`Complete` is created only where an enumeration ends by itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

Key = tuple[int, ...]
"""Identity of a configuration, such as the device of every stage."""
Member_co = TypeVar("Member_co", covariant=True)


@dataclass(frozen=True)
class Complete(Generic[Member_co]):
    """All members of a set."""

    members: Collection[Member_co] = ()


@dataclass(frozen=True)
class Partial(Generic[Member_co]):
    """Some members of a set, whose enumeration was cut."""

    members: Collection[Member_co] = ()


Enumeration = Complete[Member_co] | Partial[Member_co]


@dataclass(frozen=True)
class Unlisted:
    """Configurations that are not enumerated; they may be better than the enumerated ones."""

    bound: int
    """Lower bound of their schedules."""
    key: Key | None = None
    """Next configuration in the order of bounds, which has this bound; None: there is no order."""
    optional: bool = False
    """Whether others are enumerated in the order of bounds though these have none."""

    def under(self, prefix: Key) -> Unlisted:
        """The same configurations of a product, whose keys begin with a prefix."""
        return replace(self, key=None if self.key is None else (*prefix, *self.key))


Rest = Complete[Key] | Unlisted
"""Configurations that are not in a list; `Complete`: none of them is below the ceiling."""
NONE_LEFT: Complete[Key] = Complete()


def min_rest(rests: Iterable[Rest]) -> Rest:
    """Combine the rests of several spaces: the minimum bound, and the next one in order.

    Configurations without an order end the order of all, unless they are optional.
    """
    unlisted = [rest for rest in rests if isinstance(rest, Unlisted)]
    if not unlisted:
        return NONE_LEFT
    ordered = [rest for rest in unlisted if rest.key is not None or not rest.optional]
    following = min(ordered or unlisted, key=lambda rest: (rest.bound, rest.key is not None))
    return replace(following, bound=min(rest.bound for rest in unlisted))


def bounds_of_all(listed: Iterable[int], rest: Rest) -> Complete[int]:
    """Bounds that cover a space: of the listed configurations, and of the rest."""
    bounds = list(listed)
    return Complete([*bounds, rest.bound] if isinstance(rest, Unlisted) else bounds)


def lower_bound_of(bounds: Complete[int]) -> int | None:
    """Lower bound of a space that these bounds cover; None: no configuration is feasible."""
    return min(bounds.members, default=None)
