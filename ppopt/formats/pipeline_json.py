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

from collections.abc import Iterable
from fractions import Fraction
from typing import Any

from ppopt.errors import InputError
from ppopt.formats.fields import abbreviated, section, text, whole, wholes, within
from ppopt.problem import exact, placement
from ppopt.problem.cost_table import LAYER_COSTS, STAGE_COSTS, Cost
from ppopt.problem.costs import MAX_TICKS, is_matrix, times
from ppopt.problem.decisions import Decisions
from ppopt.problem.field_values import LARGEST_GRID, is_list
from ppopt.problem.grid import Grid
from ppopt.problem.microbatches import MEMORY, SLICE_TIMES, TIMES
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.pipeline_fields import PipelineFields
from ppopt.problem.setting import Shape
from ppopt.problem.settings import LIMIT_1F1B, SETTINGS
from ppopt.problem.units import Unit

_ALWAYS = tuple(cost for cost in STAGE_COSTS if not cost.optional)
_SOMETIMES = tuple(cost for cost in STAGE_COSTS if cost.optional)
REQUIRED = (
    *("stages", "batches", "devices", "routes", "placement"),
    *(cost.name for cost in _ALWAYS),
    *("p2p_time", "mem_limit"),
)
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
OPTIONAL = (
    "backward_p2p_time",
    *("name", "placement_name", "chunks", "mem_limit_given"),
    *("rounded", "rounded_by", "device_speed"),
    *(*FACTORS, *LISTED),
    *(*_DEFAULTS, "frozen", "training"),
    *(cost.name for cost in _SOMETIMES),
)
_NUMBERS = (
    *(setting.field for setting in SETTINGS if setting.unit or setting.shape is Shape.PER_DEVICE),
    *(cost.field for cost in LAYER_COSTS),
    *("phases", "modules", "link.latency", "link.bandwidth"),
)
"""Fields whose numbers may be rounded, of layers, too."""
_DEFAULT = "default"
_BACK = "backward_p2p_time"
_LIMIT_FORMS = (LIMIT_1F1B, "number", "list")


def pipeline_to_object(pipeline: Pipeline) -> dict[str, Any]:
    """Write a pipeline as an object of JSON, costs in the ticks of `pipeline.ticks`."""
    ticks, back = pipeline.ticks, pipeline.backward_p2p
    named = pipeline.named_placement and pipeline.model is None
    optional = (cost for cost in _SOMETIMES if cost.field in pipeline.stated_costs)
    return {
        "name": pipeline.name,
        "stages": pipeline.num_stages,
        "batches": pipeline.batches,
        "devices": pipeline.num_devices,
        "routes": pipeline.routes,
        "placement": list(pipeline.hosts[0]),
        "placement_name": (pipeline.placement or _DEFAULT) if named else None,
        "chunks": None if pipeline.model is not None else pipeline.chunks,
        **_in_ticks(pipeline, (cost for cost in _ALWAYS if cost.unit is Unit.TIME)),
        "p2p_time": _whole_ticks(pipeline.p2p, ticks.per_unit),
        **({} if back is None else {_BACK: _whole_ticks(back, ticks.per_unit)}),
        **_in_ticks(pipeline, (cost for cost in _ALWAYS if cost.unit is Unit.MEMORY)),
        "mem_limit": None if ticks.limits is None else list(ticks.limits),
        "mem_limit_given": _limit_form(pipeline),
        "rounded": list(pipeline.rounded),
        **_in_ticks(pipeline, optional),
        **_fraction_lists(pipeline),
        **({"rounded_by": _rounded_by(pipeline)} if pipeline.rounded_by else {}),
        **{
            key: value
            for key, default in _DEFAULTS.items()
            if (value := getattr(pipeline, key)) != default
        },
        **({"frozen": list(pipeline.frozen_stages)} if any(pipeline.frozen_stages) else {}),
        **({} if pipeline.training is None else {"training": pipeline.training.in_file()}),
    }


def _in_ticks(pipeline: Pipeline, costs: Iterable[Cost]) -> dict[str, Any]:
    ticks = pipeline.ticks
    per_unit = {Unit.TIME: ticks.per_unit, Unit.MEMORY: ticks.memory_per_unit}
    return {
        cost.name: _whole_ticks(pipeline.costs[cost.field], per_unit[cost.unit]) for cost in costs
    }


