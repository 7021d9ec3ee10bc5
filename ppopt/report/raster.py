"""Operations from afar: rows of pixels, each in the mean colour of what runs there, as a PNG."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ppopt.problem.arrays import Ints
from ppopt.problem.operation import OpKind
from ppopt.report.colours import channels
from ppopt.schedule.schedule import Schedule
from ppopt.schedule.timetable import ALONE

Pixels = npt.NDArray[np.float64]
LINES = 7
"""Lines of pixels of a device: six of its bar, one between bars."""
_HALF = 3


class Ink(NamedTuple):
    """The operations of one colour: their rows in the schedule."""

    colour: str
    rows: Ints


def png(schedule: Schedule, inks: Iterable[Ink], last: int, columns: int) -> bytes:
    """Picture of all operations, ticks 0 to `last` in so many columns, LINES lines a device.

    Where nothing runs it is transparent; of two that run as one, F has the upper half.
    """
    half = np.where(schedule.kind == OpKind.F, 0, 1)
    alone = schedule.pair == ALONE
    painted = np.zeros((schedule.pipeline.num_devices, 2, columns, 4))
    edges = np.linspace(0, last, columns + 1)
    for colour, rows in inks:
        tone = np.array([*channels(colour), 255.0])
        for device, mine in _by_device(schedule, rows):
            for part in (0, 1):
                seen = mine[alone[mine] | (half[mine] == part)]
                share = _covered(schedule.start[seen], schedule.end[seen], edges)
                painted[device, part] += share[:, None] * tone
    return _encoded(_lines(painted))


def _by_device(schedule: Schedule, rows: Ints) -> Iterable[tuple[int, Ints]]:
    """Rows by device, in order of time."""
    devices = range(schedule.pipeline.num_devices)
    bounds = np.searchsorted(schedule.device[rows], [*devices, len(devices)])
    return ((device, rows[bounds[device] : bounds[device + 1]]) for device in devices)


def _covered(start: Ints, end: Ints, edges: Pixels) -> Pixels:
    """Share of every column that intervals cover, which are in order and do not overlap."""
    total = np.append(0, np.cumsum(end - start))
    before = np.searchsorted(start, edges, side="right")
    ends = np.append(0, end)[before]
    until = total[before] - np.maximum(ends - edges, 0)
    return np.diff(until) / np.diff(edges)


def _lines(painted: Pixels) -> npt.NDArray[np.uint8]:
    """Lines of red, green, blue and opacity: colours are means over what is covered."""
    opacity = painted[..., 3:]
    colour = np.divide(255 * painted[..., :3], opacity, where=opacity > 0, out=0 * painted[..., :3])
    halves = np.rint(np.clip(np.concatenate([colour, opacity], axis=-1), 0, 255)).astype(np.uint8)
    lines = np.repeat(halves, _HALF, axis=1)
    lines = np.pad(lines, ((0, 0), (0, LINES - 2 * _HALF), (0, 0), (0, 0)))
    return lines.reshape(-1, *lines.shape[2:])


def _encoded(lines: npt.NDArray[np.uint8]) -> bytes:
    """Write RGBA lines as PNG (W3C, "Portable Network Graphics"), each as the change of the last.

    Filter type 2, `Up`: equal lines become zeros.
    """
    height, width = lines.shape[:2]
    flat = lines.reshape(height, -1)
    changes = flat - np.vstack([np.zeros_like(flat[:1]), flat[:-1]])
    filtered = np.hstack([np.full((height, 1), 2, dtype=np.uint8), changes])
    header = struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)
    body = zlib.compress(filtered.tobytes(), 9)
    chunks = (_chunk(b"IHDR", header), _chunk(b"IDAT", body), _chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def _chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
