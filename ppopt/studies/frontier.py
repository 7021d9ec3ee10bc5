"""The Pareto frontier of memory and time: points, bounds and baselines."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import reduce
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from ppopt.cancellation import DrivenResult, driven, equal_part, turns, within
from ppopt.errors import check_type
from ppopt.notebook_view import NotebookView
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.exact import plain, plain_or_none, ratio
from ppopt.problem.grid import Grid
from ppopt.problem.objective import Objective
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.schedule import Schedule
from ppopt.solver.choices.result import known_result
from ppopt.solver.options import TIME_LIMIT, checked_options
from ppopt.solver.result import Progress, Provenance, Result, Status
from ppopt.solver.search import problem_of
from ppopt.strategies import Options
from ppopt.studies.baselines import StrategyBatch, after_search
from ppopt.studies.evaluate import objective_value, peak_memory
from ppopt.studies.frontier_curve import Curve, ParetoPoint
from ppopt.studies.frontier_problem import FrontierProblem
from ppopt.studies.frontier_search import ParetoSearch
from ppopt.studies.limit_candidates import with_limit

if TYPE_CHECKING:
    from pandas import DataFrame


class FrontierPoint(NamedTuple):
    """A limit at which the best schedule changes."""

    limit: Fraction
    """Memory limit of every device, static memory included, in the user's unit: the peak of the
    schedule."""
    result: Result
    """Best schedule within the limit, with bound and status, as `ppopt.solve` returns it."""
    limit_proved: bool
    """Whether every smaller limit is proved to have a larger optimum, or no schedule."""

    def __repr__(self) -> str:
        return f"FrontierPoint(limit {plain(self.limit)}: {self.result!r})"


class FrontierBaseline(NamedTuple):
    """A strategy compared with the frontier."""

    schedule: Schedule
    seconds: float
    """Time to build the schedule."""
    memory: Fraction
    """Largest device peak of the schedule, in the user's unit."""
    value: Fraction
    ratio: float | None
    """Value divided by that of the best schedule found within the same memory; None if the
    placement differs or the schedule exceeds the pipeline's own limits."""

    def __repr__(self) -> str:
        strategy = self.schedule.origin.strategy
        return f"FrontierBaseline({strategy}: {plain(self.value)} in {plain(self.memory)})"


@dataclass(frozen=True)
class Frontier(DrivenResult, NotebookView):
    """Memory against makespan or device span: the result of `ppopt.frontier`."""

    pipeline: Pipeline
    objective: Objective
    backward_kind: BackwardKind
    status: Status
    """Optimal: all points are found and proved. Infeasible: the pipeline's own limits allow no
    schedule."""
    proof: str
    """Why every limit below the first point is infeasible, or what is not decided; without points,
    why there are none."""
    points: tuple[FrontierPoint, ...]
    """Points by limit ascending, value descending."""
    bounds: tuple[tuple[Fraction, Fraction], ...]
    """(limit, bound), by limit ascending: the bound holds for that limit and every smaller one."""
    baselines: tuple[FrontierBaseline, ...]
    """Strategies by memory, then value."""
    skipped: tuple[tuple[str, str], ...]
    """Strategies that do not apply, each with the reason."""
    provenance: Provenance
    solve_seconds: float
    placements: tuple[str, ...] = ()
    """Placements that were searched, if there are several."""

    def __repr__(self) -> str:
        if not self.points:
            return f"Frontier({self.status.value}: {self.proof})"
        ends = (self.points[0], self.points[-1])
        texts = [f"{plain(_value(point))} in {plain(point.limit)}" for point in ends]
        return f"Frontier({self.status.value}: {len(self.points)} points, {' to '.join(texts)})"

    def to_frame(self) -> DataFrame:
        """One row per point and per baseline, in the user's units, as a pandas DataFrame.

        `strategy` is `searched` for the points, whether or not they are proved; a baseline has no
        status and no bound. `memory` is the largest device peak. Needs pandas (the extra `frame`).
        """
        from pandas import DataFrame  # noqa: PLC0415  optional

        points = ((point.limit, point.result.schedule, point.result) for point in self.points)
        baselines = ((baseline.memory, baseline.schedule, None) for baseline in self.baselines)
        return DataFrame(
            [
                {
                    "strategy": schedule.origin.strategy,
                    "placement": schedule.pipeline.resolved_placement,
                    "chunks": schedule.pipeline.num_chunks,
                    "memory": plain(memory),
                    "value": plain(objective_value(schedule, self.objective)),
                    "lower_bound": result and plain_or_none(result.lower_bound),
                    "status": result and result.status.value,
                }
                for memory, schedule, result in (*points, *baselines)
                if schedule is not None
            ]
        )

    def at(self, limit: object) -> FrontierPoint | None:
        """Point of the best schedule found within a limit; None if there is none."""
        within = [point for point in self.points if point.limit <= limit]  # type: ignore[operator]
        return within[-1] if within else None

    def within(self, share: Fraction) -> FrontierPoint | None:
        """Point of minimum memory whose value is at most (1 + `share`) times the best found."""
        if not self.points:
            return None
        max_value = self._max_value(share)
        return next(point for point in self.points if _value(point) <= max_value)

    def beyond(self, share: Fraction) -> Fraction | None:
        """Largest limit whose bound excludes values up to (1 + `share`) times the best; or None."""
        max_value = self._max_value(share)
        return max((limit for limit, bound in self.bounds if bound > max_value), default=None)

    def _max_value(self, share: Fraction) -> Fraction:
        return (1 + share) * _value(self.points[-1])

    @property
    def searched(self) -> tuple[str, ...]:
        """Decisions searched with every schedule: partition, placement, recompute."""
        names = self.pipeline.open_decisions.names
        return (*names, "placement") if self.placements else names

    @property
    def min_memory_point(self) -> FrontierPoint | None:
        """Point of the smallest limit that allows a schedule."""
        return self.points[0] if self.points else None

    @property
    def enough(self) -> FrontierPoint | None:
        """Point of minimum memory with the best value: a larger limit does not help."""
        return self.points[-1] if self.points else None

    @property
    def enough_proved(self) -> bool:
        """Whether more memory is proved not to help, and less memory to cost time."""
        last = self.enough
        return last is not None and last.limit_proved and self.bounds[-1][1] == last.result.value