def _whole_ticks(values: Any, per_unit: int) -> Any:
    """Whole ticks of a number, or of lists of them."""
    if isinstance(values, tuple):
        return [_whole_ticks(value, per_unit) for value in values]
    return exact.whole(values * per_unit)


def _fraction_lists(pipeline: Pipeline) -> dict[str, list[list[int]]]:
    """Speeds of devices, if some are not 1, and factors of microbatches, if they are given."""
    lists = {field: getattr(pipeline, field) for field in FACTORS}
    if isinstance(pipeline.order, tuple):
        position = sorted(range(pipeline.batches), key=pipeline.order.__getitem__)
        lists |= {
            key: [factors[index] for index in position]
            for key, field in LISTED.items()
            if (factors := lists[field]) is not None
        }
    if any(speed != 1 for speed in pipeline.device_speed):
        lists["device_speed"] = pipeline.device_speed
    return {
        field: [list(number.as_integer_ratio()) for number in numbers]
        for field, numbers in lists.items()
        if numbers is not None
    }


def _rounded_by(pipeline: Pipeline) -> dict[str, list[int]]:
    return {field: list(change.as_integer_ratio()) for field, change in pipeline.rounded_by}


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
    file = section(value, REQUIRED, OPTIONAL)
    for key in ("stages", "batches", "devices"):
        within(key, whole, file[key], 1, LARGEST_GRID)
    within("routes", whole, file["routes"], 1, 2)
    slices = file.get("slices")
    if slices is not None:
        within("slices", whole, slices, 1, LARGEST_GRID)
    costs = {
        cost.field: _fractions(
            file, cost, memory_per_unit if cost.unit is Unit.MEMORY else per_unit
        )
        for cost in STAGE_COSTS
        if not cost.optional or file.get(cost.name) is not None
    }
    limits = file["mem_limit"]
    if limits is not None:
        limits = within("mem_limit", _ticks, limits, memory_per_unit, file["devices"])
    as_given = limits if has_model else limit_as_given(file, limits)
    known: dict[str, Any] = {key: file.get(key) for key in ("frozen", "training")}
    known |= {key: file.get(key, default) for key, default in _DEFAULTS.items()}
    per = dict.fromkeys(FACTORS, "batches") | {SLICE_TIMES: "slices"}
    factors: dict[str, Any] = {
        key: within(key, _read_fractions, file, key, per[key]) for key in FACTORS
    }
    pipeline = Pipeline(
        **_own_form(file, costs),
        batches=file["batches"],
        p2p=within("p2p_time", _read_p2p, file["p2p_time"], file, per_unit),
        backward_p2p=within(_BACK, _read_p2p, file.get(_BACK), file, per_unit),
        device_speed=within("device_speed", _read_fractions, file, "device_speed", "devices") or 1,
        **factors,
        mem_limit=as_given,
        routes=file["routes"],
        name=within("name", text, file.get("name", "")),
        rounded=within("rounded", _rounded, file.get("rounded", [])),
        rounded_by=within("rounded_by", _read_rounded_by, file.get("rounded_by", {})),
        grid=Grid(per_unit, memory_per_unit),
        **known,
    )
    _check_same(pipeline, file, costs, limits)
    if factors[SLICE_TIMES] not in (None, list(pipeline.slice_times or ())):
        raise InputError("slice_times: are not factors of mean 1 with at most 4 decimals")
    within("order", _check_order, pipeline, file)
    return pipeline


def _check_order(pipeline: Pipeline, file: dict[str, Any]) -> None:
    """Check that the order makes the factors in the user's order those of the microbatches."""
    if Decisions.ORDER in pipeline.open_decisions:
        raise InputError("the microbatches differ, so a schedule has an order of them; list it")
    listed = {
        field: within(key, _read_fractions, file, key, "batches") for key, field in LISTED.items()
    }
    if listed == dict.fromkeys(LISTED.values()):
        return
    order = pipeline.order if isinstance(pipeline.order, tuple) else range(pipeline.batches)
    for field, factors in listed.items():
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


def _fractions(file: dict[str, Any], cost: Cost, per_unit: int) -> tuple[Any, ...]:
    """Numbers per stage; of a matrix, a row of them per stage."""
    minimum = -MAX_TICKS if cost.minimum is None else cost.minimum
    read = _list_or_matrix if cost.of_pairs else _ticks
    stages = file["stages"]
    return within(cost.name, read, file[cost.name], per_unit, stages, minimum)


