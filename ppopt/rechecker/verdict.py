"""How a re-check ended: its verdict, and why, in words."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from ppopt.errors import VerificationError
from ppopt.problem.link_mode import LinkMode
from ppopt.problem.objective import Objective
from ppopt.problem.operation import Op, OpKind, TransferKind
from ppopt.rechecker.claim import Claim
from ppopt.rechecker.links import sent
from ppopt.schedule.operations import ALONE
from ppopt.schedule.origin import Origin
from ppopt.schedule.timetable import Timetable
from ppopt.verifier import figures, verify

if TYPE_CHECKING:
    from ppopt.rechecker.refute import RefutationOutcome, Times
    from ppopt.schedule.schedule import Schedule


class Verdict(StrEnum):
    """How a re-check ended."""

    CONFIRMED = "confirmed"
    """No schedule is below the bound (or there is none at all, if that was claimed)."""
    UNDECIDED = "not confirmed"
    """Time ran out; or a schedule below the bound is one of delays, where backwards are mixed and
    links are resources."""
    WRONG = "wrong"
    """There is a schedule below the bound."""


@dataclass(frozen=True)
class Recheck:
    """Outcome of `ppopt.recheck`."""

    verdict: Verdict
    reason: str
    """What decided it, in words."""
    devices: tuple[int, ...]
    """The devices whose rules decided it; of the others only the data flow was used."""
    seconds: float
    counterexample: Schedule | None = None
    """A valid schedule below the bound, if it is wrong and one was made."""


def outcome_of(stated: Claim, found: RefutationOutcome, seconds: float) -> Recheck:
    """The outcome of a search by CP-SAT."""
    if found.times is not None:
        return _of_schedule(stated, found.times, found.devices, seconds)
    verdict = Verdict.CONFIRMED if found.refuted else Verdict.UNDECIDED
    reason = searched(stated, found.devices, refuted=found.refuted)
    return Recheck(verdict, reason, found.devices, seconds)


def _of_schedule(stated: Claim, times: Times, devices: tuple[int, ...], seconds: float) -> Recheck:
    """The outcome where a schedule was found, by rules that know links as delays alone."""
    made = _schedule(stated, times)
    reason = _below(stated, made)
    if not stated.pipeline.has_links:
        return Recheck(Verdict.WRONG, reason, devices, seconds, made)
    over = _over_links(stated, made, times)
    if over is not None:
        return Recheck(Verdict.WRONG, reason, devices, seconds, over)
    reason += ", where links are delays"
    if stated.bound is None:
        reason += "; over links the same orders keep them too"
        return Recheck(Verdict.WRONG, reason, devices, seconds)
    reason += "; over links none was looked for"
    return Recheck(Verdict.UNDECIDED, reason, devices, seconds)


def searched(stated: Claim, devices: tuple[int, ...], *, refuted: bool) -> str:
    """The outcome of a search, in words."""
    what = "no schedule" if refuted else "the time was up before a schedule was found or excluded"
    if stated.bound is not None:
        what += f" below {stated.pipeline.time_text(stated.bound)}"
    if len(devices) == stated.pipeline.num_devices:
        return f"{what} under all rules"
    names = " and ".join(map(str, devices))
    rules = f"device{'s' if len(devices) > 1 else ''} {names}"
    return f"{what} under all rules of {rules} and the data flow of the others"


def value_of(stated: Claim, schedule: Timetable) -> int:
    """Objective of a schedule, in ticks, as the verifier computes it."""
    found = figures(schedule)
    return found.device_span if stated.span else found.makespan


def _below(stated: Claim, made: Schedule) -> str:
    """How a claim is wrong, in words."""
    value = stated.pipeline.time_text(value_of(stated, made))
    if stated.bound is None:
        return f"there is a schedule of {value} within the limits"
    return f"there is a schedule of {value}, below {stated.pipeline.time_text(stated.bound)}"


def _schedule(stated: Claim, times: Times) -> Schedule:
    """The schedule found, over delays, verified: the re-checker itself may be wrong."""
    from ppopt.schedule.schedule import Schedule  # noqa: PLC0415  nothing here works with it

    pipeline = replace(stated.pipeline, link_mode=LinkMode.DELAY)
    rows = []
    pair = {op: number for number, joined in enumerate(times.joined) for op in joined}
    for op, start in times.start.items():
        end, device = times.end[op], stated.device(op)
        number, route = pair.get(op, ALONE), pipeline.route(op.microbatch)
        rows.append((*op[:3], device, start, end, op.slice, number, route, device))
    origin = Origin(objective=Objective.DEVICE_SPAN if stated.span else Objective.MAKESPAN)
    made = Schedule.from_rows(pipeline, [*rows, *times.once], origin)
    broken = verify(made)
    if broken:
        raise VerificationError(f"the re-checker's own schedule breaks a rule: {broken[0]}")
    return made


def _over_links(stated: Claim, made: Schedule, times: Times) -> Schedule | None:
    """The same times over links; None if that breaks a rule.

    Results are sent when the solution says so, and as they come if it does not say.
    """
    rows = [*made.operations.rows(), *_sent(stated, made, times.sent)]
    over = type(made).from_rows(stated.pipeline, rows, made.origin)
    return None if verify(over) else over


def _sent(stated: Claim, made: Schedule, starts: Mapping[Op, int]) -> Iterator[tuple[int, ...]]:
    """A transfer of every result that another device needs, each link first come, first served."""
    pipeline, free = stated.pipeline, defaultdict[Collection[int], int](int)
    ends = {row.op: row.end for row in sorted(made.rows(), key=lambda row: row.end)}
    for op, receiver, link, time in sent(stated, ends):
        start = starts.get(op, max(ends[op], free[link]))
        free[link] = max(free[link], start + time)
        kind = TransferKind.SEND_F if op.kind is OpKind.F else TransferKind.SEND_B
        source, target = stated.device(op), stated.device(receiver)
        place = (kind, op.stage, op.microbatch, source)
        route = pipeline.route(op.microbatch)
        yield *place, start, start + time, op.slice, ALONE, route, target
