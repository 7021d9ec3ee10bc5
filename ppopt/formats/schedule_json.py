"""The native schedule file: a schedule with its pipeline, exact, in JSON.

    {
    "schema": 2,
    "ticks_per_unit": 1000,            one unit of the user's time, in ticks
    "memory_ticks_per_unit": 1,        the same of memory
    "pipeline": {...},                 see `ppopt.formats.pipeline_json`
    "origin": {...},                   how it was made: `ppopt.formats.origin_json`; its member
                                       `model`: the layers, `ppopt.formats.model_json`
    "claims": {"makespan": ...},       figures to re-check, in ticks
    "ops": [
    ["F", 0, 0, 0, 0, 1000],           kind, stage, microbatch, device, start, end
    ...
    ]
    }

Operations of all resources are sorted by device, then start. If there are two routes, slices or
overlapped pairs, every operation has three more fields: route, slice, and the number of its pair,
equal for both operations (null: it runs alone). If links are resources (`link_mode` of the
pipeline), all operations have these and one more field. Transfers are among the operations of the
device that sends:

    ["SEND_F", 0, 0, 0, 1000, 1100, 0, 0, null, 1]

The kind is SEND_F (an activation) or SEND_B (a gradient); stage and device are those that send,
and the last field is the device that receives, of all others null.

Operations around the microbatches belong to no microbatch, and to no slice:

    ["UNSHARD", 2, null, 0, 0, 250]
    ["GRADIENT_SYNC", 2, null, 0, 9000, 9500]
    ["OPTIMIZER", null, null, 0, 9500, 9600]       of all stages of a device, so of no route

Moves to the host and back have their microbatch, as F and B have it:

    ["OFFLOAD", 2, 0, 0, 1000, 1500]
    ["RELOAD", 2, 0, 0, 7500, 8000]

Files of schema 1 are read, too: there, transfers come after all other operations.

`claims` are makespan, device_span, busy and
peak_memory (lists per device) in ticks, bubble_overhead, and bubble_rate on `objective`;
a schedule too incomplete to be measured claims nothing. `origin` and `claims` may be absent.

Files of earlier versions have operations of zero duration that a frozen stage does not run. The
reader drops them.

The reader checks only the form of a file: whole numbers that fit into arrays. `ppopt.verify` checks
whether the operations are a schedule of the pipeline (none missing, none twice, none on a stage
that does not exist).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ppopt.errors import InputError
from ppopt.formats import json_forms, model_json, origin_json, pipeline_json
from ppopt.formats.documents import finite_float, label, parse_json, read_text
from ppopt.formats.fields import abbreviated, section, whole, within
from ppopt.formats.json_forms import FINITE, TEXT, Form, Forms, listed
from ppopt.problem.arrays import Bools, Ints
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.costs import MAX_TICKS
from ppopt.problem.decisions import Decisions
from ppopt.problem.instance import Instance
from ppopt.problem.kinds import RECORDS, KindRecord, Per, ResourceKind
from ppopt.problem.operation import NUM_KINDS, ONCE, OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.operations import ALONE, Operation, Operations, occurs_per
from ppopt.schedule.schedule import Schedule
from ppopt.verifier.measured_steps import faults

SCHEMA = 2
SCHEMAS = (1, 2)
"""The schemas that are read."""
LARGEST_FILE = 2**28
"""Bytes of a schedule file: some seven million operations."""
LARGEST_INT = 2**62
"""Numbers in `ops` and `claims` lie within this, either sign: sums of two fit int64."""

UNITS = ("ticks_per_unit", "memory_ticks_per_unit")
_REQUIRED = ("schema", *UNITS, "pipeline", "ops")
_CONFIG = "{0}: not a schedule file; `ppopt solve --config {0} -o best.json` makes one of a config"
_FIELDS = ("stage", "microbatch", "device", "start", "end", "route", "slice", "pair", "link")
_NUM_FIELDS = (6, 9, 10)
"""Fields of an operation with its kind: the first six, with route, slice and pair, with link."""
_CODES = {record.name: code for code, record in enumerate(RECORDS)}
KINDS = tuple(_CODES)
"""Names of all kinds in `ops`."""


def schedule_to_object(schedule: Schedule) -> dict[str, Any]:
    """Turn a schedule into an object of JSON."""
    ticks = schedule.pipeline.ticks
    return {
        "schema": SCHEMA,
        "ticks_per_unit": ticks.per_unit,
        "memory_ticks_per_unit": ticks.memory_per_unit,
        "pipeline": pipeline_json.pipeline_to_object(schedule.pipeline),
        "origin": origin_json.origin_to_object(schedule.origin) | _model(schedule.pipeline),
        "claims": claims(schedule),
        "ops": _ops(schedule),
    }


def _model(pipeline: Pipeline) -> dict[str, Any]:
    """The member of the origin that has the model of a pipeline, if that is in layers."""
    if pipeline.model is None:
        return {}
    return {model_json.MEMBER: model_json.model_to_object(pipeline)}


def _ops(schedule: Schedule) -> list[list[Any]]:
    table = schedule.operations
    table = table.where(np.lexsort((table.start, table.device)))
    of_device, once = (
        occurs_per(Per.DEVICE)[table.kind],
        occurs_per(Per.STAGE, Per.DEVICE)[table.kind],
    )
    columns = [
        [RECORDS[code].name for code in table.kind.tolist()],
        _or_null(table.stage, of_device),
        _or_null(table.microbatch, once),
        *(column.tolist() for column in (table.device, table.start, table.end)),
    ]
    if _has_further_fields(schedule):
        columns += [
            _or_null(table.route, of_device),
            _or_null(table.slice, once),
            _or_null(table.pair, table.pair == ALONE),
        ]
    if schedule.pipeline.has_links:
        columns.append(_or_null(table.target, ~table.on(ResourceKind.LINK)))
    return [*map(list, zip(*columns, strict=True))]


def _or_null(column: Ints, is_absent: Bools) -> list[int | None]:
    """A column as a list, with null in some places."""
    values: list[int | None] = column.tolist()
    for row in np.flatnonzero(is_absent).tolist():
        values[row] = None
    return values


def _has_further_fields(schedule: Schedule) -> bool:
    """Whether operations have a route, a slice and a pair."""
    pipeline, paired = schedule.pipeline, bool((schedule.pair != ALONE).any())
    return pipeline.routes > 1 or pipeline.num_slices > 1 or paired or pipeline.has_links


def dumps(schedule: Schedule) -> str:
    """Write a schedule as text, the same for the same schedule: one operation per line."""
    members = schedule_to_object(schedule)
    ops = members.pop("ops")
    written = [f"{json.dumps(key)}: {_lines(value)}" for key, value in members.items()]
    body = ",\n".join(map(json.dumps, ops))
    return "{\n" + ",\n".join(written) + f',\n"ops": [\n{body}\n]\n}}\n'


def _lines(value: object) -> str:
    """Write a value on one line, or an object with one member per line."""
    if not isinstance(value, dict) or not value:
        return json.dumps(value, allow_nan=False)
    members = (f"  {json.dumps(key)}: {json.dumps(value[key], allow_nan=False)}" for key in value)
    return "{\n" + ",\n".join(members) + "\n}"


def claims(schedule: Schedule) -> dict[str, Any]:
    """Figures of a schedule as its file states them; none if it is too incomplete."""
    if not _measurable(schedule):
        return {}
    figures = schedule.metrics
    return {
        "makespan": figures.makespan_ticks,
        "device_span": figures.device_span_ticks,
        "busy": list(figures.busy_ticks),
        "peak_memory": list(figures.peak_memory_ticks),
        "bubble_overhead": float(figures.bubble_overhead),
        "objective": schedule.objective.value,
        "bubble_rate": float(figures.bubble_rate(schedule.objective)),
    }


def _measurable(schedule: Schedule) -> bool:
    """Whether the pipeline has every operation, and every device computes a microbatch."""
    used = np.unique(schedule.device)
    return bool(schedule.operations.known.all()) and len(used) == schedule.pipeline.num_devices


def read_schedule(path: str | Path) -> tuple[Schedule, dict[str, Any]]:
    """Read a native schedule file; see `loads`."""
    path = Path(path)
    content = read_text(path, LARGEST_FILE)
    if path.suffix.lower() in (".yaml", ".yml", ".toml") and content.lstrip()[0] != "{":
        raise InputError(_CONFIG.format(label(path)))
    return loads(content, label(path))


def read_valid_schedule(path: Path) -> Schedule:
    """Read a native schedule file that breaks no rule, except perhaps the memory limit.

    Of a measured step only the rules of order are checked: its operations took their own times.
    Raises InputError on any violation.
    """
    schedule, claims = read_schedule(path)
    violations = faults(schedule, claims)
    if violations:
        raise InputError(f"{path}: {violations[0]}; `ppopt verify {path}` lists all violations")
    return schedule


def loads(content: str, where: str) -> tuple[Schedule, dict[str, Any]]:
    """Read the text of a native schedule file: the schedule and its claims.

    Raises InputError, beginning with `where` and naming the place, on anything that is not
    of this form.
    """
    document = parse_json(content, where, finite_float)
    if isinstance(document, dict) and document.keys().isdisjoint(_REQUIRED):
        raise InputError(_CONFIG.format(where))
    return within(where, schedule_from_object, document)


def schedule_from_object(
    document: object, expected: Pipeline | None = None
) -> tuple[Schedule, dict[str, Any]]:
    """Read the object of `schedule_to_object`; see `loads`.

    `expected` is a pipeline to which the schedule may belong. If the object describes exactly this
    pipeline, it is used, because building a pipeline takes most of the time.
    """
    file = section(document, _REQUIRED, ("origin", "claims"))
    if type(file["schema"]) is not int or file["schema"] not in SCHEMAS:
        known = " or ".join(map(str, SCHEMAS))
        raise InputError(
            f"schema: {abbreviated(file['schema'])} is not {known}, those that are read"
        )
    unit, memory_unit = (within(key, whole, file[key], 1, MAX_TICKS) for key in UNITS)
    stated, model = file.get("origin", {}), None
    if isinstance(stated, dict):
        stated = dict(stated)
        model = stated.pop(model_json.MEMBER, None)
    if expected is not None and (unit, memory_unit, file["pipeline"], model) == _described_pipeline(
        expected
    ):
        pipeline = expected
    else:
        read, value = pipeline_json.pipeline_from_object, file["pipeline"]
        pipeline = within("pipeline", read, value, unit, memory_unit, has_model=model is not None)
        if model is not None:
            limit = within("pipeline", pipeline_json.limit_as_given, value, pipeline.limits)
            pipeline = within("origin: model", model_json.restored, pipeline, model, limit)
    origin = within("origin", origin_json.origin_from_object, stated)
    if origin.certificate and origin.certificate.decisions == Decisions.ORDER:
        within("pipeline", pipeline_json.check_searched_order, pipeline, file["pipeline"])
    columns = _operations(file["ops"], pipeline)
    if file["schema"] == 1:
        columns = _without_absent(columns, pipeline)
    scales = _scales(pipeline, (unit, memory_unit))
    scale = scales[0]
    if scale > 1:
        latest = LARGEST_INT // scale
        start, end = (
            np.clip(column, -latest, latest) * scale for column in (columns.start, columns.end)
        )
        columns = replace(columns, start=start, end=end)
    claimed = within("claims", _claims, file.get("claims", {}), pipeline, scales)
    return Schedule.from_columns(pipeline, *columns.columns, origin=origin), claimed


def _described_pipeline(
    pipeline: Pipeline,
) -> tuple[int, int, dict[str, Any], dict[str, Any] | None]:
    """The members of a schedule's object that describe its pipeline."""
    ticks, model = pipeline.ticks, _model(pipeline).get(model_json.MEMBER)
    return ticks.per_unit, ticks.memory_per_unit, pipeline_json.pipeline_to_object(pipeline), model