def _ticks(value: object, per_unit: int, count: int, minimum: int = 0) -> tuple[Any, ...]:
    """A list of whole ticks as numbers."""
    ticks = wholes(value, count, minimum, MAX_TICKS)
    return tuple(Fraction(entry, per_unit) for entry in ticks)


def _list_or_matrix(
    value: Any, per_unit: int, count: int, minimum: int = 0, size: int = 0, each: str = ""
) -> tuple[Any, ...]:
    """A list of `count` numbers, or a matrix of `size` rows and columns (default: `count`)."""
    if not (is_list(value) and any(map(is_list, value))):
        return _ticks(value, per_unit, count, minimum)
    size = size or count
    if len(value) != size:
        raise InputError(f"has {len(value)} rows; {size} are needed{each}")
    return tuple(
        within(f"row {index}", _ticks, row, per_unit, size, minimum)
        for index, row in enumerate(value)
    )


def _own_form(file: dict[str, Any], costs: dict[str, tuple[Any, ...]]) -> dict[str, Any]:
    """Restore stages, placement, chunks and costs as the user gave them."""
    stages, slices = file["stages"], file.get("slices") or 1
    whole_costs = {
        cost.field: times(costs[cost.field], slices if cost.per_microbatch else 1)
        for cost in STAGE_COSTS
        if cost.field in costs
    }
    hosts = within("placement", wholes, file["placement"], stages, 0, file["devices"] - 1)
    name, chunks = file.get("placement_name"), file.get("chunks")
    if name is None:
        if chunks is not None:
            raise InputError("chunks: does not go with a placement list; set it to null")
        return {"stages": stages, "placement": hosts, **whole_costs}
    if not isinstance(name, str) or name not in (_DEFAULT, *placement.NAMED):
        known = ", ".join((*placement.NAMED, _DEFAULT))
        raise InputError(f"placement_name: {abbreviated(name)} is unknown; use {known} or null")
    placement.explicit(hosts)
    first = dict(zip(reversed(hosts), range(stages - 1, -1, -1), strict=True))
    if chunks is not None:
        within("chunks", whole, chunks, 1, stages)
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


def _read_p2p(value: object, file: dict[str, Any], per_unit: int) -> object:
    """One number, one per boundary, or a matrix of devices."""
    if value is None:
        return None
    if not isinstance(value, list):
        return Fraction(whole(value, 0, MAX_TICKS), per_unit)
    boundaries, devices = file["stages"] - 1, file["devices"]
    return _list_or_matrix(value, per_unit, boundaries, 0, devices, ", one per device")


def _read_fractions(file: dict[str, Any], key: str, per: str) -> list[Fraction] | None:
    """A fraction [numerator, denominator] for each device, microbatch or slice (`per`)."""
    value, count = file.get(key), file.get(per) or 1
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != count:
        raise InputError(
            f"{abbreviated(value)} is not a list of {count} fractions, one of each of {per}"
        )
    pairs = (
        within(f"entry {index}", wholes, entry, 2, 1, MAX_TICKS)
        for index, entry in enumerate(value)
    )
    return [Fraction(*pair) for pair in pairs]


def limit_as_given(file: dict[str, Any], limits: tuple[Fraction, ...] | None) -> object:
    """Limit in the form that the user gave, by the object of a pipeline; a list if it has none.

    Raises InputError if the form is unknown.
    """
    form = file.get("mem_limit_given")
    if form is None or limits is None:
        return limits
    if form not in _LIMIT_FORMS:
        raise InputError(
            f"mem_limit_given: {abbreviated(form)} is unknown; use {', '.join(_LIMIT_FORMS)} or "
            "null"
        )
    return {LIMIT_1F1B: LIMIT_1F1B, "number": limits[0], "list": limits}[form]


def _rounded(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or any(field not in _NUMBERS for field in value):
        raise InputError(f"{abbreviated(value)} is not a list of fields of the pipeline")
    return tuple(value)


def _read_rounded_by(value: object) -> tuple[tuple[str, Fraction], ...]:
    changes = section(value, (), _NUMBERS)
    return tuple(
        (field, Fraction(*within(field, wholes, change, 2, 1, MAX_TICKS)))
        for field, change in changes.items()
    )


def _check_same(
    pipeline: Pipeline,
    file: dict[str, Any],
    costs: dict[str, tuple[Any, ...]],
    limits: tuple[Fraction, ...] | None,
) -> None:
    """Check that the restored form has the numbers of the file: other readers use those."""
    if list(pipeline.hosts[0]) != file["placement"]:
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
