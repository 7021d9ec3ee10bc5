"""The Pareto frontier of memory and time: points, bounds and hand strategies."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from math import inf
from typing import NamedTuple

from ppopt.notebook_view import NotebookView
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.exact import plain
from ppopt.problem.objective import Objective
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.units import with_unit
from ppopt.schedule.schedule import Schedule
from ppopt.solver import interrupts
from ppopt.solver.open_choices import open_choices
from ppopt.solver.options import TIME_LIMIT, checked_options
from ppopt.solver.result import Progress, Provenance, Result, Status
from ppopt.solver.search import problem_of
from ppopt.strategies import Options
from ppopt.studies.baselines import evaluate_all
from ppopt.studies.frontier_curve import Curve, ParetoPoint, Proved
from ppopt.studies.frontier_search import ParetoSearch
from ppopt.studies.frontier_space import Space, space_of
from ppopt.verifier import checked


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

    def within(self, share: Fraction) -> FrontierPoint | None:
        """The point of least memory whose value is at most so much above the best found."""
        if not self.points:
            return None
        most = self._most(share)
        return next(point for point in self.points if _value(point) <= most)

    def beyond(self, share: Fraction) -> Fraction | None:
        """The largest limit proved to allow no value so near the best found; None: none is."""
        most = self._most(share)
        return max((limit for limit, bound in self.bounds if bound > most), default=None)

    def _most(self, share: Fraction) -> Fraction:
        return (1 + share) * _value(self.points[-1])

    @property
    def searched(self) -> tuple[str, ...]:
        """What was chosen with the schedule of every point: of partition, placement, recompute."""
        return open_choices(self.pipeline).names

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


def _value(point: FrontierPoint) -> Fraction:
    assert point.result.value is not None
    return point.result.value


@interrupts.recorded(inner=True)
def frontier(
    pipeline: Pipeline,
    *,
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

    Where the partition, the placement or the recompute of the pipeline is to be searched, every
    point has those that are best for it, and the bounds are over all of them.

    One limit holds for every device, static memory included, together with the pipeline's own
    limits. `time_limit` seconds cover all searches, from `began` (of `time.monotonic`) or else from
    now; Ctrl-C ends them and keeps the points found, those of hand strategies among them.
    Raises InputError on misuse only.
    """
    search_options = checked_options(time_limit, workers, seed, progress=progress, began=began)
    deadline = search_options.deadline
    kind = BackwardKind.read(backward_kind)
    problem = problem_of(pipeline, Objective(objective), kind)
    space = space_of(problem)
    made, skipped = evaluate_all(
        pipeline,
        problem.objective,
        options or Options(),
        kind,
        deadline.within(search_options.params.frontier.strategies * time_limit),
    )
    impossible = space.impossible
    curve = Curve([] if impossible else space.limits)
    search = ParetoSearch(space, search_options, curve)
    if not impossible:
        search.run(schedule for schedule, _ in made)
    points = tuple(_point(search, found) for found in curve.found)
    hands = _hands(space, made, points)
    return Frontier(
        pipeline=pipeline,
        objective=problem.objective,
        backward_kind=kind,
        status=_status(curve, impossible),
        proof=impossible or _proof(search),
        points=points,
        bounds=_bounds(space, curve),
        hands=hands,
        skipped=skipped,
        provenance=search_options.provenance,
        solve_seconds=deadline.spent,
        interrupted=search.interrupted or deadline.pressed,
    )


def _point(search: ParetoSearch, found: ParetoPoint) -> FrontierPoint:
    """The point of a schedule, verified under its own limit."""
    space, curve = search.space, search.curve
    limit = space.memory(found.limit)
    proved = _proved(space, curve, found.limit)
    within = space.within(found.schedule, limit)
    result = Result(
        pipeline=within,
        objective=space.problem.objective,
        backward_kind=space.problem.backward_kind,
        status=Status.OPTIMAL if proved.value == found.value else Status.FEASIBLE,
        schedule=None,
        value=found.value,
        lower_bound=proved.value,
        proof=proved.proof + space.scope(proved),
        certificate=proved.certificate,
        provenance=search.options.provenance,
        solve_seconds=search.spent[found.limit],
    )
    schedule = replace(found.schedule, pipeline=within, origin=result.origin())
    return FrontierPoint(
        limit, replace(result, schedule=checked(schedule)), _is_least(curve, found)
    )


def _proved(space: Space, curve: Curve, limit: int) -> Proved:
    """The best bound for a limit; its proof names the larger limit where it was proved for one."""
    proved = curve.bound(limit)
    if proved is None:
        return space.known()
    if proved.limit == limit:
        return proved
    larger = with_unit(space.memory(proved.limit), space.problem.pipeline.memory_unit)
    words = f"{proved.proof} (proved for the limit {larger}, so for every smaller one)"
    return proved._replace(proof=words)


def _is_least(curve: Curve, found: ParetoPoint) -> bool:
    """Whether it is proved that every smaller limit allows larger values only, or no schedule."""
    place = bisect_left(curve.limits, found.limit)
    return place == 0 or curve.low(curve.limits[place - 1]) > found.value


def _bounds(space: Space, curve: Curve) -> tuple[tuple[Fraction, Fraction], ...]:
    known = list(curve.proved)
    if curve.limits and (not known or known[-1].limit < curve.limits[-1]):
        known.append(space.known())
    return tuple((space.memory(proved.limit), proved.value) for proved in known)


def _is_impossible(curve: Curve) -> bool:
    """Whether a search has proved that the pipeline's own limits allow no schedule."""
    return curve.low(curve.limits[-1]) == inf


def _status(curve: Curve, impossible: str | None) -> Status:
    if impossible:
        return Status.INFEASIBLE
    if not curve.found:
        return Status.INFEASIBLE if _is_impossible(curve) else Status.UNKNOWN
    return Status.FEASIBLE if next(curve.open(), None) else Status.OPTIMAL


def _proof(search: ParetoSearch) -> str:
    """Why no limit below the first point's works, or why there is no point."""
    curve, space = search.curve, search.space
    if _is_impossible(curve):
        words = space.nothing("the pipeline's own limits", search.impossible)
        return words + space.backwards
    if not curve.found:
        return "nothing was found before the time was up"
    first, known = curve.found[0], space.least_words
    if known is not None and space.memory(first.limit) == known[0]:
        return known[1]
    if _is_least(curve, first):
        return space.nothing("the next smaller limit", search.impossible)
    return f"{known[1]}; between is not decided" if known else "less is not decided"


def _hands(
    space: Space, made: list[tuple[Schedule, float]], points: tuple[FrontierPoint, ...]
) -> tuple[FrontierHand, ...]:
    hands = []
    for schedule, seconds in made:
        ticks, figures = schedule.pipeline.ticks, schedule.metrics
        memory = ticks.memory(max(figures.peak_memory))
        value = ticks.time(figures.value(space.problem.objective))
        best = [point.result.value for point in points if point.limit <= memory]
        same = schedule.fits_limits and space.comparable(schedule)
        ratio = value / best[-1] if same and best and best[-1] else None
        hands.append(FrontierHand(schedule, seconds, memory, value, ratio))
    return tuple(sorted(hands, key=lambda hand: (hand.memory, hand.value)))
