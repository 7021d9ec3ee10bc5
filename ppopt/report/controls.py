"""What stands around the picture of a page: buttons, search, the strip of all time, help."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

import numpy as np

from ppopt.problem.operation import OpKind
from ppopt.report import colours
from ppopt.report.gantt import parts
from ppopt.report.words import CAUSE_WORDS, KIND_WORDS
from ppopt.schedule.idle import Cause, idle
from ppopt.schedule.schedule import Schedule

_LAYERS = {
    "critical": ("critical path", "c"),
    "transfers": ("transfers", "a"),
    "memory": ("memory", "m"),
}
"""Layer -> words on its button, key."""
_MOVES = {
    "whole": ("all", "see all of the time", "0"),
    "in": ("+", "zoom in", "+"),
    "out": ("\N{MINUS SIGN}", "zoom out", "-"),
    "taller": ("rows +", "fewer devices in taller rows", "v"),
    "lower": ("rows \N{MINUS SIGN}", "more devices in lower rows", "Shift+V"),
    "drag": ("pan", "drag to pan instead of to zoom", "d"),
    "clear": ("clear", "light nothing", "Esc"),
}
_SAVES = {
    "png": ("PNG", "save the picture as PNG", ""),
    "svg": ("SVG", "save the picture as SVG", ""),
    "link": ("link", "copy the address of this view", ""),
    "print": ("print", "print the page", ""),
    "theme": ("light / dark", "change between light and dark", "t"),
}
_MOST_SHADES = 4
"""Most chunks (and routes) that the legend names one by one."""
_KEYS = dict(zip(OpKind, "fbwx", strict=True))
_HELP = (
    ("Drag over the picture", "zoom in on a stretch of time; with Shift, move it"),
    ("Drag a box, where rows are thin", "zoom in on some devices too"),
    ("Double click, 0", "all of the time and all devices"),
    ("+ and -, left and right, Ctrl and wheel", "zoom and move in time"),
    ("v and Shift+V, up and down, Shift and wheel", "fewer or more devices, others of them"),
    ("Drag in the strip above the picture", "move the window, or one of its edges"),
    ("Point at anything", "its figures; of idle time, its cause"),
    ("Click an operation; n and p", "light its microbatch; the next one, the one before"),
    ("/", "search a microbatch (12) or an operation (3F12)"),
    ("f, b, w, x; i", "show or hide F, B, W, BW; idle time"),
    ("c, a, m", "critical path, transfers, memory"),
    ("Esc", "light nothing"),
)


def tools(schedules: Sequence[Schedule]) -> str:
    """Buttons and search above the picture; only for kinds and causes that occur."""
    kinds = sorted({int(code) for schedule in schedules for code in np.unique(schedule.kind)})
    causes = sorted(
        {Cause(code) for schedule in schedules for code in np.unique(idle(schedule).cause)}
    )
    most = max(len(parts(schedule).names) for schedule in schedules)
    groups = (
        (*(_kind_button(OpKind(code), most) for code in kinds), _shades(schedules)),
        ('<span class="quiet">idle:</span>' if causes else "", *map(_cause_button, causes)),
        (
            f'<button type="button" data-layer="{name}" title="key {key}">{words}</button>'
            for name, (words, key) in _LAYERS.items()
        ),
        _acts(_MOVES),
        _acts(_SAVES),
    )
    boxes = "\n".join(f'<div class="group">{"".join(group)}</div>' for group in groups)
    return f"""<div id="tools">
<form class="group"><input id="search" type="search" size="16" placeholder="microbatch, or 3F12"
aria-label="search a microbatch or an operation" autocomplete="off" spellcheck="false"></form>
{boxes}
</div>"""


def _kind_button(kind: OpKind, most: int) -> str:
    shown = min(most, _MOST_SHADES)
    tones = [colours.shade(kind, part, shown) for part in range(shown)]
    swatch = "".join(f'<i style="background:{tone}"></i>' for tone in tones)
    return (
        f'<button type="button" data-name="{kind.name}" title="key {_KEYS[kind]}">'
        f"{swatch}{kind.name} {KIND_WORDS[kind]}</button>"
    )


def _cause_button(cause: Cause) -> str:
    look = colours.IDLE_LOOKS[cause]
    return (
        f'<button type="button" data-name="{cause.label}" title="idle time: {CAUSE_WORDS[cause]}">'
        f'<i style="background:{look.colour}"></i>{CAUSE_WORDS[cause]}</button>'
    )


def _acts(acts: dict[str, tuple[str, str, str]]) -> Iterable[str]:
    for name, (words, title, key) in acts.items():
        told = f"{title} (key {key})" if key else title
        yield f'<button type="button" data-do="{name}" title="{told}">{words}</button>'


def _shades(schedules: Sequence[Schedule]) -> str:
    """Say what the shades of a kind stand for; empty where there is one."""
    found = {tuple(parts(schedule).names) for schedule in schedules} - {("",)}
    if not found:
        return ""
    named = "chunks, or routes, in turn"
    if len(found) == 1:
        (names,) = found
        named = ", ".join(names if len(names) <= _MOST_SHADES else (names[0], "…", names[-1]))
    return f'<span class="quiet" id="shades">dark to light: {escape(named)}</span>'


def picture() -> str:
    """Where the script draws: the strip of all time, the picture, what it has to say."""
    return """<p id="message" class="quiet" role="status"></p>
<div id="strip" tabindex="0" role="slider" aria-label="window of time" aria-valuemin="0"
title="drag to move the window of time; keys: arrows, + and -, Home, End"><svg viewBox="0 0 400 1"
preserveAspectRatio="none" aria-hidden="true"><path></path></svg><div class="window"></div></div>
<div id="plot" role="img" aria-label="Gantt chart of the schedules"></div>
<div id="tip" hidden></div>
<noscript><p>The picture needs JavaScript; the figures below do not.</p></noscript>"""


def usage() -> str:
    """How the page is used, folded away."""
    rows = "".join(f"<tr><td>{escape(how)}</td><td>{escape(what)}</td></tr>" for how, what in _HELP)
    return f"<details><summary>How to use this page</summary><table>{rows}</table></details>"
