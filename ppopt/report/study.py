"""The page of a study: charts and a table of its rows, then the schedules of the best ones."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from math import inf
from typing import Any, NamedTuple

from ppopt.problem.operation import OpKind
from ppopt.report import colours
from ppopt.report.figure import FONT, HOVER_LABEL
from ppopt.report.html import page
from ppopt.report.labels import clean, isolated
from ppopt.report.numbers import NONE, measured, percent
from ppopt.report.payload import embedded
from ppopt.schedule.schedule import Schedule

MOST_OPERATIONS = 100_000
"""Operations of all schedules that a page draws; the best rows come first."""
MOST_SCHEDULES = 100
_MOST_ROWS = 20_000
"""Rows that a page holds; of more, it has the first ones, and says so."""
_NUMBER = re.compile(r"(-?[0-9]+(?:\.[0-9]+)?)([A-Za-z]*)")
Shown = Mapping[str, Any]


class StudyFigure(NamedTuple):
    """A figure of a row."""

    name: str
    value: Callable[[Shown], float | None]
    unit: str = ""
    """Key of its unit in a row."""
    share: bool = False
    """Whether it is shown in per cent."""
    more: bool = False
    """Whether more is better."""


def _memory(row: Shown) -> float | None:
    peaks = row.get("peak_memory")
    return max(peaks) if peaks else None


def _per_microbatch(row: Shown) -> float | None:
    value, batches = row.get("value"), row["overrides"].get("batches")
    known = value is not None and isinstance(batches, int) and batches > 0
    return value / batches if known else None


_PER_MICROBATCH = StudyFigure("time per microbatch", _per_microbatch, "time_unit")
_VALUE = StudyFigure("value", lambda row: row.get("value"), "time_unit")
_MEMORY = StudyFigure("memory", _memory, "memory_unit")
_FIGURES = (
    _PER_MICROBATCH,
    _VALUE,
    _MEMORY,
    StudyFigure("lower bound", lambda row: row.get("lower_bound"), "time_unit"),
    StudyFigure("gap", lambda row: row.get("gap"), share=True),
    StudyFigure("bubble rate", lambda row: row.get("bubble_rate"), share=True),
    StudyFigure("exposed", lambda row: row.get("exposed"), "time_unit"),
    StudyFigure("tokens per second", lambda row: row.get("tokens_per_second"), more=True),
    StudyFigure("MFU", lambda row: row.get("mfu"), share=True, more=True),
)


class _Rows:
    """The rows of a study as its page counts them."""

    def __init__(self, shown: Shown) -> None:
        self.all: Sequence[Shown] = shown["rows"][:_MOST_ROWS]
        names = dict.fromkeys(name for row in self.all for name in row["overrides"])
        self.settings = {name: _values(name, self.all) for name in names}
        self.figures = [
            figure
            for figure in _FIGURES
            if (figure is not _PER_MICROBATCH or len(self.settings.get("batches", ())) > 1)
            and (
                figure in (_VALUE, _MEMORY)
                or any(figure.value(row) is not None for row in self.all)
            )
        ]
        self.time = self.figures[0]
        times = {number: self.time.value(row) for number, row in enumerate(self.all)}
        known = [(time, number) for number, time in times.items() if time is not None]
        self.by_time = [number for _, number in sorted(known)]
        """Rows with a schedule, the best first."""

    def best_first(self) -> list[int]:
        """Rows with a schedule, in the order in which a page shows them.

        First the Pareto front of memory and time, then the best of every cell of the heat map that
        the page opens with, then all by time.
        """
        front, least = [], inf
        for number in self.by_time:
            memory = _memory(self.all[number])
            if memory is not None and memory < least:
                front.append(number)
                least = memory
        return list(dict.fromkeys([*front, *self._first_of_cells(), *self.by_time]))

    def _first_of_cells(self) -> list[int]:
        """The best row of every cell of the heat map that the page opens with."""
        names = [name for name, values in self.settings.items() if len(values) > 1][:2]
        found: dict[tuple[str, ...], int] = {}
        for number in self.by_time:
            cell = tuple(_setting(self.all[number]["overrides"].get(name)) for name in names)
            found.setdefault(cell, number)
        return list(found.values())


def study_page(shown: Shown, schedule_of: Callable[[int], Schedule | None]) -> str | None:
    """One HTML page with the rows of a study, and the schedules of the best; None: there is none.

    `shown` has the keys of `ppopt sweep --json`; `schedule_of` gives the schedule of a row by its
    place, None if it has none. Schedules are asked for from the best row on, until the page has
    as many as it draws. The element `study-data` holds the rows (see `script/types.d.ts`): the
    schedule of a row is `schedule-1` and so on, by its `section`.
    """
    rows = _Rows(shown)
    schedules = dict(_drawn(rows.best_first(), schedule_of))
    if not schedules:
        return None
    sections = {number: place for place, number in enumerate(schedules, start=1)}
    opening = (
        f'<section class="study">\n{_sentences(shown, rows, len(schedules))}\n{_charts(rows)}\n'
        f'<div class="scroll" id="rows" tabindex="0"></div>\n'
        f'<script type="application/json" id="study-data">{embedded(_data(rows, sections))}'
        "</script>\n</section>"
    )
    title = f"Study {shown['study']}"
    return page(list(schedules.values()), title=title, opening=opening, study=True)


def _drawn(
    numbers: Sequence[int], schedule_of: Callable[[int], Schedule | None]
) -> Iterator[tuple[int, Schedule]]:
    """The schedules that the page shows; the first one in any case."""
    kept = operations = 0
    for number in numbers:
        made = schedule_of(number)
        if made is None:
            continue
        if kept and operations + len(made) > MOST_OPERATIONS:
            return
        yield number, made
        kept, operations = kept + 1, operations + len(made)
        if kept == MOST_SCHEDULES:
            return


def _values(name: str, rows: Sequence[Shown]) -> list[str]:
    """The values of a setting: numbers of one unit by size, others in the order of the rows."""
    given = list(dict.fromkeys(_setting(row["overrides"].get(name)) for row in rows))
    found = [_NUMBER.fullmatch(value) for value in given]
    sizes = {value: match for value, match in zip(given, found, strict=True) if match}
    if len(sizes) < len([value for value in given if value != NONE]):
        return given
    if len({size[2] for size in sizes.values()}) > 1:
        return given
    return sorted(given, key=lambda value: float(sizes[value][1]) if value in sizes else inf)


def _setting(value: object) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    return NONE if value is None else str(value)


def _sentences(shown: Shown, rows: _Rows, schedules: int) -> str:
    """What came of the study, in words."""
    left = [f"{shown['failed']} failed"] if shown["failed"] else []
    left += [f"{shown['open']} open"] if shown.get("open") else []
    lines = [", ".join([f"{shown['done']} rows done", *left])]
    best = rows.all[rows.by_time[0]]
    settings = ", ".join(f"{name} {_setting(value)}" for name, value in best["overrides"].items())
    value = measured(rows.time.value(best), best["time_unit"])
    gap = "" if best.get("gap") is None else f", gap {percent(best['gap'])}"
    lines.append(f"Least {rows.time.name}: {value} with {settings or 'the only row'}{gap}")
    if schedules < len(rows.by_time):
        lines.append(f"The schedules of the best {schedules} rows are on this page")
    if len(rows.all) < len(shown["rows"]):
        lines.append(f"The first {len(rows.all)} of {len(shown['rows'])} rows are on this page")
    return "".join(f"<p>{escape(line)}.</p>" for line in lines)


def _charts(rows: _Rows) -> str:
    """Fields to choose by, and the places of the charts; the script fills them."""
    several = [name for name, values in rows.settings.items() if len(values) > 1]
    only = "".join(
        f'<label>{isolated(name)} <select id="only-{number}"></select></label>'
        for number, name in enumerate(rows.settings)
        if name in several
    )
    heat = (
        '<div><div class="group"><label>best <select id="heat-figure"></select></label>'
        '<label>along <select id="heat-x"></select></label>'
        + ('<label>and <select id="heat-y"></select></label>' if len(several) > 1 else "")
        + '</div><div id="heat" role="group" aria-label="Heat map of two settings"></div></div>'
    )
    front = (
        '<div><div class="group">memory against time</div>'
        '<div id="front" role="group" aria-label="Memory against time"></div></div>'
    )
    wide = (
        '<div class="group">every row a line; the best fifth by time stands out</div>'
        '<div class="scroll" tabindex="0">'
        '<div id="parallel" role="group" aria-label="Parallel coordinates"></div></div>'
    )
    known = any(_memory(row) is not None for row in rows.all)
    return (
        (f'<div class="group only">{only}</div>' if only else "")
        + f'<div class="charts">{heat if several else ""}{front if known else ""}</div>'
        + (wide if several else "")
        + '<p id="count" class="quiet" role="status"></p>'
    )


def _data(rows: _Rows, sections: Mapping[int, int]) -> dict[str, Any]:
    """What the script draws: `Study` in `script/types.d.ts`."""
    places = {
        name: {value: place for place, value in enumerate(values)}
        for name, values in rows.settings.items()
    }
    units = {
        key: next((row[key] for row in rows.all if row.get(key)), "")
        for key in ("time_unit", "memory_unit")
    }
    return {
        "settings": [
            {"name": name, "values": [clean(value) for value in values]}
            for name, values in rows.settings.items()
        ],
        "figures": [
            {
                "name": figure.name,
                "unit": units.get(figure.unit, ""),
                "share": figure.share,
                "more": figure.more,
            }
            for figure in rows.figures
        ],
        "rows": [
            {
                "settings": [
                    places[name][_setting(row["overrides"].get(name))] for name in rows.settings
                ],
                "figures": [figure.value(row) for figure in rows.figures],
                "status": _status(row),
                "proved": row.get("status") == "optimal",
                "section": sections.get(number),
            }
            for number, row in enumerate(rows.all)
        ],
        "memory": rows.figures.index(_MEMORY),
        "time": rows.figures.index(rows.time),
        "colours": {
            "front": colours.HUES[OpKind.BW],
            "row": colours.HUES[OpKind.F],
            "edge": colours.POINT_EDGE,
        },
        "font": FONT,
        "hover": HOVER_LABEL,
    }


def _status(row: Shown) -> str:
    if row.get("failed") is not None:
        return clean(f"failed: {row['failed']}")
    return str(row.get("status") or "open")
