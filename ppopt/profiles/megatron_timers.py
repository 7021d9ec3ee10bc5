"""Stage times from the timers that Megatron-LM prints.

With `--timing-log-level 2 --timing-log-option all` Megatron-LM prints, every log interval, the
milliseconds per iteration of every timer on every rank (megatron/core/timers.py):

    times across ranks (ms):
      forward-compute:
         rank  0: 102.50
         rank  1: 101.75

`forward-compute` and `backward-compute` are sums over the microbatches of an iteration. They give
neither the split of the backward nor times of single operations. The timers of transfers include
waiting.
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
"""Field of `StageTimes` -> Megatron's timer."""


class StageTimes(NamedTuple):
    """Milliseconds per device for one microbatch."""

    forward: tuple[Fraction, ...]
    backward: tuple[Fraction, ...]
    reports: int
    """Number of log intervals."""
    outliers: int
    """Number of values above 1.2 times their median."""


def read_timers(path: Path, devices: int, batches: int) -> StageTimes:
    """Read a log; see `parse_log`."""
    return parse_log(read_text(path, LARGEST_FILE), label(path), devices, batches)


def parse_log(content: str, where: str, devices: int, batches: int) -> StageTimes:
    """Take the median over all reports of a log.

    Tensor- and data-parallel ranks may share a pipeline device. They are numbered consecutively
    within it, which is Megatron's default order, and the slowest of them counts. Raises InputError,
    beginning with `where`, if a timer or rank is missing.
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
    return StageTimes(**scaled, reports=reports, outliers=outliers)


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
    per_device = [max(times[d * each + k] for k in range(each)) for d in range(devices)]
    if 0 in per_device:
        raise InputError(f"{where}: timer {timer} of device {per_device.index(Fraction())} is 0")
    return per_device
