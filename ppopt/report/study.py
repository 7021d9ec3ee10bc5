"""The page of a study: charts and a table of its rows, then the schedules of the best ones."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any, NamedTuple

from ppopt.formats.figures import Quantity, ScheduleFigures, declared
from ppopt.problem.operation import OpKind
from ppopt.report import colours
from ppopt.report.html import fitting, page
from ppopt.report.labels import clean, isolated
from ppopt.report.numbers import NONE, measured, percent
from ppopt.report.payload import data_element
from ppopt.report.sections import paragraphs
from ppopt.report.table import setting_text
from ppopt.schedule.schedule import Schedule
from ppopt.studies.records import SweepRow

MAX_SCHEDULES = 100
_MAX_ROWS = 20_000
"""Rows that a page holds; of more, it has the first ones, and says so."""
_NUMBER = re.compile(r"(-?[0-9]+(?:\.[0-9]+)?)([A-Za-z]*)")
_DECLARED = declared(ScheduleFigures)


class StudyFigure(NamedTuple):
    """A figure of a row."""

    name: str
    quantity: Quantity
    value: Callable[[SweepRow], float | None]
    more: bool = False
    """Whether more is better."""


def _of(key: str, name: str = "") -> StudyFigure:
    """A declared figure, or the largest of its list; `name` replaces its label."""
    figure = _DECLARED[key]

    def value(row: SweepRow) -> float | None:
        value = None if row.figures is None else getattr(row.figures, key)
        return (max(value) if value else None) if figure.each else value

    return StudyFigure(name or figure.label, figure.quantity, value, figure.maximized)


def _per_microbatch(row: SweepRow) -> float | None:
    value, batches = row.value, row.overrides.get("batches")
    if value is None or not isinstance(batches, int) or batches <= 0:
        return None
    return value / batches


_PER_MICROBATCH = StudyFigure("time per microbatch", Quantity.TIME, _per_microbatch)
_VALUE, _MEMORY = _of("value"), _of("peak_memory", "memory")
_FIGURES = (
    *(_PER_MICROBATCH, _VALUE, _MEMORY),
    *map(_of, ("lower_bound", "gap", "bubble_rate", "exposed")),
    *(_of("tokens_per_second", "tokens per second"), _of("mfu")),
)


class _Rows:
    """The rows of a study as its page counts them."""

    def __init__(self, rows: Sequence[SweepRow]) -> None:
        self.all = rows[:_MAX_ROWS]
        names = dict.fromkeys(name for row in self.all for name in row.overrides)
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
        front, min_memory = [], inf
        for number in self.by_time:
            memory = _MEMORY.value(self.all[number])
            if memory is not None and memory < min_memory:
                front.append(number)
                min_memory = memory
        return list(dict.fromkeys([*front, *self._first_of_cells(), *self.by_time]))

    def _first_of_cells(self) -> list[int]:
        """The best row of every cell of the heat map that the page opens with."""
        names = [name for name, values in self.settings.items() if len(values) > 1][:2]
        best_rows: dict[tuple[str, ...], int] = {}
        for number in self.by_time:
            cell = tuple(setting_text(self.all[number].overrides.get(name)) for name in names)
            best_rows.setdefault(cell, number)
        return list(best_rows.values())


def study_page(
    name: str,
    study_rows: Sequence[SweepRow],
    schedule_of: Callable[[SweepRow], Schedule | None],
    *,
    num_open: int = 0,
) -> str | None:
    """One HTML page with the rows of a study, and the schedules of the best; None: there is none.

    `schedule_of` gives the schedule of a row, None if it has none. Schedules are asked for from the
    best row on, until the page has as many as it draws. `num_open` rows are not done. The element
    `study-data` holds the rows (see `script/types.d.ts`): the schedule of a row is `schedule-1` and
    so on, by its `section`.
    """
    rows = _Rows(study_rows)
    candidates = ((number, schedule_of(rows.all[number])) for number in rows.best_first())
    schedules = fitting(candidates, MAX_SCHEDULES)
    if not schedules:
        return None
    sections = {number: place for place, number in enumerate(schedules, start=1)}
    sentences = _sentences(study_rows, num_open, rows, len(schedules))
    opening = (
        f'<section class="study">\n{sentences}\n{_charts(rows)}\n'
        f'<div class="scroll" id="rows" tabindex="0"></div>\n'
        f"{data_element('study-data', _data(rows, sections))}\n</section>"
    )
    return page(list(schedules.values()), what=f"study {name}", opening=opening, study=True)


def _values(name: str, rows: Sequence[SweepRow]) -> list[str]:
    """The values of a setting: numbers of one unit by size, others in the order of the rows."""
    texts = list(dict.fromkeys(setting_text(row.overrides.get(name)) for row in rows))
    matches = [_NUMBER.fullmatch(value) for value in texts]
    sizes = {value: match for value, match in zip(texts, matches, strict=True) if match}
    if len(sizes) < len([value for value in texts if value != NONE]):
        return texts
    if len({size[2] for size in sizes.values()}) > 1:
        return texts
    return sorted(texts, key=lambda value: float(sizes[value][1]) if value in sizes else inf)


def _sentences(study_rows: Sequence[SweepRow], num_open: int, rows: _Rows, schedules: int) -> str:
    """What came of the study, in words."""
    failed = sum(row.failed is not None for row in study_rows)
    done = sum(row.figures is not None for row in study_rows)
    left = [f"{failed} failed"] if failed else []
    left += [f"{num_open} open"] if num_open else []
    lines = [", ".join([f"{done} rows done", *left])]
    best = rows.all[rows.by_time[0]]
    settings = ", ".join(f"{name} {setting_text(value)}" for name, value in best.overrides.items())
    figures = best.figures or ScheduleFigures()
    value = measured(rows.time.value(best), figures.time_unit)
    gap = "" if figures.gap is None else f", gap {percent(figures.gap)}"
    lines.append(f"Least {rows.time.name}: {value} with {settings or 'the only row'}{gap}")
    if schedules < len(rows.by_time):
        lines.append(f"The schedules of the best {schedules} rows are on this page")
    if len(rows.all) < len(study_rows):
        lines.append(f"The first {len(rows.all)} of {len(study_rows)} rows are on this page")
    return paragraphs(lines)


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
    known = any(_MEMORY.value(row) is not None for row in rows.all)
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
    known = [row.figures for row in rows.all if row.figures is not None]
    units = {
        Quantity.TIME: next((row.time_unit for row in known if row.time_unit), ""),
        Quantity.MEMORY: next((row.memory_unit for row in known if row.memory_unit), ""),
    }
    return {
        "settings": [
            {"name": name, "values": [clean(value) for value in values]}
            for name, values in rows.settings.items()
        ],
        "figures": [
            {
                "name": figure.name,
                "unit": units.get(figure.quantity, ""),
                "share": figure.quantity is Quantity.SHARE,
                "more": figure.more,
            }
            for figure in rows.figures
        ],
        "rows": [
            {
                "settings": [
                    places[name][setting_text(row.overrides.get(name))] for name in rows.settings
                ],
                "figures": [figure.value(row) for figure in rows.figures],
                "status": clean(f"failed: {row.failed}") if row.failed else row.status or "open",
                "proved": row.status == "optimal",
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
        "font": colours.FONT,
        "hover": colours.HOVER_LABEL,
    }
