"""The rows of a plan as they are shown: formatted once, for the terminal and for the page."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import NamedTuple

from ppopt.problem import layout
from ppopt.problem.exact import plain
from ppopt.report.labels import objective_name
from ppopt.report.numbers import NONE, headed, number, percent
from ppopt.report.plan_text import describe_configuration, slowdown, value_text
from ppopt.studies.plan_result import Plan, PlanRow


class PlanCells(NamedTuple):
    """A configuration: every cell that a table of a plan may have."""

    configuration: str
    strategy: str
    placement: str
    recompute: str
    batches: str
    status: str
    value: str
    bound: str
    memory: str
    """The largest peak of a device."""
    bubble_rate: str
    partition: str
    """The layout, or layers of every stage."""
    versus_best: str
    is_best: bool


def has_batches(plan: Plan) -> bool:
    """Whether configurations of several batch counts compare, by the time per microbatch."""
    return len(plan.space.batches) > 1


def value_head(plan: Plan) -> str:
    """What the value of a row is, with its unit."""
    figure = "per microbatch" if has_batches(plan) else objective_name(plan.objective)
    return headed(figure, plan.rows[0].result.pipeline.time_unit)


def plan_rows(plan: Plan, digits: int | None = None) -> Iterator[PlanCells]:
    """The rows of a plan, the best first; `digits`: decimals that figures are rounded to."""
    for place, row in enumerate(plan.rows):
        yield _cells(row, plan, digits, is_best=place == 0)


def _cells(row: PlanRow, plan: Plan, digits: int | None, *, is_best: bool) -> PlanCells:
    def short(figure: Fraction | None) -> float | None:
        if figure is None:
            return None
        return plain(figure) if digits is None else round(plain(figure), digits)

    several, configuration, schedule = has_batches(plan), row.configuration, row.schedule
    bubble_rate = None
    if schedule is not None:
        bubble_rate = plain(schedule.metrics.bubble_rate(schedule.objective))
    return PlanCells(
        configuration=describe_configuration(configuration),
        strategy=configuration.strategy,
        placement=configuration.placement
        + (f"/{configuration.chunks}" if configuration.chunks > 1 else ""),
        recompute=configuration.recompute,
        batches=number(configuration.batches),
        status=row.status.value,
        value=value_text(row, short(row.per_microbatch if several else row.value)),
        bound=number(short(row.bound_per_microbatch if several else row.lower_bound)),
        memory=number(short(row.peak)),
        bubble_rate=percent(bubble_rate),
        partition=NONE if schedule is None else _partition(row),
        versus_best="best"
        if is_best and schedule is not None
        else slowdown(row, plan.rows[0].per_microbatch),
        is_best=is_best,
    )


def _partition(row: PlanRow) -> str:
    """The layout where every role has a letter, or layers of every stage."""
    pipeline = row.result.pipeline
    if pipeline.model is None:
        return NONE
    return layout.write(pipeline.model, pipeline.counts) or " ".join(map(str, pipeline.counts))
