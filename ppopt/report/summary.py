"""The figures of a schedule in the user's units, under the keys of the command line's JSON."""

from __future__ import annotations

from typing import Any

from ppopt.formats import figures, origin_json
from ppopt.problem.exact import plain
from ppopt.schedule.imbalance import imbalance
from ppopt.schedule.schedule import Schedule

ORIGIN_KEYS = (
    *("strategy", "status", "lower_bound", "gap", "proof"),
    *("backward_kind", "seed", "workers", "time_limit", "versions", "hint"),
)
"""Keys of a schedule's origin that reports show."""


def summary(schedule: Schedule) -> dict[str, Any]:
    """The figures of a schedule, and the claims of its origin.

    Times and memory are in the user's units, lists have one entry per device; keys that the origin
    lacks are None. For a schedule read from a file, `checked` says whether the re-checker confirms
    its bound, and `proof` how.
    """
    return claims(schedule) | figures.of_schedule(schedule) | {"imbalance": _imbalance(schedule)}


def _imbalance(schedule: Schedule) -> dict[str, Any]:
    """How uneven the work of the devices is, and what of all idle time that is."""
    found = imbalance(schedule)
    hosted = {stage for route in schedule.pipeline.hosted for stage in route[found.device]}
    relief = found.relief
    return {
        "device": found.device,
        "stages": sorted(hosted),
        "times_mean": plain(found.times_mean),
        "idle_share": plain(found.share),
        "of_idle_share": plain(found.idle),
        "relief": relief and {"layers": relief.layers, "idle_share": plain(relief.share)},
    }


def claims(schedule: Schedule) -> dict[str, Any]:
    """What the origin claims, and whether that may be believed."""
    stated = origin_json.origin_to_object(schedule.origin)
    found = {key: stated.get(key) for key in ORIGIN_KEYS}
    if not schedule.origin.from_file:
        return found | {"checked": True}
    from ppopt.rechecker import confirmed  # noqa: PLC0415  loads on use

    reason = confirmed(schedule)
    if reason is not None:
        found["proof"] = reason
    return found | {"checked": reason is not None}
