"""The data of a page: schedules as columns that its script unpacks. See `script/types.d.ts`."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ppopt.problem.arrays import Ints
from ppopt.problem.instance import Instance
from ppopt.problem.operation import OpKind
from ppopt.report import colours
from ppopt.report.entries import PageSchedule
from ppopt.report.gantt import BAR, part_names, parts
from ppopt.report.labels import CAUSE_WORDS, KIND_WORDS, link_label, link_title
from ppopt.schedule.critical_path import critical_path
from ppopt.schedule.idle import FREE, Cause, arrivals, idle
from ppopt.schedule.link_queues import LinkQueues
from ppopt.schedule.metrics import memory_tables
from ppopt.schedule.orders import rows_by_code, split_backwards
from ppopt.schedule.schedule import Schedule
from ppopt.schedule.timetable import ALONE

_TYPES = ("i1", "i2", "i4")


def payload(entries: Sequence[PageSchedule], *, single: bool, few: int, first: int) -> str:
    """JSON of schedules with their titles and notes, safe inside a script element.

    `single`: the page shows one of them at a time, `first` to begin with. A page that shows several
    opens without the charts of memory, with the charts of the first `few`.
    """
    schedules = [_schedule(entry) for entry in entries]
    opens = {"single": single, "few": few, "first": first}
    return embedded({"style": _style(), **opens, "schedules": schedules})


def embedded(data: Mapping[str, Any]) -> str:
    """JSON that a browser never takes for the end of its script element."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")


def packed(column: Ints) -> dict[str, str]:
    """A column of whole numbers in base64: the narrowest type that holds it, little-endian."""
    low, high = int(column.min(initial=0)), int(column.max(initial=0))
    fits = (name for name in _TYPES if np.iinfo(name).min <= low and high <= np.iinfo(name).max)
    name = next(fits, "f8")
    return {"type": name, "base64": base64.b64encode(column.astype(f"<{name}").tobytes()).decode()}


def _schedule(entry: PageSchedule) -> dict[str, Any]:
    schedule = entry.schedule
    ticks = schedule.pipeline.ticks
    takes, gives = memory_tables(schedule.pipeline)
    return {
        "title": entry.title,
        "note": entry.note,
        "devices": schedule.pipeline.num_devices,
        "unit": ticks.per_unit,
        "memoryUnit": ticks.memory_per_unit,
        "timeName": schedule.pipeline.time_unit or "",
        "memoryName": schedule.pipeline.memory_unit or "",
        "last": schedule.metrics.makespan,
        "ops": _columns(_operations(schedule)),
        "needs": [packed(column) for column in _needs(schedule)],
        "gaps": _columns(idle(schedule)._asdict()),
        "critical": packed(critical_path(schedule, arrivals(schedule))),
        **_shades(part_names(schedule.pipeline)),
        "takes": takes.tolist(),
        "gives": gives.tolist(),
        "static": ticks.static,
        "limits": ticks.limits,
        "peak": schedule.metrics.peak_memory,
        "links": _links(schedule),
    }


def _columns(columns: Mapping[str, Ints]) -> dict[str, Any]:
    return {name: packed(column) for name, column in columns.items()}


def _operations(schedule: Schedule) -> dict[str, Ints]:
    names = ("kind", "stage", "microbatch", "device", "start", "end")
    half = np.where(schedule.kind == OpKind.F, 1, 2)
    return dict(zip(names, schedule.columns, strict=True)) | {
        "slice": schedule.slice,
        "part": parts(schedule),
        "lane": np.where(schedule.pair == ALONE, 0, half),
    }


def _links(schedule: Schedule) -> dict[str, Any] | None:
    """Transfers as operations of their link, and the devices of every link; None: no links.

    `device` is the number of the link. A transfer has the kind and the part of what it carries.
    """
    if not schedule.pipeline.has_links:
        return None
    carried, links = schedule.transfers, LinkQueues(schedule.pipeline)
    none = np.zeros(len(carried), dtype=np.int64)
    part = np.zeros(schedule.pipeline.num_stages, dtype=np.int64)
    part[schedule.stage] = parts(schedule)
    columns = {
        "device": links.link[links.numbers_of(carried)],
        "part": part[carried.stage],
        "lane": none,
        **{name: getattr(carried, name) for name in ("kind", "stage", "microbatch", "slice")},
        **{name: getattr(carried, name) for name in ("start", "end")},
    }
    resources = links.instance.resources[schedule.pipeline.num_devices :]
    return {
        "pairs": links.pairs,
        "labels": list(map(link_label, resources)),
        "titles": list(map(link_title, resources)),
        "rows": _columns(columns),
    }


def _needs(schedule: Schedule) -> list[Ints]:
    """Rows of the predecessors of every operation: columns of the first, the second, ...

    FREE stands for no predecessor.
    """
    split = split_backwards(schedule)
    flow = Instance.with_backwards(schedule.pipeline, split).chosen_flow(split)
    row = rows_by_code(schedule)
    before, after = row[flow.before], row[flow.after]
    place = np.argsort(after, kind="stable")
    before, after = before[place], after[place]
    turn = np.arange(len(after)) - np.searchsorted(after, after)
    needs = np.full((int(turn.max(initial=-1)) + 1, len(schedule)), FREE)
    needs[turn, after] = before
    return list(needs)


def _shades(names: Sequence[str]) -> dict[str, Any]:
    """Names of the parts, and colours by kind and part: the last part is always the lightest."""
    each = range(len(names))
    tones = [[colours.shade(kind, part, len(names)) for part in each] for kind in OpKind]
    return {
        "parts": names,
        "colours": tones,
        "inks": [list(map(colours.ink, shades)) for shades in tones],
        "memory": [colours.memory_shade(part, len(names)) for part in each],
    }


def _style() -> dict[str, Any]:
    """Colours and words of kinds and causes."""
    kinds = [
        {"name": kind.name, "words": KIND_WORDS[kind], "colour": colours.HUES[kind]}
        for kind in OpKind
    ]
    causes = [
        {"name": cause.label, "words": CAUSE_WORDS[cause]} | colours.IDLE_LOOKS[cause]._asdict()
        for cause in Cause
    ]
    return {
        "kinds": kinds,
        "causes": causes,
        "static": colours.STATIC,
        "limit": colours.LIMIT,
        "bar": BAR,
        "several": colours.SEVERAL,
        "most": colours.MOST_OF_IT,
    }
