"""The outcome of a re-check: its verdict and the reason."""

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
from ppopt.rechecker.quantities import device_of
from ppopt.schedule.operations import ALONE
from ppopt.schedule.origin import Origin
from ppopt.schedule.timetable import Timetable
from ppopt.verifier import figures, verify

if TYPE_CHECKING:
    from ppopt.rechecker.refute import RefutationOutcome, SolutionTimes
    from ppopt.schedule.schedule import Schedule


class Verdict(StrEnum):
    """How a re-check ended."""

    CONFIRMED = "confirmed"
    """No schedule is below the bound (or there is none at all, if that was claimed)."""
    UNDECIDED = "not confirmed"
    """Time ran out; or, if links are resources, a schedule below the bound exists for delays
    only."""
    WRONG = "wrong"
    """There is a schedule below the bound."""


@dataclass(frozen=True)
class Recheck:
    """Outcome of `ppopt.recheck`."""

    verdict: Verdict
    reason: str
    """Text that says what decided it."""
    devices: tuple[int, ...]
    """The devices whose rules decided it; for the others only the data flow was used."""
    seconds: float
    counterexample: Schedule | None = None
    """A valid schedule below the bound, if the bound is wrong and one was built."""


def outcome_of(stated: Claim, outcome: RefutationOutcome, seconds: float) -> Recheck:
    """The outcome of a search by CP-SAT."""
    if outcome.times is not None:
        return _of_schedule(stated, outcome.times, outcome.devices, seconds)
    verdict = Verdict.CONFIRMED if outcome.refuted else Verdict.UNDECIDED
    reason = searched(stated, outcome.devices, refuted=outcome.refuted)
    return Recheck(verdict, reason, outcome.devices, seconds)


def _of_schedule(
    stated: Claim, times: SolutionTimes, devices: tuple[int, ...], seconds: float
) -> Recheck:
    """The outcome if the search, with links as delays, returned a schedule."""
    schedule = _schedule(stated, times)
    reason = _below(stated, schedule)
    if not stated.pipeline.has_links:
        return Recheck(Verdict.WRONG, reason, devices, seconds, schedule)
    over = _over_links(stated, schedule, times)
    if over is not None:
        return Recheck(Verdict.WRONG, reason, devices, seconds, over)
    reason += ", with links as delays"
    if stated.bound is None:
        reason += "; with links as resources, the same orders are within the limits too"
        return Recheck(Verdict.WRONG, reason, devices, seconds)
    reason += "; with links as resources none was searched"
    return Recheck(Verdict.UNDECIDED, reason, devices, seconds)


def searched(stated: Claim, devices: tuple[int, ...], *, refuted: bool) -> str:
    """Text of the outcome of a search."""
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
    measured = figures(schedule)
    return measured.device_span if stated.span else measured.makespan


def _below(stated: Claim, schedule: Schedule) -> str:
    """Text that says why a claim is wrong."""
    value = stated.pipeline.time_text(value_of(stated, schedule))
    if stated.bound is None:
        return f"there is a schedule of {value} within the limits"
    return f"there is a schedule of {value}, below {stated.pipeline.time_text(stated.bound)}"


def _schedule(stated: Claim, times: SolutionTimes) -> Schedule:
    """The solution as a schedule over delays, verified: the re-checker itself may be wrong."""
    from ppopt.schedule.schedule import Schedule  # noqa: PLC0415  nothing here works with it

    pipeline = replace(stated.pipeline, link_mode=LinkMode.DELAY)
    rows = []
    pair = {op: pair_id for pair_id, joined in enumerate(times.joined) for op in joined}
    for op, start in times.start.items():
        end, device = times.end[op], device_of(stated, op)
        pair_id, route = pair.get(op, ALONE), pipeline.route(op.microbatch)
        rows.append((*op[:3], device, start, end, op.slice, pair_id, route, device))
    origin = Origin(objective=Objective.DEVICE_SPAN if stated.span else Objective.MAKESPAN)
    schedule = Schedule.from_rows(pipeline, [*rows, *times.step_operations], origin)
    broken = verify(schedule)
    if broken:
        raise VerificationError(f"the re-checker's own schedule breaks a rule: {broken[0]}")
    return schedule


def _over_links(stated: Claim, schedule: Schedule, times: SolutionTimes) -> Schedule | None:
    """The same times over links; None if that breaks a rule.

    Results are sent when the solution says so, and as they come if it does not say.
    """
    rows = [*schedule.operations.rows(), *_sent(stated, schedule, times.sent)]
    over = type(schedule).from_rows(stated.pipeline, rows, schedule.origin)
    return None if verify(over) else over


def _sent(stated: Claim, schedule: Schedule, starts: Mapping[Op, int]) -> Iterator[tuple[int, ...]]:
    """A transfer of every result that another device needs, each link first come, first served."""
    pipeline, free = stated.pipeline, defaultdict[Collection[int], int](int)
    ends = {row.op: row.end for row in sorted(schedule.rows(), key=lambda row: row.end)}
    for op, receiver, link, time in sent(stated, ends):
        start = starts.get(op, max(ends[op], free[link]))
        free[link] = max(free[link], start + time)
        kind = TransferKind.SEND_F if op.kind is OpKind.F else TransferKind.SEND_B
        source, target = device_of(stated, op), device_of(stated, receiver)
        fields = (kind, op.stage, op.microbatch, source)
        route = pipeline.route(op.microbatch)
        yield *fields, start, start + time, op.slice, ALONE, route, target
