"""The page of a frontier: the curve of memory against time, then the schedule of every point."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from ppopt.problem.operation import OpKind
from ppopt.report import colours
from ppopt.report.figure import FONT, HOVER_LABEL
from ppopt.report.frontier_words import AT_MOST, OVER, what_if
from ppopt.report.html import page
from ppopt.report.labels import objective_words, title
from ppopt.report.layout_words import chosen_words
from ppopt.report.numbers import headed, measured, number, percent
from ppopt.report.payload import embedded
from ppopt.report.search_words import status_words
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


def frontier_page(found: Mapping[str, Any], schedules: Sequence[Schedule]) -> str:
    """One HTML page with the curve, its figures, and the schedules of its points.

    `found` has the keys of `ppopt frontier --json`, `schedules` are those of its points, one each.
    The element `frontier` holds `found` as JSON, without the schedules: their sections are
    `schedule-1` and so on, named by `section` of each point. Identical input gives an identical
    page, but for `solve_seconds`, which is left out.
    """
    shown = _sections(schedules)
    data = _data(found, shown)
    opening = (
        '<section class="frontier">\n'
        f"{_sentences(found)}\n"
        '<div id="curve" role="group" aria-label="Memory against time"></div>\n'
        f'<script type="application/json" id="curve-data">{embedded(_curve(data))}</script>\n'
        f'<div class="scroll" tabindex="0">{_table(data)}</div>\n'
        f'<script type="application/json" id="frontier">{embedded(data)}</script>\n'
        "</section>"
    )
    kept = [schedules[place] for place in shown]
    knee = min(range(len(shown)), key=lambda index: abs(shown[index] - _knee(data["points"])))
    name = schedules[0].pipeline.name
    title = f"{name}: {TITLE.lower()}" if name else TITLE
    return page(kept, title=title, opening=opening, first=knee)


def _knee(points: Sequence[Mapping[str, Any]]) -> int:
    """The point farthest below the line from the first to the last one in sight.

    Both axes count from 0 to 1 (Satopaa et al., "Finding a 'Kneedle' in a Haystack", 2011).
    """
    begin, last = _first_in_sight(points), points[-1]
    wide = last["limit"] - points[begin]["limit"] or 1
    high = points[begin]["value"] - last["value"] or 1
    return min(
        range(begin, len(points)),
        key=lambda place: points[place]["limit"] / wide + points[place]["value"] / high,
    )


def _first_in_sight(points: Sequence[Mapping[str, Any]]) -> int:
    """The first point that the chart opens with."""
    best = points[-1]["value"]
    return next(i for i, point in enumerate(points) if point["value"] <= _WORST_SHOWN * best)


def _sections(schedules: Sequence[Schedule]) -> list[int]:
    """The points whose schedules the page shows."""
    everything = range(len(schedules))
    if sum(map(len, schedules)) <= MOST_OPERATIONS:
        return list(everything)
    return sorted({0, len(schedules) - 1})


def _data(found: Mapping[str, Any], shown: Sequence[int]) -> dict[str, Any]:
    """The data of a frontier without schedules and without what differs from run to run."""
    sections = {place: f"schedule-{index}" for index, place in enumerate(shown, start=1)}
    rows = {
        key: [_without(row, "schedule", "solve_seconds") for row in found[key]]
        for key in ("points", "strategies")
    }
    for place, row in enumerate(rows["points"]):
        row["section"] = sections.get(place)
    return _without(found, "solve_seconds") | rows


def _without(row: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in keys}


def _sentences(found: Mapping[str, Any]) -> str:
    words = {
        "optimal": "Every limit at which the optimum changes, each optimum proved",
        "feasible": "The best schedules found, not proved where the line of the bound lies below",
    }
    lines = [f"{words[found['status']]}; click a point for its schedule", *what_if(found)]
    return "".join(f"<p>{escape(line[:1].upper() + line[1:])}.</p>" for line in lines)


def _curve(data: Mapping[str, Any]) -> dict[str, Any]:
    """What the script draws: `Curve` in `script/types.d.ts`. The points are drawn last, on top."""
    points, hands, end = data["points"], data["strategies"], _end(data)
    corners = [(row["limit"], row["value"]) for row in points]
    afters = [*(limit for limit, _ in corners[1:]), end]
    steps = [
        spot
        for (limit, value), after in zip(corners, afters, strict=True)
        for spot in ((limit, value), (after, value))
    ]
    return {
        "traces": [*_hands(data), *_bounds(data, end), _best(data, end)],
        "layout": _layout(data),
        **_opening_window(data, end),
        "whole": {"x": _widths(corners[0][0], end), "y": _heights(_values(data))},
        "points": [
            {
                "x": row["limit"],
                "y": row["value"],
                "section": row["section"] and int(row["section"].rpartition("-")[2]),
            }
            for row in points
        ],
        "steps": [{"x": x, "y": y} for x, y in steps],
        "names": [
            {"x": row["memory"], "y": row["value"], "text": _together(row, hands)} for row in hands
        ],
    }


def _opening_window(data: Mapping[str, Any], end: float) -> dict[str, list[float]]:
    """Ranges of the axes in which a choice is made: good values, and memory that brings them."""
    points = data["points"]
    seen = points[_first_in_sight(points) :]
    most = min(end, _MOST_SHOWN * seen[-1]["limit"])
    worst = _WORST_SHOWN * seen[-1]["value"]
    hands = [
        row["value"]
        for row in data["strategies"]
        if row["value"] <= worst and seen[0]["limit"] <= row["memory"] <= most
    ]
    lows = [row["lower_bound"] for row in data["bounds"][-1:]]
    values = [*(row["value"] for row in seen), *hands, *lows]
    return {"x": _widths(seen[0]["limit"], most), "y": _heights(values)}


def _widths(first: float, end: float) -> list[float]:
    """Range of the memory on its axis, with room before the first limit."""
    return [first - 0.04 * (end - first), end]


def _heights(values: Sequence[float]) -> list[float]:
    """Range of the values on their axis, with room for names above and below."""
    low, high = min(values), max(values)
    room = 0.12 * (high - low) or 1
    return [low - room, high + room]


def _values(data: Mapping[str, Any]) -> list[float]:
    bounds = (row["lower_bound"] for row in data["bounds"][-1:])
    return [*(row["value"] for row in (*data["points"], *data["strategies"])), *bounds]


def _end(data: Mapping[str, Any]) -> float:
    """Right end of the memory axis: a little beyond the last point or strategy."""
    marks: list[float] = [row["limit"] for row in data["points"]]
    marks += [row["memory"] for row in data["strategies"]]
    return max(marks) + 0.06 * (max(marks) - min(marks)) or max(marks) + 1


def _best(data: Mapping[str, Any], end: float) -> dict[str, Any]:
    """The frontier as steps with its points."""
    points = data["points"]
    limits = [row["limit"] for row in points]
    values = [row["value"] for row in points]
    proved = [row["status"] == "optimal" for row in points]
    return {
        "type": "scatter",
        "name": "best schedule within the limit",
        "x": [*limits, end],
        "y": [*values, values[-1]],
        "mode": "lines+markers",
        "line": {"shape": "hv", "color": colours.HUES[OpKind.F], "width": 2},
        "marker": {
            "size": [10] * len(points) + [0],
            "symbol": ["circle" if sure else "circle-open" for sure in [*proved, True]],
            "color": colours.HUES[OpKind.F],
            "opacity": 1,
            "line": {"width": 1.5, "color": colours.POINT_EDGE},
        },
        "text": [*(_point_words(row, data["strategies"]) for row in points), ""],
        "hovertemplate": "%{text}<extra></extra>",
    }


def _bounds(data: Mapping[str, Any], end: float) -> list[dict[str, Any]]:
    """The bounds, where not all points are proved."""
    if data["status"] == "optimal":
        return []
    bounds = [row for row in data["bounds"] if row["limit"] >= data["points"][0]["limit"]]
    memory, time = (
        " ".join(filter(None, ("%{x}", data["memory_unit"]))),
        " ".join(filter(None, ("%{y}", data["time_unit"]))),
    )
    limits, lows = ([row[key] for row in bounds] for key in ("limit", "lower_bound"))
    return [
        {
            "type": "scatter",
            "name": "proved: no schedule is below",
            "x": [data["points"][0]["limit"], *(min(limit, end) for limit in limits), end],
            "y": [lows[0], *lows, lows[-1]],
            "mode": "lines",
            "line": {"shape": "vh", "color": colours.LIMIT, "width": 1.5, "dash": "dot"},
            "hovertemplate": f"limit {memory}: at least {time}<extra></extra>",
        }
    ]


def _point_words(row: Mapping[str, Any], hands: Sequence[Mapping[str, Any]]) -> str:
    least = "" if row["limit_proved"] else "<br>less memory may do"
    spot = (row["limit"], row["value"])
    same = ", ".join(escape(title(hand)) for hand in hands if _spot(hand) == spot)
    limit = measured(row["limit"], row["memory_unit"])
    return (
        f"limit {limit}: <b>{measured(row['value'], row['time_unit'])}</b>"
        f"<br>{escape(status_words(row))}{least}"
        f"<br>bubble rate {percent(row['bubble_rate'])}"
        f"{same and f'<br>as {same}'}"
    )


def _hands(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Hand strategies at their own memory and value, in groups by whether the curve bounds them."""
    rows = data["strategies"]
    fitting = [row for row in rows if row["fits_limit"]]
    named = {
        "hand strategies": [row for row in fitting if row["ratio_to_best"]],
        "of another placement, not bound": [row for row in fitting if not row["ratio_to_best"]],
        "over the pipeline's own limits": [row for row in rows if not row["fits_limit"]],
    }
    symbols = ("diamond", "diamond-open", "x-thin")
    return [
        {
            "type": "scatter",
            "name": name,
            "x": [row["memory"] for row in shown],
            "y": [row["value"] for row in shown],
            "mode": "markers",
            "marker": {
                "size": 11,
                "color": colours.HUES[OpKind.BW],
                "symbol": symbol,
                "line": {"width": 2, "color": colours.HUES[OpKind.BW]},
            },
            "text": [_hand_words(row) for row in shown],
            "hovertemplate": "%{text}<extra></extra>",
        }
        for (name, shown), symbol in zip(named.items(), symbols, strict=True)
        if shown
    ]


