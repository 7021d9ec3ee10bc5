"""The tree of exceptions.

"No schedule fits" is a result with a proof, never an exception; exceptions are for misuse.

    PpoptError
    +-- InputError            what the user gave cannot be used (exit code 2)
    |   +-- ConflictError     parts of the input, each of them right, that do not go together
    |   +-- DeadlockError     an order in which operations wait for each other in a circle
    +-- NotApplicableError    a strategy or format does not apply to a pipeline (exit code 2)
    +-- RunError              a process that runs a schedule failed (exit code 1)
    +-- VerificationError     a schedule made here breaks a rule: a bug of ours (exit code 1)

An InputError is caught where input enters: at the command line, in a row of a sweep, and by readers
of files, which add the place. Code between these does not catch it, because it may also come from a
mistake of ours. Code that tries several things catches NotApplicableError, which says that one of
them does not exist for a pipeline. Neither ever proves that no schedule fits.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

ALSO = "; also "
"""Stands between the faults of one input."""
MAX_FAULTS = 5
"""Faults of one input that an error names."""


class PpoptError(Exception):
    """Base of every exception raised on purpose."""


class InputError(PpoptError):
    """Input that cannot be used; the message is one line: what, where, and how to fix it."""


class ConflictError(InputError):
    """Parts of the input that do not go together, such as two routes and an odd number of batches.

    If the user gave only some of these parts and ppopt tries a value for the others, this is no
    fault of the input: see `not_applicable`.
    """


class NotApplicableError(PpoptError):
    """A strategy, search, partition or file format does not apply to a pipeline; one line says why.

    The pipeline itself is right. Not an InputError: that one may come from any mistake.
    """


def check_type(name: str, value: object, *kinds: type) -> None:
    """Raise InputError unless a pipeline, model or schedule (`name`) is of one of these types."""
    if not isinstance(value, kinds):
        raise InputError(
            f"{name}: {reprlib.repr(value)} is not a {name}; ppopt.read_{name}(FILE) reads a file"
        )


@contextmanager
def not_applicable() -> Iterator[None]:
    """Raise a ConflictError of the block as a NotApplicableError.

    For blocks that set up a pipeline with values that ppopt tries, as the chunks of a strategy.
    """
    try:
        yield
    except ConflictError as error:
        raise NotApplicableError(str(error)) from None


class Faults:
    """Collects the faults of one input, to name them all at once."""

    def __init__(self) -> None:
        self.errors: list[InputError] = []

    @contextmanager
    def collected(self) -> Iterator[None]:
        """Note an InputError of the block, and go on after it; faults of the same text are one."""
        try:
            yield
        except InputError as error:
            if str(error) not in map(str, self.errors[:MAX_FAULTS]):
                self.errors.append(error)

    @property
    def full(self) -> bool:
        """Whether further faults are only counted, whatever they say."""
        return len(self.errors) >= MAX_FAULTS

    def check(self) -> None:
        """Raise one InputError, of one line, that names all faults.

        It is a ConflictError if all faults are.
        """
        if self.errors:
            more = len(self.errors) - MAX_FAULTS
            rest = [f"{more} more"] if more > 0 else []
            conflict = all(isinstance(fault, ConflictError) for fault in self.errors)
            kind = ConflictError if conflict else InputError
            raise kind(ALSO.join([*map(str, self.errors[:MAX_FAULTS]), *rest]))


class DeadlockError(InputError):
    """An order whose operations wait for each other in a circle.

    `cycle` names the operations (`ppopt.Op`); each must end before the next may start, and the last
    before the first. `named` writes an operation as its file does.
    """

    def __init__(self, cycle: tuple[Any, ...], named: Callable[[Any], str] = str) -> None:
        self.cycle = cycle
        cycle_text = " -> ".join(map(named, (*cycle, cycle[0])))
        super().__init__(f"the order deadlocks: {cycle_text}; reorder one of these operations")


class VerificationError(PpoptError):
    """A schedule made by ppopt failed its own verifier: please report it."""


class RunError(PpoptError):
    """A process that runs a schedule failed, or does not answer."""
