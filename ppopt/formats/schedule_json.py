"""The native schedule file: a schedule with its pipeline, exact, in JSON.

    {
    "schema": 1,
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

Operations stand sorted by device, then start. If there are two routes, slices or overlapped
pairs, every operation has three more fields: route, slice, and the number of its pair, which its
partner bears too (null: it runs alone). If links are resources (`link_mode` of the pipeline),
every operation has one field more, null; and behind the operations stand the transfers:

    ["SEND_F", 0, 0, 0, 1000, 1100, 0, 0, null, 1]

The kind is SEND_F (an activation) or SEND_B (a gradient); stage and device are those that send,
and the last field is the device that receives. They stand sorted by the two devices, then start.

Operations around the microbatches stand among the others, and belong to no microbatch:

    ["UNSHARD", 2, null, 0, 0, 250]
    ["GRADIENT_SYNC", 2, null, 0, 9000, 9500]
    ["OPTIMIZER", null, null, 0, 9500, 9600]       of all stages of a device

Where operations have three more fields, theirs are route (of an optimizer null), null, null.

Moves to the host and back stand there, too, with their microbatch, as F and B have it:

    ["OFFLOAD", 2, 0, 0, 1000, 1500]
    ["RELOAD", 2, 0, 0, 7500, 8000]

`claims` are makespan, device_span, busy and
peak_memory (lists per device) in ticks, bubble_overhead, and bubble_rate on `objective`;
a schedule too incomplete to be measured claims nothing. `origin` and `claims` may be absent.

Files of earlier versions have operations of no length that a frozen stage does not run. The reader
drops them.

The reader answers for the form of a file alone: whole numbers that arrays can hold. Whether the
operations are a schedule of the pipeline (none missing, none twice, none on a stage that does
not exist) is for `ppopt.verify` to say.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from math import gcd
from pathlib import Path
from typing import Any

import numpy as np

from ppopt.errors import InputError
from ppopt.formats import model_json, origin_json, pipeline_json
from ppopt.formats.documents import finite_float, label, parse_json, read_text
from ppopt.formats.fields import finite, section, shown, text, whole, wholes, within
from ppopt.problem.costs import MOST_TICKS
from ppopt.problem.kinds import ONCE
from ppopt.problem.operation import NUM_KINDS, AuxiliaryKind, OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.schedule import Schedule
from ppopt.schedule.timetable import ALONE

SCHEMA = 1
LARGEST_FILE = 2**28
"""Bytes of a schedule file: some seven million operations."""
LARGEST_INT = 2**62
"""Numbers in `ops` and `claims` lie within this, either sign: sums of two fit int64."""

UNITS = ("ticks_per_unit", "memory_ticks_per_unit")
_FIELDS = ("stage", "microbatch", "device", "start", "end", "route", "slice", "pair", "link")
_CODES = {kind.name: int(kind) for kind in OpKind}
_SENDS = {"SEND_F": int(OpKind.F), "SEND_B": int(OpKind.B)}
"""Kinds of transfers."""
_AUXILIARY = {kind.name: int(kind) for kind in AuxiliaryKind}
KINDS = (*_CODES, *_SENDS, *_AUXILIARY)
"""Names of all kinds in `ops`."""
TOTALS = ("makespan", "device_span")
LISTS = ("busy", "peak_memory")
RATIOS = ("bubble_overhead", "bubble_rate")


def schedule_to_object(schedule: Schedule) -> dict[str, Any]:
    """Turn a schedule into an object of JSON."""
    ticks = schedule.pipeline.ticks
    return {
        "schema": SCHEMA,
        "ticks_per_unit": ticks.per_unit,
        "memory_ticks_per_unit": ticks.memory_per_unit,
        "pipeline": pipeline_json.pipeline_to_object(schedule.pipeline),
        "origin": _origin(schedule),
        "claims": claims(schedule),
        "ops": _ops(schedule),
    }


def _origin(schedule: Schedule) -> dict[str, Any]:
    origin = origin_json.origin_to_object(schedule.origin)
    if schedule.pipeline.model is None:
        return origin
    return origin | {model_json.MEMBER: model_json.model_to_object(schedule.pipeline)}


def _ops(schedule: Schedule) -> list[list[Any]]:
    pipeline, names = schedule.pipeline, [kind.name for kind in OpKind]
    kind, *rest = (column.tolist() for column in schedule.columns)
    columns = [[names[number] for number in kind], *rest]
    further = _has_further_fields(schedule)
    if further:
        columns += [
            [pipeline.route(microbatch) for microbatch in schedule.microbatch.tolist()],
            schedule.slice.tolist(),
            [None if pair == ALONE else pair for pair in schedule.pair.tolist()],
        ]
    if pipeline.has_links:
        columns.append([None] * len(schedule))
    rows = [*map(list, zip(*columns, strict=True))]
    if len(schedule.auxiliary):
        rows += _auxiliary(schedule, 3 * further + pipeline.has_links)
        rows.sort(key=lambda row: (row[3], row[4]))
    return [*rows, *_transfers(schedule)]


def _has_further_fields(schedule: Schedule) -> bool:
    """Whether operations have a route, a slice and a pair."""
    pipeline, paired = schedule.pipeline, bool((schedule.pair != ALONE).any())
    return pipeline.routes > 1 or pipeline.num_slices > 1 or paired or pipeline.has_links


def _auxiliary(schedule: Schedule, further: int) -> Iterator[list[Any]]:
    """The operations besides compute and transfers, with so many further fields."""
    for op, device, start, end in schedule.auxiliary.rows():
        of_device = op.kind is AuxiliaryKind.OPTIMIZER
        stage, route = (None, None) if of_device else (op.stage, op.route)
        microbatch, part = (op.microbatch, op.slice) if op.kind.per_microbatch else (None, None)
        rest = [route, part, None, None][:further]
        yield [op.kind.name, stage, microbatch, device, start, end, *rest]


def _transfers(schedule: Schedule) -> Iterator[list[Any]]:
    names = {kind: name for name, kind in _SENDS.items()}
    columns = (column.tolist() for column in schedule.transfers.columns)
    for kind, stage, microbatch, source, target, start, end, part in zip(*columns, strict=True):
        route = schedule.pipeline.route(microbatch)
        yield [names[kind], stage, microbatch, source, start, end, route, part, None, target]


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
    """Whether every operation has a known kind, stage and device, and every device has one."""
    pipeline = schedule.pipeline
    bounds = ((schedule.kind, NUM_KINDS), (schedule.stage, pipeline.num_stages))
    known = all(bool(((column >= 0) & (column < size)).all()) for column, size in bounds)
    used = np.unique(schedule.device)
    return known and np.array_equal(used, np.arange(pipeline.num_devices))


def read_schedule(path: str | Path) -> tuple[Schedule, dict[str, Any]]:
    """Read a native schedule file; see `loads`."""
    return loads(read_text(Path(path), LARGEST_FILE), label(Path(path)))


def loads(content: str, where: str) -> tuple[Schedule, dict[str, Any]]:
    """Read the text of a native schedule file: the schedule and its claims.

    Raises InputError, beginning with `where` and naming the place, on anything that is not
    of this form.
    """
    return within(where, schedule_from_object, parse_json(content, where, finite_float))


def schedule_from_object(
    document: object, expected: Pipeline | None = None
) -> tuple[Schedule, dict[str, Any]]:
    """Read an object made by `schedule_to_object`; see `loads`.

    `expected` is a pipeline that the schedule may belong to. If the object describes exactly this
    pipeline, it is used, because making a pipeline takes most of the time.
    """
    file = section(document, ("schema", *UNITS, "pipeline", "ops"), ("origin", "claims"))
    if type(file["schema"]) is not int or file["schema"] != SCHEMA:
        raise InputError(f"schema: {shown(file['schema'])} is not {SCHEMA}, the one that is read")
    unit, memory_unit = (within(key, whole, file[key], 1, MOST_TICKS) for key in UNITS)
    stated, model = file.get("origin", {}), None
    if isinstance(stated, dict):
        stated = dict(stated)
        model = stated.pop(model_json.MEMBER, None)
    if expected is not None and (unit, memory_unit, file["pipeline"], model) == _said(expected):
        pipeline = expected
    else:
        read = pipeline_json.pipeline_from_object
        pipeline = within("pipeline", read, file["pipeline"], unit, memory_unit)
        if model is not None:
            pipeline = within("origin: model", model_json.restored, pipeline, model)
    origin = within("origin", origin_json.origin_from_object, stated)
    rows, transfers, auxiliary = _rows(file["ops"], pipeline)
    rows = _without_absent(rows, pipeline)
    timed = ((rows, 4), (transfers, 5), (auxiliary, 3))
    pipeline, coarser = _on_common_tick(pipeline, timed, unit)
    memory_coarser = memory_unit // pipeline.ticks.memory_per_unit
    claimed = within("claims", _claims, file.get("claims", {}), pipeline, coarser, memory_coarser)
    return Schedule.from_rows(pipeline, rows, origin, transfers, auxiliary), claimed


def _said(pipeline: Pipeline) -> tuple[int, int, dict[str, Any], dict[str, Any] | None]:
    """What the object of a schedule says of its pipeline."""
    model = None if pipeline.model is None else model_json.model_to_object(pipeline)
    ticks = pipeline.ticks
    return ticks.per_unit, ticks.memory_per_unit, pipeline_json.pipeline_to_object(pipeline), model


Table = list[list[int]]
"""Rows of numbers."""


def _rows(ops: object, pipeline: Pipeline) -> tuple[Table, Table, Table]:
    """The operations, the transfers, and those besides both."""
    if not isinstance(ops, list):
        raise InputError(f"ops: {shown(ops)} is not a list")
    rows: Table = []
    transfers: Table = []
    auxiliary: Table = []
    try:
        for entry in ops:
            kind = entry[0] if isinstance(entry, list) and entry else None
            if kind in tuple(_SENDS):
                transfers.append(_transfer(entry, pipeline))
            elif kind in tuple(_AUXILIARY):
                auxiliary.append(_auxiliary_row(entry, pipeline))
            else:
                rows.append(_row(entry, pipeline))
    except InputError as error:
        raise InputError(f"ops[{sum(map(len, (rows, transfers, auxiliary)))}]: {error}") from None
    return rows, transfers, auxiliary


def _without_absent(rows: Table, pipeline: Pipeline) -> Table:
    """The rows without operations of no length that the pipeline does not have.

    Earlier versions wrote B, W and BW of frozen stages that run none. As long as an F are those
    that ran as one with it: the F then runs alone. What is left is for the verifier.
    """
    if pipeline.has_all_operations:
        return rows
    forwards = {row[7]: row for row in rows if row[0] == OpKind.F and row[7] != ALONE}
    kept: Table = []
    for row in rows:
        kind, stage, _, *span, _, pair = row
        absent = 0 <= stage < pipeline.num_stages and not pipeline.has_operations[kind][stage]
        forward = forwards.get(pair)
        if absent and forward is not None and forward[3:6] == span:
            forward[7] = ALONE
        elif not absent or span[1] != span[2]:
            kept.append(row)
    return kept


def _auxiliary_row(entry: list[Any], pipeline: Pipeline) -> list[int]:
    kind, *fields = entry
    if AuxiliaryKind[kind].per_microbatch:
        return _move(entry, pipeline)
    if len(entry) not in (6, 9, 10) or any(field is not None for field in (fields[1], *fields[6:])):
        raise InputError(
            f"{shown(entry)} is not [kind, stage, null, device, start, end], or this with route, "
            "null, null behind it"
        )
    stage, _, device, start, end = fields[:5]
    route = fields[5] if fields[5:] else 0
    of_device = kind == AuxiliaryKind.OPTIMIZER.name
    if of_device:
        if stage is not None or route not in (0, None):
            raise InputError(f"{kind}: stage and route are null: it is of all stages of a device")
        stage, route = _lowest_stage(pipeline, device)
    named = {"stage": stage, "device": device, "start": start, "end": end, "route": route}
    for field, number in named.items():
        _check_number(field, number)
    return [_AUXILIARY[kind], stage, device, start, end, route, ONCE, 0]


def _move(entry: list[Any], pipeline: Pipeline) -> list[int]:
    """A move to the host or back, of a microbatch."""
    kind, *fields = entry
    if len(entry) not in (6, 9, 10) or any(field is not None for field in fields[7:]):
        raise InputError(
            f"{shown(entry)} is not [kind, {', '.join(_FIELDS[:5])}], or this with route, slice, "
            "null behind it"
        )
    for field, number in zip(_FIELDS, fields[:7], strict=False):
        _check_number(field, number)
    stage, microbatch, device, start, end = fields[:5]
    known = 0 <= microbatch < pipeline.batches
    route = fields[5] if fields[5:] else pipeline.route(microbatch) if known else 0
    _check_route(pipeline, microbatch, route)
    return [_AUXILIARY[kind], stage, device, start, end, route, microbatch, (fields[6:] or [0])[0]]


def _lowest_stage(pipeline: Pipeline, device: object) -> tuple[int, int]:
    """The lowest stage of a device and its route; 0 if there is no such device."""
    for route, hosts in enumerate(pipeline.hosts):
        if device in hosts:
            return hosts.index(device), route
    return 0, 0


def _transfer(entry: list[Any], pipeline: Pipeline) -> list[int]:
    if len(entry) != 10 or entry[8] is not None:
        raise InputError(
            f"{shown(entry)} is not [kind, {', '.join(_FIELDS[:7])}, null, receiving device]"
        )
    kind, *numbers = entry
    for field, number in zip(_FIELDS, numbers, strict=True):
        if field != "pair":
            _check_number(field, number)
    stage, microbatch, device, start, end, route, part, _, link = numbers
    _check_route(pipeline, microbatch, route)
    return [_SENDS[kind], stage, microbatch, device, link, start, end, part]


def _check_number(field: str, number: object) -> None:
    if type(number) is not int or not -LARGEST_INT <= number <= LARGEST_INT:
        raise InputError(f"{field}: {shown(number)} is not a whole number of at most 2^62")


def _row(entry: object, pipeline: Pipeline) -> list[int]:
    if not isinstance(entry, list) or len(entry) not in (6, 9, 10):
        raise InputError(
            f"{shown(entry)} is not [kind, {', '.join(_FIELDS[:5])}], or this with "
            f"{', '.join(_FIELDS[5:8])} behind it"
        )
    kind, *numbers = entry[:9]
    if len(numbers) == 8 and numbers[7] is None:
        numbers[7] = ALONE
    if not isinstance(kind, str) or kind not in _CODES:
        raise InputError(f"kind {shown(kind)} is unknown; use {', '.join(_CODES)}")
    if entry[9:] not in ([], [None]):
        raise InputError("link: only transfers (SEND_F, SEND_B) have one; write null")
    for field, number in zip(_FIELDS, numbers, strict=False):
        _check_number(field, number)
    six, more = numbers[:5], numbers[5:]
    if more:
        _check_route(pipeline, six[1], more[0])
    return [_CODES[kind], *six, *(more[1:] or (0, ALONE))]


def _check_route(pipeline: Pipeline, microbatch: int, route: int) -> None:
    """Check the route of a microbatch that exists: it follows from its number."""
    if 0 <= microbatch < pipeline.batches and route != pipeline.route(microbatch):
        raise InputError(
            f"route: {route} is not {pipeline.route(microbatch)}, that of microbatch {microbatch}; "
            "the first half of the batches takes route 0"
        )


def _on_common_tick(
    pipeline: Pipeline, timed: Iterable[tuple[Table, int]], unit: int
) -> tuple[Pipeline, int]:
    """Turn starts and ends from ticks of the file into those of the pipeline, which are coarser.

    If operations start between the ticks that all costs share, the pipeline's are divided.
    `timed`: tables, each with the column of the start, before that of the end. Returns the pipeline
    and how many ticks of the file make one of its own.
    """
    coarser = unit // pipeline.ticks.per_unit
    common = coarser
    for table, start in timed:
        for row in table:
            common = gcd(common, row[start], row[start + 1])
    if common < coarser:
        pipeline = replace(pipeline, tick_divisor=coarser // common)
    if common > 1:
        for table, start in timed:
            for row in table:
                row[start : start + 2] = row[start] // common, row[start + 1] // common
    return pipeline, common


def _coarse(ticks: int, coarser: int) -> int:
    """Turn ticks of the file into those of the pipeline, which may be coarser."""
    if ticks % coarser:
        raise InputError(f"{ticks} is not a multiple of {coarser}, the tick that all times share")
    return ticks // coarser


def _claims(value: object, pipeline: Pipeline, coarser: int, memory_coarser: int) -> dict[str, Any]:
    stated = section(value, (), (*TOTALS, *LISTS, *RATIOS, "objective"))
    checked: dict[str, Any] = {}
    for key, figure in stated.items():
        tick = memory_coarser if key == "peak_memory" else coarser
        if key in TOTALS:
            checked[key] = within(key, _ticks, figure, tick)
        elif key in LISTS:
            figures = within(key, wholes, figure, pipeline.num_devices, -LARGEST_INT, LARGEST_INT)
            checked[key] = [within(key, _coarse, entry, tick) for entry in figures]
        elif key == "objective":
            checked[key] = within(key, text, figure)
        else:
            checked[key] = float(within(key, finite, figure))
    return checked


def _ticks(value: object, coarser: int) -> int:
    return _coarse(whole(value, -LARGEST_INT, LARGEST_INT), coarser)


__all__ = [
    "claims",
    "dumps",
    "loads",
    "read_schedule",
    "schedule_from_object",
    "schedule_to_object",
]
