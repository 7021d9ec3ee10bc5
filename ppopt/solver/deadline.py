"""A deadline: start time, time limit, stop criterion and progress callback of a piece of work.

The drivers of a search have deadlines. A part of the work has a share of the remaining time:
`share`, `share_with`. What a driver calls knows no deadline: `scope` ends it.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from fractions import Fraction
from math import inf

from ppopt import cancellation, interrupts
from ppopt.cancellation import Scope
from ppopt.problem.cost_table import ZERO
from ppopt.solver.result import Callback, Progress, Stop


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
        """Create a deadline `seconds` after an instant of `time.monotonic`, or else after now."""
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
        """Whether time is up, or Ctrl-C was recorded."""
        return self.left <= 0 or interrupts.pressed()

    def scope(self) -> AbstractContextManager[Scope]:
        """Limit the work of a block to this deadline; see `ppopt.cancellation`."""
        return cancellation.scope(self.end)

    def share(self, share: float) -> Deadline:
        """Deadline from now on of a share of the remaining time."""
        now = time.monotonic()
        remaining = self.end - now
        return replace(self, began=now, seconds=share * remaining if remaining > 0 else remaining)

    def share_with(self, waiting: int) -> Deadline:
        """Deadline from now on of one piece of work, while `waiting` other pieces wait."""
        return self.share(cancellation.equal_share(waiting))

    def longer(self, seconds: float) -> Deadline:
        """Deadline with `seconds` more."""
        return replace(self, seconds=self.seconds + seconds)

    def tell(self, phase: str, value: Fraction | None = None, bound: Fraction = ZERO) -> None:
        """Report the state of the work; value and bound in the user's unit."""
        if self.progress is not None:
            self.progress(Progress(self.spent, phase, value, bound))


NO_DEADLINE = Deadline()
"""No time limit."""
