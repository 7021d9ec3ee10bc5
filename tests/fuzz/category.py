"""What a category of attacks is: it draws cases and checks each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from random import Random
from typing import Any, NamedTuple

Case = dict[str, Any]
"""One attack as plain literals: `repr` writes it as Python reads it."""


class Finding(NamedTuple):
    """Something wrong."""

    kind: str
    """A few words joined by hyphens; what has one cause has one kind."""
    description: str
    """What happened, with figures."""


class SkippedError(Exception):
    """A case that cannot be checked: an oracle gave up, or a mutation does not apply."""


class Category(ABC):
    """One kind of attack."""

    name: str
    goal: int
    """Cases of a whole run; the categories of a run keep this ratio at any time."""
    tries: int = 200
    """Most smaller cases that are checked to shrink one; 0 if a case does not repeat."""

    @abstractmethod
    def draw(self, rng: Random) -> Case:
        """Draw a case."""

    @abstractmethod
    def check(self, case: Case) -> Iterator[Finding]:
        """Attack the product; raises SkippedError if the case cannot be checked."""
