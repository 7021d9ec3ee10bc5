"""The figures of a schedule in the user's units, under the keys of the command line's JSON."""

from __future__ import annotations

from typing import Any

from ppopt.formats import origin_json
from ppopt.problem.exact import plain
from ppopt.problem.pipeline import Pipeline
from ppopt.rechecker import confirmed
from ppopt.schedule.imbalance import imbalance
from ppopt.schedule.metrics import throughput
from ppopt.schedule.schedule import Schedule

ORIGIN_KEYS = (
    *("strategy", "status", "lower_bound", "gap", "proof"),
    *("backward_kind", "seed", "workers", "time_limit", "versions", "hint"),
)
"""Keys of a schedule's origin that reports show."""


def summary(schedule: Schedule) -> dict[str, Any]:
    """Figures that `ppopt.schedule.metrics` computes, and the claims of the schedule's origin.

    Times and memory are in the user's units, lists have one entry per device; keys that the origin
    lacks are None. For a schedule read from a file, `checked` says whether the re-checker confirms
    its bound, and `proof` how.
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
        "imbalance": _imbalance(schedule),
        **unit_names(schedule.pipeline),
        **_throughput(schedule, found.value(objective)),
    }


def unit_names(pipeline: Pipeline) -> dict[str, str | None]:
    """The units of a pipeline's times and memory; None where unknown."""
    return {"time_unit": pipeline.time_unit, "memory_unit": pipeline.memory_unit}


def _throughput(schedule: Schedule, value: int) -> dict[str, int | float | None]:
    """Tokens per second and MFU, by the value of the objective; None where unknown."""
    devices = schedule.pipeline.num_devices
    tokens, mfu = throughput(schedule.pipeline, value)
    return {
        "tokens_per_second": None if tokens is None else plain(tokens),
        "tokens_per_second_per_device": None if tokens is None else plain(tokens / devices),
        "mfu": None if mfu is None else plain(mfu),
    }


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
