"""Search for a schedule below a bound: first with the rules of few devices, then of more."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from types import MappingProxyType
from typing import NamedTuple

from ortools.sat.python import cp_model

from ppopt.problem.operation import Op, OpKind
from ppopt.rechecker import cp_sat
from ppopt.rechecker.claim import Claim
from ppopt.rechecker.equal_microbatches import of_smallest
from ppopt.rechecker.feasibility_model import FeasibilityModel, Pair, build
from ppopt.rechecker.pair_times import shortens
from ppopt.rechecker.precedence import MAX_OPERATIONS, Rules
from ppopt.rechecker.quantities import (
    device_of,
    horizon,
    memory_factor,
    memory_of,
    num_operations,
    time_of,
)
from ppopt.rechecker.step_operations import has_instants

SHARE = 0.4
"""Largest share of the remaining time for a search with the rules of few devices."""


class SolutionTimes(NamedTuple):
    """When every operation runs, in ticks, and which run as one."""

    start: dict[Op, int]
    end: dict[Op, int]
    joined: list[Pair]
    sent: Mapping[Op, int] = MappingProxyType({})
    """Start of the transfer of an operation's result, if the rules of links are in force."""
    step_operations: Sequence[tuple[int, ...]] = ()
    """Operations besides compute, as rows of the fields of `Operation`."""


class RefutationOutcome(NamedTuple):
    """Outcome of the search."""

    devices: tuple[int, ...]
    """The devices whose rules were all in force at the end."""
    refuted: bool
    """There is no schedule below the bound."""
    times: SolutionTimes | None
    """A schedule below the bound that breaks no rule; None if none was found."""


def refute(
    claim: Claim, seconds: float, workers: int, seed: int, report: Callable[[int], None]
) -> RefutationOutcome:
    """Search until there is an answer or the time is up.

    At first only the rules of some devices are in force: without a solution there is no schedule.
    If a solution breaks rules of other devices, those that break most are added, up to as many as
    there were. A solution that breaks none is a schedule below the bound. Without an answer within
    a share of the time, all devices are added. All are in from the start if an operation may take
    less time in a pair than alone, or if microbatches differ: only the rules of its device then say
    when it ends and how much memory it needs. `report` is called with the number of devices. If the
    pipeline is too large for a full model, only the rules of the certificate's devices are in
    force.
    """
    until = monotonic() + seconds
    pipeline = claim.pipeline
    every = range(pipeline.num_devices)
    devices = set(claim.devices or every)
    smallest = of_smallest(claim)
    own = pipeline.has_auxiliary_operations or shortens(pipeline) or smallest is not claim
    if own and num_operations(claim) <= MAX_OPERATIONS:
        devices.update(every)
    rules, last = Rules(smallest, frozenset(devices)), latest(claim)
    while len(rules.operations) <= MAX_OPERATIONS:
        report(len(devices))
        model = build(claim, rules, last, frozenset(devices))
        share = SHARE if rules.all and len(devices) < len(every) else 1.0
        status, times = _solve(model, share * (until - monotonic()), workers, seed)
        if status == cp_model.INFEASIBLE:
            return RefutationOutcome(tuple(sorted(devices)), refuted=True, times=None)
        if not rules.all or (len(devices) == len(every) and times is None) or until <= monotonic():
            break
        if times is None:
            devices.update(every)
            continue
        breaches = {d: _breaches(claim, times, d) for d in every if d not in devices}
        worst = sorted((d for d in breaches if breaches[d]), key=lambda d: (-breaches[d], d))
        if not worst and claim.pipeline.has_links and len(devices) < len(every):
            devices.update(every)
            continue
        if not worst:
            return RefutationOutcome(tuple(sorted(devices)), refuted=False, times=times)
        devices.update(worst[: len(devices)])
    return RefutationOutcome(tuple(sorted(devices)), refuted=False, times=None)


def latest(claim: Claim) -> int:
    """An instant by which some schedule of value below the bound ends, if there is one.

    Under device span, any two devices have a stage each on route 0, and the interval F(., 0) ..
    B(., 0) of one contains that of the other: the windows of all devices intersect, so twice the
    span suffices. If stages have no backward, windows need not intersect: between two windows
    there are only transfers.
    """
    if claim.bound is None:
        return horizon(claim)
    if claim.span and not claim.has(OpKind.B, 0):
        return claim.pipeline.num_devices * (claim.bound - 1) + horizon(claim)
    return (claim.bound - 1) * (2 if claim.span else 1)


def _solve(
    model: FeasibilityModel, seconds: float, workers: int, seed: int
) -> tuple[cp_model.CpSolverStatus, SolutionTimes | None]:
    if seconds <= 0:
        return cp_model.UNKNOWN, None
    lengths = (time_of(model.claim, op) for op in model.start)
    instants = not all(lengths) or has_instants(model.claim)
    status, solver = cp_sat.run(model.cp, seconds, workers, seed, instants=instants)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return status, None
    start = {op: solver.value(variable) for op, variable in model.start.items()}
    end = {op: solver.value(expression) for op, expression in model.end.items()}
    joined = [pair for pair, literal in model.joined.items() if solver.value(literal)]
    carried = {op: solver.value(variable) for op, variable in model.sent.items()}
    step_operations = [] if model.step_operations is None else model.step_operations.rows(solver)
    return status, SolutionTimes(start, end, joined, carried, step_operations)


def _breaches(claim: Claim, times: SolutionTimes, device: int) -> int:
    """How often a device runs two operations at once or exceeds its memory limit."""
    own_operations = [op for op in times.start if device_of(claim, op) == device]
    overlaps, latest = 0, 0
    for begin, end in sorted((times.start[op], times.end[op]) for op in own_operations):
        overlaps += begin < latest
        latest = max(latest, end)
    return overlaps + _excesses(claim, times, own_operations, device)


def _excesses(claim: Claim, times: SolutionTimes, own_operations: list[Op], device: int) -> int:
    """Changes of memory that leave a device above its limit: ends first, then starts."""
    ticks = claim.pipeline.ticks
    if ticks.limits is None:
        return 0
    memory = {
        op: memory_of(claim, op.kind, op.stage, memory_factor(claim, op.microbatch))
        for op in own_operations
    }
    allocations = [(times.start[op], 1, allocated) for op, (allocated, _) in memory.items()]
    releases = [(times.end[op], 0, -freed) for op, (_, freed) in memory.items()]
    live, excesses = ticks.static[device], 0
    for _, _, change in sorted(event for event in allocations + releases if event[2]):
        live += change
        excesses += live > ticks.limits[device]
    return excesses