def _together(row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> str:
    """Label of a strategy; those of the same memory and value share the label of the first."""
    same = [title(r) for r in rows if _spot(r) == _spot(row)]
    more = f" and {len(same) - _NAMED} more" if len(same) > _NAMED + 1 else ""
    named = same[:_NAMED] if more else same
    return escape(", ".join(named)) + more if same[0] == title(row) else ""


def _spot(row: Mapping[str, Any]) -> tuple[float, float]:
    return row["memory"], row["value"]


def _hand_words(row: Mapping[str, Any]) -> str:
    ratio = row["ratio_to_best"]
    above = f"<br>{percent(ratio - 1)} above the best within its memory" if ratio else ""
    where = f"<br>placement {row['placement']}, {number(row['chunks'])} per device"
    if not row["fits_limit"]:
        where += "<br>over the pipeline's own limits"
    return (
        f"<b>{escape(title(row))}</b>: {measured(row['value'], row['time_unit'])}"
        f"<br>memory {measured(row['memory'], row['memory_unit'])}{above}{'' if ratio else where}"
    )


def _layout(data: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "height": _HEIGHT,
        "margin": {"t": 64, "b": 56, "l": 64, "r": 16},
        "hovermode": "closest",
        "font": FONT,
        "hoverlabel": HOVER_LABEL,
        "legend": {"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom"},
        "xaxis": {
            "title": {"text": headed("memory limit of every device", data["memory_unit"])},
            "zeroline": False,
        },
        "yaxis": {
            "title": {"text": headed(objective_words(data), data["time_unit"])},
            "zeroline": False,
        },
    }


def _table(data: Mapping[str, Any]) -> str:
    time = data["time_unit"]
    head = (
        *("schedule", headed("memory", data["memory_unit"]), headed(objective_words(data), time)),
        *(headed("lower bound", time), "bubble rate", "status"),
    )
    rows = [
        (row["limit"], row["value"], _point_row(row, data["searched"])) for row in data["points"]
    ]
    rows += [(row["memory"], row["value"], _hand_row(row)) for row in data["strategies"]]
    return html_table(head, (cells for _, _, cells in sorted(rows, key=lambda entry: entry[:2])))


def _point_row(row: Mapping[str, Any], searched: Sequence[str]) -> tuple[str, ...]:
    words = "optimum" if row["status"] == "optimal" else "best found"
    if row["section"]:
        words = f'<a href="#{row["section"]}">{words}</a>'
    most = "" if row["limit_proved"] else AT_MOST
    memory = most + number(row["limit"])
    words = f"<strong>{words}</strong>{escape(chosen_words(row, searched))}"
    cells = _cells(words, memory, row, number(row["lower_bound"]))
    return *cells, escape(status_words(row))


def _hand_row(row: Mapping[str, Any]) -> tuple[str, ...]:
    over = "" if row["fits_limit"] else OVER
    return *_cells(escape(title(row)), number(row["memory"]) + over, row, ""), "hand strategy"


def _cells(words: str, memory: str, row: Mapping[str, Any], bound: str) -> tuple[str, ...]:
    return words, memory, number(row["value"]), bound, percent(row["bubble_rate"])
