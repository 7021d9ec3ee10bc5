"""The rules of a schedule for CP-SAT: all rules of some devices, fewer of the others.

Every constraint is a rule, or the work between two operations (`ppopt.rechecker.precedence`), that
every schedule below the bound obeys after its microbatches are renamed into order. So if there is
no solution even without some rules of the other devices, there is no such schedule.

Microbatches in order. Take the operations of one kind and stage on one route. They have one length
and do not overlap: rename them so that the k-th belongs to the k-th microbatch. A rule that says
"an operation of microbatch j ends some time before another operation of j starts", for every j,
still holds. When the k-th of the later operations starts, k of them have started, and before these
k of the earlier ones have ended. Devices, times and memory do not change.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from ortools.sat.python import cp_model

from ppopt.problem.operation import Op, OpKind
from ppopt.problem.traits import Trait
from ppopt.rechecker.claim import Claim
from ppopt.rechecker.links import sent
from ppopt.rechecker.pair_times import pairs_save
from ppopt.rechecker.precedence import Rules
from ppopt.rechecker.quantities import (
    device_of,
    live_intervals,
    memory_of,
    shortest_durations,
    time_of,
    time_of_pair,
)
from ppopt.rechecker.step_operations_model import StepOperations, add_step_operations

Pair = tuple[Op, Op]
"""An F and a backward that run as one operation."""


class FeasibilityModel(NamedTuple):
    """A CP-SAT model without objective, with the variables of every operation stated."""

    claim: Claim
    cp: cp_model.CpModel
    start: dict[Op, cp_model.IntVar]
    end: dict[Op, cp_model.LinearExprT]
    joined: dict[Pair, cp_model.IntVar]
    """Whether two operations run as one."""
    alone: dict[Op, cp_model.IntVar]
    """Whether an operation that may run as one with others runs by itself."""
    sent: dict[Op, cp_model.IntVar]
    """Start of the transfer of an operation's result, if links are resources."""
    step_operations: StepOperations | None
    """Operations besides compute; None: there are none, or not all operations are stated."""
    latest: int
    """Last instant, in ticks; no operation is longer."""


def build(claim: Claim, rules: Rules, latest: int, devices: frozenset[int]) -> FeasibilityModel:
    """Model of the schedules below the bound and done by `latest`, with all rules of `devices`.

    `rules` are those of the claim; if microbatches differ, of the claim of the smallest.
    """
    cp, min_durations = cp_model.CpModel(), shortest_durations(rules.claim)
    start = {
        op: cp.new_int_var(0, latest - min_durations[op.kind][op.stage], str(op))
        for op in rules.operations
    }
    end: dict[Op, cp_model.LinearExprT] = {op: start[op] + time_of(claim, op) for op in start}
    model = FeasibilityModel(claim, cp, start, end, {}, {}, {}, None, latest)
    for device in sorted(devices):
        _add_pairs(model, device)
    if claim.pipeline.has_auxiliary_operations and rules.all:
        model = model._replace(step_operations=add_step_operations(cp, claim, latest, start, end))
    for device in sorted(devices):
        _add_device(model, device)
    for before, after, lag in rules.apart:
        cp.add(start[after] >= end[before] + lag)
    if claim.pipeline.has_links:
        _add_links(model, devices)
    if claim.bound is not None:
        _add_bound(model, rules, claim.bound - 1)
    return model


def _add_bound(model: FeasibilityModel, rules: Rules, max_value: int) -> None:
    """No device ends later than `max_value`, counted from 0 or from its first operation."""
    claim, cp = model.claim, model.cp
    devices = range(claim.pipeline.num_devices)
    window = [cp.new_int_var(0, model.latest if claim.span else 0, "") for _ in devices]
    for op, start in model.start.items():
        begin = window[device_of(claim, op)]
        cp.add(start >= begin + rules.behind(op))
        cp.add(model.end[op] + rules.ahead(op) <= begin + max_value)
    if model.step_operations is not None:
        for device in devices:
            model.step_operations.add_window(cp, device, window[device], max_value)


def _add_links(model: FeasibilityModel, devices: frozenset[int]) -> None:
    """One transfer at a time on every link between these devices."""
    cp, carried = model.cp, defaultdict(list)
    for sender, receiver, link, time in sent(model.claim, model.start):
        if receiver in model.start and devices.issuperset(link):
            start = cp.new_int_var(0, max(0, model.latest - time), "")
            cp.add(start >= model.end[sender])
            cp.add(model.start[receiver] >= start + time)
            model.sent[sender] = start
            carried[link].append(cp.new_fixed_size_interval_var(start, time, ""))
    for intervals in carried.values():
        cp.add_no_overlap(intervals)


