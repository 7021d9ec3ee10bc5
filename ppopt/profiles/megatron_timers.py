"""The timers that Megatron-LM prints: what the stages of a pipeline cost.

With `--timing-log-level 2 --timing-log-option all` Megatron-LM prints, every log interval, the
milliseconds per iteration of every timer on every rank (megatron/core/timers.py):

    times across ranks (ms):
      forward-compute:
         rank  0: 102.50
         rank  1: 101.75

`forward-compute` and `backward-compute` are sums over the microbatches of an iteration. They hold
no split of the backward and no time of one operation; transfers are not apart from waiting.
"""

from __future__ import annotations

import re
from collections import defaultdict
from fractions import Fraction
from pathlib import Path
from statistics import median
from typing import NamedTuple

from ppopt.errors import InputError
from ppopt.formats.documents import label, read_text

LARGEST_FILE = 2**28
_HEAD = re.compile(r"times across ranks \(ms\):")
_TIMER = re.compile(r" {2}([a-z0-9-]+):")
_RANK = re.compile(r" +rank +([0-9]{1,6}): ([0-9]{1,12}\.[0-9]{1,9})")
TIMERS = {"forward": "forward-compute", "backward": "backward-compute"}
"""Field of the pipeline -> Megatron's timer."""


class Stages(NamedTuple):
    """Milliseconds of every device's share of the model, for one microbatch."""

    forward: tuple[Fraction, ...]
    backward: tuple[Fraction, ...]
    reports: int
    """Log intervals that were read."""
    outliers: int
    """Values above 1.2 times their median."""


def read_timers(path: Path, devices: int, batches: int) -> Stages:
    """Read a log; see `loads`."""
    return loads(read_text(path, LARGEST_FILE), label(path), devices, batches)


def loads(content: str, where: str, devices: int, batches: int) -> Stages:
    """Take the median over all reports of a log.

    Several ranks may share a device's place in the pipeline (tensor and data parallel ones):
    they are numbered within it, as Megatron's default order does, and their largest time counts.
    Raises InputError, beginning with `where`, where a timer or rank is missing.
    """
    found: dict[tuple[str, int], list[Fraction]] = defaultdict(list)
    reports, timer, reading = 0, "", False
    for line in content.splitlines():
        text = line.rstrip()
        if _HEAD.search(text):
            reports, reading = reports + 1, True
        elif reading and (match := _TIMER.fullmatch(text)):
            timer = match[1]
        elif reading and (match := _RANK.fullmatch(text)):
            found[timer, int(match[1])].append(Fraction(match[2]))
        elif text:
            reading = False
    if not reports:
        raise InputError(
            f"{where}: holds no `times across ranks (ms):`; run Megatron with "
            "--timing-log-level 2 --timing-log-option all"
        )
    columns = {field: _column(found, name, devices, where) for field, name in TIMERS.items()}
    outliers = sum(
        value > Fraction(6, 5) * median(values)
        for (name, _), values in found.items()
        if name in TIMERS.values()
        for value in values
    )
    scaled = {field: tuple(time / batches for time in times) for field, times in columns.items()}
    return Stages(**scaled, reports=reports, outliers=outliers)


def _column(
    found: dict[tuple[str, int], list[Fraction]], timer: str, devices: int, where: str
) -> list[Fraction]:
    times = {rank: median(values) for (name, rank), values in found.items() if name == timer}
    if not times:
        raise InputError(f"{where}: timer {timer} is missing; run with --timing-log-level 2")
    each, rest = divmod(len(times), devices)
    if rest or sorted(times) != list(range(len(times))):
        raise InputError(
            f"{where}: timer {timer} has {len(times)} ranks, which {devices} devices cannot share "
            "equally; give --stages, the size of the pipeline"
        )
    found_times = [max(times[d * each + k] for k in range(each)) for d in range(devices)]
    if 0 in found_times:
        raise InputError(f"{where}: timer {timer} of device {found_times.index(Fraction())} is 0")
    return found_times
