"""A deadline: start time, time limit, stop criterion and progress callback of a piece of work.

Callers pass a deadline down; a part of the work gets a part of the time left: `share`, `turn`,
`within`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from math import inf

from ppopt.solver import interrupts
from ppopt.solver.result import Progress

Callback = Callable[[Progress], None]
Stop = Callable[[Progress], bool]

TURN = 2.0
"""Most of the time left that one turn takes, as a multiple of an equal share among the waiting
pieces of work and one more."""


@dataclass(frozen=True)
class Deadline:
    """A number of seconds from an instant of `time.monotonic`."""

    began: float = 0.0
    """Instant from which the time limit counts."""
    seconds: float = inf
    """Time limit in seconds."""
    progress: Callback | None = None
    """Called with the state of the work."""
    stop: Stop | None = None
    """Stop criterion of the caller (`ppopt.stop`): whether the work ends now."""

    @classmethod
    def after(
        cls,
        seconds: float = inf,
        began: float | None = None,
        progress: Callback | None = None,
        stop: Stop | None = None,
    ) -> Deadline:
        """Make a deadline `seconds` after an instant of `time.monotonic`, or else after now."""
        return cls(time.monotonic() if began is None else began, seconds, progress, stop)

    @property
    def end(self) -> float:
        """Instant of `time.monotonic` at which time is up."""
        return self.began + self.seconds

    @property
    def spent(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.began

    @property
    def left(self) -> float:
        """Seconds left; below 0 once time is up."""
        return self.end - time.monotonic()

    @property
    def over(self) -> bool:
        """Whether time is up."""
        return self.left <= 0

    @property
    def pressed(self) -> bool:
        """Whether Ctrl-C was recorded."""
        return interrupts.pressed()

    def within(self, seconds: float) -> Deadline:
        """Deadline from now on of at most `seconds`, within the time left."""
        now = time.monotonic()
        return replace(self, began=now, seconds=min(seconds, self.end - now))

    def share(self, part: float) -> Deadline:
        """Deadline from now on of a part of the time left."""
        now = time.monotonic()
        left = self.end - now
        return replace(self, began=now, seconds=part * left if left > 0 else left)

    def turn(self, waiting: int) -> Deadline:
        """Deadline from now on of one piece of work, while `waiting` others wait."""
        return self.share(TURN / (waiting + 2))

    def longer(self, seconds: float) -> Deadline:
        """Deadline with `seconds` more."""
        return replace(self, seconds=self.seconds + seconds)

    def tell(
        self, phase: str, value: Fraction | None = None, bound: Fraction = Fraction(0)
    ) -> None:
        """Report the state of the work; value and bound in the user's unit."""
        if self.progress is not None:
            self.progress(Progress(self.spent, phase, value, bound))


NO_DEADLINE = Deadline()
"""No time limit."""
