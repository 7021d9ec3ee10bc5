"""A PNG image of a schedule: every pixel has the colour of what fills most of it."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ppopt.problem.arrays import Ints
from ppopt.report.colours import MOST_OF_IT, SEVERAL, channels
from ppopt.report.drawing import ALL, LOWER, UPPER, Drawing, Series

Pixels = npt.NDArray[np.float64]
LINES = 7
"""Lines of pixels per line of bars: six for the bar, one between bars."""
_HALF = 3


def png(drawn: Drawing, series: Sequence[Series], last: int, columns: int) -> bytes:
    """Draw ticks 0 to `last` in `columns` pixels, with LINES lines of pixels per line of bars.

    Idle time is transparent.
    """
    kinds = list(dict.fromkeys(own.record for own in series))
    painted = np.zeros((len(kinds), sum(map(len, drawn.lines)), 2, columns, 4))
    edges = np.linspace(0, last, columns + 1)
    bars = drawn.bars
    for own in series:
        tone = np.array([*channels(own.colour), 255.0])
        for line in np.unique(drawn.line[own.rows]).tolist():
            rows = own.rows[drawn.line[own.rows] == line]
            for half in (UPPER, LOWER):
                seen = rows[np.isin(drawn.half[rows], (ALL, half))]
                share = _covered(bars.start[seen], bars.end[seen], edges)
                painted[kinds.index(own.record), line, half - UPPER] += share[:, None] * tone
    return _encoded(_lines(_merged(painted)))


def _covered(start: Ints, end: Ints, edges: Pixels) -> Pixels:
    """Share of every column that intervals cover; they are in order and do not overlap."""
    total = np.append(0, np.cumsum(end - start))
    before = np.searchsorted(start, edges, side="right")
    ends = np.append(0, end)[before]
    until = total[before] - np.maximum(ends - edges, 0)
    return np.diff(until) / np.diff(edges)


def _merged(painted: Pixels) -> Pixels:
    """Colours of all kinds together: of the kind that fills `MOST_OF_IT` of a pixel, or `SEVERAL`.

    The mean of blue and orange would pass for the green of another kind.
    """
    opacity = painted[..., 3].sum(axis=0)
    most = painted[..., 3].argmax(axis=0)
    colour = np.take_along_axis(painted, most[None, ..., None], axis=0)[0]
    clear = colour[..., 3] >= MOST_OF_IT * opacity
    share = np.divide(opacity, colour[..., 3], where=colour[..., 3] > 0, out=0 * opacity)
    several = opacity[..., None] / 255 * np.array([*channels(SEVERAL), 255.0])
    merged: Pixels = np.where(clear[..., None], colour * share[..., None], several)
    return merged


def _lines(painted: Pixels) -> npt.NDArray[np.uint8]:
    """Lines of red, green, blue and opacity, from colours times opacity."""
    opacity = painted[..., 3:]
    colour = np.divide(255 * painted[..., :3], opacity, where=opacity > 0, out=0 * painted[..., :3])
    halves = np.rint(np.clip(np.concatenate([colour, opacity], axis=-1), 0, 255)).astype(np.uint8)
    lines = np.repeat(halves, _HALF, axis=1)
    lines = np.pad(lines, ((0, 0), (0, LINES - 2 * _HALF), (0, 0), (0, 0)))
    return lines.reshape(-1, *lines.shape[2:])


def _encoded(lines: npt.NDArray[np.uint8]) -> bytes:
    """Encode RGBA lines as PNG (W3C, "Portable Network Graphics").

    Filter type 2, `Up`, stores every line as its difference from the line above: equal lines
    become zeros.
    """
    height, width = lines.shape[:2]
    flat = lines.reshape(height, -1)
    changes = np.diff(flat, axis=0, prepend=np.zeros_like(flat[:1]))
    filtered = np.hstack([np.full((height, 1), 2, dtype=np.uint8), changes])
    header = struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)
    body = zlib.compress(filtered.tobytes(), 9)
    chunks = (_chunk(b"IHDR", header), _chunk(b"IDAT", body), _chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def _chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
