"""A plan as an object of JSON, for the storage, and back.

A row of a plan is the outcome of a job: the search of its configuration, or the evaluation of its
strategy. A stored row is checked as that of a sweep: its schedule has the pipeline of the
configuration, and the verifier accepts it.
"""

from __future__ import annotations

from enum import StrEnum
from fractions import Fraction
from typing import Any, TypeVar

from ppopt.errors import InputError
from ppopt.formats.fields import finite, flag, section, shown, text, whole, within
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.objective import Objective
from ppopt.solver.options import SolveOptions
from ppopt.solver.result import Status
from ppopt.strategies import resolve
from ppopt.studies import outcome
from ppopt.studies.job import SolveJob
from ppopt.studies.outcome import Effort, fraction
from ppopt.studies.plan_result import Plan, PlanRow, RowStatus
from ppopt.studies.plan_space import OPTIMAL, PlanConfiguration, PlanSpace
from ppopt.studies.records import LARGEST_INT

Named = TypeVar("Named", bound=StrEnum)
_PLAN = ("status", "lower_bound", "proof", "skipped", "seconds", "rows")
_ROW = ("configuration", "status", "lower_bound", "searches", "ruled_out", "outcome", "effort")


def to_object(plan: Plan) -> dict[str, Any]:
    """Object of a plan that minimises the makespan, without its additional reports."""
    return {
        "status": plan.status.value,
        "lower_bound": _text(plan.lower_bound),
        "proof": plan.proof,
        "skipped": [{"configuration": name, "reason": why} for name, why in plan.skipped],
        "seconds": plan.solve_seconds,
        "rows": [_row_to_object(row) for row in plan.rows],
    }


def _row_to_object(row: PlanRow) -> dict[str, Any]:
    result = outcome.with_spent_time(row.result)
    return {
        "configuration": row.configuration._asdict(),
        "status": row.status.value,
        "lower_bound": _text(row.lower_bound),
        "searches": row.searches,
        "ruled_out": row.ruled_out_by_bounds,
        "outcome": outcome.to_document(result),
        "effort": Effort.of(result)._asdict(),
    }


def _text(number: Fraction | None) -> str | None:
    return None if number is None else str(number)


def from_object(value: object, space: PlanSpace, options: SolveOptions) -> Plan:
    """Plan of a space in an object of `to_object`; raises InputError if it is wrong."""
    plan = section(value, _PLAN)
    rows = [_row_from_object(row, space, options) for row in _list(plan["rows"])]
    if not rows or len({row.configuration for row in rows}) < len(rows):
        raise InputError("rows: a configuration is missing or there twice")
    skipped = [section(pair, ("configuration", "reason")) for pair in _list(plan["skipped"])]
    return Plan(
        space=space,
        objective=Objective.MAKESPAN,
        status=_member(Status, plan["status"]),
        rows=tuple(rows),
        lower_bound=within("lower_bound", fraction, plan["lower_bound"]),
        proof=within("proof", text, plan["proof"]),
        skipped=tuple((text(pair["configuration"]), text(pair["reason"])) for pair in skipped),
        provenance=options.provenance,
        solve_seconds=float(within("seconds", finite, plan["seconds"])),
    )


def _row_from_object(value: object, space: PlanSpace, options: SolveOptions) -> PlanRow:
    row = section(value, _ROW)
    configuration = _configuration(row["configuration"], space)
    job = job_of_configuration(space, configuration, options)
    result = outcome.from_document(
        section(row["outcome"], outcome.DOCUMENT), job, _effort(row["effort"])
    )
    return PlanRow(
        configuration=configuration,
        status=_member(RowStatus, row["status"]),
        result=outcome.with_origin(result),
        lower_bound=within("lower_bound", fraction, row["lower_bound"]),
        searches=within("searches", whole, row["searches"], 0, LARGEST_INT),
        ruled_out_by_bounds=within("ruled_out", flag, row["ruled_out"]),
    )


def _configuration(value: object, space: PlanSpace) -> PlanConfiguration:
    for configuration in space:
        if configuration._asdict() == value:
            return configuration
    raise InputError(f"configuration: {shown(value)} is not of the space")


def _effort(value: object) -> Effort:
    effort = section(value, Effort._fields)
    return Effort(
        status=_member(Status, effort["status"]),
        time_limit=float(within("time_limit", finite, effort["time_limit"])),
        workers=within("workers", whole, effort["workers"], 1, LARGEST_INT),
        seconds=float(within("seconds", finite, effort["seconds"])),
    )


def _list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise InputError(f"{shown(value)} is not a list")
    return value


def _member(kind: type[Named], value: object) -> Named:
    """Member of an enumeration of texts."""
    for member in kind:
        if member.value == value:
            return member
    raise InputError(f"{shown(value)} is not one of {', '.join(kind)}")


def job_of_configuration(
    space: PlanSpace, configuration: PlanConfiguration, options: SolveOptions
) -> SolveJob:
    """Job whose outcome a row of a plan is."""
    strategy, kind = configuration.strategy, BackwardKind.MIXED
    if strategy != OPTIMAL and resolve(strategy).fused:
        kind = BackwardKind.WHOLE
    return SolveJob(
        pipeline=space.pipeline(configuration),
        strategy=strategy,
        backward_kind=kind,
        options=space.options,
        seed=options.seed,
        workers=options.workers,
    )