def _value(point: FrontierPoint) -> Fraction:
    assert point.result.value is not None
    return point.result.value


@driven
def frontier(
    pipeline: Pipeline,
    *,
    also: Sequence[Pipeline] = (),
    objective: Objective | str = Objective.MAKESPAN,
    backward_kind: BackwardKind | str | None = None,
    options: Options | None = None,
    time_limit: float = TIME_LIMIT,
    workers: int | None = None,
    seed: int = 0,
    progress: Callable[[Progress], None] | None = None,
    began: float | None = None,
) -> Frontier:
    """Find every memory limit at which the optimum changes, with the schedules.

    If the partition, the placement or the recompute of the pipeline is open, every point has its
    own best ones, and the bounds cover all of them. So it is with the pipelines of `also`: the same
    with another placement or other chunks.

    One limit holds for every device, static memory included, together with the pipeline's own
    limits. `time_limit` seconds cover all searches, from `began` (of `time.monotonic`) or else from
    now. Ctrl-C ends them; the points so far, also those of baselines, are returned. The search
    starts from the schedules of strategies; strategies that need more than their share of the time
    are evaluated after it. Raises InputError on misuse only.
    """
    check_type("pipeline", pipeline, Pipeline)
    request = checked_options(time_limit, workers, seed, progress=progress, began=began)
    kind, objective = BackwardKind.read(backward_kind), Objective(objective)
    pipelines = _on_one_grid((pipeline, *also))
    problems = [FrontierProblem(problem_of(each, objective, kind)) for each in pipelines]
    search = ParetoSearch([each for each in problems if not each.impossible], request)
    batch = StrategyBatch(pipelines, objective, options or Options(), kind)
    _run(search, batch)
    points = tuple(_point(search, point) for point in search.curve.points)
    return Frontier(
        pipeline=pipeline,
        objective=objective,
        backward_kind=kind,
        status=_status(search.curve),
        proof=_proof(problems, search),
        points=points,
        bounds=tuple(
            (problems[0].memory(limit), problems[0].time(value))
            for limit, value in search.curve.bounds
        ),
        baselines=_baselines(problems, batch.schedules, points),
        skipped=batch.skipped,
        provenance=request.provenance,
        solve_seconds=request.spent,
        placements=tuple(each.name for each in problems) if also else (),
    )


def _on_one_grid(pipelines: Sequence[Pipeline]) -> list[Pipeline]:
    """The pipelines, whose times and amounts can be compared in ticks."""
    grid = reduce(Grid.joined, (each.grid for each in pipelines))
    return [each if each.grid == grid else replace(each, grid=grid) for each in pipelines]


