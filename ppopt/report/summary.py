"""The figures of a schedule in the user's units, under the keys of the command line's JSON."""

from __future__ import annotations

from typing import Any

from ppopt.formats import origin_json
from ppopt.problem.exact import plain
from ppopt.rechecker import confirmed
from ppopt.schedule.schedule import Schedule

ORIGIN_KEYS = (
    *("strategy", "status", "lower_bound", "gap", "proof"),
    *("fused", "seed", "workers", "time_limit", "versions", "hint"),
)
"""What a report tells of a schedule's origin."""


def summary(schedule: Schedule) -> dict[str, Any]:
    """Figures of a schedule: what `ppopt.schedule.metrics` computes, and what its origin claims.

    Times and memory are in the user's units, lists have one entry per device; keys of the
    origin that are missing are None. Of a schedule read from a file, `checked` says whether its
    bound was confirmed just now, and `proof` how.
    """
    found = schedule.metrics
    ticks = schedule.pipeline.ticks
    objective = schedule.objective
    limits = ticks.limits
    return _claims(schedule) | {
        "objective": objective.value,
        "value": plain(ticks.time(found.value(objective))),
        "makespan": plain(ticks.time(found.makespan)),
        "device_span": plain(ticks.time(found.device_span)),
        "bubble_rate": plain(found.bubble_rate(objective)),
        "bubble_overhead": plain(found.bubble_overhead),
        "peak_memory": [plain(ticks.memory(peak)) for peak in found.peak_memory],
        "mem_limit": None if limits is None else [plain(ticks.memory(top)) for top in limits],
        "fits_limit": schedule.fits_limits,
    }


def _claims(schedule: Schedule) -> dict[str, Any]:
    """What the origin claims, and whether that may be believed."""
    stated = origin_json.to_object(schedule.origin)
    claims = {key: stated.get(key) for key in ORIGIN_KEYS}
    if not schedule.origin.from_file:
        return claims | {"checked": True}
    reason = confirmed(schedule)
    if reason is not None:
        claims["proof"] = reason
    return claims | {"checked": reason is not None}
