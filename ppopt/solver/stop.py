"""Stop criteria: when a search ends before proof and before its time limit.

A criterion is any function from `Progress` to bool. The usual ones are defined here:

    ppopt.solve(pipe, stop=ppopt.stop.GapBelow(0.01))

The search polls the criterion at every step, in the thread that called `solve`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ppopt.errors import InputError
from ppopt.solver.result import Progress

Criterion = Callable[[Progress], bool]


@dataclass(frozen=True)
class FirstSchedule:
    """Stop at the first schedule within the limits."""

    def __call__(self, progress: Progress) -> bool:
        """Whether there is a schedule."""
        return progress.value is not None


@dataclass(frozen=True)
class GapBelow:
    """Stop once (value - lower bound) / value is at most this share."""

    share: float

    def __post_init__(self) -> None:
        """Raise InputError unless 0 <= share < 1."""
        if not 0 <= self.share < 1:
            raise InputError(f"stop: a gap of {self.share} is not between 0 and 1, such as 0.01")

    def __call__(self, progress: Progress) -> bool:
        """Whether the gap is small enough."""
        value, bound = progress.value, progress.lower_bound
        return value is not None and (value - bound) / value <= self.share


@dataclass
class NoImprovement:
    """Stop after `seconds` in which neither value nor bound improved."""

    seconds: float
    _best: Progress | None = field(default=None, init=False, repr=False)
    _since: float = field(default=0.0, init=False, repr=False)

    def __post_init__(self) -> None:
        """Raise InputError unless the time is positive."""
        if not self.seconds > 0:
            raise InputError(f"stop: {self.seconds} is not above 0 seconds")

    def __call__(self, progress: Progress) -> bool:
        """Whether nothing improved for that long; a new search resets the time."""
        best = self._best
        same = best is not None and best[2:] == progress[2:]
        if not same or progress.seconds < self._since:
            self._best, self._since = progress, progress.seconds
        return progress.seconds - self._since >= self.seconds


@dataclass(frozen=True)
class AnyOf:
    """Stop as soon as one of several criteria holds."""

    criteria: tuple[Criterion, ...]

    def __init__(self, *criteria: Criterion) -> None:
        object.__setattr__(self, "criteria", criteria)

    def __call__(self, progress: Progress) -> bool:
        """Whether any criterion holds.

        All are evaluated, because some measure time.
        """
        answers = [criterion(progress) for criterion in self.criteria]
        return any(answers)
