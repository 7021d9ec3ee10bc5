"""Random pipelines and valid schedules of them, for hypothesis; feasible by construction.

Independent of the package's own timing and strategies: a schedule is built by appending, one
after the other, operations whose predecessors are done.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from random import Random
from typing import Any

from hypothesis import strategies as st

from ppopt.op import Op, OpKind
from ppopt.pipeline import Pipeline
from ppopt.schedule import Schedule

F, B, W, BW = OpKind
TableRow = tuple[int, int, int, int, int, int]
"""kind, stage, microbatch, device, start, end."""
BACKWARDS = ("split", "fused", "mixed")
"""Whether the backwards of a schedule are B and W, BW, or chosen one by one."""


@st.composite
def pipelines(
    draw: st.DrawFn, *, min_devices: int = 1, min_batches: int = 1, max_devices: int = 4
) -> Pipeline:
    """Draw a pipeline: every placement, one or two routes, unequal exact costs, no limit.

    `min_batches` is per route.
    """
    devices = draw(st.integers(min_devices, max_devices))
    routes = draw(st.sampled_from([1, 1, 2]))
    return Pipeline(
        batches=routes * draw(st.integers(min_batches, 5 - routes)),
        routes=routes,
        p2p=draw(_p2p(devices)),
        **draw(_placements(devices)),
    )


@st.composite
def _placements(draw: st.DrawFn, devices: int) -> dict[str, Any]:
    """Draw the stages, their placement and their costs."""
    placement = draw(st.sampled_from([None, "linear", "interleaved", "v", "list"]))
    if placement == "list":
        extra = draw(st.lists(st.integers(0, devices - 1), max_size=3))
        order = draw(st.permutations([*range(devices), *extra]))
        return {"stages": len(order), "placement": list(order), **draw(_costs(len(order)))}
    chunks = None if placement == "linear" else draw(st.sampled_from([None, 1, 2, 3]))
    return {
        "stages": devices,
        "placement": placement,
        "chunks": chunks,
        **draw(_costs(devices)),
    }


@st.composite
def _costs(draw: st.DrawFn, entries: int) -> dict[str, Any]:
    """Draw costs: B and W may take no time, BW lies between the longer and the sum of both,
    memory_b has any sign."""
    columns = [draw(_values(entries, choices)) for choices in _CHOICES]
    forward, weight, b, saved, activation, by_b, static = columns
    return {
        "forward": forward,
        "weight": weight,
        "backward_input": b,
        "backward": [
            max(x, w) + min(x, w) * part for w, x, part in zip(weight, b, saved, strict=True)
        ],
        "activation": activation,
        "memory_b": [taken * part for taken, part in zip(activation, by_b, strict=True)],
        "static": static,
    }


_HALF, _THIRD = Fraction(1, 2), Fraction(1, 3)
_CHOICES: tuple[list[int | Fraction], ...] = (
    [1, 2, 3, _HALF, _THIRD],
    [1, 2, 0, _HALF],
    [1, 2, 0, Fraction(3, 4)],
    [1, 0, _HALF],
    [1, 2, _HALF, 0],
    [0, 1, -1, -_HALF, _THIRD],
    [0, 1, Fraction(5, 2)],
)


def _values(
    entries: int, choices: Sequence[int | Fraction]
) -> st.SearchStrategy[list[int | Fraction]]:
    one = st.sampled_from(choices)
    return one.map(lambda value: [value] * entries) | st.lists(
        one, min_size=entries, max_size=entries
    )


@st.composite
def _p2p(draw: st.DrawFn, devices: int) -> Any:
    times = st.sampled_from([0, 1, _HALF, Fraction(5, 4)])
    if draw(st.booleans()):
        return draw(times)
    size = range(devices)
    return [[0 if i == j else draw(times) for j in size] for i in size]


@st.composite
def schedules(
    draw: st.DrawFn,
    problems: st.SearchStrategy[Pipeline] | None = None,
    backwards: Sequence[str] = BACKWARDS,
) -> Schedule:
    """Draw a valid schedule; its pipeline has no memory limit, or one that the schedule keeps."""
    pipeline = draw(pipelines() if problems is None else problems)
    seed = draw(st.integers(0, 2**32 - 1))
    schedule = build(pipeline, Random(seed), draw(st.sampled_from(backwards)))
    spare = draw(st.sampled_from([None, 0, 1]))
    return schedule if spare is None else limited(schedule, [p + spare for p in peaks(schedule)])


def build(pipeline: Pipeline, random: Random, backward: str = "mixed") -> Schedule:
    """Append ready operations in random order, or the one that can start first, with idle time."""
    split = {
        (stage, microbatch): backward == "split" or (backward == "mixed" and random.random() < 0.5)
        for stage in range(pipeline.num_stages)
        for microbatch in range(pipeline.batches)
    }
    waiting = [op for place in split for op in _operations(*place, split[place])]
    eager, idle = random.random() < 0.5, random.choice((0, 0, 0.3))
    rows: dict[Op, TableRow] = {}
    while waiting:
        ready = [op for op in waiting if all(p in rows for p in _predecessors(op, split))]
        random.shuffle(ready)
        if eager:
            ready.sort(key=lambda op: _earliest(pipeline, op, rows, split))
        op = ready[0]
        waiting.remove(op)
        pause = random.randrange(1, 6) if random.random() < idle else 0
        start = _earliest(pipeline, op, rows, split) + pause
        rows[op] = row(pipeline, op, start)
    return Schedule.from_rows(pipeline, rows.values())


def row(pipeline: Pipeline, op: Op, start: int) -> TableRow:
    """Give an operation its device and its duration."""
    device = pipeline.device(op.stage, op.microbatch)
    return (*op, device, start, start + pipeline.ticks.durations[op.kind][op.stage])


def _operations(stage: int, microbatch: int, split: bool) -> list[Op]:
    return [Op(kind, stage, microbatch) for kind in ((F, B, W) if split else (F, BW))]


def _predecessors(op: Op, split: dict[tuple[int, int], bool]) -> list[Op]:
    """What must be done before an operation: the rules 1 to 3 of the semantics."""
    kind, stage, microbatch = op
    if kind is F:
        return [Op(F, stage - 1, microbatch)] if stage else []
    if kind is W:
        return [Op(B, stage, microbatch)]
    before = [Op(F, stage, microbatch)]
    if (stage + 1, microbatch) in split:
        kind = B if split[stage + 1, microbatch] else BW
        before.append(Op(kind, stage + 1, microbatch))
    return before


def _earliest(
    pipeline: Pipeline, op: Op, rows: dict[Op, TableRow], split: dict[tuple[int, int], bool]
) -> int:
    device = pipeline.device(op.stage, op.microbatch)
    free = max((end for *_, host, _, end in rows.values() if host == device), default=0)
    arrivals = [
        rows[before][5] + pipeline.ticks.p2p[rows[before][3]][device]
        for before in _predecessors(op, split)
    ]
    return max([free, *arrivals])


def table(schedule: Schedule) -> list[TableRow]:
    """The rows of a schedule as plain integers, whatever they hold."""
    columns = (column.tolist() for column in schedule.columns)
    return [(k, s, m, d, start, end) for k, s, m, d, start, end in zip(*columns, strict=True)]


def limited(schedule: Schedule, limits: Iterable[int] | None) -> Schedule:
    """The same operations under other memory limits: ticks per device, None for no limit."""
    unit = schedule.pipeline.ticks.memory
    given = None if limits is None else [unit(limit) for limit in limits]
    return replace(schedule, pipeline=replace(schedule.pipeline, mem_limit=given))


def held(
    pipeline: Pipeline, rows: Iterable[TableRow], device: int, time: int, *, starts: bool
) -> int:
    """Ticks of memory on a device at an instant, after its ends and, if `starts`, its starts."""
    ticks = pipeline.ticks
    total = ticks.static[device]
    for kind, stage, _, host, start, end in rows:
        taken, by_b = ticks.activation[stage], ticks.memory_b[stage]
        change = (taken, by_b, -taken - by_b, -taken)[kind]
        begun = start < time or (starts and start == time)
        if host == device and (begun if change > 0 else end <= time):
            total += change
    return total


def peaks(schedule: Schedule) -> list[int]:
    """Largest memory in ticks on every device, by looking at every instant of a change."""
    pipeline, rows = schedule.pipeline, table(schedule)
    instants = {time for *_, start, end in rows for time in (start, end)}
    return [
        max(held(pipeline, rows, device, time, starts=True) for time in {-1, *instants})
        for device in range(pipeline.num_devices)
    ]
