"""Stage times from the log of DeepSpeed with `wall_clock_breakdown`.

The pipeline engine prints the milliseconds of its timers, on rank 0 unless the user logs other
ranks, too (deepspeed/runtime/pipe/engine.py and utils/timer.py of deepspeedai/DeepSpeed, edaa722):

    rank=0 time (ms) | batch_input: 209.59 | forward_microstep: 2785.85 | backward_microstep: ...
    steps: 20 loss: 4.6178 iter time (s): 0.994 samples/sec: 257.601

`forward_microstep` and `backward_inner_microstep` are sums over all microbatches of all steps since
the report before, `steps_per_print` of them. They include no transfer and no gradient reduction.
"""

from __future__ import annotations

import re
from collections import defaultdict
from fractions import Fraction
from itertools import pairwise

from ppopt.errors import InputError
from ppopt.profiles.reader import TimerReader
from ppopt.profiles.readers import formats
from ppopt.profiles.stage_times import (
    StageTimes,
    device_times,
    stage_times,
    times_of,
)

USUAL_INTERVAL = 10
"""Steps per report where the log has no numbers of steps: the default of DeepSpeed until 2025."""
TIMERS = {"forward": "forward_microstep", "backward": "backward_inner_microstep"}
"""Field of `StageTimes` -> DeepSpeed's timer."""
_REPORT = re.compile(r"(?:rank=|\[Rank )?([0-9]{1,6})?\]? ?time \(ms\) \|(.*)")
_TIMER = re.compile(r" ([a-z_]+): ([0-9]{1,12}(?:\.[0-9]{1,9})?)")
_STEP = re.compile(r"\bsteps?(?:: |=)([0-9]{1,9})\b")


def parse_log(content: str, where: str, devices: int, batches: int) -> StageTimes:
    """Read stage times from a log, as medians over all its reports.

    If the log has the times of one rank, every stage gets these. Raises InputError, beginning with
    `where`, if the timers are missing, or if the devices do not divide the ranks.
    """
    times: dict[tuple[str, int], list[Fraction]] = defaultdict(list)
    for line in content.splitlines():
        if report := _REPORT.search(line):
            for timer, milliseconds in _TIMER.findall(report[2]):
                times[timer, int(report[1] or 0)].append(Fraction(milliseconds))
    if not any(timer in TIMERS.values() for timer, _ in times):
        raise InputError(
            f"{where}: holds no times of {' and '.join(TIMERS.values())}, as DeepSpeed's pipeline "
            f"engine logs them; formats that are read: {formats()}"
        )
    interval, comment = _interval(content)
    ranks = times_of(times, TIMERS["forward"], where)
    unknown = None
    if len(ranks) == 1 < devices:
        (rank,) = ranks
        times = {
            (timer, stage): times[timer, rank] for timer, _ in times for stage in range(devices)
        }
        unknown = f"the log has the times of rank {rank}, and every stage has them."
    columns = {field: device_times(times, timer, devices, where) for field, timer in TIMERS.items()}
    about = {"source": "DeepSpeed's log", "unknown": unknown, "comments": (comment,)}
    return stage_times(times, columns, TIMERS, batches * interval, where, **about)


def _interval(content: str) -> tuple[int, str]:
    """Steps per report, and where the number is from."""
    numbers = sorted({int(number) for number in _STEP.findall(content)})
    gaps = {after - before for before, after in pairwise(numbers)}
    if gaps:
        interval = min(gaps)
        return (
            interval,
            f"A report covers {interval} steps, as the numbers of steps in the log say.",
        )
    return USUAL_INTERVAL, (
        f"The log does not say how many steps a report covers: {USUAL_INTERVAL} are assumed. All "
        "times scale with it."
    )


READER = TimerReader(
    content="a log of DeepSpeed with wall_clock_breakdown",
    marks=("forward_microstep",),
    parse=parse_log,
)
