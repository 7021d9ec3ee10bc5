"""Colours: one hue per kind of operation, one shade per chunk, readable text on each.

The hues of operations are four of Okabe and Ito's palette for colour-blind readers ("Color
Universal Design", 2008): blue, orange, bluish green and vermilion; sky blue, reddish purple and
yellow are those of work around the microbatches. Moves to the host and back have wine and olive of
Tol's muted palette ("Colour Schemes", SRON/EPS/TN/09-002, 2021). Idle time is pale: grey before
the first operation and where an input is awaited, brown after the last operation, another hue of
that palette where a transfer, memory or the schedule itself is its cause.
"""

from __future__ import annotations

from typing import NamedTuple

from ppopt.problem.kinds import RECORDS, Kind
from ppopt.schedule.idle import Cause

HUES: dict[Kind, str] = {record.kind: record.colour for record in RECORDS}
LIGHTEST = 0.6
"""Share of white in the shade of the last chunk."""
IDLE = "rgba(128, 138, 156, 0.16)"


class IdleLook(NamedTuple):
    """How idle time of one cause is drawn, on a light and on a dark background."""

    colour: str
    pattern: str
    """Name of plotly's fill pattern; empty for none."""


IDLE_LOOKS = {
    Cause.WARM_UP: IdleLook("rgba(128, 138, 156, 0.14)", ""),
    Cause.INPUT: IdleLook("rgba(128, 138, 156, 0.42)", "/"),
    Cause.LINK: IdleLook("rgba(86, 180, 233, 0.45)", "-"),
    Cause.MEMORY: IdleLook("rgba(204, 121, 167, 0.5)", "x"),
    Cause.ORDER: IdleLook("rgba(226, 208, 40, 0.5)", "."),
    Cause.COOL_DOWN: IdleLook("rgba(178, 138, 98, 0.3)", "\\"),
    Cause.COLLECTIVE: IdleLook("rgba(0, 158, 115, 0.28)", "|"),
    Cause.HOST: IdleLook("rgba(136, 34, 85, 0.28)", "+"),
}
MIN_DOMINANT_SHARE = 0.6
"""Share of a spot that one kind must fill for the spot to have its colour."""
SEVERAL = "#62739b"
"""A spot that several kinds share."""
GRID = "rgba(128, 138, 156, 0.28)"
INK = "#1c2330"
MEMORY_LINE = "#7A5BA8"
MEMORY = "rgba(122, 91, 168, 0.38)"
STATIC = "rgba(122, 91, 168, 0.45)"
GATHERED = "rgba(86, 180, 233, 0.6)"
"""Memory of gathered weights."""
LIMIT = "#E0344C"
POINT_EDGE = "#ffffff"
FONT = {"family": "system-ui, sans-serif", "size": 12}
HOVER_LABEL = {
    "bgcolor": "#1c2330",
    "bordercolor": "#8a93a5",
    "font": {"color": "#ffffff", "size": 13},
    "align": "left",
}


def shade(kind: Kind, part: int, parts: int) -> str:
    """Colour of a kind on part `part` of `parts`: the hue itself, then lighter with each part."""
    return _lighter(HUES[kind], LIGHTEST * part / max(parts - 1, 1))


def _lighter(colour: str, white: float) -> str:
    return "#" + "".join(f"{round(c + (255 - c) * white):02x}" for c in channels(colour))


def memory_shade(part: int, parts: int) -> str:
    """Colour of the memory that a part holds: lighter with each part."""
    return _lighter(MEMORY_LINE, 0.25 + 0.5 * part / max(parts - 1, 1))


def ink(background: str) -> str:
    """Text colour, black or white: the one with more contrast to the background."""
    light = luminance(background)
    return "#000000" if (light + 0.05) ** 2 > 0.05 * 1.05 else "#ffffff"


def luminance(colour: str) -> float:
    """Relative luminance of `#rrggbb`, 0 to 1 (WCAG 2.1, "relative luminance")."""
    red, green, blue = (_linear(channel / 255) for channel in channels(colour))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _linear(channel: float) -> float:
    return channel / 12.92 if channel <= 0.03928 else ((channel + 0.055) / 1.055) ** 2.4


def channels(colour: str) -> tuple[int, int, int]:
    """Red, green and blue of `#rrggbb`, 0 to 255."""
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)
