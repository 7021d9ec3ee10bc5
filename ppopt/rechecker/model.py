"""The rules of a schedule, for CP-SAT: some devices with all of theirs, the others with fewer.

Every constraint is a rule, or the work between two operations (`ppopt.rechecker.rules`), that
each schedule below the bound obeys once its microbatches are renamed into order. So where some
devices keep all their rules and the others not, and there is still no solution, there is no such
schedule.

Microbatches in order. Take the operations of one kind and stage on one route. They are of one
length and do not overlap: rename them so that the k-th is that of the k-th microbatch. A rule
that says "an operation of microbatch j ends some time before another one of j starts", for all j
alike, holds after that too: when the k-th of the later operations starts, k of them have started,
before which k of the earlier ones have ended. Devices, times and memory stay as they were.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ortools.sat.python import cp_model

from ppopt.op import Op, OpKind
from ppopt.rechecker.claim import Claim
from ppopt.rechecker.rules import Rules


class Model(NamedTuple):
    """A CP-SAT model without objective; `start` holds the variable of every operation."""

    claim: Claim
    cp: cp_model.CpModel
    start: dict[Op, cp_model.IntVar]
    latest: int
    """Last instant, in ticks; no operation is longer."""


def build(rules: Rules, latest: int, devices: frozenset[int]) -> Model:
    """Model of the schedules below the bound and done by `latest`, with all rules of `devices`."""
    claim, cp = rules.claim, cp_model.CpModel()
    start = {op: cp.new_int_var(0, latest - claim.time(op), str(op)) for op in rules.operations}
    model = Model(claim, cp, start, latest)
    for before, after, lag in rules.apart:
        cp.add(start[after] >= start[before] + claim.time(before) + lag)
    if claim.bound is not None:
        _add_bound(model, rules, claim.bound - 1)
    for device in sorted(devices):
        _add_device(model, device)
    return model


def _add_bound(model: Model, rules: Rules, most: int) -> None:
    """No device is done later than `most`, or later than that after its first operation."""
    claim, cp = model.claim, model.cp
    devices = range(claim.pipeline.num_devices)
    window = [cp.new_int_var(0, model.latest if claim.span else 0, "") for _ in devices]
    for op, start in model.start.items():
        begin = window[claim.device(op)]
        cp.add(start >= begin + rules.behind(op))
        cp.add(start + claim.time(op) + rules.ahead(op) <= begin + most)


def _add_device(model: Model, device: int) -> None:
    """One operation at a time, and never more memory than the limit.

    With one stage whose B changes nothing, memory is held by numbers of microbatches alone, and
    the rules have counted them.
    """
    claim, ticks = model.claim, model.claim.pipeline.ticks
    mine = [op for op in model.start if claim.device(op) == device]
    model.cp.add_no_overlap(
        model.cp.new_fixed_size_interval_var(model.start[op], claim.time(op), "") for op in mine
    )
    stages = {(op.stage, claim.pipeline.route(op.microbatch)) for op in mine}
    counted = claim.fused or not any(ticks.memory_b[stage] for stage, _ in stages)
    if ticks.limits is None or (len(stages) == 1 and counted):
        return
    held = [
        part for op in mine if op.kind is OpKind.F for part in _held(model, op.stage, op.microbatch)
    ]
    room = ticks.limits[device] - ticks.static[device]
    model.cp.add_cumulative([what for what, _ in held], [amount for _, amount in held], room)


def _held(model: Model, stage: int, microbatch: int) -> Iterator[tuple[cp_model.IntervalVar, int]]:
    """What one microbatch holds at a stage: (from when to when, ticks of memory).

    What is taken counts from the start of an operation, what is given back from its end: of F's
    activation B gives back what memory_b says, W the rest; what B takes instead, W gives back.
    """
    ticks = model.claim.pipeline.ticks
    last = model.claim.kinds[-1]
    taken, change = ticks.activation[stage], 0 if model.claim.fused else ticks.memory_b[stage]
    for first, then, amount in (
        (OpKind.F, OpKind.B, -change),
        (OpKind.F, last, taken + min(change, 0)),
        (OpKind.B, last, change),
    ):
        if amount > 0:
            begin = model.start[Op(first, stage, microbatch)]
            op = Op(then, stage, microbatch)
            size = model.cp.new_int_var(0, model.latest, "")
            end = model.start[op] + model.claim.time(op)
            yield model.cp.new_interval_var(begin, size, end, ""), amount
