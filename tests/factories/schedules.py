"""Random pipelines and valid schedules of them, for hypothesis; feasible by construction.

Independent of the package's own timing and strategies: a schedule is built by appending, one
after the other, operations whose predecessors are done. Strategies are made once and kept, because
making and checking one takes longer than drawing from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cache
from random import Random
from typing import Any

from hypothesis import strategies as st

from ppopt.problem.operation import Op, OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.schedule import Schedule
from tests.factories.relaxations import with_stage_costs
from tests.oracles.whole_backward import bw_allocates

F, B, W, BW = OpKind
TableRow = tuple[int, int, int, int, int, int, int, int]
"""kind, stage, microbatch, device, start, end, slice, pair."""
ALONE = -1
Slot = tuple[int, int, int]
"""stage, microbatch, slice."""
BACKWARDS = ("split", "fused", "mixed")
"""Whether the backwards of a schedule are B and W, BW, or chosen one by one."""


def durations(pipeline: Pipeline) -> list[int]:
    """Ticks of every number of an operation, from the table of the pipeline alone."""
    pieces = pipeline.batches * pipeline.num_slices
    return [time for row in pipeline.ticks.durations for time in row for _ in range(pieces)]


@st.composite
def pipelines(
    draw: st.DrawFn,
    *,
    min_devices: int = 1,
    min_batches: int = 1,
    max_devices: int = 4,
    slices: Sequence[int | None] = (None, None, None, None, 1, 2, 3),
    different: tuple[bool, ...] = (False,),
) -> Pipeline:
    """Draw a pipeline: every placement, one or two routes, slices, unequal exact costs, no limit.

    `min_batches` is per route; `different` says whether microbatches, and their slices, may differ.
    """
    devices = draw(_integers(min_devices, max_devices))
    routes = draw(_one_of((1, 1, 2)))
    cut = draw(_one_of(tuple(slices)))
    max_batches = max(min_batches, 5 - routes if (cut or 1) == 1 else 2 - routes // 2)
    batches = routes * draw(_integers(min_batches, max_batches))
    differ = draw(_one_of(different))
    factors = _one_or_all(_FACTORS, batches) if differ else st.none()
    stages = draw(_placements(devices))
    relative = None
    if differ and (cut or 1) > 1 and stages["overlap"] is None:
        relative = draw(st.lists(_integers(1, 3), min_size=cut, max_size=cut))
    return Pipeline(
        batches=batches,
        microbatch_times=draw(factors),
        microbatch_memory=draw(factors),
        routes=routes,
        slices=cut,
        slice_times=relative,
        p2p=draw(_p2p(devices)),
        device_speed=draw(_one_of(_SPEEDS) if routes == 2 else _one_or_all(_SPEEDS, devices)),
        **stages,
    )


@cache
def _integers(minimum: int, maximum: int) -> st.SearchStrategy[int]:
    return st.integers(minimum, maximum)


@cache
def _one_of(choices: tuple[Any, ...]) -> st.SearchStrategy[Any]:
    return st.sampled_from(choices)


@cache
def _one_or_all(choices: tuple[Any, ...], entries: int) -> st.SearchStrategy[Any]:
    """One value for all, or a list with a value for each."""
    choice = _one_of(choices)
    return choice | st.lists(choice, min_size=entries, max_size=entries)


@cache
@st.composite
def _placements(draw: st.DrawFn, devices: int) -> dict[str, Any]:
    """Draw the stages, their placement and their costs."""
    placement = draw(_one_of((None, "linear", "interleaved", "v", "list")))
    if placement == "list":
        extra = draw(_extra_stages(devices))
        order = draw(st.permutations([*range(devices), *extra]))
        return {"stages": len(order), "placement": list(order), **draw(_costs(len(order)))}
    chunks = None if placement == "linear" else draw(_one_of(_CHUNKS[devices]))
    return {
        "stages": devices,
        "placement": placement,
        "chunks": chunks,
        **draw(_costs(devices)),
    }


_CHUNKS = {1: (None, 1, 2, 3), 2: (None, 1, 2, 3), 3: (None, 1, 2), 4: (None, 1)}
"""Chunks by the number of devices: more stages make every example longer, and show no more."""


@cache
def _extra_stages(devices: int) -> st.SearchStrategy[list[int]]:
    return st.lists(_integers(0, devices - 1), max_size=3)


@cache
@st.composite
def _costs(draw: st.DrawFn, entries: int) -> dict[str, Any]:
    """Draw costs: B and W may take no time, BW lies between the longer and the sum of both,
    memory_b has any sign."""
    columns = [draw(_values(entries, choices)) for choices in _CHOICES]
    forward, weight, b, saved, activation, by_b, static = columns
    full = [max(x, w) + min(x, w) * part for w, x, part in zip(weight, b, saved, strict=True)]
    rare = {field: draw(_maybe(entries, (0, 1, _THIRD, 2), rare=True)) for field in _RARE}
    share = draw(_maybe(entries, (0, _HALF, 1)))
    pairs = draw(_pair_times(entries, list(zip(forward, full, strict=True))))
    with_b = None
    if pairs is not None and draw(_one_of((True, False, False))):
        with_b = draw(_pair_times(entries, list(zip(forward, b, strict=True))))
    return {
        "forward": forward,
        "weight": weight,
        "backward_input": b,
        "backward": full,
        "overlap": pairs,
        "overlap_input": with_b,
        "activation": activation,
        "memory_b": [taken * part for taken, part in zip(activation, by_b, strict=True)],
        "static": static,
        "kept": share and [taken * part for taken, part in zip(activation, share, strict=True)],
        **rare,
    }


@st.composite
def _pair_times(draw: st.DrawFn, entries: int, alone: list[tuple[Any, Any]]) -> Any:
    """None; at least the longer of both; any time above 0; or any of every two stages."""
    form = draw(_one_of(("none", "none", "longer", "any", "matrix")))
    if form == "longer":
        both = zip(alone, draw(_values(entries, (0, _HALF, 1, 2, 5))), strict=True)
        return [max(f, x) + min(f, x) * part for (f, x), part in both]
    times = _values(entries, (_THIRD, _HALF, 1, 2, 5))
    if form == "matrix":
        return [draw(times) for _ in range(entries)]
    return draw(times) if form == "any" else None


_RARE = (
    *("workspace", "forward_workspace", "input_workspace", "weight_workspace"),
    *("backward_workspace", "recompute_time"),
)
_HALF, _THIRD = Fraction(1, 2), Fraction(1, 3)
_SPEEDS = (1, 2, _HALF, Fraction(3, 4))
_FACTORS = (1, 2, _HALF, Fraction(5, 3))
_DELAYS = (0, 1, _HALF, Fraction(5, 4))
_CHOICES: tuple[tuple[int | Fraction, ...], ...] = (
    (1, 2, 3, _HALF, _THIRD),
    (1, 2, 0, _HALF),
    (1, 2, 0, Fraction(3, 4)),
    (1, 0, _HALF),
    (1, 2, _HALF, 0),
    (0, 1, -1, -_HALF, _THIRD),
    (0, 1, Fraction(5, 2)),
)


@cache
def _values(
    entries: int, choices: tuple[int | Fraction, ...]
) -> st.SearchStrategy[list[int | Fraction]]:
    """A list with as many entries, all equal or each its own."""
    choice = _one_of(choices)
    return choice.map(lambda value: [value] * entries) | st.lists(
        choice, min_size=entries, max_size=entries
    )


@cache
def _maybe(
    entries: int, choices: tuple[int | Fraction, ...], *, rare: bool = False
) -> st.SearchStrategy[list[int | Fraction] | None]:
    """None, or such a list; None more often where it is rare."""
    drawn = _values(entries, choices)
    return st.none() | st.none() | drawn if rare else st.none() | drawn


@cache
@st.composite
def _p2p(draw: st.DrawFn, devices: int) -> Any:
    times = _one_of(_DELAYS)
    if draw(st.booleans()):
        return draw(times)
    size = range(devices)
    return [[0 if i == j else draw(times) for j in size] for i in size]


@st.composite
def by_boundary(draw: st.DrawFn) -> Pipeline:
    """Draw a pipeline whose delays are given per boundary between stages, each way its own."""
    pipeline = draw(_ON_TWO_DEVICES)
    delays = _one_or_all(_DELAYS, pipeline.num_stages - 1)
    return replace(pipeline, p2p=draw(delays), backward_p2p=draw(st.none() | delays))


_ON_TWO_DEVICES = pipelines(min_devices=2)


ANY = pipelines()


@st.composite
def partly_frozen(draw: st.DrawFn) -> Pipeline:
    """Draw a pipeline of which some stages are frozen, mostly the first ones."""
    pipeline = with_stage_costs(draw(ANY), {})
    first = draw(_integers(0, pipeline.num_stages))
    frozen = [stage < first or draw(st.booleans()) for stage in range(pipeline.num_stages)]
    return replace(pipeline, frozen=frozen)


SAYABLE = ANY.filter(lambda pipeline: pipeline.routes == 1 and pipeline.num_slices == 1)
"""Pipelines that formats without routes and slices can tell."""


@st.composite
def schedules(
    draw: st.DrawFn,
    problems: st.SearchStrategy[Pipeline] | None = None,
    backwards: Sequence[str] = BACKWARDS,
    *,
    paired: bool = True,
) -> Schedule:
    """Draw a valid schedule; its pipeline has no memory limit, or one that the schedule keeps."""
    pipeline = draw(ANY if problems is None else problems)
    seed = draw(_integers(0, 2**32 - 1))
    schedule = build(pipeline, Random(seed), draw(_one_of(tuple(backwards))), paired=paired)
    spare = draw(_one_of((None, 0, 1)))
    return schedule if spare is None else limited(schedule, [p + spare for p in peaks(schedule)])


def build(
    pipeline: Pipeline, random: Random, backward: str = "mixed", *, paired: bool = True
) -> Schedule:
    """Append ready operations in random order, or the one that can start first, with idle time."""
    split = {
        (stage, microbatch, slice_index): backward == "split"
        or (backward == "mixed" and random.random() < 0.5)
        for stage in range(pipeline.num_stages)
        for microbatch in range(pipeline.batches)
        for slice_index in range(pipeline.slices or 1)
    }
    waiting = [op for slot in split for op in operations(pipeline, slot, split[slot])]
    before = {op: _predecessors(pipeline, op, split) for op in waiting}
    eager, idle = random.random() < 0.5, random.choice((0, 0, 0.3))
    pairs = random.choice((0, 0.5, 1)) if paired else 0
    rows: dict[Op, TableRow] = {}
    device_of = {op: pipeline.device(op.stage, op.microbatch) for op in waiting}
    free = dict.fromkeys(device_of.values(), 0)
    arrival: dict[Op, int] = {}

    def earliest(op: Op) -> int:
        """Start of an operation whose predecessors are done."""
        if op not in arrival:
            ends = (
                rows[predecessor][5] + lag_of(pipeline, predecessor, op)
                for predecessor in before[op]
            )
            arrival[op] = max(ends, default=0)
        return max(free[device_of[op]], arrival[op])

    while waiting:
        ready = [op for op in waiting if all(map(rows.__contains__, before[op]))]
        random.shuffle(ready)
        if eager:
            ready.sort(key=earliest)
        group = ready[:1]
        if random.random() < pairs:
            group += [op for op in ready[1:] if may_pair(pipeline, ready[0], op)][:1]
        pause = random.randrange(1, 6) if random.random() < idle else 0
        start = max(map(earliest, group)) + pause
        pair_id = len(rows) if len(group) > 1 else ALONE
        end = start + duration_of(pipeline, group)
        for op in group:
            waiting.remove(op)
            device = device_of[op]
            free[device] = max(free[device], end)
            rows[op] = (*op[:3], device, start, end, op.slice, pair_id)
    return Schedule.from_rows(pipeline, rows.values())


def may_pair(pipeline: Pipeline, first: Op, second: Op) -> bool:
    """Whether two operations may run as one."""
    forward = (first.kind is F) + (second.kind is F)
    devices = {pipeline.device(op.stage, op.microbatch) for op in (first, second)}
    weights = W in (first.kind, second.kind)
    return (
        forward == 1
        and not weights
        and len(devices) == 1
        and (first.microbatch != second.microbatch)
    )


def duration_of(pipeline: Pipeline, group: Sequence[Op]) -> int:
    """Time of one operation, or of a pair, by the factors of microbatches and slices: DESIGN
    section 3, rule 16. A pair saves the smaller factor of its two times what it would save at 1."""
    times = pipeline.microbatch_times or (1,) * pipeline.batches
    slices = pipeline.slice_times or (1,) * pipeline.num_slices
    factors = {op: times[op.microbatch] * slices[op.slice] for op in group}
    alone = sum(factors[op] * time_at_1(pipeline, [op]) for op in group)
    if len(group) == 1:
        return int(alone)
    saved = sum(time_at_1(pipeline, [op]) for op in group) - time_at_1(pipeline, group)
    return int(alone - min(factors[op] for op in group) * saved)


def time_at_1(pipeline: Pipeline, group: Sequence[Op]) -> int:
    """Time of one operation, or of a pair of an F and a backward, in the words of `pair_of`."""
    costs = pipeline.costs
    per_unit = pipeline.ticks.per_unit / speed_of(pipeline, group[0])
    times = {F: costs.forward, B: costs.backward_input, W: costs.weight, BW: costs.backward}
    recompute_times = {B: costs.recompute_time, BW: costs.recompute_time}
    alone = [
        times[op.kind][op.stage]
        + (recompute_times[op.kind][op.stage] if op.kind in recompute_times else 0)
        for op in group
    ]
    if len(group) == 1:
        return int(alone[0] * per_unit)
    f, b = sorted(group, key=lambda op: op.kind)
    if b.kind is B and costs.overlap_input:
        with_b = pair_of(pipeline, costs.overlap_input, f.stage, B, b.stage)
        return int((with_b + recompute_times[B][b.stage]) * per_unit)
    whole = (
        pair_of(pipeline, costs.overlap, f.stage, BW, b.stage) + recompute_times[b.kind][b.stage]
    )
    more = times[b.kind][b.stage] - costs.backward[b.stage]
    if more >= 0:
        return int((whole + more) * per_unit)
    return int(max(whole + more, min(whole, max(alone))) * per_unit)


def pair_of(pipeline: Pipeline, overlap: Any, f: int, kind: OpKind, b: int) -> Fraction:
    """Time at speed 1 of F and BW, or B, of two stages as one, without recompute: as given; or what
    both take less the smaller saving of the two stages, where F and BW of a stage save forward +
    backward - overlap; but no less than the least of both times given and of the longer part."""
    costs = pipeline.costs
    if isinstance(overlap[f], tuple):
        return Fraction(overlap[f][b])
    own = costs.backward if kind is BW else costs.backward_input
    saved = [costs.forward[s] + own[s] - overlap[s] for s in (f, b)]
    shortest: Fraction = min(overlap[f], overlap[b], max(costs.forward[f], own[b]))
    return max(costs.forward[f] + own[b] - min(saved), shortest)


def speed_of(pipeline: Pipeline, op: Op) -> Fraction:
    """Speed of the device that an operation runs on."""
    speed: Fraction = pipeline.device_speed[pipeline.device(op.stage, op.microbatch)]
    return speed


def operations(pipeline: Pipeline, slot: Slot, split: bool) -> list[Op]:
    """The operations of a stage, microbatch and slice."""
    kinds = (F, B, W) if split else (F, BW)
    return [Op(kind, *slot) for kind in kinds if exists(pipeline, kind, slot[0])]


def _predecessors(pipeline: Pipeline, op: Op, split: dict[Slot, bool]) -> list[Op]:
    """What must be done before an operation: the rules of the semantics."""
    kind, stage, microbatch, slice_index = op
    if kind is F:
        before = [Op(F, stage - 1, microbatch, slice_index)] if stage else []
        return before + ([Op(F, stage, microbatch, slice_index - 1)] if slice_index else [])
    if kind is W:
        return [Op(B, stage, microbatch, slice_index)]
    before = [Op(F, stage, microbatch, slice_index)]
    for slot in ((stage + 1, microbatch, slice_index), (stage, microbatch, slice_index + 1)):
        if slot in split:
            before.append(Op(B if split[slot] else BW, *slot))
    return before


def exists(pipeline: Pipeline, kind: OpKind, stage: int) -> bool:
    """Whether a stage has operations of a kind: DESIGN section 3, rule 19."""
    if kind is W:
        return not pipeline.frozen_stages[stage]
    return kind is F or not all(pipeline.frozen_stages[: stage + 1])


def lag_of(pipeline: Pipeline, before: Op, op: Op) -> int:
    """Delay in ticks from an operation to one that waits for it."""
    source, target = (pipeline.device(end.stage, end.microbatch) for end in (before, op))
    if source == target:
        return 0
    time = pipeline.p2p
    if op.kind is not F and pipeline.backward_p2p is not None:
        time = pipeline.backward_p2p
    if isinstance(time, tuple):
        boundary = min(before.stage, op.stage)
        time = time[source][target] if isinstance(time[0], tuple) else time[boundary]
    return int(time * pipeline.ticks.per_unit)


def op_of(row: TableRow) -> Op:
    """The operation of a row that exists in the pipeline."""
    return Op(OpKind(row[0]), row[1], row[2], row[6])


def table(schedule: Schedule) -> list[TableRow]:
    """The rows of a schedule as plain integers, whatever they hold."""
    columns = [column.tolist() for column in schedule.compute.columns[:8]]
    return list(zip(*columns, strict=True))


def limited(schedule: Schedule, limits: Iterable[int] | None) -> Schedule:
    """The same operations under other memory limits: ticks per device, None for no limit."""
    unit = schedule.pipeline.ticks.memory
    read = None if limits is None else [unit(limit) for limit in limits]
    return replace(schedule, pipeline=replace(schedule.pipeline, mem_limit=read))


def live_memory(
    pipeline: Pipeline, rows: Iterable[TableRow], device: int, time: int, *, starts: bool
) -> int:
    """Ticks of memory on a device at an instant, after its ends and, if `starts`, its starts."""
    changes = memory_changes(pipeline, rows, device)
    return live_after(pipeline.ticks.static[device], changes, time, starts=starts)


Change = tuple[int, int, int, int]
"""Start and end of an operation, and what it allocates and frees, in ticks."""


def memory_changes(pipeline: Pipeline, rows: Iterable[TableRow], device: int) -> list[Change]:
    """What the operations of a device allocate and free, and when."""
    return [
        (*row[4:6], allocated(pipeline, *row[:3]), freed(pipeline, *row[:3]))
        for row in rows
        if row[3] == device
    ]


def live_after(live: int, changes: Iterable[Change], time: int, *, starts: bool) -> int:
    """Ticks of memory at an instant, after its ends and, if `starts`, its starts."""
    for start, end, taken, released in changes:
        if start < time or (starts and start == time):
            live += taken
        if end <= time:
            live -= released
    return live


def allocated(pipeline: Pipeline, kind: int, stage: int, microbatch: int) -> int:
    """Memory that an operation takes at its start, in ticks: DESIGN section 3, rules 5, 13, 16."""
    ticks, factor = pipeline.ticks, factor_of_memory(pipeline, microbatch)
    offloaded = factor * ticks.costs.offload_memory[stage]
    if kind == OpKind.BW:
        return int(bw_allocates(pipeline, stage, factor) + offloaded)
    retained = factor * ticks.costs.kept[stage]
    missing = (
        factor * (ticks.costs.activation[stage] + max(0, ticks.costs.memory_b[stage])) - retained
    )
    workspace = ticks.workspace[kind][stage]
    if kind == OpKind.F:
        return int(retained + workspace - ticks.costs.offload_memory[stage])
    return int((missing + offloaded if kind == OpKind.B else 0) + workspace)


def freed(pipeline: Pipeline, kind: int, stage: int, microbatch: int) -> int:
    """Memory that an operation gives at its end, in ticks."""
    ticks, factor = pipeline.ticks, factor_of_memory(pipeline, microbatch)
    if kind == OpKind.BW:
        retained = ticks.costs.kept[stage] - ticks.costs.offload_memory[stage]
        return int(factor * retained) + allocated(pipeline, kind, stage, microbatch)
    by_b, offloaded = ticks.costs.memory_b[stage], ticks.costs.offload_memory[stage]
    own = (offloaded, max(0, -by_b), ticks.costs.activation[stage] + by_b)[kind]
    workspace = ticks.workspace[kind][stage] - (offloaded if kind == OpKind.F else 0)
    return int(factor * own + workspace)


def factor_of_memory(pipeline: Pipeline, microbatch: int) -> Fraction:
    """By how much the memory of a microbatch is multiplied."""
    factors = pipeline.microbatch_memory
    return Fraction(1) if factors is None else factors[microbatch]


def peaks(schedule: Schedule) -> list[int]:
    """Largest memory in ticks on every device, by looking at every instant of a change."""
    pipeline, rows = schedule.pipeline, table(schedule)
    peaks_of_devices = []
    for device, static in enumerate(pipeline.ticks.static):
        changes = memory_changes(pipeline, rows, device)
        instants = {-1, *(time for change in changes for time in change[:2])}
        peaks_of_devices.append(
            max(live_after(static, changes, time, starts=True) for time in instants)
        )
    return peaks_of_devices