def _add_device(model: FeasibilityModel, device: int) -> None:
    """The device runs one operation, or pair, at a time, within its memory limit.

    If the device has one stage, on which all memory is live from F to W (or BW), only the number of
    live microbatches matters, and the rules already limit it if one fits. This does not hold if
    microbatches are sliced or differ.
    """
    claim = model.claim
    own_operations = [op for op in model.start if device_of(claim, op) == device]
    step_operations = model.step_operations
    gathered = [] if step_operations is None else step_operations.live[device]
    busy = _intervals(model, own_operations)
    if step_operations is not None and device in step_operations.busy:
        busy.append(step_operations.busy[device])
    model.cp.add_no_overlap(busy)
    stages = {(op.stage, claim.pipeline.route(op.microbatch)) for op in own_operations}
    differ = {Trait.SLICES, Trait.MICROBATCHES} & claim.traits
    simple = len(stages) == 1 and not differ
    memory = [[memory_of(claim, kind, stage) for kind in claim.kinds] for stage, _ in stages]
    freed_before = any(freed for own in memory for _, freed in own[:-1])
    counted = not freed_before and not any(allocated for own in memory for allocated, _ in own[1:])
    headroom = claim.pipeline.ticks.headroom(device)
    if headroom is None:
        return
    one_fits = all(own[0][0] <= headroom for own in memory)
    if simple and counted and one_fits and not gathered:
        return
    live = list(gathered)
    for op in own_operations:
        if op.kind is not OpKind.F:
            continue
        kinds = [kind for kind in claim.kinds if claim.has(kind, op.stage)]
        for begin, end, amount in live_intervals(claim, op, kinds):
            size = model.cp.new_int_var(0, model.latest, "")
            live.append(
                (model.cp.new_interval_var(model.start[begin], size, model.end[end], ""), amount)
            )
    model.cp.add_cumulative([what for what, _ in live], [amount for _, amount in live], headroom)


def _add_pairs(model: FeasibilityModel, device: int) -> None:
    """An operation ends when its time is over: alone, or that of its pair."""
    cp, claim = model.cp, model.claim
    own_operations = [op for op in model.start if device_of(claim, op) == device]
    partners: dict[Op, list[Pair]] = {op: [] for op in own_operations}
    for pair in _options(claim, own_operations):
        model.joined[pair] = cp.new_bool_var("")
        for op in pair:
            partners[op].append(pair)
    for op in own_operations:
        start, time = model.start[op], time_of(claim, op)
        chosen = {pair: model.joined[pair] for pair in partners[op]}
        if not chosen:
            continue
        alone, end = cp.new_bool_var(""), cp.new_int_var(0, model.latest, "")
        model.end[op], model.alone[op] = end, alone
        cp.add_exactly_one([alone, *chosen.values()])
        times = {pair: time_of_pair(claim, *pair) for pair in chosen}
        cp.add(end >= start + min(time, *times.values()))
        cp.add(end == start + time).only_enforce_if(alone)
        for (forward, backward), joined in chosen.items():
            both = times[forward, backward]
            cp.add(end == start + both).only_enforce_if(joined)
            cp.add(model.start[forward] == model.start[backward]).only_enforce_if(joined)


def _intervals(model: FeasibilityModel, own_operations: list[Op]) -> list[cp_model.IntervalVar]:
    """When a device is busy: in pairs by their F, with all others by themselves."""
    cp, intervals = model.cp, []
    for op in own_operations:
        start, time, alone = model.start[op], time_of(model.claim, op), model.alone.get(op)
        if alone is None:
            intervals.append(cp.new_fixed_size_interval_var(start, time, ""))
        elif op.kind is OpKind.F:
            size = cp.new_int_var(0, model.latest, "")
            intervals.append(cp.new_interval_var(start, size, model.end[op], ""))
        else:
            intervals.append(cp.new_optional_fixed_size_interval_var(start, time, alone, ""))
    return intervals


def _options(claim: Claim, own_operations: list[Op]) -> list[Pair]:
    """Pairs of different microbatches that save time.

    A pair that saves none is not needed: the backward followed by the F can replace it, which start
    no earlier, end no later and need no more memory. On one route, with microbatches in order, the
    F is of the later microbatch: that of the earlier one has ended.
    """
    if not pairs_save(claim.pipeline):
        return []
    route = claim.pipeline.route
    backwards = [op for op in own_operations if op.kind is claim.kinds[1]]
    return [
        (operation, two)
        for operation in own_operations
        if operation.kind is OpKind.F
        for two in backwards
        if route(operation.microbatch) != route(two.microbatch)
        or operation.microbatch > two.microbatch
        if time_of_pair(claim, operation, two) < time_of(claim, operation) + time_of(claim, two)
    ]