def _operations(ops: object, pipeline: Pipeline) -> Operations:
    """All operations of a file."""
    if not isinstance(ops, list):
        raise InputError(f"ops: {abbreviated(ops)} is not a list")
    rows: list[tuple[int, ...]] = []
    try:
        for entry in ops:
            rows.append(_operation(entry, pipeline))
    except InputError as error:
        raise InputError(f"ops[{len(rows)}]: {error}") from None
    table = np.array(rows, dtype=np.int64).reshape(-1, len(Operation._fields))
    return Operations(pipeline, *np.ascontiguousarray(table.T))


def _without_absent(columns: Operations, pipeline: Pipeline) -> Operations:
    """The operations without those of zero duration that the pipeline does not have.

    Earlier versions wrote B, W and BW of frozen stages that run none. Those in a pair with an F are
    as long as it: the F then runs alone. The verifier checks the rest.
    """
    if pipeline.has_all_operations:
        return columns
    kind, stage, pair = columns.kind, columns.stage, columns.pair.copy()
    known = (kind < NUM_KINDS) & (stage >= 0) & (stage < pipeline.num_stages)
    absent = np.zeros(len(kind), dtype=bool)
    absent[known] = ~np.array(pipeline.has_operations)[kind[known], stage[known]]
    left_out = absent & (columns.start == columns.end)
    forwards = np.flatnonzero((kind == OpKind.F) & (pair != ALONE))
    row_of = dict(zip(pair[forwards].tolist(), forwards.tolist(), strict=True))
    spans = np.stack([columns.device, columns.start, columns.end])
    for row in np.flatnonzero(absent & (pair != ALONE)).tolist():
        forward = row_of.get(int(pair[row]))
        if forward is not None and (spans[:, forward] == spans[:, row]).all():
            pair[forward], left_out[row] = ALONE, True
    return replace(columns, pair=pair).where(~left_out)


