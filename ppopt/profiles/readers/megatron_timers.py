"""Stage times from the timers that Megatron-LM prints.

With `--timing-log-level 2 --timing-log-option all` Megatron-LM prints, every log interval, the
milliseconds per iteration of every timer on every rank (megatron/core/timers.py):

    times across ranks (ms):
      forward-compute:
         rank  0: 102.50
         rank  1: 101.75

`forward-compute` and `backward-compute` are sums over the microbatches of an iteration. They
contain neither the split of the backward nor times of single operations. The timers of transfers
include waiting.

Other logs have no times per stage. With `minmax`, the default option, and with `max` they have the
extremes over all ranks:

    (min, max) time across ranks (ms):
        forward-compute ................................: (102.50, 110.25)

Older versions print one line on the last rank (`timers.log`, megatron/timers.py of 2021):

    time (ms) | forward-compute: 92.25 | backward-compute: 239.82 | optimizer: 42.31

Every stage then gets the largest known time; `StageTimes.unknown` says so.
"""

from __future__ import annotations

import re
from collections import defaultdict
from fractions import Fraction
from statistics import median

from ppopt.errors import InputError
from ppopt.profiles.reader import TimerReader
from ppopt.profiles.readers import formats
from ppopt.profiles.stage_times import (
    StageTimes,
    device_times,
    stage_times,
    times_of,
)

_HEAD = re.compile(r"times across ranks \(ms\):")
_TIMER = re.compile(r" {2}([a-z0-9-]+):")
_NUMBER = r"([0-9]{1,12}\.[0-9]{1,9})"
_RANK = re.compile(rf" +rank +([0-9]{{1,6}}): {_NUMBER}")
TIMERS = {"forward": "forward-compute", "backward": "backward-compute"}
"""Field of `StageTimes` -> Megatron's timer."""
_ANY_TIMER = f"({'|'.join(TIMERS.values())})"
_EXTREMES = re.compile(rf"\b{_ANY_TIMER} \.+: (?:\({_NUMBER}, {_NUMBER}\)|{_NUMBER})")
"""Timer, minimum, maximum, and the maximum of the option `max`."""
_SINGLE_LINE = re.compile(r"\btime \(ms\) \|.*")
_ON_LINE = re.compile(rf"\b{_ANY_TIMER}: {_NUMBER}")


def parse_log(content: str, where: str, devices: int, batches: int) -> StageTimes:
    """Read stage times from a log, as medians over all its reports.

    Tensor- and data-parallel ranks may share a pipeline device. They are numbered consecutively
    within it, which is Megatron's default order, and the slowest of them counts. If the log has no
    times of ranks, every stage gets the same times. Raises InputError, beginning with `where`, if a
    timer or rank is missing.
    """
    times_by_rank, reports = _times_of_ranks(content)
    unknown = None
    if not reports:
        times_by_rank, unknown = _times_of_log(content, where)
        reports = max(map(len, times_by_rank.values()))
    columns = {
        field: device_times(times_by_rank, name, devices, where)
        if unknown is None
        else [median(times_of(times_by_rank, name, where)[0])] * devices
        for field, name in TIMERS.items()
    }
    about = {"source": "Megatron-LM timers", "reports": reports, "unknown": unknown}
    return stage_times(times_by_rank, columns, TIMERS, batches, where, **about)


_Times = dict[tuple[str, int], list[Fraction]]
"""Timer and rank -> the time of every report."""


def _times_of_ranks(content: str) -> tuple[_Times, int]:
    """The times of every rank, and the number of reports that have them."""
    times_by_rank: _Times = defaultdict(list)
    reports, timer, reading = 0, "", False
    for line in content.splitlines():
        text = line.rstrip()
        if _HEAD.search(text):
            reports, reading = reports + 1, True
        elif reading and (match := _TIMER.fullmatch(text)):
            timer = match[1]
        elif reading and (match := _RANK.fullmatch(text)):
            times_by_rank[timer, int(match[1])].append(Fraction(match[2]))
        elif text:
            reading = False
    return times_by_rank, reports


def _times_of_log(content: str, where: str) -> tuple[_Times, str]:
    """The maximum over ranks, or the time of the last rank, stored for rank 0, and a description.

    Raises InputError if the log has neither.
    """
    times: _Times = defaultdict(list)
    minima: _Times = defaultdict(list)
    for timer, low, high, only in _EXTREMES.findall(content):
        times[timer, 0].append(Fraction(high or only))
        if low:
            minima[timer, 0].append(Fraction(low))
    if times:
        minimum_texts = (
            f"{timer} {float(median(values)):g}" for (timer, _), values in minima.items()
        )
        minimum = f"; the minimum is {', '.join(minimum_texts)} ms a step" if minima else ""
        return times, f"the log has the maximum over ranks, and every stage has it{minimum}."
    for line in _SINGLE_LINE.findall(content):
        for timer, time in _ON_LINE.findall(line):
            times[timer, 0].append(Fraction(time))
    if not times:
        raise InputError(
            f"{where}: holds no times of {' and '.join(TIMERS.values())}, as Megatron-LM's timers "
            f"have; formats that are read: {formats()}"
        )
    return times, "the log has the times of the last rank, and every stage has them."


READER = TimerReader(
    content="a log with Megatron-LM's timers",
    marks=("forward-compute",),
    runtime="megatron",
    parse=parse_log,
)
