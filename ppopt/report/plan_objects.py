"""The object that `ppopt plan` prints with --json."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from typing import Any

from ppopt.errors import NotApplicableError
from ppopt.formats.deepspeed_module import deepspeed_module
from ppopt.formats.figures import ScheduleFigures
from ppopt.formats.megatron_schedule import stated_group_size
from ppopt.formats.origin_json import json_object, members_of
from ppopt.formats.torchtitan_keys import torchtitan_keys
from ppopt.formats.trainer_partition import megatron_arguments
from ppopt.problem.decisions import SEARCH, Decisions
from ppopt.problem.exact import plain, plain_or_none, ratio
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.traits import Trait
from ppopt.report.headline_table import headline_object
from ppopt.report.objects import RESULT, SCHEMA
from ppopt.report.schedule_report import ScheduleReport, report_result
from ppopt.studies.plan_result import Plan, PlanBaseline, PlanRow

_OF_ROW = (
    *("makespan", "device_span", "bubble_rate", "peak_memory", "time_unit", "memory_unit"),
    *("exposed", "tokens_per_second", "mfu", "partition", "layout", "proof"),
)


def report_plan(plan: Plan) -> ScheduleReport:
    """Report of the best configuration, with status and bound over the whole space."""
    unknown: dict[str, Any] = {}
    if plan.best is None:
        unknown = dict.fromkeys(("partition", "layout", "placement", "chunks", "recompute"))
    report = report_result(plan.rows[0].result)
    imbalance = report.imbalance
    if imbalance is not None and Decisions.PARTITION in plan.space.open_decisions:
        imbalance = imbalance._replace(relief=None)
    return replace(
        report,
        imbalance=imbalance,
        status=plan.status.value,
        value=plain_or_none(plan.value),
        lower_bound=plain_or_none(plan.lower_bound),
        gap=plan.gap,
        proof=plan.proof,
        certificate=None,
        solve_seconds=round(plan.solve_seconds, 3),
        stopped_early=plan.interrupted,
        **unknown,
    )


def plan_object(plan: Plan) -> dict[str, Any]:
    """Object of `ppopt plan`: the keys of `ppopt solve` for the best plan, its headline, and more.

    `lower_bound` and `gap` are over the whole space; of several batch counts they are of the time
    per microbatch, for as many microbatches as the best plan has. `rows`, best first: one object
    per configuration, whose `recompute` is the choice (`none`, `full`, `layers`), and
    `recompute_layers` what it makes, per stage. With `given_up` its value is that of a schedule
    found before its bound showed that it is not the best; it was not searched further.
    `least_memory` is of the best configuration: the largest device peak of its schedule (`value`),
    and what no schedule as fast is below (`lower_bound`); equal where the least is proved.
    `sufficient_memory` is null unless no schedule is within the limits: the configuration, `memory`
    and `value` of one that needs little. `within`
    has the configuration of least memory found that is at most a share slower, if that was asked
    for, else null: its `value`, `memory`, and what no schedule so fast is below (`lower_bound`, or
    null). `more_memory` says what 10 % more memory brings; `baselines` are each on the
    best partition found for it, the best first: `speedup` is how many times its throughput the plan
    gives, and `within` whether the plan could have chosen it; `late_baselines` names those for
    which no time was left; `use` has the text of what trainers read of the best partition. Times
    and memory that are not known are null.
    """
    first, within, more = plan.rows[0], plan.within, plan.more_memory
    enough = plan.least_memory_row
    min_memory, batches, bound = plan.least_memory, first.configuration.batches, plan.lower_bound
    return json_object(
        {
            "schema": SCHEMA,
            **report_plan(plan).to_object(RESULT),
            **headline_object(plan.headline),
            "strategy": first.configuration.strategy,
            "batches": batches,
            "value_per_microbatch": first.per_microbatch,
            "bound_per_microbatch": bound and bound / batches,
            "least_memory": min_memory
            and {"value": min_memory.memory, "lower_bound": min_memory.lower_bound},
            "sufficient_memory": enough
            and {**enough.configuration._asdict(), "memory": enough.peak, "value": enough.step},
            "within": within
            and {
                **within.configuration._asdict(),
                **members_of(within, "value", "memory", "lower_bound"),
            },
            "more_memory": more
            and {"mem_limit": more.limits, **members_of(more, "value", "lower_bound")},
            "baselines": [_baseline_object(baseline, plan) for baseline in plan.baselines],
            "late_baselines": plan.late_baselines,
            "use": trainer_text(plan),
            "rows": [_row(row, plan) for row in plan.rows],
            "skipped": [{"configuration": name, "reason": reason} for name, reason in plan.skipped],
            "space": _space(plan),
        }
    )


def _row(row: PlanRow, plan: Plan) -> dict[str, Any]:
    """A row: the configuration, how it ended, and the figures of its best schedule."""
    pipeline, proof = row.result.pipeline, row.result.proof
    figures = ScheduleFigures.of(row.schedule, pipeline, proof=proof)
    time, best = row.per_microbatch, plan.rows[0].per_microbatch
    return {
        **row.configuration._asdict(),
        **members_of(row, "status", "value", "lower_bound", "bound_per_microbatch"),
        "value_per_microbatch": time,
        "ratio_to_best": time / best if time is not None and best else None,
        **figures.to_object(_OF_ROW),
        "recompute_layers": figures.recompute,
        **members_of(row, "searches", "given_up"),
    }


def _baseline_object(baseline: PlanBaseline, plan: Plan) -> dict[str, Any]:
    pipeline = baseline.schedule.pipeline
    return {
        "strategy": baseline.strategy,
        "placement": pipeline.resolved_placement,
        "chunks": pipeline.num_chunks,
        "routes": pipeline.routes,
        "recompute": baseline.recompute,
        "partition": pipeline.counts,
        "value": baseline.value,
        "speedup": speedup_over(baseline, plan),
        "within": baseline.in_space,
    }


def speedup_over(baseline: PlanBaseline, plan: Plan) -> float | None:
    """How many times the throughput of a baseline a plan has; None without a schedule."""
    return ratio(baseline.value, plan.value) if plan.value else None


def trainer_text(plan: Plan) -> dict[str, str | None]:
    """What trainers read of the best partition; None if they do not take it."""
    schedule = plan.schedule
    group = None if schedule is None else stated_group_size(schedule)
    writers: dict[str, Callable[[Pipeline], str]] = {
        "megatron_arguments": lambda pipeline: megatron_arguments(pipeline, group),
        "torchtitan": torchtitan_keys,
        "deepspeed": deepspeed_module,
    }
    texts: dict[str, str | None] = dict.fromkeys(writers)
    if plan.best is not None:
        for name, write in writers.items():
            with suppress(NotApplicableError):
                texts[name] = write(plan.best.pipeline)
    return texts


def _space(plan: Plan) -> dict[str, Any]:
    space = plan.space
    keys = ("devices", "batches", "chunks", "recompute", "strategies", "runtime", "partition")
    return {
        **members_of(space, *keys),
        "placement": space.placements,
        "routes": space.fields.get("routes", 1),
        "p2p_time": common_p2p_time(plan.pipeline),
        "configurations": len(plan.rows),
        **dict.fromkeys((space.open_decisions & Decisions.OFFLOAD).names, SEARCH),
        **({"order": space.order} if Trait.MICROBATCHES in plan.pipeline.traits else {}),
    }


def common_p2p_time(pipeline: Pipeline) -> int | float | None:
    """The time of every link, if there is one for all."""
    if pipeline.link is not None or not isinstance(pipeline.p2p, Fraction | int | float):
        return None
    return plain(Fraction(pipeline.p2p))
