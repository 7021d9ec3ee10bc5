"""Colours: one hue per kind of operation, one shade per chunk, ink that stays readable.

The hues are four of Okabe and Ito's palette for colour-blind readers ("Color Universal
Design", 2008): blue, orange, bluish green and vermilion.
"""

from __future__ import annotations

from ppopt.op import OpKind

HUES = {OpKind.F: "#0072B2", OpKind.B: "#E69F00", OpKind.W: "#009E73", OpKind.BW: "#D55E00"}
LIGHTEST = 0.6
"""Share of white in the shade of the last chunk."""
IDLE = "rgba(128, 138, 156, 0.16)"
IDLE_HATCH = "rgba(128, 138, 156, 0.45)"
GRID = "rgba(128, 138, 156, 0.28)"
INK = "#1c2330"
MEMORY_LINE = "#7A5BA8"
MEMORY = "rgba(122, 91, 168, 0.38)"
STATIC = "rgba(122, 91, 168, 0.45)"
LIMIT = "#E0344C"


def shade(kind: OpKind, part: int, parts: int) -> str:
    """Colour of a kind on chunk `part` of `parts`: the hue, then lighter and lighter."""
    white = LIGHTEST * part / max(parts - 1, 1)
    return "#" + "".join(f"{round(c + (255 - c) * white):02x}" for c in _channels(HUES[kind]))


def ink(background: str) -> str:
    """Black or white: the one that contrasts more with the background."""
    light = luminance(background)
    return "#000000" if (light + 0.05) ** 2 > 0.05 * 1.05 else "#ffffff"


def luminance(colour: str) -> float:
    """Relative luminance of `#rrggbb`, 0 to 1 (WCAG 2.1, "relative luminance")."""
    red, green, blue = (_linear(channel / 255) for channel in _channels(colour))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _linear(channel: float) -> float:
    return channel / 12.92 if channel <= 0.03928 else ((channel + 0.055) / 1.055) ** 2.4


def _channels(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)
