"""The tree of exceptions.

"No schedule fits" is a result with a proof, never an exception; exceptions are for misuse.

    PpoptError
    +-- InputError            what the user gave cannot be used (exit code 2)
    |   +-- DeadlockError     an order in which operations wait for each other in a circle
    +-- RunError              a process that runs a schedule failed (exit code 1)
    +-- VerificationError     a schedule made here breaks a rule: a bug of ours (exit code 1)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

ALSO = "; also "
"""Stands between the faults of one input."""
MOST_FAULTS = 5
"""Faults of one input that an error names."""


class PpoptError(Exception):
    """Base of every exception raised on purpose."""


class InputError(PpoptError):
    """Input that cannot be used; the message is one line: what, where, and how to mend it."""


class Faults:
    """Collects the faults of one input, to name them all at once."""

    def __init__(self) -> None:
        self.found: list[str] = []

    @contextmanager
    def collected(self) -> Iterator[None]:
        """Note an InputError of the block, and go on after it."""
        try:
            yield
        except InputError as error:
            self.found.append(str(error))

    @property
    def full(self) -> bool:
        """Whether further faults are only counted, whatever they say."""
        return len(self.found) >= MOST_FAULTS

    def check(self) -> None:
        """Raise one InputError, of one line, that names all faults."""
        if self.found:
            more = len(self.found) - MOST_FAULTS
            rest = [f"{more} more"] if more > 0 else []
            raise InputError(ALSO.join([*self.found[:MOST_FAULTS], *rest]))


class DeadlockError(InputError):
    """An order whose operations wait for each other in a circle.

    `cycle` names the operations (`ppopt.Op`); each must end before the next may start, and the last
    before the first.
    """

    def __init__(self, cycle: tuple[Any, ...]) -> None:
        self.cycle = cycle
        shown = " -> ".join(str(op) for op in (*cycle, cycle[0]))
        super().__init__(f"the order deadlocks: {shown}; reorder one of these operations")


class VerificationError(PpoptError):
    """A schedule made by ppopt failed its own verifier: please report it."""


class RunError(PpoptError):
    """A process that runs a schedule failed, or does not answer."""
