"""The page of a frontier: the curve of memory against time, then the schedule of every point."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import plotly.graph_objects as go  # type: ignore[import-untyped]
import plotly.io  # type: ignore[import-untyped]

from ppopt.op import OpKind
from ppopt.report import colours
from ppopt.report.html import page
from ppopt.report.words import AT_MOST, number, percent, status_words, title, what_if
from ppopt.schedule import Schedule

TITLE = "Memory against time"
MOST_OPERATIONS = 100_000
"""Operations that a page draws; beyond, the schedules of the first and last point alone."""
_HEIGHT = 460
_OPEN = """
document.getElementById("{plot_id}").on("plotly_click", event => {{
  const section = event.points.map(point => point.customdata).find(Boolean);
  if (section) location.hash = section;
}});
"""
"""Click a point: its schedule."""


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
        f'<div class="plot">{_plot(data)}</div>\n'
        f'<div class="scroll">{_table(data)}</div>\n'
        f'<script type="application/json" id="frontier">{_embedded(data)}</script>\n'
        "</section>"
    )
    kept = [schedules[place] for place in shown]
    return page(kept, title=TITLE, opening=opening)


def _sections(schedules: Sequence[Schedule]) -> list[int]:
    """The points whose schedules the page shows."""
    everything = range(len(schedules))
    if sum(map(len, schedules)) <= MOST_OPERATIONS:
        return list(everything)
    return sorted({0, len(schedules) - 1})


def _data(found: Mapping[str, Any], shown: Sequence[int]) -> dict[str, Any]:
    """What the page holds of a frontier: all but schedules and what differs from run to run."""
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


def _embedded(data: Mapping[str, Any]) -> str:
    """JSON that no browser takes for the end of its element."""
    return json.dumps(data, allow_nan=False).replace("<", "\\u003c")


def _sentences(found: Mapping[str, Any]) -> str:
    words = {
        "optimal": "Every limit at which the optimum changes, each optimum proved",
        "feasible": "The best schedules found, not proved where the line of the bound lies below",
    }
    lines = [f"{words[found['status']]}; click a point for its schedule", *what_if(found)]
    return "".join(f"<p>{escape(line[:1].upper() + line[1:])}.</p>" for line in lines)


def _plot(data: Mapping[str, Any]) -> str:
    return str(
        plotly.io.to_html(
            go.Figure([*_steps(data), _hands(data)], _layout(data)),
            include_plotlyjs=False,
            full_html=False,
            div_id="plot-frontier",
            validate=False,
            post_script=_OPEN,
            config={
                "displaylogo": False,
                "showSendToCloud": False,
                "modeBarButtonsToRemove": ["select2d", "lasso2d", "autoScale2d"],
                "toImageButtonOptions": {"filename": "frontier", "scale": 2},
            },
        )
    )


def _objective(data: Mapping[str, Any]) -> str:
    return str(data["objective"]).replace("-", " ")


def _end(data: Mapping[str, Any]) -> float:
    """Right end of the memory axis: a little beyond all that happens."""
    marks: list[float] = [row["limit"] for row in data["points"]]
    marks += [row["memory"] for row in data["strategies"]]
    return max(marks) + 0.06 * (max(marks) - min(marks)) or max(marks) + 1


def _steps(data: Mapping[str, Any]) -> list[go.Scatter]:
    """The frontier as steps with its points, and the bounds where they lie below."""
    points, end = data["points"], _end(data)
    limits = [row["limit"] for row in points]
    values = [row["value"] for row in points]
    proved = [row["status"] == "optimal" for row in points]
    best = go.Scatter(
        name="best schedule within the limit",
        x=[*limits, end],
        y=[*values, values[-1]],
        mode="lines+markers",
        line={"shape": "hv", "color": colours.HUES[OpKind.F], "width": 2},
        marker={
            "size": [10] * len(points) + [0],
            "symbol": ["circle" if sure else "circle-open" for sure in [*proved, True]],
            "line": {"width": 2},
        },
        text=[*map(_point_words, points), ""],
        hovertemplate="%{text}<extra></extra>",
        customdata=[*(row["section"] for row in points), None],
    )
    return [best] if data["status"] == "optimal" else [_bounds(data, end), best]


def _bounds(data: Mapping[str, Any], end: float) -> go.Scatter:
    bounds = [row for row in data["bounds"] if row["limit"] >= data["points"][0]["limit"]]
    limits, lows = ([row[key] for row in bounds] for key in ("limit", "lower_bound"))
    return go.Scatter(
        name="proved: no schedule is below",
        x=[data["points"][0]["limit"], *(min(limit, end) for limit in limits), end],
        y=[lows[0], *lows, lows[-1]],
        mode="lines",
        line={"shape": "vh", "color": colours.LIMIT, "width": 1.5, "dash": "dot"},
        hovertemplate="limit %{x}: at least %{y}<extra></extra>",
    )


def _point_words(row: Mapping[str, Any]) -> str:
    least = "" if row["limit_proved"] else "<br>less memory may do"
    return (
        f"limit {number(row['limit'])}: <b>{number(row['value'])}</b>"
        f"<br>{escape(status_words(row))}{least}"
        f"<br>bubble rate {percent(row['bubble_rate'])}"
    )


def _hands(data: Mapping[str, Any]) -> go.Scatter:
    """Hand strategies at their own memory and value."""
    rows = data["strategies"]
    return go.Scatter(
        name="hand strategies",
        x=[row["memory"] for row in rows],
        y=[row["value"] for row in rows],
        mode="markers+text",
        marker={
            "size": 10,
            "color": colours.HUES[OpKind.BW],
            "symbol": ["diamond" if row["ratio_to_best"] else "diamond-open" for row in rows],
            "line": {"width": 2},
        },
        text=[_together(row, rows) for row in rows],
        textposition="top center",
        hovertext=[_hand_words(row) for row in rows],
        hovertemplate="%{hovertext}<extra></extra>",
    )


def _together(row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> str:
    """Name of a strategy; strategies at the same spot share the label of the first."""
    same = [title(r) for r in rows if _spot(r) == _spot(row)]
    return escape(", ".join(same)) if same[0] == title(row) else ""


def _spot(row: Mapping[str, Any]) -> tuple[float, float]:
    return row["memory"], row["value"]


def _hand_words(row: Mapping[str, Any]) -> str:
    ratio = row["ratio_to_best"]
    beside = f"<br>{percent(ratio - 1)} above the best within its memory" if ratio else ""
    where = f"<br>placement {row['placement']}, {number(row['chunks'])} per device"
    return (
        f"<b>{escape(title(row))}</b>: {number(row['value'])}"
        f"<br>memory {number(row['memory'])}{beside}{'' if ratio else where}"
    )


def _layout(data: Mapping[str, Any]) -> dict[str, Any]:
    axis = {"gridcolor": colours.GRID, "zeroline": False}
    start = data["points"][0]["limit"]
    return {
        "template": None,
        "height": _HEIGHT,
        "margin": {"t": 48, "b": 56, "l": 72, "r": 24},
        "hovermode": "closest",
        "font": {"family": "system-ui, sans-serif", "size": 12, "color": colours.INK},
        "hoverlabel": {
            "bgcolor": "#1c2330",
            "bordercolor": "#8a93a5",
            "font": {"color": "#ffffff", "size": 13},
            "align": "left",
        },
        "legend": {"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom"},
        "paper_bgcolor": "#ffffff",
        "plot_bgcolor": "#ffffff",
        "xaxis": {
            **axis,
            "title": {"text": "memory limit of every device"},
            "range": [start - 0.04 * (_end(data) - start), _end(data)],
        },
        "yaxis": {**axis, "title": {"text": _objective(data)}, "rangemode": "normal"},
        "modebar": {"bgcolor": "rgba(0, 0, 0, 0)"},
    }


def _table(data: Mapping[str, Any]) -> str:
    head = ("memory", _objective(data), "lower bound", "bubble rate", "schedule")
    rows = [(row["limit"], row["value"], _point_row(row)) for row in data["points"]]
    rows += [(row["memory"], row["value"], _hand_row(row)) for row in data["strategies"]]
    top = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in head)
    body = "".join(row for _, _, row in sorted(rows, key=lambda entry: entry[:2]))
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def _point_row(row: Mapping[str, Any]) -> str:
    words = escape(status_words(row))
    if row["section"]:
        words = f'<a href="#{row["section"]}">{words}</a>'
    most = "" if row["limit_proved"] else AT_MOST
    memory = most + number(row["limit"])
    return _cells(memory, row, number(row["lower_bound"]), f"<strong>{words}</strong>")


def _hand_row(row: Mapping[str, Any]) -> str:
    return _cells(number(row["memory"]), row, "", escape(title(row)))


def _cells(memory: str, row: Mapping[str, Any], bound: str, words: str) -> str:
    cells = (memory, number(row["value"]), bound, percent(row["bubble_rate"]), words)
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
