"""The figures of schedules: one declaration each, as a field of a record.

A declaration defines the key of a figure in JSON, its label and its text in tables and tiles, its
JSON Schema, and the check of a stored one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from itertools import groupby
from typing import Any, NamedTuple, Self, TypeVar

from ppopt.formats.origin_json import json_form
from ppopt.problem import layout
from ppopt.problem.exact import plain, ratio
from ppopt.problem.pipeline import Model, Pipeline
from ppopt.schedule.metrics import throughput
from ppopt.schedule.schedule import Schedule
from ppopt.schedule.timing import exposed


class Quantity(StrEnum):
    """The quantity of a figure: it determines its text, and its check in a file."""

    TIME = "time"
    MEMORY = "memory"
    SHARE = "share"
    """From 0 to 1, in percent for people."""
    RATE = "rate"
    """Tokens per second."""
    RATIO = "ratio"
    SECONDS = "seconds"
    COUNT = "count"
    TEXT = "text"
    FLAG = "flag"
    STATUS = "status"
    PLACEMENT = "placement"
    """The name of a placement, or the device of every stage."""
    LAYERS = "layers"
    """Runs of consecutive layers."""
    RECORD = "record"
    """Several figures under one key."""


class Figure(NamedTuple):
    """The declaration of a figure."""

    key: str
    """Key in JSON, and name of the field."""
    label: str
    """Name in tables and tiles."""
    quantity: Quantity
    meaning: str
    """Its meaning, in a few words; `{objective}` stands for the name of the objective."""
    each: str = ""
    """The objects of a list's entries: `device` or `stage`; empty: no list."""
    head: str = ""
    """Name at the top of a column; empty: the label. `{objective}` as in `meaning`."""
    base: str = ""
    """The whole of a share, after its text in a table."""
    maximized: bool = False
    """Whether more is better."""
    optional: bool = False
    """Whether JSON leaves out the key of a figure that is None."""
    form: Callable[[Any], Any] | None = None
    """Function from a value to JSON; None: `json_form`."""

    def in_json(self, value: Any) -> Any:
        """A value of the figure as JSON."""
        return value if value is None else (self.form or json_form)(value)


def figure(label: str, quantity: Quantity, meaning: str, **fields: Any) -> Any:
    """Field of a record that is a figure; its default is None. `fields` are those of `Figure`."""
    return field(default=None, metadata={"figure": Figure("", label, quantity, meaning, **fields)})


def declared(record: type[ScheduleFigures]) -> dict[str, Figure]:
    """Figures of a record by their keys, in the order of its fields."""
    return {
        entry.name: entry.metadata["figure"]._replace(key=entry.name)
        for entry in fields(record)
        if "figure" in entry.metadata
    }


class LayerRun(NamedTuple):
    """Consecutive layers of one name, by their indices in the model."""

    name: str
    first: int
    last: int
    modules: Sequence[str] | None = None
    """The modules of each; None: all of the layer."""


_Q = Quantity
Values = Sequence[float]


