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

from dataclasses import dataclass

import numpy as np
from ortools.sat.python import cp_model

from ppopt import precedence
from ppopt.metrics import Objective
from ppopt.op import OpKind
from ppopt.pipeline import Pipeline
from ppopt.schedule import Ints, Schedule
from ppopt.timing import durations


@dataclass(frozen=True)
class Model:
    """A CP-SAT model of a pipeline: `start[code]` holds the variable of an operation number."""

    pipeline: Pipeline
    fused: bool
    cp: cp_model.CpModel
    start: dict[int, cp_model.IntVar]
    objective: cp_model.IntVar


def build(
    pipeline: Pipeline, objective: Objective, *, fused: bool, horizon: int, bound: int
) -> Model:
    """Model of all schedules with objective in [bound, horizon] (ticks), least objective first.

    For device span the starts reach to twice the horizon: two devices' windows always overlap,
    since a later stage's first forward follows an earlier stage's first and precedes its last
    backward, so no device starts a whole span after another.
    """
    cp = cp_model.CpModel()
    latest = horizon if objective is Objective.MAKESPAN else 2 * horizon
    duration = durations(pipeline)
    start = {
        int(code): cp.new_int_var(0, latest - int(duration[code]), str(pipeline.op(code)))
        for code in operations(pipeline, fused=fused)
    }
    model = Model(pipeline, fused, cp, start, cp.new_int_var(bound, horizon, str(objective)))
    add_precedence(model, precedence.data_flow(pipeline, split=not fused), duration)
    add_precedence(model, microbatch_order(pipeline, fused=fused), duration)
    _add_devices(model, duration)
    _add_memory(model, duration, latest)
    _add_objective(model, objective, duration)
    return model


def operations(pipeline: Pipeline, *, fused: bool) -> Ints:
    """Numbers of the operations of a pipeline, all split or all fused."""
    kinds = np.array((OpKind.F, OpKind.BW) if fused else (OpKind.F, OpKind.B, OpKind.W))
    stages = np.arange(pipeline.num_stages)[:, None]
    codes = pipeline.code(kinds[:, None, None], stages, np.arange(pipeline.batches))
    return np.asarray(codes).ravel()


def microbatch_order(pipeline: Pipeline, *, fused: bool) -> precedence.Constraints:
    """The symmetry breaking: microbatches of a route in order, per kind and stage."""
    codes = operations(pipeline, fused=fused).reshape(-1, pipeline.batches // pipeline.routes)
    before, after = codes[:, :-1].ravel(), codes[:, 1:].ravel()
    return precedence.Constraints(before, after, np.zeros(len(before), dtype=np.int64))


def add_precedence(model: Model, flow: precedence.Constraints, duration: Ints) -> None:
    """State that start[after] >= end[before] + lag."""
    least = (duration[flow.before] + flow.lag).tolist()
    for before, after, apart in zip(flow.before.tolist(), flow.after.tolist(), least, strict=True):
        model.cp.add(model.start[after] >= model.start[before] + apart)


def _add_devices(model: Model, duration: Ints) -> None:
    pipeline, cp = model.pipeline, model.cp
    intervals: list[list[cp_model.IntervalVar]] = [[] for _ in range(pipeline.num_devices)]
    for code, start in model.start.items():
        _, stage, microbatch = pipeline.op(code)
        interval = cp.new_fixed_size_interval_var(start, int(duration[code]), "")
        intervals[pipeline.device(stage, microbatch)].append(interval)
    for group in intervals:
        cp.add_no_overlap(group)


def _add_memory(model: Model, duration: Ints, latest: int) -> None:
    """Memory as cumulative intervals: what F holds until B, what it holds until W, what B adds."""
    pipeline, cp, ticks = model.pipeline, model.cp, model.pipeline.ticks
    if ticks.limits is None:
        return
    held: list[list[tuple[cp_model.IntervalVar, int]]] = [[] for _ in range(pipeline.num_devices)]
    for microbatch in range(pipeline.batches):
        for stage in range(pipeline.num_stages):
            group = held[pipeline.device(stage, microbatch)]
            for first, last, amount in _holdings(pipeline, stage, fused=model.fused):
                begin = model.start[pipeline.code(first, stage, microbatch)]
                code = pipeline.code(last, stage, microbatch)
                end = model.start[code] + int(duration[code])
                size = cp.new_int_var(0, latest, "")
                group.append((cp.new_interval_var(begin, size, end, ""), amount))
    for device, group in enumerate(held):
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


def _add_objective(model: Model, objective: Objective, duration: Ints) -> None:
    """Bound the objective from below by the ends (and, for device span, the starts) that form it.

    Per device only the last microbatch's closing operation and the first one's F of each hosted
    stage can be last and first, by the microbatch order and the data flow.
    """
    pipeline, cp = model.pipeline, model.cp
    closing = OpKind.BW if model.fused else OpKind.W
    share = pipeline.batches // pipeline.routes
    for device in range(pipeline.num_devices):
        ends, firsts = [], []
        for route, hosted in enumerate(pipeline.hosted):
            for stage in hosted[device]:
                last = pipeline.code(closing, stage, (route + 1) * share - 1)
                ends.append(model.start[last] + int(duration[last]))
            for stage in hosted[device][:1]:
                firsts.append(model.start[pipeline.code(OpKind.F, stage, route * share)])
        for end in ends:
            if objective is Objective.MAKESPAN:
                cp.add(model.objective >= end)
            else:
                for first in firsts:
                    cp.add(model.objective >= end - first)
    cp.minimize(model.objective)


def hint(model: Model, schedule: Schedule) -> None:
    """Start the search from a schedule, its microbatches renamed into order."""
    for code, start in in_order(schedule).items():
        model.cp.add_hint(model.start[code], start)


def in_order(schedule: Schedule) -> dict[int, int]:
    """Start of every operation number once each class of slots is in microbatch order."""
    pipeline = schedule.pipeline
    routes = schedule.microbatch * pipeline.routes // pipeline.batches
    place = np.lexsort((schedule.start, routes, schedule.stage, schedule.kind))
    codes = np.sort(pipeline.code(schedule.kind, schedule.stage, schedule.microbatch))
    return dict(zip(codes.tolist(), schedule.start[place].tolist(), strict=True))
