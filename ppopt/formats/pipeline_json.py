"""The pipeline in a native schedule file: every cost in ticks, so that readers need no fractions.

- All lists have one entry per stage, for one slice of a microbatch, chunks divided. `mem_limit` has
  one per device.
- `p2p_time` and `backward_p2p_time` are one number, one for the boundary after every stage but the
  last, or a matrix [from device][to device]; the second is absent if equal to the first.
- `placement` is the device of every stage on route 0. A model in layers has different stages, so
  its placement is a list without a name.
- `overlap_times` is the time of an F and a BW run as one, per stage or as a matrix [stage of
  F][stage of BW].
- `slices`, the optional costs (`ppopt.problem.settings`), the units and the inputs of throughput
  are absent if they have their defaults.
- `device_speed` has a fraction [numerator, denominator] per device, and is absent if all are 1:
  times are those at speed 1, and an operation takes its time / the speed of its device, a whole
  number of ticks.
- `microbatch_times` and `microbatch_memory` have such a fraction per microbatch, and `slice_times`
  one per slice, of mean 1, if they are given.
- `order`, if an order of microbatches was chosen, has the position in the user's list of every
  microbatch. `listed_microbatch_times` and `listed_microbatch_memory` then have the factors in the
  user's order, so that a wrong `order` is detected. Files of earlier versions do not have them.
- `link_mode` is absent if it is `delay`, and `host_link` if it is `duplex`.
- `frozen` says per stage whether it is frozen, and is absent if none is. The costs are those of
  frozen stages: a cost of an operation that a stage does not have is 0.
- `training` has the sizes of the training, and is absent if they are unknown.

The other optional keys restore the pipeline as its user gave it, equal in every field:
`placement_name` (null: the list; `default`: none was named), `chunks`, `mem_limit_given` (`1f1b`,
`number` or `list`), `rounded` and `rounded_by`. `rounded` lists the fields that were finer than
10^-6 of the unit. `rounded_by` has the fields that would need more than 2^53 ticks, each with the
largest change of a number, a fraction of its unit; it is absent if there are none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any, NamedTuple

from ppopt.errors import InputError
from ppopt.formats.fields import abbreviated, section, within
from ppopt.formats.json_forms import (
    AS_IS,
    TEXT,
    Form,
    Forms,
    Schema,
    alternative,
    amount,
    choices,
    fraction,
    list_or_matrix,
    listed,
    mapping,
    object_schema,
    or_none,
    read_object,
    whole,
    word,
    write_object,
)
from ppopt.problem import placement
from ppopt.problem.cost_table import LAYER_COSTS, STAGE_COSTS, Cost
from ppopt.problem.costs import MAX_TICKS, is_matrix, times
from ppopt.problem.decisions import Decisions
from ppopt.problem.field_values import LARGEST_GRID
from ppopt.problem.grid import Grid
from ppopt.problem.microbatches import MEMORY, SLICE_TIMES, TIMES
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.pipeline_fields import PipelineFields
from ppopt.problem.setting import Shape
from ppopt.problem.settings import LIMIT_1F1B, SETTINGS
from ppopt.problem.units import Unit

_REQUIRED = (
    *("stages", "batches", "devices", "routes", "placement"),
    *(cost.name for cost in STAGE_COSTS if not cost.optional),
    *("p2p_time", "mem_limit"),
)
_NULL = ("placement_name", "chunks", "mem_limit", "mem_limit_given")
"""Keys that a file has even if their value is null."""
_DEFAULTS = {
    setting.field: getattr(PipelineFields, setting.field)
    for setting in SETTINGS
    if setting.stored_as_is
}
"""Fields that are absent if they have these values."""
FACTORS = (TIMES, MEMORY, SLICE_TIMES)
"""Keys of the factors of microbatches and slices that differ."""
LISTED = {f"listed_{field}": field for field in (TIMES, MEMORY)}
"""Keys of the factors in the user's order, and of the same factors in the chosen order."""
_FIELDS = (
    *("batches", "routes", "name", "device_speed", "rounded", "rounded_by", "frozen", "training"),
    *(*FACTORS, *_DEFAULTS),
)
"""Keys that are fields of a pipeline, too, with the same values."""
_NUMBERS = (
    *(setting.field for setting in SETTINGS if setting.unit or setting.shape is Shape.PER_DEVICE),
    *(cost.field for cost in LAYER_COSTS),
    *("phases", "modules", "link.latency", "link.bandwidth"),
)
"""Fields whose numbers may be rounded, of layers, too."""
_DEFAULT = "default"
_BACK = "backward_p2p_time"
_COUNTS = ("stages", "batches", "devices", "slices")
_COUNT = whole(1, LARGEST_GRID)


