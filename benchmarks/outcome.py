"""What a side of a race may use, and what it returns; the same for ppopt and for plain CP-SAT."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from ppopt.problem.objective import Objective
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.schedule import Schedule


class Limits(NamedTuple):
    """What a run may use."""

    seconds: float
    """On the wall, building the model included."""
    workers: int
    """Threads of the solver; those that have one thread only use one."""
    seed: int


class Point(NamedTuple):
    """Where a run stood at an instant; ticks."""

    seconds: float
    value: int | None
    bound: int


class Size(NamedTuple):
    """Size of the model that was handed to a solver."""

    variables: int
    constraints: int


@dataclass(frozen=True)
class Outcome:
    """What a run found and proved; the schedule has passed the verifier."""

    status: str
    """`optimal`, `feasible`, `infeasible` or `unknown`."""
    schedule: Schedule | None
    value: int | None
    """Objective of the schedule, in ticks."""
    bound: int
    """Proved lower bound, in ticks."""
    seconds: float
    size: Size
    trace: tuple[Point, ...]
    """Every change of the best value or bound, by time."""


class Solver(Protocol):
    """The one interface of all sides."""

    def __call__(self, pipeline: Pipeline, objective: Objective, limits: Limits) -> Outcome:
        """Search until proof or the end of time."""


@dataclass
class Run:
    """A run under way: the clock, the best value and bound so far, and their history."""

    objective: Objective
    limits: Limits
    began: float = field(default_factory=time.monotonic)
    value: int | None = None
    bound: int = 0
    trace: list[Point] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.began

    @property
    def left(self) -> float:
        """Seconds left, 0 at least."""
        return max(0.0, self.limits.seconds - self.seconds)

    def note(self, value: int | None, bound: int | None) -> None:
        """Keep a value or a bound if it is better."""
        value = min((v for v in (value, self.value) if v is not None), default=None)
        bound = max(self.bound, bound or 0)
        if (value, bound) != (self.value, self.bound) or not self.trace:
            self.value, self.bound = value, bound
            self.trace.append(Point(self.seconds, value, bound))

    def outcome(self, schedule: Schedule | None, size: Size, *, infeasible: bool) -> Outcome:
        """End the run; value and status follow from the schedule and the bound alone."""
        self.value = None
        value = None if schedule is None else schedule.metrics.value_ticks(self.objective)
        self.note(value, None)
        return Outcome(
            status=_status(value, self.bound, infeasible=infeasible),
            schedule=schedule,
            value=value,
            bound=self.bound,
            seconds=self.seconds,
            size=size,
            trace=tuple(self.trace),
        )


def _status(value: int | None, bound: int, *, infeasible: bool) -> str:
    if infeasible:
        return "infeasible"
    if value is None:
        return "unknown"
    if value < bound:
        raise AssertionError(f"bound {bound} above a schedule of {value} ticks")
    return "optimal" if value == bound else "feasible"
