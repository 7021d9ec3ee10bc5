"""The page of a frontier: the curve of memory against time, then the schedule of every point."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from ppopt.formats.figures import known
from ppopt.problem.exact import plain
from ppopt.problem.operation import OpKind
from ppopt.report import colours
from ppopt.report.columns import Column, Html, html_table, marked
from ppopt.report.frontier_report import FrontierReport, at_most, describe_frontier
from ppopt.report.html import MOST_OPERATIONS, page
from ppopt.report.labels import objective_name, title
from ppopt.report.numbers import headed, measured, number, percent
from ppopt.report.objects import of_frontier
from ppopt.report.payload import data_element
from ppopt.report.placement_text import describe_choices
from ppopt.report.schedule_report import ScheduleReport
from ppopt.report.search_text import describe_status
from ppopt.report.sections import paragraphs

_HEIGHT = 460
_NAMED = 3
"""Strategies of one memory and value that are named there, of many; hover and table name all."""
_WORST_SHOWN = 3
"""The chart opens with values up to this times the best; a double click shows the others too."""
_MOST_SHOWN = 2.2
"""It opens with memory up to this times the last limit at which the value changes."""
Rows = Sequence[ScheduleReport]


def frontier_page(found: FrontierReport) -> str:
    """One HTML page with the curve, its figures, and the schedules of its points.

    The element `frontier` holds the object of `ppopt frontier --json`, without the schedules: their
    sections are `schedule-1` and so on, named by `section` of each point. Identical input gives an
    identical page, but for `solve_seconds`, which is left out. Of more than `MOST_OPERATIONS`
    operations, the page shows the schedules of the first and the last point.
    """
    shown = [point for point in found.points if point.schedule is not None]
    if sum(len(known(point.schedule)) for point in shown) > MOST_OPERATIONS:
        shown = [shown[0], *shown[1:][-1:]]
    sections = {known(point.limit): index for index, point in enumerate(shown, start=1)}
    opening = (
        '<section class="frontier">\n'
        f"{_sentences(found)}\n"
        '<div id="curve" role="group" aria-label="Memory against time"></div>\n'
        f"{data_element('curve-data', _curve(found, sections))}\n"
        f"{_table(found, sections)}\n"
        f"{data_element('frontier', _data(found, sections))}\n</section>"
    )
    limits = [point.limit for point in found.points]
    knee = limits.index(_knee(found.points).limit)
    first = min(range(len(shown)), key=lambda at: abs(limits.index(shown[at].limit) - knee))
    schedules = [known(point.schedule) for point in shown]
    return page(schedules, what="Memory against time", opening=opening, first=first)


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
    most = _WORST_SHOWN * known(points[-1].value)
    return points[next(i for i, point in enumerate(points) if known(point.value) <= most) :]


def _data(found: FrontierReport, sections: Mapping[float, int]) -> dict[str, Any]:
    """The data of a frontier without schedules and without what differs from run to run."""
    data = of_frontier(found)
    for row in (data, *data["points"], *data["strategies"]):
        row.pop("schedule", None)
        row.pop("solve_seconds")
    for row in data["points"]:
        row["section"] = f"schedule-{sections[row['limit']]}" if row["limit"] in sections else None
    return data


def _sentences(found: FrontierReport) -> str:
    words = {
        "optimal": "Every limit at which the optimum changes, each optimum proved",
        "feasible": "The best schedules found, not proved where the line of the bound lies below",
    }
    status = words[found.frontier.status]
    lines = [f"{status}; click a point for its schedule", *describe_frontier(found)]
    return paragraphs(lines)


def _curve(found: FrontierReport, sections: Mapping[float, int]) -> dict[str, Any]:
    """What the script draws: `Curve` in `script/types.d.ts`. The points are drawn last, on top."""
    points, hands = found.points, found.hands
    bounds = [(plain(limit), plain(bound)) for limit, bound in found.frontier.bounds]
    first, end = points[0].place[0], _end([*points, *hands])
    afters = [*(point.place[0] for point in points[1:]), end]
    steps = [
        spot
        for (x, y), after in zip((point.place for point in points), afters, strict=True)
        for spot in ((x, y), (after, y))
    ]
    lowest = [bound for _, bound in bounds[-1:]]
    return {
        "traces": [
            *_hands(hands),
            *_bounds(found, bounds, first, end),
            _best(points, hands, end),
        ],
        "layout": _layout(found),
        **_opening_window(_in_sight(points), hands, lowest, end),
        "whole": {
            "x": _widths(first, end),
            "y": _heights([*(known(row.value) for row in (*points, *hands)), *lowest]),
        },
        "points": [
            {"x": point.limit, "y": point.value, "section": sections.get(known(point.limit))}
            for point in points
        ],
        "steps": [{"x": x, "y": y} for x, y in steps],
        "names": [
            {"x": hand.memory, "y": hand.value, "text": _together(hand, hands)} for hand in hands
        ],
    }


def _opening_window(
    seen: Rows, hands: Rows, lowest: Sequence[float], end: float
) -> dict[str, list[float]]:
    """Ranges of the axes in which a choice is made: good values, and memory that brings them."""
    (first, _), (last, best) = seen[0].place, seen[-1].place
    most, worst = min(end, _MOST_SHOWN * last), _WORST_SHOWN * best
    near = [y for x, y in (hand.place for hand in hands) if y <= worst and first <= x <= most]
    values = [*(known(point.value) for point in seen), *near, *lowest]
    return {"x": _widths(first, most), "y": _heights(values)}


def _widths(first: float, end: float) -> list[float]:
    """Range of the memory on its axis, with room before the first limit."""
    return [first - 0.04 * (end - first), end]


def _heights(values: Sequence[float]) -> list[float]:
    """Range of the values on their axis, with room for names above and below."""
    low, high = min(values), max(values)
    room = 0.12 * (high - low) or 1
    return [low - room, high + room]


def _end(rows: Rows) -> float:
    """Right end of the memory axis: a little beyond the last point or strategy."""
    marks = [row.place[0] for row in rows]
    return max(marks) + 0.06 * (max(marks) - min(marks)) or max(marks) + 1


def _best(points: Rows, hands: Rows, end: float) -> dict[str, Any]:
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


def _describe_point(point: ScheduleReport, hands: Rows) -> str:
    least = "" if point.limit_proved else "<br>less memory may do"
    same = ", ".join(escape(title(hand)) for hand in hands if hand.place == point.place)
    return (
        f"limit {measured(point.limit, point.memory_unit)}: "
        f"<b>{measured(point.value, point.time_unit)}</b>"
        f"<br>{escape(describe_status(point))}{least}"
        f"<br>bubble rate {percent(point.bubble_rate)}"
        f"{same and f'<br>as {same}'}"
    )


def _hands(hands: Rows) -> list[dict[str, Any]]:
    """Hand strategies at their own memory and value, in groups by whether the curve bounds them."""
    fitting = [hand for hand in hands if hand.fits_limit]
    named = {
        "hand strategies": [hand for hand in fitting if hand.ratio_to_best],
        "of another placement, not bound": [hand for hand in fitting if not hand.ratio_to_best],
        "over the pipeline's own limits": [hand for hand in hands if not hand.fits_limit],
    }
    symbols = ("diamond", "diamond-open", "x-thin")
    return [
        {
            "type": "scatter",
            "name": name,
            "x": [hand.memory for hand in shown],
            "y": [hand.value for hand in shown],
            "mode": "markers",
            "marker": {
                "size": 11,
                "color": colours.HUES[OpKind.BW],
                "symbol": symbol,
                "line": {"width": 2, "color": colours.HUES[OpKind.BW]},
            },
            "text": [_describe_hand(hand) for hand in shown],
            "hovertemplate": "%{text}<extra></extra>",
        }
        for (name, shown), symbol in zip(named.items(), symbols, strict=True)
        if shown
    ]


def _together(hand: ScheduleReport, hands: Rows) -> str:
    """Label of a strategy; those of the same memory and value share the label of the first."""
    name = title(hand)
    same = [title(other) for other in hands if other.place == hand.place]
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


def _table(found: FrontierReport, sections: Mapping[float, int]) -> str:
    pipeline, searched = found.frontier.pipeline, found.frontier.searched
    time, objective = pipeline.time_unit, objective_name(found.frontier.objective)

    def schedule(row: ScheduleReport) -> str:
        if row.limit is None:
            return title(row)
        words = "optimum" if row.status == "optimal" else "best found"
        if row.limit in sections:
            words = f'<a href="#schedule-{sections[row.limit]}">{words}</a>'
        return Html(f"<strong>{words}</strong>{escape(describe_choices(row, searched))}")

    columns: list[Column[ScheduleReport]] = [
        Column("schedule", schedule),
        Column(
            headed("memory", pipeline.memory_unit),
            lambda row: marked(at_most(row) + number(row.place[0]), row),
        ),
        Column(headed(objective, time), lambda row: number(row.value)),
        Column(
            headed("lower bound", time),
            lambda row: "" if row.limit is None else number(row.lower_bound),
        ),
        Column("bubble rate", lambda row: percent(row.bubble_rate)),
        Column(
            "status",
            lambda row: "hand strategy" if row.limit is None else describe_status(row),
        ),
    ]
    return html_table(columns, ("", found.rows))
