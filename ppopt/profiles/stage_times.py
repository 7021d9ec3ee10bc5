"""Times of stages from timers, which sum over the microbatches of a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from statistics import median
from typing import Any, NamedTuple

from ppopt.errors import InputError


class StageTimes(NamedTuple):
    """Milliseconds per device for one microbatch."""

    forward: tuple[Fraction, ...]
    backward: tuple[Fraction, ...]
    reports: int
    """Number of log intervals."""
    outliers: int
    """Number of values above 1.2 times their median."""
    source: str
    """What the times are of, for the file."""
    unknown: str | None = None
    """Text that says what the log has instead of times per stage; None if it has these."""
    comments: tuple[str, ...] = ()
    """Further remarks for the file, one line each."""


TimesByRank = Mapping[tuple[str, int], Sequence[Fraction]]
"""Timer and rank -> the time of every report, in milliseconds."""


def stage_times(
    times: TimesByRank,
    columns: Mapping[str, Sequence[Fraction]],
    timers: Mapping[str, str],
    count: int,
    where: str,
    **more: Any,
) -> StageTimes:
    """Times for one of `count` microbatches from those of all, by field of `StageTimes`.

    `timers`: the timer of every field. `more` are further fields. Raises InputError, beginning with
    `where`, if a time is 0.
    """
    each: dict[str, Any] = {
        field: _per_microbatch(columns[field], count, timer, where)
        for field, timer in timers.items()
    }
    outliers = num_outliers(times, list(timers.values()))
    reports = max(map(len, times_of(times, timers["forward"], where).values()))
    return StageTimes(**each, **{"reports": reports, "outliers": outliers, **more})


def device_times(times: TimesByRank, timer: str, devices: int, where: str) -> list[Fraction]:
    """The median time of a timer on every device: that of its slowest rank.

    Tensor- and data-parallel ranks may share a pipeline device. They are numbered consecutively
    within it. Raises InputError, beginning with `where`, if the devices do not divide the ranks.
    """
    medians = {rank: median(values) for rank, values in times_of(times, timer, where).items()}
    each, rest = divmod(len(medians), devices)
    if rest or sorted(medians) != list(range(len(medians))):
        raise InputError(
            f"{where}: timer {timer} has {len(medians)} ranks, which {devices} devices cannot "
            "share equally; give --stages, the size of the pipeline"
        )
    return [max(medians[d * each + k] for k in range(each)) for d in range(devices)]


def times_of(times: TimesByRank, timer: str, where: str) -> dict[int, Sequence[Fraction]]:
    """The times of a timer by rank; raises InputError, beginning with `where`, if it has none."""
    values = {rank: reports for (name, rank), reports in times.items() if name == timer}
    if not values:
        raise InputError(f"{where}: timer {timer} is missing; log it on every rank")
    return values


def num_outliers(times: TimesByRank, timers: Sequence[str]) -> int:
    """Number of values above 1.2 times the median of their timer and rank."""
    return sum(
        value > Fraction(6, 5) * median(values)
        for (name, _), values in times.items()
        if name in timers
        for value in values
    )


def _per_microbatch(
    times: Sequence[Fraction], count: int, timer: str, where: str
) -> tuple[Fraction, ...]:
    """Times of devices for one of `count` microbatches; raises InputError if a time is 0."""
    if 0 in times:
        raise InputError(f"{where}: timer {timer} of device {times.index(Fraction())} is 0")
    return tuple(time / count for time in times)
