"""What every baseline is given, and what every baseline gives back.

The problem is that of `ppopt.solve` with every backward split, on one route. Baselines take the
data flow and the durations from where the project states them, and none of its solver.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple, Protocol

from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.instance import Instance
from ppopt.problem.objective import Objective
from ppopt.problem.operation import OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.schedule import Schedule
from ppopt.verifier import checked

KINDS = (OpKind.F, OpKind.B, OpKind.W)


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


class Holding(NamedTuple):
    """Memory that is held from the start of one operation to the end of another."""

    first: int
    last: int
    amount: int


class Floor(NamedTuple):
    """The objective is at least end of `last` - start of `first`, or - 0 without a first."""

    last: int
    first: int | None


class Link(NamedTuple):
    """`after` starts at the end of `before` + `lag` or later."""

    before: int
    after: int
    lag: int


@dataclass(frozen=True)
class Jobs:
    """The operations of a pipeline, by their numbers (`Pipeline.code`), as plain integers."""

    pipeline: Pipeline
    duration: Mapping[int, int]
    groups: tuple[tuple[int, ...], ...]
    """Operations of every device."""
    flow: tuple[Link, ...]
    """The data flow."""
    queue: tuple[Link, ...]
    """First in, first out: operations of one kind and stage run in the order of microbatches,
    without loss (see the docstring of `ppopt.solver.cp_sat.model`)."""
    horizon: int
    """Time in which all operations fit one after the other."""

    @classmethod
    def of(cls, pipeline: Pipeline) -> Jobs:
        """List the operations of a pipeline with one route."""
        assert pipeline.routes == pipeline.num_slices == 1, (
            "the baselines know one route, no slices"
        )
        stages, batches = range(pipeline.num_stages), range(pipeline.batches)
        rows = [[pipeline.code(kind, s, j) for j in batches] for kind in KINDS for s in stages]
        times = [pipeline.ticks.durations[kind][s] for kind in KINDS for s in stages]
        duration = {code: time for row, time in zip(rows, times, strict=True) for code in row}
        groups: list[list[int]] = [[] for _ in range(pipeline.num_devices)]
        for row in rows:
            groups[pipeline.device(pipeline.op(row[0]).stage, 0)] += row
        flow = Instance(pipeline, BackwardKind.SPLIT).operation_flow
        links = zip(*(column.tolist() for column in flow), strict=True)
        return cls(
            pipeline=pipeline,
            duration=duration,
            groups=tuple(map(tuple, groups)),
            flow=tuple(Link(*link) for link in links),
            queue=tuple(Link(*pair, 0) for row in rows for pair in pairwise(row)),
            horizon=sum(duration.values()) + int(flow.lag.sum()),
        )

    def holdings(self, device: int) -> Iterator[Holding]:
        """Memory that microbatches hold on a device, by intervals with fixed positive amounts.

        With memory_b < 0, B gives that part back and W the rest; with memory_b > 0, B takes more.
        """
        ticks, code = self.pipeline.ticks, self.pipeline.code
        for stage in self.pipeline.hosted[0][device]:
            taken, at_b = ticks.costs.activation[stage], ticks.costs.memory_b[stage]
            parts = (
                (OpKind.F, OpKind.W, taken + min(at_b, 0)),
                (OpKind.F, OpKind.B, max(-at_b, 0)),
                (OpKind.B, OpKind.W, max(at_b, 0)),
            )
            for first, last, amount in parts:
                for j in range(self.pipeline.batches) if amount else ():
                    yield Holding(code(first, stage, j), code(last, stage, j), amount)

    def change(self, code: int) -> int:
        """Signed change of memory by an operation, in ticks."""
        op = self.pipeline.op(code)
        return self.pipeline.ticks.memory_change(op.kind, op.stage)

    def room(self, device: int) -> int | None:
        """Memory limit less static memory, in ticks; None: no limit."""
        ticks = self.pipeline.ticks
        return None if ticks.limits is None else ticks.limits[device] - ticks.static[device]

    def floors(self, objective: Objective) -> Iterator[Floor]:
        """The objective, stated by the last W of every stage (W run in order).

        A device's first operation is the first forward of its first stage.
        """
        pipeline = self.pipeline
        for hosted in pipeline.hosted[0]:
            first = pipeline.code(OpKind.F, hosted[0], 0) if hosted else None
            for stage in hosted:
                last = pipeline.code(OpKind.W, stage, pipeline.batches - 1)
                yield Floor(last, None if objective is Objective.MAKESPAN else first)

    def busiest(self) -> int:
        """Longest work of a device: a lower bound that needs no thought."""
        return max(sum(self.duration[code] for code in group) for group in self.groups)

    def schedule(self, start: Mapping[int, int]) -> Schedule:
        """The schedule with these starts, verified; raises VerificationError."""
        rows = []
        for code, begin in start.items():
            kind, stage, microbatch, *_ = op = self.pipeline.op(code)
            device = self.pipeline.device(op.stage, op.microbatch)
            rows.append((kind, stage, microbatch, device, begin, begin + self.duration[code]))
        return checked(Schedule.from_rows(self.pipeline, rows))


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