@dataclass(frozen=True, kw_only=True)
class ScheduleFigures:
    """Figures of one schedule, or of a search without one, in the user's units.

    Numbers are those of JSON: an int if whole, else a float. Unknown figures are None. A sweep
    stores these figures.
    """

    strategy: str | None = figure("strategy", _Q.TEXT, "strategy; `searched`: by a search")
    status: str | None = figure("status", _Q.STATUS, "how the search ended")
    objective: str | None = figure("objective", _Q.TEXT, "what is minimised")
    value: float | None = figure("value", _Q.TIME, "the {objective}", head="{objective}")
    lower_bound: float | None = figure("lower bound", _Q.TIME, "no schedule is below it")
    gap: float | None = figure("gap", _Q.SHARE, "(value - lower bound) / value")
    proof: str | None = figure("proof", _Q.TEXT, "argument behind the lower bound")
    makespan: float | None = figure("makespan", _Q.TIME, "end of the last operation")
    device_span: float | None = figure("device span", _Q.TIME, "longest time of one device")
    bubble_rate: float | None = figure(
        "bubble rate",
        _Q.SHARE,
        "idle share of the {objective}",
        head="bubble",
        base=" of the {objective}",
    )
    bubble_overhead: float | None = figure(
        "bubble overhead", _Q.SHARE, "idle time over busy time", base=" of busy time"
    )
    peak_memory: Values | None = figure(
        "peak memory", _Q.MEMORY, "largest memory", each="device", head="memory"
    )
    mem_limit: Values | None = figure("memory limit", _Q.MEMORY, "largest allowed", each="device")
    exposed: float | None = figure("exposed", _Q.TIME, "time added by work around microbatches")
    fits_limit: bool | None = figure("verified", _Q.FLAG, "whether memory is within the limit")
    time_unit: str | None = figure("time unit", _Q.TEXT, "unit of times")
    memory_unit: str | None = figure("memory unit", _Q.TEXT, "unit of memory")
    tokens_per_second: float | None = figure(
        "throughput",
        _Q.RATE,
        "tokens per second of all devices",
        head="tokens/s",
        maximized=True,
    )
    tokens_per_second_per_device: float | None = figure(
        "per device", _Q.RATE, "tokens per second of one device", maximized=True
    )
    mfu: float | None = figure(
        "MFU", _Q.SHARE, "of the devices' peak FLOPs per second", maximized=True
    )
    partition: Sequence[int] | None = figure("partition", _Q.COUNT, "layers", each="stage")
    layout: str | None = figure("layout", _Q.TEXT, "partition in Megatron-LM's notation")
    placement: str | Sequence[int] | None = figure("placement", _Q.PLACEMENT, "device of stages")
    chunks: int | None = figure("chunks", _Q.COUNT, "stages of a device")
    recompute: Sequence[int] | None = figure(
        "recompute", _Q.COUNT, "layers that recompute", each="stage"
    )
    recomputed_layers: Sequence[LayerRun] | None = figure("recompute", _Q.LAYERS, "which recompute")
    offload: Sequence[int] | None = figure("offload", _Q.COUNT, "layers that offload", each="stage")
    offloaded_layers: Sequence[LayerRun] | None = figure("offload", _Q.LAYERS, "which offload")
    order: Sequence[int] | None = figure(
        "microbatch order",
        _Q.COUNT,
        "places in the list, in the order that runs",
        each="microbatch",
        optional=True,
    )
    link_mode: str | None = figure("links", _Q.TEXT, "what links are")
    backward_kind: str | None = figure("backward", _Q.TEXT, "kind of backwards of the search")
    seed: int | None = figure("seed", _Q.COUNT, "seed of the search")
    workers: int | None = figure("workers", _Q.COUNT, "workers of the search")
    time_limit: float | None = figure("time limit", _Q.SECONDS, "seconds of the search at most")
    solve_seconds: float | None = figure("time taken", _Q.SECONDS, "seconds to find it", base=" s")

    @classmethod
    def of(cls, schedule: Schedule | None, pipeline: Pipeline, /, **fields: Any) -> Self:
        """All figures of a schedule, and the placement of a pipeline.

        `pipeline` has the units, the memory limits and the placement. `fields` are other fields.
        """
        known: dict[str, Any] = {}
        if schedule is not None:
            known = {**measured(schedule), "exposed": exposed_time(schedule)}
        return cls(**{**known, **_pipeline_figures(pipeline), **placed(pipeline), **fields})

    def to_object(self, keys: Iterable[str] | None = None) -> dict[str, Any]:
        """Object of JSON with the figures of these keys, or all; schedules stay as they are."""
        known = declared(type(self))
        return {
            key: known[key].in_json(getattr(self, key))
            for key in (known if keys is None else keys)
            if getattr(self, key) is not None or not known[key].optional
        }


SEARCHED = ("status", "objective", "value", "lower_bound", "gap", "proof")
"""Keys of the results of a search."""
METRICS = (
    *("makespan", "device_span", "bubble_rate", "bubble_overhead", "peak_memory", "mem_limit"),
    *("exposed", "time_unit", "memory_unit"),
    *("tokens_per_second", "tokens_per_second_per_device", "mfu"),
)
PLACED = (
    *("partition", "layout", "placement", "chunks", "recompute", "recomputed_layers"),
    *("offload", "offloaded_layers", "order", "link_mode"),
)
"""Keys of `placed`."""


