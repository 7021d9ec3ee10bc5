"""The data of a page: schedules as columns that its script unpacks. See `script/types.d.ts`."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ppopt.problem.arrays import Bools, Ints
from ppopt.problem.instance import Instance
from ppopt.problem.operation import AuxiliaryKind, OpKind
from ppopt.problem.operation_classes import ResourceKind
from ppopt.report import colours
from ppopt.report.entries import PageSchedule
from ppopt.report.gantt import BAR, DrawnKind, drawn_kinds, half_row, part_names, parts
from ppopt.report.labels import CAUSE_WORDS, KIND_WORDS, link_label, link_title
from ppopt.schedule.critical_path import critical_path
from ppopt.schedule.idle import FREE, Cause, arrivals, idle
from ppopt.schedule.link_queues import LinkQueues
from ppopt.schedule.metrics import memory_of_auxiliary, memory_of_compute
from ppopt.schedule.orders import rows_by_code, split_backwards
from ppopt.schedule.schedule import Schedule
from ppopt.schedule.timetable import ALONE

_TYPES = ("i1", "i2", "i4")


def payload(entries: Sequence[PageSchedule], *, single: bool, few: int, first: int) -> str:
    """JSON of schedules with their titles and notes, safe inside a script element.

    `single`: the page shows one of them at a time, `first` to begin with. A page that shows several
    opens without the charts of memory, with the charts of the first `few`.
    """
    schedules = [_schedule(entry.schedule) | _named(entry) for entry in entries]
    opens = {"single": single, "few": few, "first": first}
    kinds = drawn_kinds(entry.schedule for entry in entries)
    return embedded({"style": _style(kinds), **opens, "schedules": schedules})


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


def _named(entry: PageSchedule) -> dict[str, str]:
    return {"title": entry.title, "note": entry.note}


def _schedule(schedule: Schedule) -> dict[str, Any]:
    ticks = schedule.pipeline.ticks
    operations, place = _operations(schedule)
    gaps = idle(schedule)
    gaps = gaps._replace(following=place[gaps.following], subject=place[gaps.subject])
    return {
        "devices": schedule.pipeline.num_devices,
        "unit": ticks.per_unit,
        "memoryUnit": ticks.memory_per_unit,
        "timeName": schedule.pipeline.time_unit or "",
        "memoryName": schedule.pipeline.memory_unit or "",
        "last": schedule.metrics.makespan_ticks,
        "ops": _columns(operations),
        "needs": [packed(column) for column in _needs(schedule, place)],
        "gaps": _columns(gaps._asdict()),
        "critical": packed(place[critical_path(schedule, arrivals(schedule))]),
        **_shades(part_names(schedule.pipeline), drawn_kinds([schedule])),
        "static": ticks.static,
        "limits": ticks.limits,
        "peak": schedule.metrics.peak_memory_ticks,
        "links": _links(schedule),
        "collectives": _collectives(schedule),
        "gathers": any(ticks.costs.unshard_memory),
    }


def _columns(columns: Mapping[str, Ints]) -> dict[str, Any]:
    return {name: packed(column) for name, column in columns.items()}


_NAMES = ("kind", "stage", "microbatch", "device", "start", "end")
"""First columns of operations."""
_SHARED = ("stage", "device", "start", "end", "microbatch", "slice")
"""Columns that auxiliary operations have, too."""


def _operations(schedule: Schedule) -> tuple[dict[str, Ints], Ints]:
    """What devices run, optimizers behind the rest of each, and the row of every operation there.

    Behind the rows stands FREE, which is what a row of FREE finds.
    """
    half = np.where(schedule.kind == OpKind.F, 1, 2)
    takes, gives = memory_of_compute(schedule)
    columns = dict(zip(_NAMES, schedule.columns, strict=True)) | {
        "slice": schedule.slice,
        "part": parts(schedule),
        "lane": np.where(schedule.pair == ALONE, 0, half),
        "takes": takes,
        "gives": gives,
    }
    steps = schedule.auxiliary.kind == AuxiliaryKind.OPTIMIZER
    added = _around(schedule, steps)
    order = np.argsort(np.append(schedule.device, added["device"]), kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    both = {name: np.append(column, added[name])[order] for name, column in columns.items()}
    return both, np.append(place[: len(schedule)], FREE)


def _around(schedule: Schedule, chosen: Bools) -> dict[str, Ints]:
    """Columns of some auxiliary operations; the microbatch of what a step has once is FREE."""
    given, kinds = schedule.auxiliary, drawn_kinds([schedule])
    codes = [kinds.index(AuxiliaryKind(value)) for value in given.kind[chosen].tolist()]
    part = np.zeros((schedule.pipeline.routes, schedule.pipeline.num_stages), dtype=np.int64)
    route = schedule.microbatch * schedule.pipeline.routes // schedule.pipeline.batches
    part[route, schedule.stage] = parts(schedule)
    kind = given.kind[chosen].tolist()
    single = given.kind[chosen] == AuxiliaryKind.OPTIMIZER
    takes, gives = memory_of_auxiliary(schedule)
    return {
        "kind": np.array(codes, dtype=np.int64),
        **{name: getattr(given, name)[chosen] for name in _SHARED},
        "part": np.where(single, 0, part[given.route, given.stage][chosen]),
        "lane": np.array(list(map(half_row, kind)), dtype=np.int64),
        "takes": takes[chosen],
        "gives": gives[chosen],
    }


def queue_words(schedule: Schedule) -> str:
    """What the queues of devices run, besides compute; empty: there is nothing."""
    given = schedule.auxiliary
    collectives = ~given.moves & (given.kind != AuxiliaryKind.OPTIMIZER)
    each = {"collectives": collectives.any(), "moves to the host": given.moves.any()}
    return " and ".join(words for words, there in each.items() if there)


def _collectives(schedule: Schedule) -> dict[str, Any] | None:
    """Operations of the queues of devices, and what they are in words; None: there are none."""
    words = queue_words(schedule)
    if not words:
        return None
    chosen = schedule.auxiliary.kind != AuxiliaryKind.OPTIMIZER
    return {"words": words, "rows": _columns(_around(schedule, chosen))}


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
        **dict.fromkeys(("lane", "takes", "gives"), none),
        **{name: getattr(carried, name) for name in ("kind", "stage", "microbatch", "slice")},
        **{name: getattr(carried, name) for name in ("start", "end")},
    }
    resources = [
        resource for resource in links.instance.resources if resource.kind is ResourceKind.LINK
    ]
    return {
        "pairs": links.pairs,
        "labels": list(map(link_label, resources)),
        "titles": list(map(link_title, resources)),
        "rows": _columns(columns),
    }


def _needs(schedule: Schedule, place: Ints) -> list[Ints]:
    """Rows of the predecessors of every operation: columns of the first, the second, ...

    `place` is the row of every operation of the schedule. FREE stands for no predecessor.
    """
    split = split_backwards(schedule)
    flow = Instance.with_backwards(schedule.pipeline, split).chosen_flow(split)
    row = rows_by_code(schedule)
    before, after = place[row[flow.before]], place[row[flow.after]]
    order = np.argsort(after, kind="stable")
    before, after = before[order], after[order]
    turn = np.arange(len(after)) - np.searchsorted(after, after)
    rows = len(schedule) + int((schedule.auxiliary.kind == AuxiliaryKind.OPTIMIZER).sum())
    needs = np.full((int(turn.max(initial=-1)) + 1, rows), FREE)
    needs[turn, after] = before
    return list(needs)


def _shades(names: Sequence[str], kinds: Sequence[DrawnKind]) -> dict[str, Any]:
    """Names of the parts, and colours by kind and part: the last part is always the lightest."""
    each = range(len(names))
    tones = [[colours.shade(kind, part, len(names)) for part in each] for kind in kinds]
    return {
        "parts": names,
        "colours": tones,
        "inks": [list(map(colours.ink, shades)) for shades in tones],
        "memory": [colours.memory_shade(part, len(names)) for part in each],
    }


def _style(kinds: Sequence[DrawnKind]) -> dict[str, Any]:
    """Colours and words of kinds and causes."""
    causes = [
        {"name": cause.label, "words": CAUSE_WORDS[cause]} | colours.IDLE_LOOKS[cause]._asdict()
        for cause in Cause
    ]
    return {
        "kinds": [
            {"name": kind.name, "words": KIND_WORDS[kind], "colour": colours.HUES[kind]}
            for kind in kinds
        ],
        "causes": causes,
        "static": colours.STATIC,
        "gathered": colours.GATHERED,
        "limit": colours.LIMIT,
        "bar": BAR,
        "several": colours.SEVERAL,
        "most": colours.MOST_OF_IT,
    }
