"""The figures of a schedule in the user's units, under the keys of the command line's JSON."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any

from ppopt.problem import layout
from ppopt.problem.exact import plain, plain_or_none
from ppopt.problem.pipeline import Model, Pipeline
from ppopt.schedule.exposed import exposed
from ppopt.schedule.metrics import throughput
from ppopt.schedule.schedule import Schedule


def of_schedule(schedule: Schedule) -> dict[str, Any]:
    """Figures of a complete schedule; lists have one entry per device."""
    return of_metrics(schedule) | {"exposed": plain_or_none(exposed(schedule))}


def of_metrics(schedule: Schedule) -> dict[str, Any]:
    """Figures that `ppopt.schedule.metrics` computes; lists have one entry per device."""
    found = schedule.metrics
    objective = schedule.objective
    return {
        "objective": objective.value,
        "value": found.value(objective),
        "makespan": found.makespan,
        "device_span": found.device_span,
        "bubble_rate": plain(found.bubble_rate(objective)),
        "bubble_overhead": plain(found.bubble_overhead),
        "peak_memory": list(found.peak_memory),
        "mem_limit": limits(schedule.pipeline),
        "fits_limit": schedule.fits_limits,
        **unit_names(schedule.pipeline),
        **_throughput(schedule, found.value_ticks(objective)),
    }


def limits(pipeline: Pipeline) -> list[int | float] | None:
    """The memory limit of every device; None if there is none."""
    found = pipeline.limits
    return None if found is None else [plain(limit) for limit in found]


def unit_names(pipeline: Pipeline) -> dict[str, str | None]:
    """The units of a pipeline's times and memory; None if unknown."""
    return {"time_unit": pipeline.time_unit, "memory_unit": pipeline.memory_unit}


def _throughput(schedule: Schedule, value: int) -> dict[str, int | float | None]:
    """Tokens per second and MFU, by the value of the objective; None if unknown."""
    devices = schedule.pipeline.num_devices
    tokens, mfu = throughput(schedule.pipeline, value)
    return {
        "tokens_per_second": None if tokens is None else plain(tokens),
        "tokens_per_second_per_device": None if tokens is None else plain(tokens / devices),
        "mfu": None if mfu is None else plain(mfu),
    }


def _runs(model: Model, field: str) -> Iterator[dict[str, Any]]:
    """Runs of layers that do this and have one name, with their places in the model, from 0."""
    named = ((layer.name, bool(getattr(layer, field))) for layer in model.costed)
    for (name, does), run in groupby(enumerate(named), key=lambda numbered: numbered[1]):
        places = [place for place, _ in run]
        if does:
            yield {"name": name, "first": places[0], "last": places[-1]}


def placed(pipeline: Pipeline) -> dict[str, Any]:
    """Placement and links, and of a model in layers the layers of every stage and their layout.

    A placement is its name, or the device of every stage; chunks are null if devices differ.
    """
    name = pipeline.resolved_placement if pipeline.named_placement else list(pipeline.hosts[0])
    many = {len(stages) for stages in pipeline.hosted[0]}
    model = pipeline.model
    return {
        "partition": None if model is None else list(pipeline.counts),
        "layout": None if model is None else layout.write(model, pipeline.counts),
        "placement": name,
        "chunks": many.pop() if len(many) == 1 else None,
        "recompute": None if model is None else list(pipeline.recomputed),
        "recomputed_layers": None if model is None else list(_runs(model, "recompute")),
        "offload": None if model is None else list(pipeline.offloaded),
        "offloaded_layers": None if model is None else list(_runs(model, "offload")),
        "link_mode": pipeline.link_mode.value,
    }
