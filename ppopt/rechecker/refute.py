"""Search for a schedule below a bound: first with the rules of few devices, then of more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from itertools import chain
from time import monotonic
from typing import NamedTuple

from ortools.sat.python import cp_model

from ppopt.errors import VerificationError
from ppopt.problem.objective import Objective
from ppopt.problem.operation import OpKind
from ppopt.rechecker import cp_sat
from ppopt.rechecker.claim import Claim
from ppopt.rechecker.equal_microbatches import of_smallest
from ppopt.rechecker.model import Model
from ppopt.rechecker.pair_times import shortens
from ppopt.rechecker.precedence import Precedence
from ppopt.rechecker.quantities import horizon, num_operations
from ppopt.rechecker.required import Required
from ppopt.schedule.operations import Operations
from ppopt.schedule.origin import Origin
from ppopt.schedule.timetable import Timetable
from ppopt.verifier import Rule
from ppopt.verifier.measure import memory_trace, over_limit
from ppopt.verifier.operation_rules import of_operations
from ppopt.verifier.rows import Rows, read

MAX_OPERATIONS = 30_000
"""Maximum number of operations in the model; sets of them need its square in bits."""
OF_RESOURCES = (Rule.OVERLAP, Rule.LINK, Rule.COLLECTIVE, Rule.HOST, Rule.MEMORY)
"""Rules that a model has for some devices only."""
SHARE = 0.4
"""Largest share of the remaining time for a search with the rules of few devices."""


class RefutationOutcome(NamedTuple):
    """Outcome of the search."""

    devices: tuple[int, ...]
    """The devices whose rules were all in force at the end."""
    refuted: bool
    """There is no schedule below the bound."""
    schedule: Timetable | None
    """A valid schedule below the bound; None if none was found."""


def refute(
    claim: Claim, seconds: float, workers: int, seed: int, report: Callable[[int], None]
) -> RefutationOutcome:
    """Search until there is an answer or the time is up.

    At first only the rules of some devices are in force: without a solution there is no schedule.
    If a solution breaks rules of other devices, those that break most are added, up to as many as
    there were. A solution that breaks none is a schedule below the bound. Without an answer within
    a share of the time, all devices are added. All are in from the start if an operation may take
    less time in a pair than alone: only the rules of its device then say when it ends. `report` is
    called with the number of devices. If the pipeline is too large for a full model, only the
    operations of the certificate's devices are in the model.
    """
    until = monotonic() + seconds
    every = range(claim.pipeline.num_devices)
    devices = set(claim.devices or every)
    whole = num_operations(claim) <= MAX_OPERATIONS
    if whole and (claim.mixed or shortens(claim.costs)):
        devices.update(every)
    each = Precedence.of_microbatch(of_smallest(claim))
    required = Required.of_claim(claim) if whole else each.on_devices(claim, devices)
    known = Precedence(required, each)
    while len(required.rows) <= MAX_OPERATIONS or whole:
        report(len(devices))
        model = Model(required, known, latest(claim), frozenset(devices))
        share = SHARE if whole and len(devices) < len(every) else 1.0
        status, schedule = _solve(model, share * (until - monotonic()), workers, seed)
        if status == cp_model.INFEASIBLE:
            return RefutationOutcome(tuple(sorted(devices)), refuted=True, schedule=None)
        if not whole or (len(devices) == len(every) and schedule is None) or until <= monotonic():
            break
        if schedule is None:
            devices.update(every)
            continue
        breaches = _breaches(read(schedule, claim.costs), devices)
        if not breaches:
            return RefutationOutcome(tuple(sorted(devices)), refuted=False, schedule=schedule)
        devices.update(breaches[: len(devices)])
    return RefutationOutcome(tuple(sorted(devices)), refuted=False, schedule=None)


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
    model: Model, seconds: float, workers: int, seed: int
) -> tuple[cp_model.CpSolverStatus, Timetable | None]:
    if seconds <= 0:
        return cp_model.UNKNOWN, None
    claim, rows = model.required.claim, model.required.rows
    instants, energy = not all(rows.end), model.energy
    status, solver = cp_sat.run(model.cp, seconds, workers, seed, instants=instants, energy=energy)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return status, None
    origin = Origin(objective=Objective.DEVICE_SPAN if claim.span else Objective.MAKESPAN)
    return status, Timetable(
        claim.pipeline, Operations(claim.pipeline, *model.columns(solver)), origin
    )


def _breaches(rows: Rows, devices: Collection[int]) -> list[int]:
    """Devices whose rules a schedule breaks, those with most breaches first.

    Raises VerificationError if the rules in force are broken: the re-checker itself may be wrong.
    """
    breaches = Counter[int]()
    in_memory = over_limit(rows.sane, memory_trace(rows.sane))
    for violation in chain(of_operations(rows), in_memory):
        if violation.rule not in OF_RESOURCES or violation.device in devices:
            raise VerificationError(f"the re-checker's own schedule breaks a rule: {violation}")
        assert violation.device is not None
        breaches[violation.device] += violation.count
    return sorted(breaches, key=lambda device: (-breaches[device], device))
