"""The page of a frontier: the curve of memory against time, then the schedule of every point."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import ROUND_CEILING
from html import escape
from typing import Any

from ppopt.formats.figures import known
from ppopt.problem.exact import plain
from ppopt.problem.operation import OpKind
from ppopt.report import colours
from ppopt.report.columns import html_table, left, linked
from ppopt.report.frontier_report import FrontierReport, describe_frontier
from ppopt.report.html import MAX_OPERATIONS, page
from ppopt.report.labels import objective_name, title
from ppopt.report.numbers import headed, measured, number, percent, significant, with_unit
from ppopt.report.objects import TIMES, frontier_object, without
from ppopt.report.payload import data_element
from ppopt.report.placement_text import describe_choices
from ppopt.report.schedule_report import ScheduleReport
from ppopt.report.search_text import describe_status
from ppopt.report.sections import paragraphs
from ppopt.report.table import frontier_legend, frontier_table
from ppopt.report.throughput_text import gain_text

_HEIGHT = 460
_NAMED = 3
"""Strategies of one memory and value that are named there, of many; hover and table name all."""
_MAX_VALUE_RATIO = 3
"""The chart opens with values up to this times the best; a double click shows the others too."""
_MAX_MEMORY_RATIO = 2.2
"""It opens with memory up to this times the last limit at which the value changes."""
Rows = Sequence[ScheduleReport]


def frontier_page(report: FrontierReport) -> str:
    """One HTML page with the curve, its figures, and the schedules of its points.

    The element `frontier` holds the object of `ppopt frontier --json`, without the schedules: their
    sections are `schedule-1` and so on, named by `section` of each point. Identical input gives an
    identical page, but for `solve_seconds`, which is left out. Of more than `MAX_OPERATIONS`
    operations, the page shows the schedules of the first and the last point.
    """
    drawn = [point for point in report.points if point.schedule is not None]
    if sum(len(known(point.schedule)) for point in drawn) > MAX_OPERATIONS:
        drawn = [drawn[0], *drawn[1:][-1:]]
    sections = {known(point.limit): index for index, point in enumerate(drawn, start=1)}
    opening = (
        '<section class="frontier">\n'
        '<p class="quiet">Click a point for its schedule.</p>\n'
        '<div id="curve" role="group" aria-label="Memory against time"></div>\n'
        f"{data_element('curve-data', _curve(report, sections))}\n"
        f"{paragraphs(describe_frontier(report))}\n"
        f"{_table(report, sections)}\n"
        f'<p class="quiet">{escape(frontier_legend(report))}.</p>\n'
        f"{data_element('frontier', _data(report, sections))}\n</section>"
    )
    limits = [point.limit for point in report.points]
    knee = limits.index(_knee(report.points).limit)
    first = min(range(len(drawn)), key=lambda at: abs(limits.index(drawn[at].limit) - knee))
    schedules = [known(point.schedule) for point in drawn]
    names = [_name(point) for point in drawn]
    return page(schedules, what="memory against time", opening=opening, first=first, names=names)


def _name(point: ScheduleReport) -> str:
    limit = significant(point.limit, point.memory_unit, ROUND_CEILING)
    return f"{'optimum' if point.status == 'optimal' else 'best found'} within {limit}"


def _knee(points: Rows) -> ScheduleReport:
    """The point farthest below the line from the first to the last one in sight.

    Both axes count from 0 to 1 (Satopaa et al., "Finding a 'Kneedle' in a Haystack", 2011).
    """
    seen = _in_sight(points)
    (begin, high), (end, low) = seen[0].place, seen[-1].place
    wide, tall = end - begin or 1, high - low or 1
    return min(seen, key=lambda point: point.place[0] / wide + point.place[1] / tall)


def _in_sight(points: Rows) -> Rows:
    """The points that the chart opens with."""
    highest = _MAX_VALUE_RATIO * known(points[-1].value)
    return points[next(i for i, point in enumerate(points) if known(point.value) <= highest) :]


def _data(report: FrontierReport, sections: Mapping[float, int]) -> dict[str, Any]:
    """The data of a frontier without schedules and without what differs from run to run."""
    data: dict[str, Any] = without(frontier_object(report), (*TIMES, "schedule"))
    for row in data["points"]:
        row["section"] = f"schedule-{sections[row['limit']]}" if row["limit"] in sections else None
    return data


def _curve(report: FrontierReport, sections: Mapping[float, int]) -> dict[str, Any]:
    """What the script draws: `Curve` in `script/types.d.ts`. The points are drawn last, on top."""
    points, baselines = report.points, report.baselines
    bounds = [(plain(limit), plain(bound)) for limit, bound in report.frontier.bounds]
    first, end = points[0].place[0], _end([*points, *baselines])
    lowest = [bound for _, bound in bounds[-1:]]
    return {
        "traces": [
            *_baseline_traces(baselines),
            *_bounds(report, bounds, first, end),
            _best(points, baselines, end),
        ],
        "layout": _layout(report),
        **_opening_window(_in_sight(points), baselines, lowest, end),
        "whole": {
            "x": _widths(first, end),
            "y": _heights([*(known(row.value) for row in (*points, *baselines)), *lowest]),
        },
        "points": [
            {"x": point.limit, "y": point.value, "section": sections.get(known(point.limit))}
            for point in points
        ],
        "names": [
            {"x": baseline.memory, "y": baseline.value, "text": _together(baseline, baselines)}
            for baseline in sorted(baselines, key=lambda baseline: known(baseline.value))
        ],
    }


def _opening_window(
    seen: Rows, baselines: Rows, lowest: Sequence[float], end: float
) -> dict[str, list[float]]:
    """Ranges of the axes in which a choice is made: good values, and memory that brings them."""
    (first, _), (last, best) = seen[0].place, seen[-1].place
    max_memory, worst = min(end, _MAX_MEMORY_RATIO * last), _MAX_VALUE_RATIO * best
    near = [
        y
        for x, y in (baseline.place for baseline in baselines)
        if y <= worst and first <= x <= max_memory
    ]
    values = [*(known(point.value) for point in seen), *near, *lowest]
    return {"x": _widths(first, max_memory), "y": _heights(values)}


def _widths(first: float, end: float) -> list[float]:
    """Range of the memory on its axis, with room before the first limit."""
    return [first - 0.04 * (end - first), end]


def _heights(values: Sequence[float]) -> list[float]:
    """Range of the values on their axis, with room for names above and below."""
    low, high = min(values), max(values)
    margin = 0.12 * (high - low) or 1
    return [low - margin, high + margin]


def _end(rows: Rows) -> float:
    """Right end of the memory axis: a little beyond the last point or strategy."""
    marks = [row.place[0] for row in rows]
    return max(marks) + 0.06 * (max(marks) - min(marks)) or max(marks) + 1


def _best(points: Rows, baselines: Rows, end: float) -> dict[str, Any]:
    """The frontier as steps with its points."""
    proved = [point.status == "optimal" for point in points]
    return {
        "type": "scatter",
        "name": "best schedule within the limit",
        "x": [*(point.limit for point in points), end],
        "y": [*(point.value for point in points), points[-1].value],
        "mode": "lines+markers",
        "line": {"shape": "hv", "color": colours.HUES[OpKind.F], "width": 2},
        "marker": {
            "size": [10] * len(points) + [0],
            "symbol": ["circle" if sure else "circle-open" for sure in [*proved, True]],
            "color": colours.HUES[OpKind.F],
            "opacity": 1,
            "line": {"width": 1.5, "color": colours.POINT_EDGE},
        },
        "text": [*(_describe_point(point, baselines) for point in points), ""],
        "hovertemplate": "%{text}<extra></extra>",
    }


def _bounds(
    report: FrontierReport, bounds: Sequence[tuple[float, float]], first: float, end: float
) -> list[dict[str, Any]]:
    """The bounds, where not all points are proved."""
    if report.frontier.status == "optimal":
        return []
    pipeline = report.frontier.pipeline
    memory = with_unit("%{x}", pipeline.memory_unit)
    time = with_unit("%{y}", pipeline.time_unit)
    limits, lows = zip(*(pair for pair in bounds if pair[0] >= first), strict=True)
    return [
        {
            "type": "scatter",
            "name": "proved: no schedule is below",
            "x": [first, *(min(limit, end) for limit in limits), end],
            "y": [lows[0], *lows, lows[-1]],
            "mode": "lines",
            "line": {"shape": "vh", "color": colours.LIMIT, "width": 1.5, "dash": "dot"},
            "hovertemplate": f"limit {memory}: at least {time}<extra></extra>",
        }
    ]


def _describe_point(point: ScheduleReport, baselines: Rows) -> str:
    less_text = "" if point.limit_proved else "<br>less memory may do"
    same = ", ".join(
        escape(title(baseline)) for baseline in baselines if baseline.place == point.place
    )
    return (
        f"limit {measured(point.limit, point.memory_unit)}: "
        f"<b>{measured(point.value, point.time_unit)}</b>"
        f"<br>{escape(describe_status(point))}{less_text}"
        f"<br>bubble rate {percent(point.bubble_rate)}"
        f"{same and f'<br>as {same}'}"
    )


def _baseline_traces(baselines: Rows) -> list[dict[str, Any]]:
    """Baselines at their own memory and value, in groups by whether the curve bounds them."""
    fitting = [baseline for baseline in baselines if baseline.fits_limit]
    bound = [row for row in fitting if row.ratio_to_best]
    other_placement = [row for row in fitting if not row.ratio_to_best]
    over = [row for row in baselines if not row.fits_limit]
    groups = (
        ("baselines", bound, "diamond"),
        ("of another placement, not bound", other_placement, "diamond-open"),
        ("over the pipeline's own limits", over, "x-thin"),
    )
    return [
        {
            "type": "scatter",
            "name": name,
            "x": [baseline.memory for baseline in group],
            "y": [baseline.value for baseline in group],
            "mode": "markers",
            "marker": {
                "size": 11,
                "color": colours.HUES[OpKind.BW],
                "symbol": symbol,
                "line": {"width": 2, "color": colours.HUES[OpKind.BW]},
            },
            "text": [_describe_baseline(baseline) for baseline in group],
            "hovertemplate": "%{text}<extra></extra>",
        }
        for name, group, symbol in groups
        if group
    ]


def _together(baseline: ScheduleReport, baselines: Rows) -> str:
    """Label of a strategy; those of the same memory and value share the label of the first."""
    name = title(baseline)
    same = [title(row) for row in baselines if row.place == baseline.place]
    more = f" and {len(same) - _NAMED} more" if len(same) > _NAMED + 1 else ""
    named = same[:_NAMED] if more else same
    return escape(", ".join(named)) + more if same[0] == name else ""


def _describe_baseline(row: ScheduleReport) -> str:
    ratio = row.ratio_to_best
    above = f"<br>{gain_text(1 / ratio - 1)} than the best within its memory" if ratio else ""
    where = f"<br>placement {row.placement}, {number(row.chunks)} per device"
    if not row.fits_limit:
        where += "<br>over the pipeline's own limits"
    return (
        f"<b>{escape(title(row))}</b>: {measured(row.value, row.time_unit)}"
        f"<br>memory {measured(row.memory, row.memory_unit)}{above}{'' if ratio else where}"
    )


def _layout(report: FrontierReport) -> dict[str, Any]:
    pipeline, objective = report.frontier.pipeline, report.frontier.objective
    return {
        "height": _HEIGHT,
        "margin": {"t": 64, "b": 56, "l": 64, "r": 16},
        "hovermode": "closest",
        "font": colours.FONT,
        "hoverlabel": colours.HOVER_LABEL,
        "legend": {"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom"},
        "xaxis": {
            "title": {"text": headed("memory limit of every device", pipeline.memory_unit)},
            "zeroline": False,
        },
        "yaxis": {
            "title": {"text": headed(objective_name(objective), pipeline.time_unit)},
            "zeroline": False,
        },
    }


def _table(report: FrontierReport, sections: Mapping[float, int]) -> str:
    """The table of the terminal, in which schedules link to their sections."""
    *figures, schedule = frontier_table(report).columns

    def named(row: ScheduleReport) -> str:
        section = None if row.limit is None else sections.get(row.limit)
        return linked(str(schedule.cell(row)), section, strong=row.limit is not None)

    columns = [left(schedule.head, named), *figures]
    choices = [name for name in report.frontier.searched if name != "placement"]

    def chosen(row: ScheduleReport) -> str:
        return describe_choices(row, choices).removeprefix(": ")

    if choices:
        columns.append(left("choices", chosen))
    return html_table(columns, report.rows)
