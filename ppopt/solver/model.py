"""The CP-SAT model: starts of all operations under every rule of a schedule.

Symmetry breaking by microbatch order. Per route and stage the k-th forward goes to microbatch k,
the k-th backward to microbatch k, and the k-th W to microbatch k. No optimum is lost: take any
schedule and give the sorted slots of each class (kind, stage, route) to the microbatches in
order. Slots of one class have equal length and never overlap, so sorting them by start also sorts
them by end. A constraint of constant lag between two classes says end(a_j) + lag <= start(b_j) for
every j; the k-th smallest start of b has at least k of these b_j at or before it, hence at least k
a's ending by that start minus lag, so the k-th smallest end of a meets the k-th smallest start of
b. Slots, hence times, memory and device use, stay what they were.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from ortools.sat.python import cp_model

from ppopt.metrics import Objective
from ppopt.op import OpKind
from ppopt.pipeline import Pipeline
from ppopt.precedence import Constraints
from ppopt.schedule import Ints, Schedule
from ppopt.solver import relaxation
from ppopt.solver.chain import Chain
from ppopt.solver.relaxation import View
from ppopt.timing import durations


@dataclass(frozen=True)
class Model:
    """A CP-SAT model of some devices of a pipeline, the others replaced by delays.

    `start[code]` holds the variable of an operation number.
    """

    pipeline: Pipeline
    goal: Objective
    fused: bool
    devices: frozenset[int]
    cp: cp_model.CpModel
    start: dict[int, cp_model.IntVar]
    objective: cp_model.IntVar
    duration: Ints
    """Time of every operation number, in ticks."""
    latest: int
    """Last instant of the model, in ticks."""


def build(
    pipeline: Pipeline,
    objective: Objective,
    *,
    fused: bool,
    horizon: int,
    bound: int,
    devices: Iterable[int] | None = None,
) -> Model:
    """Model of all schedules with objective in [bound, horizon] (ticks), least objective first.

    `devices` are those kept (default all): fewer give a relaxation (`ppopt.solver.relaxation`).
    For device span the starts reach to twice the horizon: two devices' windows always overlap,
    since a later stage's first forward follows an earlier stage's first and precedes its last
    backward, so no device starts a whole span after another.
    """
    cp = cp_model.CpModel()
    kept = frozenset(range(pipeline.num_devices) if devices is None else devices)
    latest = horizon if objective is Objective.MAKESPAN else 2 * horizon
    duration = durations(pipeline)
    views = [View(Chain(pipeline, fused, route), kept) for route in range(pipeline.routes)]
    start = {
        code: cp.new_int_var(0, latest - int(duration[code]), str(pipeline.op(code)))
        for view in views
        for code in operations(view).tolist()
    }
    value = cp.new_int_var(bound, horizon, str(objective))
    model = Model(pipeline, objective, fused, kept, cp, start, value, duration, latest)
    for view in views:
        _add_precedence(model, relaxation.implied(view))
        _add_objective(model, view, objective)
    _add_devices(model)
    _add_memory(model, [d for d in sorted(kept) if relaxation.needs_cumulative(views[0], d)])
    cp.minimize(value)
    return model


def operations(view: View) -> Ints:
    """Numbers of the operations of the kept stages of a route, all split or all fused."""
    kinds = (OpKind.F, OpKind.B) if view.chain.fused else (OpKind.F, OpKind.B, OpKind.W)
    return np.concatenate([view.codes(kind, stage) for kind in kinds for stage in view.kept])


def _add_precedence(model: Model, flow: Constraints) -> None:
    least = (model.duration[flow.before] + flow.lag).tolist()
    for before, after, apart in zip(flow.before.tolist(), flow.after.tolist(), least, strict=True):
        model.cp.add(model.start[after] >= model.start[before] + apart)


def _add_objective(model: Model, view: View, objective: Objective) -> None:
    """State the objective by its floors; one route's floors leave out the other's firsts.

    With two routes a device's first operation may be of either, so its span is at least the end
    on one route less the start on the other too.
    """
    cp = model.cp
    if objective is Objective.MAKESPAN:
        for code, earliest in relaxation.releases(view):
            cp.add(model.start[code] >= earliest)
    for floor in relaxation.floors(view, objective):
        end = model.start[floor.last] + int(model.duration[floor.last]) + floor.rest
        cp.add(model.objective >= (end if floor.first is None else end - model.start[floor.first]))
    if objective is Objective.DEVICE_SPAN and model.pipeline.routes == 2:
        _add_crossing_spans(model, view)


def _add_crossing_spans(model: Model, view: View) -> None:
    pipeline, chain = model.pipeline, view.chain
    closing = OpKind.B if chain.fused else OpKind.W
    other = 1 - chain.route
    for device in sorted(model.devices):
        begins = pipeline.hosted[other][device][:1]
        for stage in pipeline.hosted[chain.route][device]:
            last = int(view.codes(closing, stage)[-1])
            for begin in begins:
                first = pipeline.code(OpKind.F, begin, other * chain.batches)
                end = model.start[last] + int(model.duration[last])
                model.cp.add(model.objective >= end - model.start[first])


def _add_devices(model: Model) -> None:
    pipeline, cp = model.pipeline, model.cp
    intervals: dict[int, list[cp_model.IntervalVar]] = {device: [] for device in model.devices}
    for code, start in model.start.items():
        _, stage, microbatch, _ = pipeline.op(code)
        interval = cp.new_fixed_size_interval_var(start, int(model.duration[code]), "")
        intervals[pipeline.device(stage, microbatch)].append(interval)
    for group in intervals.values():
        cp.add_no_overlap(group)


def _add_memory(model: Model, devices: list[int]) -> None:
    """Memory as cumulative intervals: what F holds until B, what it holds until W, what B adds."""
    pipeline, cp, ticks = model.pipeline, model.cp, model.pipeline.ticks
    if ticks.limits is None:
        return
    held: dict[int, list[tuple[cp_model.IntervalVar, int]]] = {device: [] for device in devices}
    for microbatch in range(pipeline.batches):
        for stage in range(pipeline.num_stages):
            group = held.get(pipeline.device(stage, microbatch))
            if group is None:
                continue
            for first, last, amount in _holdings(pipeline, stage, fused=model.fused):
                begin = model.start[pipeline.code(first, stage, microbatch)]
                code = pipeline.code(last, stage, microbatch)
                end = model.start[code] + int(model.duration[code])
                size = cp.new_int_var(0, model.latest, "")
                group.append((cp.new_interval_var(begin, size, end, ""), amount))
    for device, group in held.items():
        room = ticks.limits[device] - ticks.static[device]
        cp.add_cumulative([item for item, _ in group], [amount for _, amount in group], room)


def _holdings(pipeline: Pipeline, stage: int, *, fused: bool) -> list[tuple[OpKind, OpKind, int]]:
    """(from start of, to end of, amount): the positive holdings of one microbatch, in ticks."""
    ticks = pipeline.ticks
    taken, change = ticks.activation[stage], ticks.memory_b[stage]
    if fused:
        parts = [(OpKind.F, OpKind.BW, taken)]
    elif change <= 0:
        parts = [(OpKind.F, OpKind.B, -change), (OpKind.F, OpKind.W, taken + change)]
    else:
        parts = [(OpKind.F, OpKind.W, taken), (OpKind.B, OpKind.W, change)]
    return [part for part in parts if part[2] > 0]


def hint(model: Model, schedule: Schedule) -> None:
    """Start the search from a schedule, its microbatches renamed into order."""
    for code, start in in_order(schedule).items():
        model.cp.add_hint(model.start[code], start)
    model.cp.add_hint(model.objective, schedule.metrics.value(model.goal))


def in_order(schedule: Schedule) -> dict[int, int]:
    """Start of every operation number once each class of slots is in microbatch order."""
    pipeline = schedule.pipeline
    routes = schedule.microbatch * pipeline.routes // pipeline.batches
    place = np.lexsort((schedule.start, routes, schedule.stage, schedule.kind))
    codes = np.sort(pipeline.code(schedule.kind, schedule.stage, schedule.microbatch))
    return dict(zip(codes.tolist(), schedule.start[place].tolist(), strict=True))
