"""A plan as an object of JSON, for the storage, and back.

A row of a plan is the outcome of a job: the search of its configuration, or the evaluation of its
strategy. A stored row is checked like that of a sweep: its schedule has the pipeline of the
configuration, and the verifier accepts it.
"""

from __future__ import annotations

from fractions import Fraction
from functools import partial
from typing import Any

from ppopt.errors import InputError
from ppopt.formats.fields import abbreviated, flag, section, text
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.objective import Objective
from ppopt.solver.options import SolveOptions
from ppopt.solver.result import Status
from ppopt.studies import outcome
from ppopt.studies.outcome import StoredEffort, fraction
from ppopt.studies.plan_result import Plan, PlanRow, RowStatus
from ppopt.studies.plan_set_up import backward_kind_of
from ppopt.studies.plan_space import PlanConfiguration, PlanSpace
from ppopt.studies.records import (
    STATUS,
    checks_of,
    list_of,
    one_of,
    seconds,
    section_of,
    whole_number,
)
from ppopt.studies.solve_job import SolveJob


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
        "effort": StoredEffort.of(result)._asdict(),
    }


def _text(value: Fraction | None) -> str | None:
    return None if value is None else str(value)


def from_object(value: object, space: PlanSpace, options: SolveOptions) -> Plan:
    """Plan of a space in an object of `to_object`; raises InputError if it is wrong."""
    plan = section_of(
        value,
        {
            "status": STATUS,
            "lower_bound": fraction,
            "proof": text,
            "skipped": list_of(_skipped),
            "seconds": seconds,
            "rows": list_of(partial(_row_from_object, space=space, options=options)),
        },
    )
    rows = plan["rows"]
    if not rows or len({row.configuration for row in rows}) < len(rows):
        raise InputError("rows: a configuration is missing or there twice")
    return Plan(
        space=space,
        objective=Objective.MAKESPAN,
        status=Status(plan["status"]),
        rows=tuple(rows),
        value_ticks=rows[0].value_ticks,
        bound_ticks=outcome.in_ticks(plan["lower_bound"], rows[0].pipeline),
        per_unit=rows[0].per_unit,
        proof=plan["proof"],
        skipped=tuple(plan["skipped"]),
        provenance=options.provenance,
        solve_seconds=plan["seconds"],
    )


def _skipped(value: object) -> tuple[str, str]:
    pair = section_of(value, {"configuration": text, "reason": text})
    return pair["configuration"], pair["reason"]


def _row_from_object(value: object, space: PlanSpace, options: SolveOptions) -> PlanRow:
    row = section_of(
        value,
        {
            "configuration": partial(_configuration, space=space),
            "status": one_of(*RowStatus),
            "lower_bound": fraction,
            "searches": whole_number,
            "ruled_out": flag,
            "outcome": lambda document: section(document, outcome.DOCUMENT),
            "effort": partial(section_of, checks=checks_of(StoredEffort)),
        },
    )
    job = job_of_configuration(space, row["configuration"], options)
    result = outcome.from_document(row["outcome"], job, StoredEffort(**row["effort"]))
    return PlanRow(
        configuration=row["configuration"],
        status=RowStatus(row["status"]),
        result=outcome.with_origin(result) if job.searched else result,
        bound_ticks=outcome.in_ticks(row["lower_bound"], result.pipeline),
        searches=row["searches"],
        ruled_out_by_bounds=row["ruled_out"],
    )


def _configuration(value: object, space: PlanSpace) -> PlanConfiguration:
    for configuration in space:
        if configuration._asdict() == value:
            return configuration
    raise InputError(f"{abbreviated(value)} is not of the space")


def job_of_configuration(
    space: PlanSpace, configuration: PlanConfiguration, options: SolveOptions
) -> SolveJob:
    """The job that a row of a plan is the outcome of."""
    return SolveJob(
        pipeline=space.pipeline(configuration),
        strategy=configuration.strategy,
        backward_kind=backward_kind_of(configuration.strategy, BackwardKind.MIXED),
        options=space.options,
        seed=options.seed,
        workers=options.workers,
    )