def _operation(entry: object, pipeline: Pipeline) -> tuple[int, ...]:
    """An operation in the order of the fields of `Operation`."""
    if not isinstance(entry, list) or len(entry) not in _NUM_FIELDS:
        raise InputError(
            f"{abbreviated(entry)} is not [kind, {', '.join(_FIELDS[:5])}], or this with "
            f"{', '.join(_FIELDS[5:8])} behind it"
        )
    if not isinstance(entry[0], str) or entry[0] not in _CODES:
        raise InputError(f"kind {abbreviated(entry[0])} is unknown; use {', '.join(_CODES)}")
    code = _CODES[entry[0]]
    values = dict(zip(_FIELDS, entry[1:], strict=False))
    for field, needed in _NEEDED[code].items():
        value = values.get(field)
        if needed and field in values:
            _check_number(field, value)
        elif not needed and value is not None:
            raise InputError(f"{field}: {entry[0]} has none; write null")
    if code in _SENT and "link" not in values:
        raise InputError(
            f"{abbreviated(entry)} is not [kind, {', '.join(_FIELDS[:7])}, null, receiving device]"
        )
    return _row(code, values, pipeline)


def _needed_fields(record: KindRecord) -> dict[str, bool]:
    """Fields of an operation that hold a number (true), or null."""
    once, of_device = record.per is not Per.MICROBATCH, record.per is Per.DEVICE
    missing = {"stage": of_device, "route": of_device, "microbatch": once, "slice": once}
    missing |= {"link": record.resource is not ResourceKind.LINK}
    return {field: not missing.get(field, False) for field in _FIELDS if field != "pair"}


