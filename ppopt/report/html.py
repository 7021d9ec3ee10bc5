"""The page: schedules as one self-contained HTML file that opens without a network.

`page.html` is its frame, `page.css` its style; the modules in `script/` draw the schedules.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from string import Template
from typing import NamedTuple, TypeVar

import numpy as np

from ppopt.errors import InputError
from ppopt.formats.origin_json import members_of
from ppopt.problem.kinds import RECORDS, Kind, KindRecord, Per
from ppopt.problem.operation import OpKind
from ppopt.report import colours
from ppopt.report.drawing import (
    LINKS,
    MAX_SHADES,
    QUEUES,
    describe_shades,
    described,
    part_names,
)
from ppopt.report.entries import PageSchedule, entries
from ppopt.report.labels import CAUSE_TEXTS, clean, isolated
from ppopt.report.payload import payload
from ppopt.report.script import script
from ppopt.report.sections import alone, overview, section
from ppopt.report.summary import describe_devices, describe_microbatches
from ppopt.schedule.idle import Cause, idle
from ppopt.schedule.schedule import Schedule

MAX_OPERATIONS = 100_000
"""Operations of all schedules that the page of a study draws."""
FEW = 4
"""Charts that a page of many schedules opens with."""
Key = TypeVar("Key")
_KEYS: dict[Kind, str] = dict(zip(OpKind, "fbwx", strict=True))
"""Keys that show or hide a kind of operations."""


_LINKS = (
    '<button type="button" data-layer="links" title="transfers as operations of their links '
    '(key l)">links</button>\n'
)
"""Shows what every link carries, where links are resources."""
_COLLECTIVES = (
    '<button type="button" data-layer="collectives" title="what devices run besides compute: '
    'gathers of weights, reductions of gradients, moves to the host (key g)">{words}</button>\n'
)
"""Shows the queues of devices, where a step has any."""
_FEW = (
    '<button type="button" data-layer="all" title="the charts of all schedules, or of the best '
    'only (key s)">all {count} charts</button>'
)


def page(
    schedules: Sequence[Schedule],
    *,
    title: str = "",
    what: str = "",
    lead: str = "",
    opening: str = "",
    first: int = 0,
    names: Sequence[str] = (),
    study: bool = False,
) -> str:
    """One HTML page with the Gantt chart, memory and figures of every schedule.

    Without a title, the page has the name of the pipeline, or its size, and of `what` it shows.
    With an `opening`, schedules may have other `names` than those of their strategies. Several
    schedules share one time axis, one above the other: the least value is on top, the others are
    compared with it. Of more than `FEW` charts the page opens with the best, and the sections of
    the others are folded.

    `lead` is HTML that comes first. `opening` is HTML that stands before the schedules; with it,
    they keep their order and are shown one at a time: number `first`, from 0, then the k-th, from
    1, when the address becomes `#schedule-k`. With `study`, the opening holds the rows of a study.
    The schedules must be complete (every device runs something). Identical input gives an identical
    page. Raises InputError if there is no schedule, or if units of time differ.
    """
    parts = page_parts(schedules, title=title, what=what, opening=opening, first=first, names=names)
    return framed(parts, opening=lead + parts.above, script=script(study=study))


def fitting(
    candidates: Iterable[tuple[Key, Schedule | None]], max_schedules: int = sys.maxsize
) -> dict[Key, Schedule]:
    """The first schedules, at most so many, that one page draws: `MAX_OPERATIONS`, or one."""
    drawn: dict[Key, Schedule] = {}
    for key, schedule in candidates:
        if schedule is None:
            continue
        operations = sum(map(len, drawn.values())) + len(schedule)
        if drawn and operations > MAX_OPERATIONS:
            break
        drawn[key] = schedule
        if len(drawn) == max_schedules:
            break
    return drawn


class PageParts(NamedTuple):
    """What of a page depends on its schedules, as HTML."""

    title: str
    """Plain text."""
    above: str
    """What stands above the chart."""
    kinds: str
    """Buttons of the kinds of operations."""
    causes: str
    """Buttons of the causes of idle time."""
    layers: str
    """Buttons of layers that not every page has."""
    below: str
    """What stands below the chart."""
    data: str
    """JSON of the schedules; see `ppopt.report.payload`."""


def page_parts(
    schedules: Sequence[Schedule],
    *,
    title: str = "",
    what: str = "",
    opening: str = "",
    first: int = 0,
    names: Sequence[str] = (),
) -> PageParts:
    """The parts of a page of schedules; see `page`."""
    if not schedules:
        raise InputError("page: no schedule to show; give at least one")
    drawn = entries(schedules, ordered=bool(opening), names=names)
    single = len(drawn) == 1 or bool(opening)
    few = len(drawn) if single or len(drawn) <= FEW + 2 else FEW
    title = title or ": ".join(filter(None, (_subject(schedules), what)))
    above, below = _around(drawn, title, opening, few)
    return PageParts(
        title=title,
        above=above,
        kinds=_kind_buttons(schedules),
        causes=_cause_buttons(schedules),
        layers=_layers(schedules) + _FEW.format(count=len(drawn)) * (few < len(drawn)),
        below=below,
        data=payload(drawn, single=single, few=few, first=first),
    )


POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
)
"""What the browser lets a page do: no request, whatever a script may try."""


def framed(
    parts: PageParts, *, opening: str, script: str, style: str = "", policy: str = POLICY
) -> str:
    """The whole page of some parts; `opening` stands above the chart, `style` is further CSS."""
    from ppopt.report.notebook_figure import packed_plotly  # noqa: PLC0415  takes long to load

    return Template(_text("page.html")).substitute(
        title=escape(clean(parts.title)),
        policy=policy,
        style=_text("page.css") + style,
        heading=isolated(parts.title),
        opening=opening,
        plotly=packed_plotly(),
        script=script,
        **members_of(parts, "kinds", "causes", "layers", "below", "data"),
    )


def _around(drawn: Sequence[PageSchedule], title: str, opening: str, few: int) -> tuple[str, str]:
    """What stands above the chart and what stands below it."""
    if len(drawn) == 1 and not opening:
        return alone(drawn[0], title)
    sections = (
        section(index, entry, title, folded=index > few)
        for index, entry in enumerate(drawn, start=1)
    )
    return opening or overview(drawn), "\n".join(sections)


def _common_name(schedules: Sequence[Schedule]) -> str:
    """The name of the pipeline, where all schedules have the same."""
    names = {schedule.pipeline.name for schedule in schedules}
    return names.pop() if len(names) == 1 else ""


def _subject(schedules: Sequence[Schedule]) -> str:
    """What all schedules are of: the name of the pipeline, or else its size."""
    sizes = {
        f"{describe_devices(schedule.pipeline)}, {describe_microbatches(schedule.pipeline)}"
        for schedule in schedules
    }
    size = sizes.pop() if len(sizes) == 1 else f"{len(schedules)} schedules"
    return _common_name(schedules) or size


def _layers(schedules: Sequence[Schedule]) -> str:
    """Buttons of the layers that some schedule has."""
    links = any(described(schedule, LINKS) for schedule in schedules)
    described_queues = [described(schedule, QUEUES) for schedule in schedules]
    texts = list(dict.fromkeys(filter(None, described_queues)))
    queues = _COLLECTIVES.format(words=max(texts, key=len)) if texts else ""
    return _LINKS * links + queues


def _text(name: str) -> str:
    return files("ppopt.report").joinpath(name).read_text(encoding="utf-8")


def _kind_buttons(schedules: Sequence[Schedule]) -> str:
    """A button for every kind of operation that occurs, and what its shades stand for."""
    kinds = {int(code) for entry in schedules for code in np.unique(entry.operations.kind)}
    names = {tuple(part_names(schedule.pipeline)) for schedule in schedules}
    num_shades = min(max(map(len, names)), MAX_SHADES)
    buttons = [
        _kind_button(RECORDS[code], 1 if RECORDS[code].per is Per.DEVICE else num_shades)
        for code in sorted(kinds)
        if RECORDS[code].carries is None
    ]
    meanings = {describe_shades(some) for some in names} - {""}
    if meanings:
        texts = (
            meanings.pop() if len(meanings) == 1 else "dark to light: chunks, or routes, in turn"
        )
        buttons.append(f'<span class="quiet" id="shades">{escape(texts)}</span>')
    return "".join(buttons)


def _kind_button(record: KindRecord, shades: int) -> str:
    tones = [colours.shade(record.kind, part, shades) for part in range(shades)]
    key = f" (key {_KEYS[record.kind]})" if record.kind in _KEYS else ""
    text = f"{record.name} {record.label}"
    return _button(record.name, text + key, text, tones)


def _cause_buttons(schedules: Sequence[Schedule]) -> str:
    """A button for every cause of idle time that occurs."""
    codes = {int(code) for schedule in schedules for code in np.unique(idle(schedule).cause)}
    buttons = [
        _button(
            cause.label,
            f"idle time, {CAUSE_TEXTS[cause]}",
            CAUSE_TEXTS[cause],
            [colours.IDLE_LOOKS[cause].colour],
        )
        for cause in map(Cause, sorted(codes))
    ]
    return '<span class="quiet">idle:</span>' + "".join(buttons) if buttons else ""


def _button(name: str, hidden: str, text: str, tones: Sequence[str]) -> str:
    """A button that shows or hides the bars of a name, with their colours."""
    swatches = "".join(f'<i style="background:{tone}"></i>' for tone in tones)
    title = f"show or hide: {hidden}"
    return f'<button type="button" data-name="{name}" title="{title}">{swatches}{text}</button>'
