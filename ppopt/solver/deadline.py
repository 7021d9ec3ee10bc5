"""A deadline: start time and time limit of a request, or of the loop over methods.

What they call knows no deadline: `scope` ends it (`ppopt.cancellation`).
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from math import inf

from ppopt import cancellation
from ppopt.cancellation import Scope


@dataclass(frozen=True)
class Deadline:
    """A number of seconds from an instant of `time.monotonic`."""

    began: float = 0.0
    """Instant from which the time limit counts."""
    seconds: float = inf
    """Time limit in seconds."""

    @classmethod
    def after(cls, seconds: float = inf, began: float | None = None) -> Deadline:
        """Create a deadline `seconds` after an instant of `time.monotonic`, or else after now."""
        return cls(time.monotonic() if began is None else began, seconds)

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

    def scope(self) -> AbstractContextManager[Scope]:
        """Limit the work of a block to this deadline; see `ppopt.cancellation`."""
        return cancellation.scope(self.end)

    def longer(self, seconds: float) -> Deadline:
        """Deadline with `seconds` more."""
        return replace(self, seconds=self.seconds + seconds)


NO_DEADLINE = Deadline()
"""No time limit."""
