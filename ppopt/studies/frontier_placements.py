"""The frontier over several placements: the best points of all, and the minimum of their bounds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from math import inf
from typing import Any

from ppopt import interrupts
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.exact import ratio
from ppopt.problem.objective import Objective
from ppopt.problem.pipeline import Pipeline
from ppopt.solver.deadline import Deadline
from ppopt.solver.options import TIME_LIMIT, checked_options
from ppopt.solver.result import Status
from ppopt.solver.search import problem_of
from ppopt.strategies import Options
from ppopt.studies.frontier import Frontier, FrontierBaseline, FrontierPoint, FrontierSearch

MIN_SECONDS = 0.01
"""Time limit of a placement for which no time is left: it still has its simplest bounds."""


@interrupts.recorded()
def frontier_of_placements(
    pipelines: Sequence[Pipeline],
    *,
    objective: Objective | str = Objective.MAKESPAN,
    backward_kind: BackwardKind | str | None = None,
    options: Options | None = None,
    **request: Any,
) -> Frontier:
    """The frontier over pipelines that differ in placement and chunks; arguments as of `frontier`.

    Every placement is searched by itself, for an equal share of the remaining time, and knows the
    values of those before. Those still open are searched again, and know the values of all.
    """
    search_options = checked_options(**{"time_limit": TIME_LIMIT, "workers": None} | request)
    deadline, searches = search_options.deadline, list[FrontierSearch]()
    several = len(pipelines) > 1
    kind, objective = BackwardKind.read(backward_kind), Objective(objective)
    for place, pipeline in enumerate(pipelines):
        turn = deadline.share(
            0.0 if interrupts.pressed() else 1 / (len(pipelines) + several - place)
        )
        turn = replace(turn, seconds=max(turn.seconds, MIN_SECONDS))
        problem = problem_of(pipeline, objective, kind)
        search = FrontierSearch(problem, search_options.with_deadline(turn), options or Options())
        search.set_rivals(_values(searches))
        searches.append(search)
        search.run()
    _search_again(searches, deadline)
    parts = [search.frontier(deadline.spent) for search in searches]
    merged = parts[0] if len(parts) == 1 else merge(parts)
    return replace(merged, solve_seconds=deadline.spent)


def _values(searches: Iterable[FrontierSearch]) -> list[tuple[Fraction, Fraction]]:
    """Limits and values of the points of all placements."""
    return [value for search in searches for value in search.values]


def _search_again(searches: Sequence[FrontierSearch], deadline: Deadline) -> None:
    """Search the open placements, which now know the values of all."""
    for index, search in enumerate(searches):
        _set_rivals(searches)
        waiting = sum(each.is_open for each in searches[index:])
        if search.is_open and not interrupts.pressed():
            search.resume(deadline.share(1 / waiting))
    _set_rivals(searches)


def _set_rivals(searches: Sequence[FrontierSearch]) -> None:
    """Let every placement know the values of all others."""
    for search in searches:
        search.set_rivals(_values(rival for rival in searches if rival is not search))


def placement_name(pipeline: Pipeline) -> str:
    """Placement and chunks: `linear`, `v/2`."""
    chunks = f"/{pipeline.num_chunks}" if pipeline.num_chunks > 1 else ""
    return f"{pipeline.resolved_placement}{chunks}"


def merge(parts: Sequence[Frontier]) -> Frontier:
    """The frontier over the placements of several frontiers, each complete or not.

    A bound over all placements is the minimum of their bounds.
    """
    names = tuple(placement_name(part.pipeline) for part in parts)
    points = tuple(
        _merged_point(point, owner, parts, names) for point, owner in _best_points(parts)
    )
    baselines = tuple(_merged_baselines(parts, points))
    evaluated = {baseline.schedule.origin.strategy for baseline in baselines}
    return replace(
        parts[0],
        status=_status(parts, points),
        proof=_proof(parts, names),
        points=points,
        bounds=tuple(_merged_bounds(parts)),
        baselines=baselines,
        skipped=tuple(entry for entry in parts[0].skipped if entry[0] not in evaluated),
        interrupted=any(part.interrupted for part in parts),
        placements=names,
    )


def _proof(parts: Sequence[Frontier], names: Sequence[str]) -> str:
    """Why smaller limits are infeasible: once if it is the same in all placements."""
    proofs = {name: part.proof for name, part in zip(names, parts, strict=True)}
    if len(set(proofs.values())) == 1:
        return parts[0].proof
    return "; ".join(f"{name}: {proof}" for name, proof in proofs.items())


def _status(parts: Sequence[Frontier], points: Sequence[FrontierPoint]) -> Status:
    statuses = {part.status for part in parts}
    if not points:
        return Status.INFEASIBLE if statuses == {Status.INFEASIBLE} else Status.UNKNOWN
    return Status.OPTIMAL if statuses <= {Status.OPTIMAL, Status.INFEASIBLE} else Status.FEASIBLE


def _best_points(parts: Sequence[Frontier]) -> Iterator[tuple[FrontierPoint, Frontier]]:
    """Points that no point of any placement dominates, by limit ascending, with their frontiers."""
    best: Fraction | float = inf
    points = [(point, part) for part in parts for point in part.points]
    for point, part in sorted(points, key=lambda pair: (pair[0].limit, pair[0].result.value or 0)):
        value = point.result.value
        if value is not None and value < best:
            best = value
            yield point, part


def _bound_at(part: Frontier, limit: Fraction) -> Fraction | float:
    """Lower bound of a placement within a limit; infinite if no schedule is within it."""
    if part.status in (Status.OPTIMAL, Status.INFEASIBLE):
        point = part.at(limit)
        return inf if point is None or point.result.value is None else point.result.value
    larger = (bound for bound_limit, bound in part.bounds if bound_limit >= limit)
    return next(larger, part.bounds[-1][1])


def _merged_point(
    point: FrontierPoint, owner: Frontier, parts: Sequence[Frontier], names: Sequence[str]
) -> FrontierPoint:
    """The point with the bound over all placements.

    It is no higher than that of its own placement, so that the certificate proves it there.
    """
    result = point.result
    value, schedule = result.value, result.schedule
    assert value is not None and schedule is not None
    bound = Fraction(min(_bound_at(part, point.limit) for part in parts))
    own_name = names[parts.index(owner)]
    merged = replace(
        result,
        status=Status.of(value, bound),
        lower_bound=bound,
        proof=f"this is the minimum of the bounds of the placements {', '.join(names)}; that of "
        f"{own_name}: {result.proof}",
        schedule=None,
    )
    schedule = replace(schedule, origin=merged.origin())
    return FrontierPoint(
        point.limit,
        replace(merged, schedule=schedule),
        all(_is_limit_least(part, point) for part in parts),
    )


def _is_limit_least(part: Frontier, point: FrontierPoint) -> bool:
    """Whether a placement is proved to need the limit of a point, or more, for its value."""
    value = point.result.value
    assert value is not None
    own = part.at(point.limit)
    if own is not None and (own.limit, own.result.value) == (point.limit, value):
        return own.limit_proved
    return _bound_at(part, point.limit) > value


def _merged_bounds(parts: Sequence[Frontier]) -> Iterator[tuple[Fraction, Fraction]]:
    """Bounds over all placements by limit ascending, each larger than the next."""
    limits = sorted({limit for part in parts for limit, _ in part.bounds}, reverse=True)
    bounds, largest = list[tuple[Fraction, Fraction]](), Fraction(-1)
    for limit in limits:
        bound = min(_bound_at(part, limit) for part in parts)
        if largest < bound < inf:
            largest = Fraction(bound)
            bounds.append((limit, largest))
    return reversed(bounds)


def _merged_baselines(
    parts: Sequence[Frontier], points: Sequence[FrontierPoint]
) -> Iterator[FrontierBaseline]:
    """Every baseline once, with its ratio to the best of all points if a placement covers it."""
    baselines = dict[tuple[str | None, Fraction, Fraction], FrontierBaseline]()
    for baseline in (baseline for part in parts for baseline in part.baselines):
        key = baseline.schedule.origin.strategy, baseline.memory, baseline.value
        if key not in baselines or baselines[key].ratio is None:
            baselines[key] = baseline
    for baseline in sorted(baselines.values(), key=lambda entry: (entry.memory, entry.value)):
        values = [point.result.value for point in points if point.limit <= baseline.memory]
        best = values[-1] if values and baseline.ratio is not None else None
        yield baseline._replace(ratio=ratio(baseline.value, best) if best else None)
