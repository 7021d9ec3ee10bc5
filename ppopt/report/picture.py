"""A picture of one schedule as PNG: the SVG picture, drawn."""

from __future__ import annotations

from ppopt.report.svg import svg
from ppopt.schedule.schedule import Schedule

SCALE = 2
"""Dots per pixel of the SVG picture, for screens of fine resolution."""


def picture_png(schedule: Schedule) -> bytes:
    """Draw a schedule on white; letters need a font of the system."""
    import resvg_py  # noqa: PLC0415  loads on use

    return bytes(resvg_py.svg_to_bytes(svg_string=svg(schedule), zoom=SCALE, background="white"))
