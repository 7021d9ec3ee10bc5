"""The data of a page: schedules as columns that its script unpacks. See `script/types.d.ts`."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ppopt.problem.arrays import Ints
from ppopt.problem.kinds import RECORDS, Kind, Per
from ppopt.problem.operation import ONCE
from ppopt.report import colours
from ppopt.report.drawing import (
    BAR,
    CHARTS,
    GANTT,
    LINKS,
    ChartKind,
    Drawing,
    described,
    drawing,
    drawn_kinds,
    part_names,
)
from ppopt.report.entries import PageSchedule
from ppopt.report.labels import CAUSE_TEXTS, describe_microbatches
from ppopt.schedule.idle import Cause, idle
from ppopt.schedule.metrics import memory_of
from ppopt.schedule.operations import occurs_per
from ppopt.schedule.schedule import Schedule
from ppopt.schedule.waits import FREE, Waits, critical_path, waits

_TYPES = ("i1", "i2", "i4")


def payload(entries: Sequence[PageSchedule], *, single: bool, few: int, first: int) -> str:
    """JSON of schedules with their titles and notes, safe inside a script element.

    `single`: the page shows one of them at a time, `first` to begin with. A page that shows several
    opens without the charts of memory, with the charts of the first `few`.
    """
    kinds = drawn_kinds(entry.schedule for entry in entries)
    schedules = [
        _schedule(entry.schedule, kinds) | {"title": entry.title, "note": entry.note}
        for entry in entries
    ]
    opens = {"single": single, "few": few, "first": first}
    return embedded({"style": _style(kinds), **opens, "schedules": schedules})


def embedded(data: Mapping[str, object]) -> str:
    """JSON that a browser never takes for the end of its script element."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")


def data_element(name: str, data: Mapping[str, object]) -> str:
    """A script element that holds data as JSON, under its name."""
    return f'<script type="application/json" id="{name}">{embedded(data)}</script>'


def packed(column: Ints) -> dict[str, str]:
    """A column of whole numbers in base64: the narrowest type that holds it, little-endian."""
    low, high = int(column.min(initial=0)), int(column.max(initial=0))
    fits = (name for name in _TYPES if np.iinfo(name).min <= low and high <= np.iinfo(name).max)
    name = next(fits, "f8")
    return {"type": name, "base64": base64.b64encode(column.astype(f"<{name}").tobytes()).decode()}


def _schedule(schedule: Schedule, kinds: Sequence[Kind]) -> dict[str, Any]:
    ticks, drawn = schedule.pipeline.ticks, drawing(schedule, GANTT)
    memory, flow = memory_of(schedule.operations), waits(schedule)
    # the row of every operation of a microbatch; behind them FREE, which is what FREE finds
    place = np.append(np.flatnonzero(drawn.bars.microbatch != ONCE), FREE)
    gaps = idle(schedule, flow)
    gaps = gaps._replace(following=place[gaps.following], subject=place[gaps.subject])
    return {
        "devices": schedule.pipeline.num_devices,
        "unit": ticks.per_unit,
        "memoryUnit": ticks.memory_per_unit,
        "timeName": schedule.pipeline.time_unit or "",
        "memoryName": schedule.pipeline.memory_unit or "",
        "last": schedule.metrics.makespan_ticks,
        "letters": _letters(drawn),
        "ops": _columns(_bars(drawn, kinds, memory)),
        "needs": [packed(column) for column in _needs(flow, place, len(drawn.bars))],
        "gaps": _columns(gaps._asdict()),
        "critical": packed(place[critical_path(schedule, flow)]),
        **_shades(part_names(schedule.pipeline), kinds),
        "static": ticks.static,
        "limits": ticks.limits,
        "peak": schedule.metrics.peak_memory_ticks,
        "charts": [
            _chart(flow, chart, kinds, memory, place)
            for chart in CHARTS[1:]
            if described(schedule, chart)
        ],
        "microbatches": describe_microbatches(schedule.pipeline),
        "gathers": bool(memory[0][schedule.operations.microbatch == ONCE].any()),
    }


def _columns(columns: Mapping[str, Ints]) -> dict[str, Any]:
    return {name: packed(column) for name, column in columns.items()}


