"""The Pareto frontier of memory and time: points, bounds and hand strategies."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from math import inf
from typing import NamedTuple

from ppopt.notebook_view import NotebookView
from ppopt.problem import placement
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.exact import plain
from ppopt.problem.objective import Objective
from ppopt.problem.partition import refuse_partition_search
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.problem import Problem
from ppopt.schedule.schedule import Schedule
from ppopt.solver import interrupts
from ppopt.solver.bounds import device_bounds
from ppopt.solver.bounds.device_bounds import Bound
from ppopt.solver.result import Progress, Provenance, Result, Status
from ppopt.solver.search import TIME_LIMIT, problem_of, provenance_of
from ppopt.strategies import Options
from ppopt.studies import memory_limits
from ppopt.studies.baseline import comparable
from ppopt.studies.compare import evaluate_all
from ppopt.studies.frontier_curve import Curve, ParetoPoint
from ppopt.studies.frontier_search import Explorer
from ppopt.verifier import checked

HANDS = 0.25
"""Largest share of the time limit that evaluating hand strategies may take."""


class FrontierPoint(NamedTuple):
    """A limit at which the best schedule changes."""

    limit: Fraction
    """Memory limit of every device, static memory included, in the user's unit: the peak of the
    schedule."""
    result: Result
    """The best schedule within the limit, with bound and status, as `ppopt.solve` returns it."""
    least: bool
    """Whether it is proved that no smaller limit allows so small a value."""

    def __repr__(self) -> str:
        return f"FrontierPoint(limit {plain(self.limit)}: {self.result!r})"


class FrontierHand(NamedTuple):
    """A hand strategy compared with the frontier."""

    schedule: Schedule
    seconds: float
    """Time it took to make it."""
    memory: Fraction
    """Its largest device peak, in the user's unit."""
    value: Fraction
    ratio: Fraction | None
    """Its value over that of the best schedule found within its memory; None where its placement
    differs or it exceeds the pipeline's own limits."""

    def __repr__(self) -> str:
        strategy = self.schedule.origin.strategy
        return f"FrontierHand({strategy}: {plain(self.value)} in {plain(self.memory)})"


@dataclass(frozen=True)
class Frontier(NotebookView):
    """Memory against makespan or device span: the result of `ppopt.frontier`."""

    pipeline: Pipeline
    objective: Objective
    backward_kind: BackwardKind
    status: Status
    """Optimal: all points are found and proved. Infeasible: the pipeline's own limits allow no
    schedule."""
    proof: str
    """Why no limit below the first point's works, or what is open; without points, why there are
    none."""
    points: tuple[FrontierPoint, ...]
    """By limit ascending, value descending."""
    bounds: tuple[tuple[Fraction, Fraction], ...]
    """(limit, bound), by limit ascending: the bound holds for that limit and every smaller one."""
    hands: tuple[FrontierHand, ...]
    """By memory, then value."""
    skipped: tuple[tuple[str, str], ...]
    """Strategies that do not apply, each with the reason."""
    provenance: Provenance
    solve_seconds: float
    interrupted: bool = False
    """Whether Ctrl-C ended the search."""

    def __repr__(self) -> str:
        if not self.points:
            return f"Frontier({self.status.value}: {self.proof})"
        ends = (self.points[0], self.points[-1])
        values = [one.result.value for one in ends if one.result.value is not None]
        words = (
            f"{plain(value)} in {plain(one.limit)}" for value, one in zip(values, ends, strict=True)
        )
        return f"Frontier({self.status.value}: {len(self.points)} points, {' to '.join(words)})"

    def at(self, limit: object) -> FrontierPoint | None:
        """The point of the best schedule found within a limit; None where none is."""
        within = [point for point in self.points if point.limit <= limit]  # type: ignore[operator]
        return within[-1] if within else None

    @property
    def least(self) -> FrontierPoint | None:
        """The point of the least limit that works."""
        return self.points[0] if self.points else None

    @property
    def enough(self) -> FrontierPoint | None:
        """The point of least memory with the best value: a larger limit gains nothing."""
        return self.points[-1] if self.points else None

    @property
    def enough_proved(self) -> bool:
        """Whether it is proved that more memory gains nothing and less memory loses."""
        last = self.enough
        return last is not None and last.least and self.bounds[-1][1] == last.result.value


def frontier(
    pipeline: Pipeline,
    *,
    objective: Objective | str = Objective.MAKESPAN,
    backward_kind: BackwardKind | str | None = None,
    fused: bool | None = None,
    options: Options | None = None,
    time_limit: float = TIME_LIMIT,
    workers: int | None = None,
    seed: int = 0,
    progress: Callable[[Progress], None] | None = None,
) -> Frontier:
    """Find every memory limit at which the optimum changes, with the schedules.

    One limit holds for every device, static memory included, together with the pipeline's own
    limits. `time_limit` seconds cover all searches; Ctrl-C ends them and keeps the points found.
    Raises InputError on misuse only.
    """
    began = time.monotonic()
    placement.refuse_placement_search(pipeline.placement, "frontier")
    refuse_partition_search(pipeline.partition, "frontier")
    pipeline.refuse_recompute_search("frontier")
    provenance = provenance_of(time_limit, workers, seed)
    kind = BackwardKind.read(backward_kind, fused)
    problem = problem_of(pipeline, Objective(objective), kind)
    made, skipped = evaluate_all(
        pipeline, problem.objective, options or Options(), kind, seconds=HANDS * time_limit
    )
    impossible = device_bounds.infeasibility(problem.reduced.instance)
    curve = Curve([] if impossible else memory_limits.candidates(problem.reduced))
    explorer = Explorer(
        problem, provenance, began + time_limit, progress or (lambda _: None), curve, began
    )
    if not impossible:
        explorer.run(schedule for schedule, _ in made)
    with interrupts.recorded() as pressed:
        points = tuple(_point(explorer, found) for found in curve.found)
        hands = _hands(problem, made, points)
    return Frontier(
        pipeline=pipeline,
        objective=problem.objective,
        backward_kind=kind,
        status=_status(curve, impossible),
        proof=impossible or _proof(problem, curve),
        points=points,
        bounds=_bounds(problem, curve),
        hands=hands,
        skipped=skipped,
        provenance=provenance,
        solve_seconds=time.monotonic() - began,
        interrupted=explorer.interrupted or bool(pressed),
    )


