"""The page of a frontier: the curve of memory against time, then the schedule of every point."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

from ppopt.formats.figures import known
from ppopt.problem.exact import plain
from ppopt.problem.operation import OpKind
from ppopt.report import colours
from ppopt.report.figure import FONT, HOVER_LABEL
from ppopt.report.frontier_report import FrontierReport
from ppopt.report.frontier_text import AT_MOST, OVER, describe_frontier
from ppopt.report.html import page
from ppopt.report.labels import objective_name, title
from ppopt.report.numbers import headed, measured, number, percent
from ppopt.report.objects import of_frontier
from ppopt.report.payload import embedded
from ppopt.report.placement_text import describe_choices
from ppopt.report.schedule_report import ScheduleReport
from ppopt.report.search_text import describe_status
from ppopt.report.sections import html_table
from ppopt.schedule.schedule import Schedule

TITLE = "Memory against time"
MOST_OPERATIONS = 100_000
"""Operations that a page draws; above, it shows the schedules of the first and last point only."""
_HEIGHT = 460
_NAMED = 3
"""Strategies of one memory and value that are named there, of many; hover and table name all."""
_WORST_SHOWN = 3
"""The chart opens with values up to this times the best; a double click shows the others too."""
_MOST_SHOWN = 2.2
"""It opens with memory up to this times the last limit at which the value changes."""


def frontier_page(found: FrontierReport) -> str:
    """One HTML page with the curve, its figures, and the schedules of its points.

    The element `frontier` holds the object of `ppopt frontier --json`, without the schedules: their
    sections are `schedule-1` and so on, named by `section` of each point. Identical input gives an
    identical page, but for `solve_seconds`, which is left out.
    """
    schedules = [point.schedule for point in found.points if point.schedule is not None]
    shown = _sections(schedules)
    sections = {place: index for index, place in enumerate(shown, start=1)}
    opening = (
        '<section class="frontier">\n'
        f"{_sentences(found)}\n"
        '<div id="curve" role="group" aria-label="Memory against time"></div>\n'
        '<script type="application/json" id="curve-data">'
        f"{embedded(_curve(found, sections))}</script>\n"
        f'<div class="scroll" tabindex="0">{_table(found, sections)}</div>\n'
        '<script type="application/json" id="frontier">'
        f"{embedded(_data(found, sections))}</script>\n"
        "</section>"
    )
    kept = [schedules[place] for place in shown]
    points = _spots(found.points)
    knee = min(range(len(shown)), key=lambda index: abs(shown[index] - _knee(points)))
    name = schedules[0].pipeline.name
    title = f"{name}: {TITLE.lower()}" if name else TITLE
    return page(kept, title=title, opening=opening, first=knee)


class _Spot(NamedTuple):
    """A schedule in the chart: its limit or memory, and its value."""

    x: float
    y: float
    report: ScheduleReport

    @property
    def place(self) -> tuple[float, float]:
        return self.x, self.y


def _spots(reports: Sequence[ScheduleReport]) -> list[_Spot]:
    """Points at their limits, hand strategies at their memory."""
    return [
        _Spot(known(report.memory if x is None else x), known(report.value), report)
        for report in reports
        for x in [report.limit]
    ]


def _knee(points: Sequence[_Spot]) -> int:
    """The point farthest below the line from the first to the last one in sight.

    Both axes count from 0 to 1 (Satopaa et al., "Finding a 'Kneedle' in a Haystack", 2011).
    """
    begin, last = _first_in_sight(points), points[-1]
    wide = last.x - points[begin].x or 1
    high = points[begin].y - last.y or 1
    return min(
        range(begin, len(points)),
        key=lambda place: points[place].x / wide + points[place].y / high,
    )


def _first_in_sight(points: Sequence[_Spot]) -> int:
    """The first point that the chart opens with."""
    best = points[-1].y
    return next(i for i, point in enumerate(points) if point.y <= _WORST_SHOWN * best)


def _sections(schedules: Sequence[Schedule]) -> list[int]:
    """The points whose schedules the page shows."""
    everything = range(len(schedules))
    if sum(map(len, schedules)) <= MOST_OPERATIONS:
        return list(everything)
    return sorted({0, len(schedules) - 1})


def _data(found: FrontierReport, sections: Mapping[int, int]) -> dict[str, Any]:
    """The data of a frontier without schedules and without what differs from run to run."""
    data = of_frontier(found)
    for row in (data, *data["points"], *data["strategies"]):
        row.pop("schedule", None)
        row.pop("solve_seconds")
    for place, row in enumerate(data["points"]):
        row["section"] = f"schedule-{sections[place]}" if place in sections else None
    return data


def _sentences(found: FrontierReport) -> str:
    words = {
        "optimal": "Every limit at which the optimum changes, each optimum proved",
        "feasible": "The best schedules found, not proved where the line of the bound lies below",
    }
    status = words[found.frontier.status]
    lines = [f"{status}; click a point for its schedule", *describe_frontier(found)]
    return "".join(f"<p>{escape(line[:1].upper() + line[1:])}.</p>" for line in lines)


def _curve(found: FrontierReport, sections: Mapping[int, int]) -> dict[str, Any]:
    """What the script draws: `Curve` in `script/types.d.ts`. The points are drawn last, on top."""
    points, hands = _spots(found.points), _spots(found.hands)
    end, bounds = _end([*points, *hands]), _bounds_of(found)
    afters = [*(point.x for point in points[1:]), end]
    steps = [
        spot
        for point, after in zip(points, afters, strict=True)
        for spot in (point.place, (after, point.y))
    ]
    values = [*(spot.y for spot in (*points, *hands)), *(bound for _, bound in bounds[-1:])]
    return {
        "traces": [
            *_hands(hands),
            *_bounds(found, bounds, points[0].x, end),
            _best(points, hands, end),
        ],
        "layout": _layout(found),
        **_opening_window(points, hands, bounds, end),
        "whole": {"x": _widths(points[0].x, end), "y": _heights(values)},
        "points": [
            {"x": point.x, "y": point.y, "section": sections.get(place)}
            for place, point in enumerate(points)
        ],
        "steps": [{"x": x, "y": y} for x, y in steps],
        "names": [{"x": hand.x, "y": hand.y, "text": _together(hand, hands)} for hand in hands],
    }


def _bounds_of(found: FrontierReport) -> list[tuple[float, float]]:
    """Limits with their lower bounds."""
    return [(plain(limit), plain(bound)) for limit, bound in found.frontier.bounds]


def _opening_window(
    points: Sequence[_Spot],
    hands: Sequence[_Spot],
    bounds: Sequence[tuple[float, float]],
    end: float,
) -> dict[str, list[float]]:
    """Ranges of the axes in which a choice is made: good values, and memory that brings them."""
    seen = points[_first_in_sight(points) :]
    most = min(end, _MOST_SHOWN * seen[-1].x)
    worst = _WORST_SHOWN * seen[-1].y
    near = [hand.y for hand in hands if hand.y <= worst and seen[0].x <= hand.x <= most]
    values = [*(point.y for point in seen), *near, *(bound for _, bound in bounds[-1:])]
    return {"x": _widths(seen[0].x, most), "y": _heights(values)}


def _widths(first: float, end: float) -> list[float]:
    """Range of the memory on its axis, with room before the first limit."""
    return [first - 0.04 * (end - first), end]


def _heights(values: Sequence[float]) -> list[float]:
    """Range of the values on their axis, with room for names above and below."""
    low, high = min(values), max(values)
    room = 0.12 * (high - low) or 1
    return [low - room, high + room]


def _end(spots: Sequence[_Spot]) -> float:
    """Right end of the memory axis: a little beyond the last point or strategy."""
    marks = [spot.x for spot in spots]
    return max(marks) + 0.06 * (max(marks) - min(marks)) or max(marks) + 1


def _best(points: Sequence[_Spot], hands: Sequence[_Spot], end: float) -> dict[str, Any]:
    """The frontier as steps with its points."""
    proved = [point.report.status == "optimal" for point in points]
    return {
        "type": "scatter",
        "name": "best schedule within the limit",
        "x": [*(point.x for point in points), end],
        "y": [*(point.y for point in points), points[-1].y],
        "mode": "lines+markers",
        "line": {"shape": "hv", "color": colours.HUES[OpKind.F], "width": 2},
        "marker": {
            "size": [10] * len(points) + [0],
            "symbol": ["circle" if sure else "circle-open" for sure in [*proved, True]],
            "color": colours.HUES[OpKind.F],
            "opacity": 1,
            "line": {"width": 1.5, "color": colours.POINT_EDGE},
        },
        "text": [*(_describe_point(point, hands) for point in points), ""],
        "hovertemplate": "%{text}<extra></extra>",
    }


def _bounds(
    found: FrontierReport, bounds: Sequence[tuple[float, float]], first: float, end: float
) -> list[dict[str, Any]]:
    """The bounds, where not all points are proved."""
    if found.frontier.status == "optimal":
        return []
    pipeline = found.frontier.pipeline
    memory, time = (
        " ".join(filter(None, ("%{x}", pipeline.memory_unit))),
        " ".join(filter(None, ("%{y}", pipeline.time_unit))),
    )
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


def _describe_point(point: _Spot, hands: Sequence[_Spot]) -> str:
    report = point.report
    least = "" if report.limit_proved else "<br>less memory may do"
    same = ", ".join(escape(title(hand.report)) for hand in hands if hand.place == point.place)
    limit = measured(point.x, report.memory_unit)
    return (
        f"limit {limit}: <b>{measured(point.y, report.time_unit)}</b>"
        f"<br>{escape(describe_status(report))}{least}"
        f"<br>bubble rate {percent(report.bubble_rate)}"
        f"{same and f'<br>as {same}'}"
    )


def _hands(hands: Sequence[_Spot]) -> list[dict[str, Any]]:
    """Hand strategies at their own memory and value, in groups by whether the curve bounds them."""
    fitting = [hand for hand in hands if hand.report.fits_limit]
    named = {
        "hand strategies": [hand for hand in fitting if hand.report.ratio_to_best],
        "of another placement, not bound": [
            hand for hand in fitting if not hand.report.ratio_to_best
        ],
        "over the pipeline's own limits": [hand for hand in hands if not hand.report.fits_limit],
    }
    symbols = ("diamond", "diamond-open", "x-thin")
    return [
        {
            "type": "scatter",
            "name": name,
            "x": [hand.x for hand in shown],
            "y": [hand.y for hand in shown],
            "mode": "markers",
            "marker": {
                "size": 11,
                "color": colours.HUES[OpKind.BW],
                "symbol": symbol,
                "line": {"width": 2, "color": colours.HUES[OpKind.BW]},
            },
            "text": [_describe_hand(hand.report) for hand in shown],
            "hovertemplate": "%{text}<extra></extra>",
        }
        for (name, shown), symbol in zip(named.items(), symbols, strict=True)
        if shown
    ]


def _together(hand: _Spot, hands: Sequence[_Spot]) -> str:
    """Label of a strategy; those of the same memory and value share the label of the first."""
    name = title(hand.report)
    same = [title(other.report) for other in hands if other.place == hand.place]
    more = f" and {len(same) - _NAMED} more" if len(same) > _NAMED + 1 else ""
    named = same[:_NAMED] if more else same
    return escape(", ".join(named)) + more if same[0] == name else ""


def _describe_hand(row: ScheduleReport) -> str:
    ratio = row.ratio_to_best
    above = f"<br>{percent(ratio - 1)} above the best within its memory" if ratio else ""
    where = f"<br>placement {row.placement}, {number(row.chunks)} per device"
    if not row.fits_limit:
        where += "<br>over the pipeline's own limits"
    return (
        f"<b>{escape(title(row))}</b>: {measured(row.value, row.time_unit)}"
        f"<br>memory {measured(row.memory, row.memory_unit)}{above}{'' if ratio else where}"
    )


def _layout(found: FrontierReport) -> dict[str, Any]:
    pipeline, objective = found.frontier.pipeline, found.frontier.objective
    return {
        "height": _HEIGHT,
        "margin": {"t": 64, "b": 56, "l": 64, "r": 16},
        "hovermode": "closest",
        "font": FONT,
        "hoverlabel": HOVER_LABEL,
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


def _table(found: FrontierReport, sections: Mapping[int, int]) -> str:
    pipeline, searched = found.frontier.pipeline, found.frontier.searched
    time, objective = pipeline.time_unit, objective_name(found.frontier.objective)
    head = (
        *("schedule", headed("memory", pipeline.memory_unit), headed(objective, time)),
        *(headed("lower bound", time), "bubble rate", "status"),
    )
    rows = [
        (point.place, _point_row(point.report, searched, sections.get(place)))
        for place, point in enumerate(_spots(found.points))
    ]
    rows += [(hand.place, _hand_row(hand.report)) for hand in _spots(found.hands)]
    return html_table(head, (cells for _, cells in sorted(rows, key=lambda entry: entry[0])))


def _point_row(
    row: ScheduleReport, searched: Sequence[str], section: int | None
) -> tuple[str, ...]:
    words = "optimum" if row.status == "optimal" else "best found"
    if section is not None:
        words = f'<a href="#schedule-{section}">{words}</a>'
    most = "" if row.limit_proved else AT_MOST
    words = f"<strong>{words}</strong>{escape(describe_choices(row, searched))}"
    cells = _cells(words, most + number(row.limit), row, number(row.lower_bound))
    return *cells, escape(describe_status(row))


def _hand_row(row: ScheduleReport) -> tuple[str, ...]:
    over = "" if row.fits_limit else OVER
    return *_cells(escape(title(row)), number(row.memory) + over, row, ""), "hand strategy"


def _cells(words: str, memory: str, row: ScheduleReport, bound: str) -> tuple[str, ...]:
    return words, memory, number(row.value), bound, percent(row.bubble_rate)