class _Sizes(NamedTuple):
    """What the forms of values depend on: lengths of lists, and ticks in one unit."""

    stages: int = 1
    batches: int = 1
    devices: int = 1
    slices: int = 1
    grid: Grid = Grid(1, 1)

    def per_unit(self, unit: Unit) -> int:
        """Ticks in one unit of time, or of memory."""
        return self.grid.memory if unit is Unit.MEMORY else self.grid.time


def _forms(sizes: _Sizes) -> Forms:
    """The form of every member, by its key."""
    stages, batches, devices, slices, grid = sizes
    time, names = amount(grid.time), (*placement.NAMED, _DEFAULT)
    delays = alternative(time, list_or_matrix(time, stages - 1, devices, ", one per device"))
    delays = delays.about("one number, one per boundary, or a matrix [from device][to device]")
    limit_forms = (LIMIT_1F1B, "number", "list")
    return {
        **dict.fromkeys((*_DEFAULTS, "frozen", "training"), AS_IS),
        **dict.fromkeys(_COUNTS, _COUNT),
        "routes": whole(1, 2),
        **{cost.name: _cost_form(cost, sizes) for cost in STAGE_COSTS},
        "mem_limit": or_none(listed(amount(grid.memory), devices)).about("per device"),
        **dict.fromkeys(("p2p_time", _BACK), delays),
        "device_speed": listed(fraction(1), devices),
        **dict.fromkeys((TIMES, MEMORY, *LISTED), listed(fraction(1), batches)),
        SLICE_TIMES: listed(fraction(1), slices),
        "name": TEXT,
        "placement": listed(whole(0, devices - 1), stages).about("the device of every stage"),
        "placement_name": or_none(word(names, f"{', '.join(names)} or null")),
        "chunks": or_none(whole(1, stages)),
        "mem_limit_given": or_none(word(limit_forms, f"{', '.join(limit_forms)} or null")),
        "rounded": choices(_NUMBERS, "fields of the pipeline"),
        "rounded_by": _ROUNDED_BY,
    }


def _cost_form(cost: Cost, sizes: _Sizes) -> Form:
    """Numbers per stage; of a matrix, a row of them per stage."""
    minimum = -MAX_TICKS if cost.minimum is None else cost.minimum
    each, stages = amount(sizes.per_unit(cost.unit), minimum), sizes.stages
    form = list_or_matrix(each, stages, stages) if cost.of_pairs else listed(each, stages)
    return form.about(cost.meaning)


_CHANGES = mapping(fraction(1))
_ROUNDED_BY = Form(
    lambda value: tuple(_CHANGES.read(section(value, (), _NUMBERS)).items()),
    lambda changes: _CHANGES.write(dict(changes)),
).about("fields too fine for 2^53 ticks: their largest change")
_KEYS = tuple(_forms(_Sizes()))


def pipeline_schema() -> Schema:
    """The JSON Schema of the object of a pipeline."""
    properties = {key: form.schema for key, form in _forms(_Sizes()).items()}
    about = {"description": "every cost in ticks, per stage"}
    return about | object_schema(properties, _REQUIRED)


