"""The time of a piece of work: when it ends, what may end it sooner, and who follows it.

A deadline is handed down. A part of the work gets a part of the time left: `share`, `turn`.
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
"""Most of the time left that one turn takes, as a multiple of an equal share with those that wait
and one more."""


@dataclass(frozen=True)
class Deadline:
    """So many seconds from an instant of `time.monotonic`."""

    began: float = 0.0
    """The instant from which the time limit counts."""
    seconds: float = inf
    """The time limit."""
    progress: Callback | None = None
    """Called with the state of the work."""
    stop: Stop | None = None
    """Whether the work ends now, as the caller says (`ppopt.stop`)."""

    @classmethod
    def after(
        cls,
        seconds: float = inf,
        began: float | None = None,
        progress: Callback | None = None,
        stop: Stop | None = None,
    ) -> Deadline:
        """So many seconds from an instant of `time.monotonic`, or else from now."""
        return cls(time.monotonic() if began is None else began, seconds, progress, stop)

    @property
    def end(self) -> float:
        """The instant of `time.monotonic` at which time is up."""
        return self.began + self.seconds

    @property
    def spent(self) -> float:
        """Seconds since it began."""
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
        """From now on, at most so many of the seconds left."""
        now = time.monotonic()
        return replace(self, began=now, seconds=min(seconds, self.end - now))

    def share(self, part: float) -> Deadline:
        """From now on, a part of the seconds left."""
        now = time.monotonic()
        left = self.end - now
        return replace(self, began=now, seconds=part * left if left > 0 else left)

    def turn(self, waiting: int) -> Deadline:
        """The turn of one piece of work, while so many others wait."""
        return self.share(TURN / (waiting + 2))

    def longer(self, seconds: float) -> Deadline:
        """The same with so many seconds more."""
        return replace(self, seconds=self.seconds + seconds)

    def tell(
        self, phase: str, value: Fraction | None = None, bound: Fraction = Fraction(0)
    ) -> None:
        """Report the state of the work; value and bound in the user's unit."""
        if self.progress is not None:
            self.progress(Progress(self.spent, phase, value, bound))


NO_DEADLINE = Deadline()
"""Time without end."""