def _run(search: ParetoSearch, batch: StrategyBatch) -> None:
    """Evaluate the strategies, and search from them.

    Strategies that were skipped for lack of time are evaluated after the search, which then ends
    slightly after the time limit.
    """
    request = search.options
    params, limit = request.params.frontier, request.time_limit
    seconds, search_seconds = params.strategies * limit, params.strategy_searches * limit
    with request.scope():
        with within(seconds):
            batch.evaluate(request.tell, search_seconds=search_seconds)
        strategies = [schedule for schedule, _ in batch.schedules]
        starts = [*strategies]
        with within(2 * seconds - request.spent):
            for problem, turn in turns(search.problems, equal_part):
                with turn:
                    starts.extend(problem.first_schedules(strategies))
        search.run(starts)
    with after_search(request.seconds, request.spent):
        search.seed(batch.evaluate())


def _point(search: ParetoSearch, point: ParetoPoint) -> FrontierPoint:
    """Point of a schedule, verified under its own limit."""
    own = search.problem_of(point.schedule)
    proved = own.bound_at(point.limit)
    lower_bound, proof = int(search.curve.lower_bound(point.limit)), proved.proof
    if len(search.problems) > 1:
        names = ", ".join(problem.name for problem in search.problems)
        proof = (
            f"this is the minimum of the bounds of the placements {names}; that of {own.name}: "
            f"{proof}"
        )
    assert point.schedule.pipeline.grid.time == own.problem.pipeline.grid.time, "all share ticks"
    pipeline = with_limit(point.schedule.pipeline, point.limit, own.problem.pipeline)
    schedule = point.schedule.limited(pipeline)
    result = replace(
        known_result(own.problem, schedule, search.options),
        status=Status.of(point.value, lower_bound),
        bound_ticks=lower_bound,
        proof=proof,
        certificate=proved.certificate,
        solve_seconds=search.seconds(point.limit),
    ).with_schedule(schedule)
    return FrontierPoint(own.memory(point.limit), result, _is_limit_proved(search.curve, point))


def _is_limit_proved(curve: Curve, point: ParetoPoint) -> bool:
    """Whether every smaller limit is proved to have a larger optimum, or no schedule."""
    index = bisect_left(curve.limits, point.limit)
    return index == 0 or curve.lower_bound(curve.limits[index - 1]) > point.value


def _is_impossible(curve: Curve) -> bool:
    """Whether a search has proved that the pipeline's own limits allow no schedule."""
    return curve.lower_bound(curve.limits[-1]) == inf


def _status(curve: Curve) -> Status:
    if not curve.points:
        infeasible = not curve.limits or _is_impossible(curve)
        return Status.INFEASIBLE if infeasible else Status.UNKNOWN
    return Status.FEASIBLE if next(curve.open(), None) else Status.OPTIMAL


def _proof(problems: Sequence[FrontierProblem], search: ParetoSearch) -> str:
    """Why every limit below the first point's is infeasible, or why there is no point."""
    curve, searched = search.curve, search.problems
    if not searched or _is_impossible(curve):
        return _of_each(searched or problems, FrontierProblem.impossible_text)
    if not curve.points:
        return "no schedule was found within the time limit"
    first, below = curve.points[0], ""
    minima = [each.infeasible_below for each in searched if each.infeasible_below is not None]
    if len(minima) == len(searched):
        below = _of_each(searched, lambda own: own.minimum_text)
        if first.limit == min(minima):
            return below
    if _is_limit_proved(curve, first):
        return _of_each(searched, lambda own: own.infeasible_text("the next smaller limit"))
    open_text = "limits in between were not proved impossible"
    return f"{below}; {open_text}" if below else "less was not proved impossible"


def _of_each(problems: Sequence[FrontierProblem], text_of: Callable[[FrontierProblem], str]) -> str:
    """Texts on problems with their names; one alone if all are equal."""
    texts = {problem.name: text_of(problem) for problem in problems}
    if len(set(texts.values())) == 1:
        return text_of(problems[0])
    return "; ".join(f"{name}: {text}" for name, text in texts.items())


def _baselines(
    problems: Sequence[FrontierProblem],
    evaluated: Sequence[tuple[Schedule, float]],
    points: tuple[FrontierPoint, ...],
) -> tuple[FrontierBaseline, ...]:
    baselines = []
    for schedule, seconds in evaluated:
        memory, value = (
            peak_memory(schedule),
            objective_value(schedule, problems[0].problem.objective),
        )
        best = [point.result.value for point in points if point.limit <= memory]
        same = schedule.fits_limits and any(each.comparable(schedule) for each in problems)
        factor = ratio(value, best[-1]) if same and best and best[-1] else None
        baselines.append(FrontierBaseline(schedule, seconds, memory, value, factor))
    return tuple(sorted(baselines, key=lambda baseline: (baseline.memory, baseline.value)))