_NEEDED = tuple(map(_needed_fields, RECORDS))
_SENT = {code for code, record in enumerate(RECORDS) if record.resource is ResourceKind.LINK}


def _row(code: int, values: dict[str, Any], pipeline: Pipeline) -> tuple[int, ...]:
    device, microbatch, pair = values["device"], values["microbatch"], values.get("pair")
    if pair is None:
        pair = ALONE
    elif code >= NUM_KINDS:
        raise InputError(f"pair: {RECORDS[code].name} has none; write null")
    else:
        _check_number("pair", pair)
    stage, route = values["stage"], values.get("route", 0)
    if RECORDS[code].per is Per.DEVICE:
        stage, route = _lowest_stage(pipeline, device)
    elif microbatch is not None and 0 <= microbatch < pipeline.batches:
        right = pipeline.route(microbatch)
        if "route" in values and route != right:
            raise InputError(
                f"route: {route} is not {right}, that of microbatch {microbatch}; the first half "
                "of the batches takes route 0"
            )
        route = right
    return (
        *(code, stage, ONCE if microbatch is None else microbatch, device),
        *(values["start"], values["end"], values.get("slice") or 0, pair, route),
        values["link"] if code in _SENT else device,
    )


def _lowest_stage(pipeline: Pipeline, device: object) -> tuple[int, int]:
    """The lowest stage of a device and its route; 0 if there is no such device."""
    for route, hosts in enumerate(pipeline.hosts):
        if device in hosts:
            return hosts.index(device), route
    return 0, 0