_FORMS: Mapping[Quantity, dict[str, Any]] = {
    **{key: {"type": "number"} for key in (_Q.TIME, _Q.MEMORY, _Q.SHARE, _Q.RATE, _Q.RATIO)},
    Quantity.SECONDS: {"type": "number", "minimum": 0},
    Quantity.COUNT: {"type": "integer", "minimum": 0},
    Quantity.FLAG: {"type": "boolean"},
    Quantity.TEXT: {"type": "string"},
    Quantity.STATUS: {"type": "string"},
    Quantity.PLACEMENT: {"type": ["string", "array"], "items": {"type": "integer"}},
    Quantity.LAYERS: {"type": "array", "items": {"required": list(LayerRun._fields)}},
    Quantity.RECORD: {"type": "object"},
}
"""Schemas of values."""


def result_schema(record: type[ScheduleFigures]) -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of objects with the figures of a record; all may be null."""
    properties: dict[str, Any] = {"schema": {"const": 1}}
    for key, declaration in declared(record).items():
        form, unit = (
            _FORMS[declaration.quantity],
            f", one per {declaration.each}" if declaration.each else "",
        )
        if declaration.each:
            form = {"type": "array", "items": form}
        meaning = declaration.meaning.format(objective="objective") + unit
        properties[key] = {"description": meaning, "anyOf": [form, {"type": "null"}]}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "ppopt result",
        "type": "object",
        "properties": properties,
        "required": ["schema"],
    }


T = TypeVar("T")


def known(figure: T | None) -> T:
    """A figure that every schedule has."""
    assert figure is not None
    return figure


def exposed_time(schedule: Schedule) -> int | float | None:
    """Time that unshard, gradient sync and optimizer add to a step, in the user's unit."""
    ticks = exposed(schedule)
    return None if ticks is None else ratio(ticks, schedule.pipeline.ticks.per_unit)


def measured(schedule: Schedule) -> dict[str, Any]:
    """Fields with the metrics of a complete schedule."""
    metrics, objective = schedule.metrics, schedule.objective
    devices = schedule.pipeline.num_devices
    tokens, mfu = throughput(schedule.pipeline, metrics.value_ticks(objective))
    return {
        "objective": objective.value,
        "value": metrics.value(objective),
        "makespan": metrics.makespan,
        "device_span": metrics.device_span,
        "bubble_rate": metrics.bubble_rate(objective),
        "bubble_overhead": metrics.bubble_overhead,
        "peak_memory": list(metrics.peak_memory),
        "fits_limit": schedule.fits_limits,
        **_pipeline_figures(schedule.pipeline),
        "tokens_per_second": tokens,
        "tokens_per_second_per_device": None if tokens is None else tokens / devices,
        "mfu": mfu,
    }


def _pipeline_figures(pipeline: Pipeline) -> dict[str, Any]:
    return {
        "mem_limit": limits(pipeline),
        "time_unit": pipeline.time_unit,
        "memory_unit": pipeline.memory_unit,
    }


def limits(pipeline: Pipeline) -> list[int | float] | None:
    """The memory limit of every device; None if there is none."""
    values = pipeline.limits
    return None if values is None else [plain(limit) for limit in values]


def _runs(model: Model, name: str) -> Iterator[LayerRun]:
    """Runs of layers of one name for which a field of the layer is true, or names modules."""
    named = ((layer.name, getattr(layer, name)) for layer in model.costed)
    for (layer, does), run in groupby(enumerate(named), key=lambda numbered: numbered[1]):
        indices = [index for index, _ in run]
        if does:
            modules = None if does is True else list(does)
            yield LayerRun(layer, indices[0], indices[-1], modules)


def placed(pipeline: Pipeline) -> dict[str, Any]:
    """Fields of placement and links, and with a model in layers the layers of every stage.

    A placement is its name, or the device of every stage; chunks are None if devices differ.
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
        "order": list(pipeline.order) if isinstance(pipeline.order, tuple) else None,
        "link_mode": pipeline.link_mode.value,
    }
