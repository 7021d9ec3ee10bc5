"""The CP-SAT model: starts of all operations, under all rules of a schedule.

Symmetry breaking by microbatch order. Per route and stage the k-th forward goes to microbatch k,
the k-th backward to microbatch k, and the k-th W to microbatch k. This loses no optimum: take any
schedule and give the sorted slots of each class (kind, stage, route, slice) to the microbatches in
order. Slots of one class never overlap, so sorting them by start also sorts them by end, although
slots of pairs are longer. A constraint of constant lag between two classes says end(a_j) + lag <=
start(b_j) for every j; the k-th smallest start of b has at least k of these b_j at or before it,
hence at least k a's ending by that start minus lag, so the k-th smallest end of a meets the k-th
smallest start of b. Slots do not change, hence neither do times, memory and device use. A pair
still has two different microbatches, because F of a microbatch ends before its backwards start.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from ortools.sat.python import cp_model

from ppopt.problem.instance import durations
from ppopt.problem.objective import Objective
from ppopt.problem.operation import OpKind
from ppopt.problem.operation_classes import Constraints
from ppopt.problem.problem import Problem
from ppopt.schedule.schedule import Schedule
from ppopt.solver import interrupts
from ppopt.solver.cp_sat.cp_sat_model import CpSatModel, steps
from ppopt.solver.cp_sat.order_literals import add_order_literals
from ppopt.solver.relaxation import device_subset
from ppopt.solver.relaxation.delays import Delays
from ppopt.solver.relaxation.device_subset import DeviceSubset
from ppopt.solver.relaxation.pairs import candidate_pairs
from ppopt.solver.relaxation.symmetry import canonical


@interrupts.deferred()
def build_model(
    problem: Problem,
    *,
    horizon: int,
    bound: int,
    devices: Iterable[int] | None = None,
    step: int = 1,
) -> CpSatModel:
    """Model of all schedules with objective in [bound, horizon] (ticks), least objective first.

    The model treats objectives within the same `step` ticks from the bound as equal. `devices` are
    those kept (default all): a subset gives a relaxation (`ppopt.solver.relaxation.device_subset`).

    For device span the starts reach to twice the horizon. The first forward of a later stage
    follows the first forward of an earlier stage and precedes its last backward, so the spans of
    two devices always overlap, and no device starts a whole span after another.
    """
    pipeline, instance, objective = problem.pipeline, problem.instance, problem.objective
    cp = cp_model.CpModel()
    kept = frozenset(range(pipeline.num_devices) if devices is None else devices)
    latest = horizon if objective is Objective.MAKESPAN else 2 * horizon
    duration = durations(pipeline)
    subsets = [DeviceSubset(Delays(instance, route), kept) for route in range(pipeline.routes)]
    start = {
        code: cp.new_int_var(0, latest - int(duration[code]), str(pipeline.op(code)))
        for subset in subsets
        for code in subset.operations.tolist()
    }
    value = cp.new_int_var(bound, horizon, str(objective))
    pairs = {pair: cp.new_bool_var("") for pair in candidate_pairs(instance, kept)}
    end: dict[int, cp_model.LinearExpr] = {
        code: begin + int(duration[code]) for code, begin in start.items()
    }
    model = CpSatModel(
        *(problem, kept, cp, start, value, duration),
        *(horizon, bound, step, latest, pairs, end),
    )
    _add_devices(model)
    if pipeline.num_slices > 1:
        _add_slices(model)
    else:
        for subset in subsets:
            _add_precedence(model, device_subset.implied_precedence(subset))
            _add_objective(model, subset)
    if objective is Objective.DEVICE_SPAN:
        _add_origin(model, subsets)
    shared = [d for d in sorted(kept) if device_subset.needs_cumulative(subsets[0], d)]
    _add_memory(model, shared)
    add_order_literals(model, shared, {})
    cp.minimize(value if step == 1 else steps(model))
    return model


def _add_origin(model: CpSatModel, subsets: Sequence[DeviceSubset]) -> None:
    """Time counts from the first forward of the lowest stage kept, on one of the routes.

    It precedes everything else of its route. Without an origin CP-SAT may refute a cycle of waits
    only by shifting all starts, tick by tick, to the end of the model.
    """
    firsts = [model.start[int(one.forwards(one.kept[0])[0])] for one in subsets]
    model.cp.add_min_equality(0, firsts)


def _add_precedence(model: CpSatModel, flow: Constraints) -> None:
    for before, after, lag in zip(*(column.tolist() for column in flow), strict=True):
        model.cp.add(model.start[after] >= model.end[before] + lag)


def _add_slices(model: CpSatModel) -> None:
    """Data flow, order and objective of microbatches cut into slices; all devices are kept.

    Order holds slice by slice: of one kind, stage, route and slice.
    """
    instance = model.problem.instance
    _add_precedence(model, instance.operation_flow)
    for code in model.start:
        op = model.pipeline.op(code)
        if (op.microbatch + 1) % instance.batches:
            following = model.pipeline.code(op.kind, op.stage, op.microbatch + 1, op.slice)
            model.cp.add(model.start[following] >= model.end[code])
        if op.kind is instance.closing:
            for first in _firsts(model, model.pipeline.device(op.stage, op.microbatch)):
                model.cp.add(model.objective >= model.end[code] - first)


def _firsts(model: CpSatModel, device: int) -> list[cp_model.IntVar | int]:
    """Origins of the objective on a device: 0, or the start of the first F of every route."""
    if model.problem.objective is Objective.MAKESPAN:
        return [0]
    routes = range(model.pipeline.routes)
    return [model.start[_first(model, device, route)] for route in routes]


def _first(model: CpSatModel, device: int, route: int) -> int:
    """The first operation of a device on a route: F of microbatch 0 of its lowest stage."""
    instance = model.problem.instance
    lowest = model.pipeline.hosted[route][device][0]
    return int(instance.codes[instance.number(OpKind.F, lowest, route)][0])


def _add_objective(model: CpSatModel, subset: DeviceSubset) -> None:
    """Add releases and objective cuts of one route.

    With two routes the first operation of a device may be of either route. So the span of a device
    is also at least an end on one route minus the first start on the other.
    """
    cp, objective = model.cp, model.problem.objective
    if objective is Objective.MAKESPAN:
        for code, earliest in device_subset.releases(subset):
            cp.add(model.start[code] >= earliest)
    for cut in device_subset.objective_cuts(subset, objective):
        end = model.end[cut.last] + cut.rest
        cp.add(model.objective >= (end if cut.first is None else end - model.start[cut.first]))
    if objective is Objective.DEVICE_SPAN and model.pipeline.routes == 2:
        _add_crossing_spans(model, subset)


def _add_crossing_spans(model: CpSatModel, subset: DeviceSubset) -> None:
    other = 1 - subset.delays.route
    for device in sorted(model.devices):
        first = model.start[_first(model, device, other)]
        for stage in subset.delays.hosted[device]:
            last = int(subset.codes(subset.instance.closing, stage)[-1])
            model.cp.add(model.objective >= model.end[last] - first)


def _add_devices(model: CpSatModel) -> None:
    """Add that a device runs one operation, or one pair, at a time.

    A pair uses the interval of its F, and its backward then has none. This also sets the ends of
    operations that may be in a pair.
    """
    pipeline, cp = model.pipeline, model.cp
    intervals: dict[int, list[cp_model.IntervalVar]] = {device: [] for device in model.devices}
    partners: dict[int, list[tuple[cp_model.IntVar, int]]] = {}
    for pair, chosen in model.pairs.items():
        cp.add(model.start[pair.forward] == model.start[pair.backward]).only_enforce_if(chosen)
        for code in pair[:2]:
            partners.setdefault(code, []).append((chosen, pair.time - int(model.duration[code])))
    for code, start in model.start.items():
        op, alone = pipeline.op(code), int(model.duration[code])
        if code in partners:
            interval = _add_partners(model, code, partners[code])
        else:
            interval = cp.new_fixed_size_interval_var(start, alone, "")
        intervals[pipeline.device(op.stage, op.microbatch)].append(interval)
    for group in intervals.values():
        cp.add_no_overlap(group)


def _add_partners(
    model: CpSatModel, code: int, partners: list[tuple[cp_model.IntVar, int]]
) -> cp_model.IntervalVar:
    """Interval of an operation that may be in a pair; `partners` are (chosen, time added)."""
    cp, start, alone = model.cp, model.start[code], int(model.duration[code])
    longest = alone + max(more for _, more in partners)
    end = cp.new_int_var(0, model.latest, "")
    cp.add(end == start + alone + sum(chosen * more for chosen, more in partners))
    model.end[code] = end
    if model.pipeline.op(code).kind is OpKind.F:
        cp.add_at_most_one(chosen for chosen, _ in partners)
        return cp.new_interval_var(start, cp.new_int_var(alone, longest, ""), end, "")
    by_itself = cp.new_bool_var("")
    cp.add_exactly_one(by_itself, *(chosen for chosen, _ in partners))
    return cp.new_optional_fixed_size_interval_var(start, alone, by_itself, "")


def _add_memory(model: CpSatModel, devices: list[int]) -> None:
    """Memory as cumulative intervals, one per holding of every microbatch."""
    instance, cp = model.problem.instance, model.cp
    if model.pipeline.ticks.limits is None:
        return
    held: dict[int, list[tuple[cp_model.IntervalVar, int]]] = {device: [] for device in devices}
    for device, taker, giver, amount in _holdings(model, devices):
        size = cp.new_int_var(0, model.latest, "")
        interval = cp.new_interval_var(model.start[taker], size, model.end[giver], "")
        held[device].append((interval, amount))
    for device, group in held.items():
        room = instance.room(device)
        assert room is not None
        cp.add_cumulative([item for item, _ in group], [amount for _, amount in group], room)


def _holdings(model: CpSatModel, devices: list[int]) -> list[tuple[int, int, int, int]]:
    """(device, taker, giver, amount) by operation number, in order of stage and microbatch."""
    instance = model.problem.instance
    found = []
    for taker, giver, amount in instance.holdings:
        device = instance.classes[taker].device
        if device in devices:
            both = zip(instance.codes[taker].tolist(), instance.codes[giver].tolist(), strict=True)
            found += [(device, one, other, amount) for one, other in both]
    return sorted(found, key=lambda holding: model.pipeline.op(holding[1])[1:])


@interrupts.deferred()
def hint(model: CpSatModel, schedule: Schedule) -> None:
    """Hint at a schedule, its microbatches in canonical order."""
    new = canonical(schedule)
    there = set(new.tolist())
    for code, literal in model.split.items():
        model.cp.add_hint(literal, code in there)
    for code, start in zip(new.tolist(), schedule.start.tolist(), strict=True):
        model.cp.add_hint(model.start[code], start)
    second = np.flatnonzero(schedule.seconds)
    together = set(zip(new[second - 1].tolist(), new[second].tolist(), strict=True))
    for pair, chosen in model.pairs.items():
        model.cp.add_hint(chosen, pair[:2] in together)
    model.cp.add_hint(model.objective, schedule.metrics.value(model.problem.objective))