def _check_number(field: str, number: object) -> None:
    if type(number) is not int or not -LARGEST_INT <= number <= LARGEST_INT:
        raise InputError(f"{field}: {abbreviated(number)} is not a whole number of at most 2^62")


def _scales(pipeline: Pipeline, units: tuple[int, int]) -> list[int]:
    """Ticks of the pipeline in one tick of a file, of time and of memory.

    `units` are the file's ticks per unit. Raises InputError if an operation takes no whole number
    of them.
    """
    scales = [needed // stated for needed, stated in zip(pipeline.grid, units, strict=True)]
    if scales == [1, 1]:
        return scales
    for kind in (BackwardKind.SPLIT, BackwardKind.WHOLE):
        instance = Instance.of(pipeline, kind, all_resources=True)
        memory = np.concatenate([instance.allocations, instance.frees])
        amounts = zip(UNITS, units, pipeline.grid, (instance.durations, memory), strict=True)
        for key, stated, needed, each in amounts:
            if (each % (needed // stated)).any():
                raise InputError(
                    f"{key}: {stated} is not a multiple of {needed}: some costs, divided or "
                    "multiplied by their factors, are no whole ticks"
                )
    return scales


def _claims(value: object, pipeline: Pipeline, scales: Sequence[int]) -> dict[str, Any]:
    """The claims of a file, in ticks of the pipeline."""
    forms = claim_forms(pipeline.num_devices, *scales)
    figures = {
        key: within(key, forms[key].read, figure)
        for key, figure in section(value, (), forms).items()
    }
    return {key: list(each) if isinstance(each, tuple) else each for key, each in figures.items()}


def claim_forms(devices: int | None = None, scale: int = 1, memory_scale: int = 1) -> Forms:
    """The form of every claim by its key; the scales are ticks of the pipeline in one of a file."""

    def ticks(of_file: int) -> Form:
        number = json_forms.whole(-LARGEST_INT, LARGEST_INT)
        return Form(lambda value: of_file * number.read(value), schema=number.schema)

    return {
        **dict.fromkeys(("makespan", "device_span"), ticks(scale)),
        "busy": listed(ticks(scale), devices),
        "peak_memory": listed(ticks(memory_scale), devices),
        **dict.fromkeys(("bubble_overhead", "bubble_rate"), FINITE),
        "objective": TEXT,
    }
