"""What `ppopt frontier` reports: points and baselines with their figures, and sentences."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR
from fractions import Fraction
from typing import NamedTuple

from ppopt.formats.figures import known
from ppopt.problem.exact import plain
from ppopt.report.labels import objective_name
from ppopt.report.numbers import percent, significant
from ppopt.report.placement_text import describe_choices, explain_routes, placement_of
from ppopt.report.schedule_report import ScheduleReport, report_evaluation, report_result
from ppopt.report.search_text import describe_gap, tokens_basis
from ppopt.studies.baselines import best
from ppopt.studies.frontier import Frontier

AT_MOST = "≤ "
"""Stands before a limit that is not proved to be the least for its value."""


class WithinFigures(NamedTuple):
    """The least memory for a value that is at most a share above the best found."""

    share: Fraction
    limit: Fraction
    value: Fraction | None
    beyond: Fraction | None
    """Largest limit that is proved not to be enough; None if unknown."""


class FrontierReport(NamedTuple):
    """A frontier with the figures of its points and baselines."""

    frontier: Frontier
    points: Sequence[ScheduleReport]
    """By ascending `limit`."""
    baselines: Sequence[ScheduleReport]
    """Baselines by `memory`, then value."""
    within: WithinFigures | None = None
    """None unless a share is asked for."""

    @property
    def rows(self) -> list[ScheduleReport]:
        """Points and baselines by memory, then value; of equal ones, points come first."""
        return sorted([*self.points, *self.baselines], key=lambda row: row.place)


def report_frontier(frontier: Frontier, share: Fraction | None = None) -> FrontierReport:
    """Figures of a frontier; `share`: which slowdown relative to the best is acceptable."""
    schedules = [baseline.schedule for baseline in frontier.baselines]
    points = [
        report_result(
            point.result,
            best(schedules, point.result),
            limit=plain(point.limit),
            limit_proved=point.limit_proved,
            ratio_to_best=1,
        )
        for point in frontier.points
    ]
    baselines = [
        report_evaluation(
            baseline.schedule,
            baseline.seconds,
            memory=plain(baseline.memory),
            ratio_to_best=baseline.ratio,
        )
        for baseline in frontier.baselines
    ]
    return FrontierReport(frontier, points, baselines, _within(frontier, share))


def _within(frontier: Frontier, share: Fraction | None) -> WithinFigures | None:
    point = None if share is None else frontier.within(share)
    if share is None or point is None:
        return None
    return WithinFigures(share, point.limit, point.result.value, frontier.beyond(share))


def at_most(row: ScheduleReport) -> str:
    """What stands before the memory of a row: a mark unless a limit is proved to be the least."""
    return "" if row.limit is None or row.limit_proved else AT_MOST


def describe_frontier(report: FrontierReport) -> list[str]:
    """The minimum memory that works and the maximum that is useful: a sentence each.

    Empty without points.
    """
    points, frontier = report.points, report.frontier
    if not points:
        return []
    minimum = significant(points[0].limit, frontier.pipeline.memory_unit, ROUND_CEILING)
    proved = points[0].limit_proved
    first = f"minimum memory: {minimum} (proved)" if proved else f"works with {minimum}"
    lines = [
        f"{first}; {frontier.proof}",
        _max_useful(report),
        *_describe_within(report),
        *_faster_elsewhere(report),
        *explain_routes(report.baselines),
    ]
    if not all(point.limit_proved for point in points):
        objective = objective_name(frontier.objective)
        lines.append(f"{AT_MOST.strip()}: less memory may reach the same {objective}")
    return lines


def describe_point_choices(report: FrontierReport) -> list[str]:
    """What was chosen with the schedule of every point, a line each: `8 GiB: layers 4,3`.

    A placement that has a name is in the table.
    """
    unit, lines = report.frontier.pipeline.memory_unit, list[str]()
    for point in report.points:
        is_named = isinstance(point.placement, str)
        searched = [
            name for name in report.frontier.searched if name != "placement" or not is_named
        ]
        text = describe_choices(point, searched)
        if text:
            memory = significant(point.limit, unit, ROUND_CEILING)
            lines.append(f"{at_most(point)}{memory}{text}")
    return lines


def _describe_within(report: FrontierReport) -> list[str]:
    """The minimum memory for almost the best value, where a share was asked for."""
    within, pipeline = report.within, report.frontier.pipeline
    if within is None:
        return []
    unit = pipeline.memory_unit
    value = significant(within.value, pipeline.time_unit)
    text = f"within {percent(within.share)} of the best: {value} with "
    text += significant(within.limit, unit, ROUND_CEILING)
    if within.beyond is None:
        return [f"{text}; less memory may be enough"]
    return [f"{text}; {significant(within.beyond, unit, ROUND_FLOOR)} is not enough (proved)"]


def _max_useful(report: FrontierReport) -> str:
    """The memory above which more gains nothing in the placement, and whether that is proved."""
    frontier, last = report.frontier, report.points[-1]
    pipeline, objective = frontier.pipeline, objective_name(frontier.objective)
    memory = significant(last.limit, pipeline.memory_unit, ROUND_CEILING)
    value = significant(last.value, pipeline.time_unit)
    if last.tokens_per_second is not None:
        value += f" ({significant(last.tokens_per_second)} tokens/s{tokens_basis(last)})"
    within = "" if pipeline.limits is None else " within the pipeline's own limits"
    is_fixed = "placement" not in frontier.searched
    helped = f" placement {placement_of(last)}" if is_fixed else ""
    is_optimal = last.status == "optimal"
    if not is_optimal or frontier.bounds[-1][1] != frontier.points[-1].result.value:
        gap = "" if is_optimal else f", {describe_gap(last)}"
        best = f"the best {objective} found{within} is {value}{gap}"
        return f"memory above {memory} may help{helped}: {best}"
    less = "" if frontier.enough_proved else "; less may be enough"
    return (
        f"memory above {memory} does not help{helped} (proved): the {objective} stays at "
        f"{value}{within}{less}"
    )


def _faster_elsewhere(report: FrontierReport) -> list[str]:
    """Lines for the best baselines outside the search that are faster than every point.

    One of another placement with no more routes, and one with a second route, for which devices
    hold the weights twice, if that is faster still.
    """
    last = report.points[-1]
    faster = sorted(
        (
            row
            for row in report.baselines
            if known(row.value) < known(last.value)
            and row.fits_limit is not False
            and (row.placement, row.chunks, row.routes)
            != (last.placement, last.chunks, last.routes)
        ),
        key=lambda row: (known(row.value), row.memory or 0),
    )
    two = next((row for row in faster if _routes(row) > _routes(last)), None)
    elsewhere = next((row for row in faster if _routes(row) <= _routes(last)), None)
    lines = (
        []
        if elsewhere is None
        else [f"faster in another placement: {_describe_baseline(elsewhere)}"]
    )
    if two is not None and (elsewhere is None or known(two.value) < known(elsewhere.value)):
        lines.append(f"faster with two routes: {_describe_baseline(two)}")
    return lines


def _routes(row: ScheduleReport) -> int:
    return row.routes or 1


def _describe_baseline(baseline: ScheduleReport) -> str:
    value = significant(baseline.value, baseline.time_unit)
    memory = significant(baseline.memory, baseline.memory_unit)
    return f"{baseline.strategy}, {placement_of(baseline)}, {value} with {memory}"
