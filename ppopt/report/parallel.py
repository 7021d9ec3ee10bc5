"""A plan over the parallelism: the object that --json prints, and the table for the terminal."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN
from fractions import Fraction
from typing import Any

from rich.text import Text

from ppopt.formats.origin_json import json_object, members_of
from ppopt.problem.pipeline import Pipeline
from ppopt.report.columns import Column, Grid, left
from ppopt.report.headline_table import describe_headline, headline_object
from ppopt.report.numbers import NONE, percent, significant
from ppopt.report.placement_text import recompute_word
from ppopt.report.plan_objects import plan_object
from ppopt.report.plan_text import BEST, describe_enough, status_legend, status_word
from ppopt.studies.baselines import OUT_OF_TIME
from ppopt.studies.parallel_result import ParallelPlan, ParallelRow
from ppopt.studies.parallel_space import NO_OVERLAP, ParallelSpace
from ppopt.studies.plan_result import RowStatus
from ppopt.studies.step_breakdown import StepBreakdown

_NUMBER = re.compile(r"[0-9]+")
MAX_SHOWN = 20
"""Most combinations of a table."""
_OUTCOMES = (
    *("searched", "evaluated by strategies alone", "ruled out by bounds alone"),
    "over the memory limit",
)
"""What became of a combination."""
_HEADS = {"tensor": "TP", "context": "CP", "expert": "EP", "data": "DP", "microbatch": "MBS"}
"""Dimension of a combination -> head of its column."""


def parallel_plan_object(plan: ParallelPlan) -> dict[str, Any]:
    """Object of `ppopt plan --from`: that of `ppopt plan` for the best combination, and more.

    `status`, `value`, `lower_bound` and `gap` are over all combinations; times are those of a step
    in ms. `parallelism` has every combination, the best first, and tokens per second and GPU: what
    was found, and what no combination exceeds. `status` of a combination is as that of a plan's row
    (`unknown` with `searches` 0: not searched, its bound counts in that of all). Times and memory
    that are not known are null.
    """
    space = plan.space
    own = {
        "proof": _proof(plan),
        **members_of(plan, "status", "value", "lower_bound", "gap"),
        "solve_seconds": round(plan.solve_seconds, 3),
        "parallelism": {
            "tokens_per_second_per_gpu": plan.tokens_per_second(plan.value),
            "bound_tokens_per_second_per_gpu": plan.tokens_per_second(plan.lower_bound),
            "architecture": space.architecture.name,
            "gpu": space.gpu.name,
            **members_of(space, "gpus", "global_batch", "not_searched"),
            "rows": [plan.row_object(row) for row in plan.rows],
            "skipped": [
                {"combination": str(combination), "reason": reason}
                for combination, reason in plan.skipped.items()
            ],
            "skipped_by_reason": [
                {"reason": reason, "combinations": number}
                for reason, number in plan.skipped_by_reason.items()
            ],
            "storage": plan.storage,
        },
    }
    return plan_object(plan.plan) | headline_object(plan.headline) | json_object(own)


def describe(plan: ParallelPlan) -> Iterator[str | Text | Grid[Any]]:
    """What a terminal shows: lines and tables."""
    yield from describe_headline(plan.headline)
    yield from describe_parallel_plan(plan)
    yield from ("", parallel_table(plan))
    more = len(plan.rows) - MAX_SHOWN
    if more > 0:
        yield f"{more} more combinations; --json has all"
    yield from filter(None, [explain_statuses(plan)])
    parts = breakdown_table(plan, plan.rows[:MAX_SHOWN])
    if parts.rows:
        yield from ("\nparts of a step (ms):", parts)
    yield from describe_skipped(plan)


def parallel_table(plan: ParallelPlan) -> Grid[ParallelRow]:
    """Combinations, the best first; the schedule is that of their best configuration."""

    def bound(row: ParallelRow) -> str:
        rounding = ROUND_HALF_EVEN if row.lower_bound == row.value else ROUND_CEILING
        return significant(plan.tokens_per_second(row.lower_bound), rounding=rounding)

    columns = [
        *_sizes(plan),
        Column("tokens/s\nper GPU", lambda row: significant(plan.tokens_per_second(row.value))),
        Column("bound", bound),
        Column("memory\n(MiB)", lambda row: significant(row.peak, rounding=ROUND_CEILING)),
        Column("headroom\n(MiB)", lambda row: significant(row.headroom, rounding=ROUND_FLOOR)),
        Column("recompute", lambda row: _chosen(row, recompute_word), left=True, optional=1),
        *_overlaps(plan),
        left("status", lambda row: _status(plan, row)),
    ]
    rows = plan.rows[:MAX_SHOWN]
    return Grid(columns, rows, lambda row: "bold" if row is rows[0] else "")


def _chosen(row: ParallelRow, describe: Callable[[Pipeline], str]) -> str:
    """A decision of the best schedule of a combination."""
    return NONE if row.schedule is None else describe(row.schedule.pipeline)


def _overlaps(plan: ParallelPlan) -> list[Column[ParallelRow]]:
    """Column of the overlap of exchanges with experts, if a combination has one."""
    if all(row.parallelism.overlap == NO_OVERLAP for row in plan.rows):
        return []
    return [
        left("overlap", lambda row: row.parallelism.overlap),
        left("strategy", lambda row: row.strategy or NONE),
    ]


def _virtual_stages(pipeline: Pipeline) -> str:
    """Stages per device, marked where they go down the devices and back up."""
    mark = "v" if pipeline.resolved_placement == "v" else ""
    return f"{pipeline.num_chunks}{mark}"


def _status(plan: ParallelPlan, row: ParallelRow) -> str:
    return BEST if row is plan.best else status_word(row.status(plan.value), row.searches)


def explain_statuses(plan: ParallelPlan) -> str:
    """What the words of the last column mean; empty if they say it themselves."""
    return status_legend({_status(plan, row) for row in plan.rows})


def breakdown_table(plan: ParallelPlan, rows: Sequence[ParallelRow]) -> Grid[ParallelRow]:
    """What the steps consist of, in ms, of the combinations with a schedule among these."""

    def part(head: str, name: str) -> Column[ParallelRow]:
        return Column(head, lambda row: f"{float(getattr(row.breakdown, name)):.1f}")

    heads = ("compute", "communication", "bubble", "gradient\nsync", "optimizer")
    columns = [
        *_sizes(plan),
        Column("step", lambda row: f"{float(row.value or 0):.1f}"),
        *map(part, heads, StepBreakdown._fields),
    ]
    return Grid(columns, [row for row in rows if row.breakdown is not None])


def _sizes(plan: ParallelPlan) -> list[Column[ParallelRow]]:
    """Columns of the sizes, as trainers name them: CP and EP only where one is above 1."""

    def size(name: str) -> Column[ParallelRow]:
        return Column(_HEADS[name], lambda row: str(getattr(row.parallelism, name)))

    sizes = [
        size(name)
        for name in _HEADS
        if name not in ("context", "expert")
        or any(getattr(row.parallelism, name) > 1 for row in plan.rows)
    ]
    stages: list[Column[ParallelRow]] = [
        Column("PP", lambda row: str(row.model.training.devices)),
        Column("VPP", lambda row: _chosen(row, _virtual_stages)),
    ]
    return [*sizes[:-1], *stages, sizes[-1]]


def describe_training(space: ParallelSpace) -> str:
    """The model, its size, and the GPUs that train it."""
    parameters = significant(space.architecture.parameters / 10**9)
    return (
        f"{space.architecture.name}, {parameters} billion parameters, on "
        f"{space.gpus} x {space.gpu.name}"
    )


def describe_parallel_plan(plan: ParallelPlan) -> list[str]:
    """The best combination, the bound over all of them, and how many were searched."""
    space, lines = plan.space, []
    if plan.best is not None and plan.value is not None:
        lines = [
            f"best: {plan.best.parallelism}: {plan.best.configuration}",
            f"step: {significant(plan.value, 'ms')} of {space.global_batch} sequences on "
            f"{space.gpus} x {space.gpu.name}",
        ]
    rate, bound = map(plan.tokens_per_second, (plan.value, plan.lower_bound))
    if bound is not None:
        gap = "" if plan.gap is None else f", gap {percent(plan.gap)}"
        lines.append(
            f"tokens/s per GPU: {significant(rate)}; no combination above {significant(bound)}{gap}"
        )
    elif rate is not None:
        lines.append(f"tokens/s per GPU: {significant(rate)}; no bound: time limit reached")
    if plan.least_memory is not None:
        combination, row = plan.least_memory
        lines.append(f"{describe_enough(row)}, {combination}")
    lines += count_combinations(plan)
    failed = [row for row in plan.rows if row.failed is not None]
    lines += [f"failed: {row.parallelism}: {row.failed}" for row in failed]
    if plan.storage is not None:
        storage = plan.storage
        lines.append(
            f"study {storage.study} in {storage.storage}: {storage.loaded} of "
            f"{len(plan.rows)} combinations were stored before"
        )
    if plan.interrupted:
        lines.append(
            f"stopped early{'' if plan.storage is None else '; the same command continues'}"
        )
    return lines


def _proof(plan: ParallelPlan) -> str:
    """What the bound over all combinations consists of."""
    bounds = {row.parallelism: row.lower_bound for row in plan.rows if row.lower_bound is not None}
    text = f"over all {'; '.join(count_combinations(plan))}"
    if not bounds:
        return text
    combination = min(bounds, key=bounds.__getitem__)
    sizes = ", ".join(f"{name} {size}" for name, size in combination._asdict().items())
    return f"{text}; the minimum bound is that of {sizes}"


def count_combinations(plan: ParallelPlan) -> list[str]:
    """How many combinations were searched or evaluated, and how many could not be in time."""
    late = plan.skipped_by_reason.get(OUT_OF_TIME, 0)
    counts = Counter(_outcome(row, plan.value) for row in plan.rows)
    text = ", ".join(f"{counts[what]} {what}" for what in _OUTCOMES if counts[what])
    total = _combinations(len(plan.rows) + late)
    lines = [f"{total}: {text}"] if text else []
    waiting = {"searched": counts[""], "derived": late}
    late_text = ", ".join(f"not {what} in time: {n}" for what, n in waiting.items() if n)
    return [*lines, f"{late_text} of {total}; raise --time-limit"] if late_text else lines


def _outcome(row: ParallelRow, best: Fraction | None) -> str:
    """One of `_OUTCOMES`; empty if there was no time for the combination."""
    status = row.status(best)
    if status is RowStatus.INFEASIBLE:
        return _OUTCOMES[-1]
    if row.plan is not None:
        return _OUTCOMES[0]
    return {RowStatus.EVALUATED: _OUTCOMES[1], RowStatus.UNKNOWN: ""}.get(status, _OUTCOMES[2])


def describe_skipped(plan: ParallelPlan) -> list[str]:
    """The invalid combinations by reason, and the sizes that defaults leave out.

    Reasons that differ in numbers alone share a line, which has the most frequent one.
    """
    lines, groups = [], dict[str, list[tuple[str, int]]]()
    for entry in plan.skipped_by_reason.items():
        groups.setdefault(_NUMBER.sub("0", entry[0]), []).append(entry)
    for entries in groups.values():
        total = sum(count for _, count in entries)
        similar = f" ({len(entries) - 1} similar)" if len(entries) > 1 else ""
        lines.append(f"skipped: {_combinations(total)}: {entries[0][0]}{similar}")
    if plan.space.not_searched:
        lines.append(f"not looked at: {'; '.join(plan.space.not_searched)}")
    return lines


def _combinations(number: int) -> str:
    return "1 combination" if number == 1 else f"{number} combinations"