def pipeline_to_object(pipeline: Pipeline) -> dict[str, Any]:
    """Write a pipeline as an object of JSON, costs in the ticks of `pipeline.grid`."""
    named = pipeline.named_placement and pipeline.model is None
    speeds, frozen = pipeline.device_speed, pipeline.frozen_stages
    members = {
        "name": pipeline.name,
        "stages": pipeline.num_stages,
        "batches": pipeline.batches,
        "devices": pipeline.num_devices,
        "routes": pipeline.routes,
        "placement": pipeline.hosts[0],
        "placement_name": (pipeline.placement or _DEFAULT) if named else None,
        "chunks": None if pipeline.model is not None else pipeline.chunks,
        **_costs(pipeline, Unit.TIME, optional=False),
        "p2p_time": pipeline.p2p,
        _BACK: pipeline.backward_p2p,
        **_costs(pipeline, Unit.MEMORY, optional=False),
        "mem_limit": pipeline.limits,
        "mem_limit_given": _limit_form(pipeline),
        "rounded": pipeline.rounded,
        **_costs(pipeline, *Unit, optional=True),
        **_factors(pipeline),
        "device_speed": speeds if any(speed != 1 for speed in speeds) else None,
        "rounded_by": pipeline.rounded_by or None,
        **{
            key: value
            for key, default in _DEFAULTS.items()
            if (value := getattr(pipeline, key)) != default
        },
        "frozen": list(frozen) if any(frozen) else None,
        "training": pipeline.training and pipeline.training.in_file(),
    }
    sizes = _Sizes(grid=pipeline.grid)
    stated = {key: value for key, value in members.items() if value is not None or key in _NULL}
    return write_object(stated, _forms(sizes))


def _costs(pipeline: Pipeline, *units: Unit, optional: bool) -> dict[str, Any]:
    """Costs of these units by their keys; of the optional ones, those that are stated."""
    return {
        cost.name: pipeline.costs[cost.field]
        for cost in STAGE_COSTS
        if cost.unit in units
        and cost.optional == optional
        and (not optional or cost.field in pipeline.stated_costs)
    }


def _factors(pipeline: Pipeline) -> dict[str, Any]:
    """Factors of microbatches and slices, with a chosen order also those in the user's order."""
    factors = {field: getattr(pipeline, field) for field in FACTORS}
    if not isinstance(pipeline.order, tuple):
        return factors
    position = sorted(range(pipeline.batches), key=pipeline.order.__getitem__)
    stated = {key: factors[field] for key, field in LISTED.items()}
    return factors | {
        key: values and [values[index] for index in position] for key, values in stated.items()
    }


def _limit_form(pipeline: Pipeline) -> str | None:
    if pipeline.mem_limit is None:
        return None
    if pipeline.mem_limit == LIMIT_1F1B:
        return LIMIT_1F1B
    return "list" if isinstance(pipeline.mem_limit, tuple) else "number"


def pipeline_from_object(
    value: object, per_unit: int, memory_per_unit: int, *, has_model: bool = False
) -> Pipeline:
    """Read the object of `pipeline_to_object`; the ticks per unit (of time, of memory) may be any.

    The grid of the pipeline has these ticks, or finer ones if it needs them.

    With `has_model` the limits are those in the file: only with the layers they can be restored as
    the user gave them (`limit_as_given`). Raises InputError if the object is no pipeline, or if the
    costs in the file are not those of the user's own form in the file.
    """
    file, grid = section(value, _REQUIRED, _KEYS), Grid(per_unit, memory_per_unit)
    sizes = _Sizes(**dict(_counts(file)), grid=grid)
    file = read_object(file, _forms(sizes), _REQUIRED)
    limits = file["mem_limit"]
    costs = {cost.field: file[cost.name] for cost in STAGE_COSTS if cost.name in file}
    pipeline = Pipeline(
        **_own_form(file, costs, sizes),
        p2p=file["p2p_time"],
        backward_p2p=file.get(_BACK),
        mem_limit=limits if has_model else limit_as_given(file, limits),
        grid=grid,
        **{key: file[key] for key in _FIELDS if key in file},
    )
    _check_same(pipeline, file, costs, limits)
    if file.get(SLICE_TIMES) not in (None, pipeline.slice_times):
        raise InputError("slice_times: are not factors of mean 1 with at most 4 decimals")
    within("order", _check_order, pipeline, file)
    return pipeline