def _point(explorer: Explorer, found: ParetoPoint) -> FrontierPoint:
    """The point of a schedule, verified under its own limit."""
    problem, curve, ticks = explorer.problem, explorer.curve, explorer.problem.pipeline.ticks
    limit = ticks.memory(found.limit)
    bound = _bound(problem, curve, found.limit)
    within = memory_limits.within(problem.pipeline, limit)
    result = Result(
        pipeline=within,
        objective=problem.objective,
        backward_kind=problem.backward_kind,
        status=Status.OPTIMAL if bound.value == found.value else Status.FEASIBLE,
        schedule=None,
        value=ticks.time(found.value),
        lower_bound=ticks.time(bound.value),
        proof=bound.proof + device_bounds.bound_scope(problem, bound),
        certificate=bound.certificate,
        provenance=explorer.provenance,
        solve_seconds=explorer.spent[found.limit],
    )
    schedule = replace(found.schedule, pipeline=within, origin=result.origin())
    return FrontierPoint(
        limit, replace(result, schedule=checked(schedule)), _is_least(curve, found)
    )


def _bound(problem: Problem, curve: Curve, limit: int) -> Bound:
    """The best bound for a limit; its proof names the larger limit where it was proved for one."""
    proved = curve.bound(limit)
    if proved is None:
        return device_bounds.known_bound(problem.reduced)
    if proved.limit == limit:
        return proved.bound
    larger = problem.pipeline.memory_text(proved.limit)
    words = f"{proved.bound.proof} (proved for the limit {larger}, so for every smaller one)"
    return proved.bound._replace(proof=words)


def _is_least(curve: Curve, found: ParetoPoint) -> bool:
    """Whether it is proved that every smaller limit allows larger values only, or no schedule."""
    place = bisect_left(curve.limits, found.limit)
    return place == 0 or curve.low(curve.limits[place - 1]) > found.value


def _bounds(problem: Problem, curve: Curve) -> tuple[tuple[Fraction, Fraction], ...]:
    ticks = problem.pipeline.ticks
    known = [(proved.limit, proved.bound) for proved in curve.proved]
    if curve.limits and (not known or known[-1][0] < curve.limits[-1]):
        anyway = device_bounds.known_bound(problem.reduced)
        known.append((curve.limits[-1], anyway))
    return tuple((ticks.memory(limit), ticks.time(bound.value)) for limit, bound in known)


def _is_impossible(curve: Curve) -> bool:
    """Whether a search has proved that the pipeline's own limits allow no schedule."""
    return curve.low(curve.limits[-1]) == inf


def _status(curve: Curve, impossible: str | None) -> Status:
    if impossible:
        return Status.INFEASIBLE
    if not curve.found:
        return Status.INFEASIBLE if _is_impossible(curve) else Status.UNKNOWN
    return Status.FEASIBLE if next(curve.open(), None) else Status.OPTIMAL


def _proof(problem: Problem, curve: Curve) -> str:
    """Why no limit below the first point's works, or why there is no point."""
    if _is_impossible(curve):
        words = "all orders within the pipeline's own limits were searched and none found"
        return words + device_bounds.proof_scope(problem)
    if not curve.found:
        return "nothing was found before the time was up"
    pipeline, first = problem.pipeline, curve.found[0]
    least = device_bounds.minimum_memory(problem.reduced.instance)
    device = least.index(max(least))
    shown = pipeline.memory_text(least[device])
    words = f"device {device} needs {shown} even for one microbatch at a time"
    if first.limit == least[device]:
        return words
    searched = "all orders within the next smaller limit were searched and none found"
    return searched if _is_least(curve, first) else f"{words}; between is not decided"


def _hands(
    problem: Problem, made: list[tuple[Schedule, float]], points: tuple[FrontierPoint, ...]
) -> tuple[FrontierHand, ...]:
    hands = []
    for schedule, seconds in made:
        ticks, figures = schedule.pipeline.ticks, schedule.metrics
        memory = ticks.memory(max(figures.peak_memory))
        value = ticks.time(figures.value(problem.objective))
        best = [point.result.value for point in points if point.limit <= memory]
        same = schedule.fits_limits and comparable(schedule, problem.pipeline)
        ratio = value / best[-1] if same and best and best[-1] else None
        hands.append(FrontierHand(schedule, seconds, memory, value, ratio))
    return tuple(sorted(hands, key=lambda hand: (hand.memory, hand.value)))
