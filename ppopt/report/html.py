"""The page: schedules as one self-contained HTML file that opens without a network.

`page.html` is its frame, `page.css` its style; the modules in `script/` draw the schedules.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib.resources import files
from string import Template

import numpy as np
from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]

from ppopt.errors import InputError
from ppopt.problem.operation import OpKind
from ppopt.report import colours
from ppopt.report.entries import entries
from ppopt.report.gantt import MOST_SHADES, part_names, shade_words
from ppopt.report.payload import payload
from ppopt.report.script import script
from ppopt.report.sections import overview, proof, section
from ppopt.report.words import CAUSE_WORDS, KIND_WORDS, clean, isolated
from ppopt.schedule.idle import Cause, idle
from ppopt.schedule.schedule import Schedule

TITLE = "Pipeline schedules"
_KEYS = dict(zip(OpKind, "fbwx", strict=True))
"""Keys that show or hide a kind of operations."""


def page(
    schedules: Sequence[Schedule], *, title: str = TITLE, opening: str = "", study: bool = False
) -> str:
    """One HTML page with the Gantt chart, memory and figures of every schedule.

    Several schedules share one time axis, one above the other: the least value is on top, the
    others are compared with it. `opening` is HTML that stands before the schedules; with it, they
    keep their order and are shown one at a time: the k-th, from 1, where the address becomes
    `#schedule-k`. With `study`, the opening holds the rows of a study. The schedules must be
    complete (every device runs something). Identical input gives an identical page. Raises
    InputError when there is no schedule, and where units of time differ.
    """
    if not schedules:
        raise InputError("page: no schedule to show; give at least one")
    shown = entries(schedules, ordered=bool(opening))
    alone = len(shown) == 1
    frame = Template(_text("page.html"))
    return frame.substitute(
        title=escape(clean(title)),
        style=_text("page.css"),
        heading=isolated(title),
        opening=(opening or overview(shown)) + (proof(shown[0].figures) if alone else ""),
        kinds=_kind_buttons(schedules),
        causes=_cause_buttons(schedules),
        sections="\n".join(
            section(index, entry, alone=alone) for index, entry in enumerate(shown, start=1)
        ),
        plotly=get_plotlyjs(),
        data=payload(shown, single=alone or bool(opening)),
        script=script(study=study),
    )


def _text(name: str) -> str:
    return files("ppopt.report").joinpath(name).read_text(encoding="utf-8")


def _kind_buttons(schedules: Sequence[Schedule]) -> str:
    """A button for every kind of operation that occurs, and what its shades stand for."""
    kinds = sorted({int(code) for schedule in schedules for code in np.unique(schedule.kind)})
    names = {tuple(part_names(schedule.pipeline)) for schedule in schedules}
    shown = min(max(map(len, names)), MOST_SHADES)
    buttons = [_kind_button(OpKind(code), shown) for code in kinds]
    meanings = {shade_words(some) for some in names} - {""}
    if meanings:
        words = (
            meanings.pop() if len(meanings) == 1 else "dark to light: chunks, or routes, in turn"
        )
        buttons.append(f'<span class="quiet" id="shades">{escape(words)}</span>')
    return "".join(buttons)


def _kind_button(kind: OpKind, shades: int) -> str:
    swatch = "".join(_swatch(colours.shade(kind, part, shades)) for part in range(shades))
    return (
        f'<button type="button" data-name="{kind.name}" title="key {_KEYS[kind]}">'
        f"{swatch}{kind.name} {KIND_WORDS[kind]}</button>"
    )


def _cause_buttons(schedules: Sequence[Schedule]) -> str:
    """A button for every cause of idle time that occurs."""
    causes = sorted(
        {int(code) for schedule in schedules for code in np.unique(idle(schedule).cause)}
    )
    buttons = [_cause_button(Cause(code)) for code in causes]
    return '<span class="quiet">idle:</span>' + "".join(buttons) if causes else ""


def _cause_button(cause: Cause) -> str:
    words = CAUSE_WORDS[cause]
    return (
        f'<button type="button" data-name="{cause.label}" title="idle time: {words}">'
        f"{_swatch(colours.IDLE_LOOKS[cause].colour)}{words}</button>"
    )


def _swatch(colour: str) -> str:
    return f'<i style="background:{colour}"></i>'