def _counts(file: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """The numbers of stages, microbatches, devices and slices."""
    for key in _COUNTS:
        if file.get(key) is not None:
            yield key, within(key, _COUNT.read, file[key])


def _check_order(pipeline: Pipeline, file: dict[str, Any]) -> None:
    """Check that the order makes the factors in the user's order those of the microbatches."""
    if Decisions.ORDER in pipeline.open_decisions:
        raise InputError("the microbatches differ, so a schedule has an order of them; list it")
    stated = {field: file.get(key) for key, field in LISTED.items()}
    if not any(stated.values()):
        return
    order = pipeline.order if isinstance(pipeline.order, tuple) else range(pipeline.batches)
    for field, factors in stated.items():
        ordered = factors and tuple(factors[position] for position in order)
        if ordered != getattr(pipeline, field):
            raise InputError(f"makes {field} of listed_{field} that are not those of the pipeline")


def check_searched_order(pipeline: Pipeline, value: dict[str, Any]) -> None:
    """Check the order that a search over orders chose, in a file without the listed factors.

    Of the orders that exchange equal microbatches, a search writes the one that keeps the user's
    order. Raises InputError if the file (`value`) has another one.
    """
    if not isinstance(pipeline.order, tuple) or not LISTED.keys().isdisjoint(value):
        return
    last: dict[tuple[Fraction, Fraction], int] = {}
    for position, factors in zip(pipeline.order, pipeline.factors, strict=True):
        if last.get(factors, -1) > position:
            raise InputError(
                f"order: {position} follows {last[factors]}, but a search keeps the order of equal "
                "microbatches; solve again"
            )
        last[factors] = position


def _own_form(
    file: Mapping[str, Any], costs: Mapping[str, tuple[Any, ...]], sizes: _Sizes
) -> dict[str, Any]:
    """Restore stages, placement, chunks and costs as the user gave them."""
    stages = sizes.stages
    whole_costs = {
        cost.field: times(costs[cost.field], sizes.slices if cost.per_microbatch else 1)
        for cost in STAGE_COSTS
        if cost.field in costs
    }
    hosts, name, chunks = file["placement"], file.get("placement_name"), file.get("chunks")
    if name is None:
        if chunks is not None:
            raise InputError("chunks: does not go with a placement list; set it to null")
        return {"stages": stages, "placement": hosts, **whole_costs}
    placement.explicit(hosts)
    first = dict(zip(reversed(hosts), range(stages - 1, -1, -1), strict=True))
    cut = stages // len(first)
    shares = {
        cost.field: times(
            _of_first(whole_costs[cost.field], first), cut if cost.cut_by_chunks else 1
        )
        for cost in STAGE_COSTS
        if cost.field in whole_costs
    }
    named = None if name == _DEFAULT else name
    return {"stages": len(first), "placement": named, "chunks": chunks, **shares}


def _of_first(values: tuple[Any, ...], first: dict[int, int]) -> tuple[Any, ...]:
    """The numbers of the first stage of every device, and of a matrix the columns of these."""
    if is_matrix(values):
        return tuple(_of_first(values[first[device]], first) for device in range(len(first)))
    return tuple(values[first[device]] for device in range(len(first)))


def limit_as_given(file: Mapping[str, Any], limits: tuple[Fraction, ...] | None) -> object:
    """Limit in the form that the user gave, by the object of a pipeline; a list if it has none."""
    form = file.get("mem_limit_given")
    if form is None or limits is None:
        return limits
    return {LIMIT_1F1B: LIMIT_1F1B, "number": limits[0], "list": limits}[form]


def _check_same(
    pipeline: Pipeline,
    file: Mapping[str, Any],
    costs: Mapping[str, tuple[Any, ...]],
    limits: tuple[Fraction, ...] | None,
) -> None:
    """Check that the restored form has the numbers of the file: other readers use those."""
    if pipeline.hosts[0] != file["placement"]:
        raise InputError("placement: is not that of placement_name and chunks; set these to null")
    if pipeline.num_devices != file["devices"]:
        raise InputError(f"devices: is {file['devices']}, but placement has {pipeline.num_devices}")
    for cost in STAGE_COSTS:
        if cost.field in costs and pipeline.costs[cost.field] != costs[cost.field]:
            raise InputError(
                f"{cost.name}: differs between the chunks of a device; "
                "set placement_name and chunks to null"
            )
    if pipeline.limits != limits:
        raise InputError(
            f"mem_limit: is not what mem_limit_given {abbreviated(file['mem_limit_given'])} makes "
            "it; set that to null"
        )