def _bars(drawn: Drawing, kinds: Sequence[Kind], memory: tuple[Ints, Ints]) -> dict[str, Ints]:
    """Columns of the bars of one chart; `device` is their line."""
    bars, code = drawn.bars, np.zeros(len(RECORDS), dtype=np.int64)
    code[list(kinds)] = np.arange(len(kinds))
    allocated, freed = (amounts[drawn.rows] for amounts in memory)
    shared = ("stage", "microbatch", "start", "end", "slice")
    return {
        "kind": code[bars.kind],
        **{name: getattr(bars, name) for name in shared},
        "device": drawn.line_in_chart,
        "part": drawn.part,
        "lane": drawn.half,
        "takes": allocated,
        "gives": freed,
    }


def _letters(drawn: Drawing) -> int:
    """Digits of the longest number in a bar."""
    stage = np.where(occurs_per(Per.STAGE)[drawn.bars.kind], drawn.bars.stage, 0)
    number = np.where(drawn.bars.microbatch == ONCE, stage, drawn.bars.microbatch)
    return len(str(number.max(initial=0)))


def _chart(
    flow: Waits,
    chart: ChartKind,
    kinds: Sequence[Kind],
    memory: tuple[Ints, Ints],
    place: Ints,
) -> dict[str, Any]:
    drawn, description = drawing(flow.schedule, chart), described(flow.schedule, chart)
    (lines,), bars = drawn.lines, drawn.bars
    by_device = chart is not LINKS
    line = "device" if by_device else chart.line
    by_stage = ", by stage" if (bars.microbatch == ONCE).all() else ""
    produced, used = (column[drawn.rows] for column in _ends(flow, place))
    columns = {"source": bars.device, "target": bars.target, "made": produced, "used": used}
    return {
        "name": chart.name,
        "heading": f"{description} of every {line}{by_stage}, one at a time",
        "axis": line,
        "counted": chart.counted,
        "labels": None if by_device else [row.label for row in lines],
        "titles": [f"{description} of {row.title}" if by_device else row.title for row in lines],
        "devices": [row.devices for row in lines],
        "letters": _letters(drawn),
        "rows": _columns(_bars(drawn, kinds, memory) | columns),
    }


def _ends(flow: Waits, place: Ints) -> tuple[Ints, Ints]:
    """Rows of the compute that an operation of a microbatch follows, and of what follows it.

    FREE: there is none.
    """
    operations = flow.schedule.operations
    row = place[flow.compute_row]
    produced, used = np.full((2, len(operations)), FREE)
    produced[flow.after], used[flow.before] = row[flow.before], row[flow.after]
    once = operations.microbatch == ONCE
    produced[once] = used[once] = FREE
    return produced, used


def _needs(flow: Waits, place: Ints, rows: int) -> list[Ints]:
    """Rows of the predecessors of every operation: columns of the first, the second, ...

    `place` is the row of every operation of a microbatch, of so many rows. FREE stands for no
    predecessor.
    """
    before, after = place[flow.makers[flow.data]], place[flow.compute_row[flow.after[flow.data]]]
    order = np.argsort(after, kind="stable")
    before, after = before[order], after[order]
    turn = np.arange(len(after)) - np.searchsorted(after, after)
    needs = np.full((int(turn.max(initial=-1)) + 1, rows), FREE)
    needs[turn, after] = before
    return list(needs)


def _shades(names: Sequence[str], kinds: Sequence[Kind]) -> dict[str, Any]:
    """Names of the parts, and colours by kind and part: the last part is always the lightest."""
    each = range(len(names))
    tones = [[colours.shade(kind, part, len(names)) for part in each] for kind in kinds]
    return {
        "parts": names,
        "colours": tones,
        "inks": [list(map(colours.ink, shades)) for shades in tones],
        "memory": [colours.memory_shade(part, len(names)) for part in each],
    }


def _style(kinds: Sequence[Kind]) -> dict[str, Any]:
    """Colours and words of kinds and causes."""
    return {
        "kinds": [
            {
                "name": record.name,
                "words": record.label,
                "colour": colours.HUES[record.kind],
                "hidden": record.name if record.carries is None else record.carries.name,
                "staged": record.per is Per.STAGE,
            }
            for record in (RECORDS[kind] for kind in kinds)
        ],
        "causes": [
            {"name": cause.label, "words": CAUSE_TEXTS[cause]} | colours.IDLE_LOOKS[cause]._asdict()
            for cause in Cause
        ],
        "static": colours.STATIC,
        "gathered": colours.GATHERED,
        "limit": colours.LIMIT,
        "bar": BAR,
        "several": colours.SEVERAL,
        "most": colours.MIN_DOMINANT_SHARE,
    }
