"""A plan over the parallelism: the object that --json prints, and the table for the terminal."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from rich.table import Table
from rich.text import Text

from ppopt.formats.origin_json import json_object
from ppopt.problem.exact import plain, plain_or_none
from ppopt.report.columns import Column, left, table_of
from ppopt.report.headline_table import describe_headline, headline_object
from ppopt.report.numbers import number, percent, significant
from ppopt.report.plan_objects import of_plan
from ppopt.report.plan_text import describe_slowdown, excess
from ppopt.studies.parallel_result import ParallelPlan, ParallelRow
from ppopt.studies.parallel_space import DIMENSIONS
from ppopt.studies.plan_result import RowStatus
from ppopt.studies.step_breakdown import StepBreakdown

_NUMBER = re.compile(r"[0-9]+")
MOST_SHOWN = 20
"""Most combinations of a table."""
_HEADS = {
    "tensor": "tensor",
    "context": "con-\ntext",
    "data": "data",
    "expert": "ex-\npert",
    "microbatch": "micro-\nbatch",
}
"""Dimension of a combination -> head of its column."""


def of_parallel_plan(found: ParallelPlan) -> dict[str, Any]:
    """Object of `ppopt plan --from`: that of `ppopt plan` for the best combination, and more.

    `status`, `value`, `lower_bound` and `gap` are over all combinations; times are those of a step
    in ms. `parallelism` has every combination, the best first, and tokens per second and GPU: what
    was found, and what no combination exceeds. `status` of a combination is as that of a plan's row
    (`unknown` with `searches` 0: not searched, its bound counts in that of all). Times and memory
    that are not known are null.
    """
    space = found.space
    own = {
        "proof": _proof(found),
        "status": found.status.value,
        "value": found.value,
        "lower_bound": found.lower_bound,
        "gap": found.gap,
        "solve_seconds": round(found.solve_seconds, 3),
        "parallelism": {
            "tokens_per_second_per_gpu": found.tokens_per_second(found.value),
            "bound_tokens_per_second_per_gpu": found.tokens_per_second(found.lower_bound),
            "architecture": space.architecture.name,
            "gpu": space.gpu.name,
            "gpus": space.gpus,
            "global_batch": space.global_batch,
            "rows": [found.row_object(row) for row in found.rows],
            "skipped": [
                {"combination": str(combination), "reason": reason}
                for combination, reason in found.skipped.items()
            ],
            "skipped_by_reason": [
                {"reason": reason, "combinations": number}
                for reason, number in found.skipped_by_reason.items()
            ],
            "not_searched": space.not_searched,
            "storage": found.storage,
        },
    }
    return of_plan(found.plan) | headline_object(found.headline) | json_object(own)


def describe(found: ParallelPlan) -> Iterator[str | Text | Table]:
    """What a terminal shows: lines and tables."""
    yield from describe_headline(found.headline)
    yield from describe_parallel_plan(found)
    if found.interrupted:
        yield f"stopped early{'' if found.storage is None else '; the same command continues'}"
    yield from ("", parallel_table(found))
    more = len(found.rows) - MOST_SHOWN
    if more > 0:
        yield f"{more} more combinations; --json has all"
    parts = breakdown_table(found)
    if parts is not None:
        yield from ("\nparts of a step (ms):", parts)
    yield from describe_skipped(found)


def parallel_table(found: ParallelPlan) -> Table:
    """Combinations, the best first, a row each."""
    rows = found.rows[:MOST_SHOWN]

    def compared(row: ParallelRow) -> str:
        is_best = row is rows[0] and row.value is not None
        return "best" if is_best else slowdown(row, found.value)

    columns: list[Column[ParallelRow]] = [
        *_sizes(found),
        Column("de-\nvices", lambda row: str(row.model.training.devices)),
        Column("batches", lambda row: str(row.model.training.batches)),
        Column("tokens/s\nper GPU", lambda row: significant(found.tokens_per_second(row.value))),
        Column("bound", lambda row: significant(found.tokens_per_second(row.lower_bound))),
        Column("memory\n(MiB)", lambda row: number(plain_or_none(row.peak))),
        left("versus the best", compared),
    ]
    return table_of(columns, rows, lambda row: "bold" if row is rows[0] else "")


def breakdown_table(found: ParallelPlan) -> Table | None:
    """What the steps consist of, in ms, of the combinations of the first table.

    None if no combination has a schedule.
    """

    def part(head: str, name: str) -> Column[ParallelRow]:
        return Column(head, lambda row: f"{float(getattr(row.breakdown, name)):.1f}")

    rows = [row for row in found.rows[:MOST_SHOWN] if row.breakdown is not None]
    if not rows:
        return None
    heads = ("compute", "commu-\nnication", "bubble", "gradient\nsync", "optimizer")
    columns = [
        *_sizes(found),
        Column("step", lambda row: f"{float(row.value or 0):.1f}"),
        *map(part, heads, StepBreakdown._fields),
    ]
    return table_of(columns, rows)


def _sizes(found: ParallelPlan) -> list[Column[ParallelRow]]:
    """Columns of the dimensions: context and expert only where one is above 1."""

    def size(name: str) -> Column[ParallelRow]:
        return Column(_HEADS[name], lambda row: str(getattr(row.parallelism, name)))

    return [
        size(name)
        for name in _HEADS
        if name not in ("context", "expert")
        or any(getattr(row.parallelism, name) > 1 for row in found.rows)
    ]


def slowdown(row: ParallelRow, best: Fraction | None) -> str:
    """Slowdown of a combination relative to the best step of any."""
    least, more = excess(row.lower_bound, best), excess(row.value, best)
    return describe_slowdown(row.status(best), row.searches, least, more)


def describe_parallel_plan(found: ParallelPlan) -> list[str]:
    """The best combination, the bound over all of them, and how many were searched."""
    space, lines = found.space, []
    if found.best is not None and found.value is not None:
        lines = [
            f"best: {found.best.parallelism}: {found.best.configuration}",
            f"step: {number(plain(found.value))} ms of {space.global_batch} sequences on "
            f"{space.gpus} x {space.gpu.name}",
        ]
    rate, bound = map(found.tokens_per_second, (found.value, found.lower_bound))
    if bound is not None:
        gap = "" if found.gap is None else f", gap {percent(plain(found.gap))}"
        lines.append(
            f"tokens/s per GPU: {significant(rate)}; no combination above {significant(bound)}{gap}"
        )
    elif rate is not None:
        lines.append(f"tokens/s per GPU: {significant(rate)}; no bound: time limit reached")
    lines += count_combinations(found)
    failed = [row for row in found.rows if row.failed is not None]
    lines += [f"failed: {row.parallelism}: {row.failed}" for row in failed]
    if found.storage is not None:
        storage = found.storage
        lines.append(
            f"study {storage.study} in {storage.storage}: {storage.loaded} of "
            f"{len(found.rows)} combinations were stored before"
        )
    return lines


def _proof(found: ParallelPlan) -> str:
    """What the bound over all combinations consists of."""
    bounds = [
        (row.lower_bound, row.parallelism) for row in found.rows if row.lower_bound is not None
    ]
    text = f"over all {'; '.join(count_combinations(found))}"
    if not bounds:
        return text
    _, least = min(bounds, key=lambda pair: pair[0])
    sizes = ", ".join(f"{name} {getattr(least, name)}" for name in DIMENSIONS)
    return f"{text}; the minimum bound is that of {sizes}"


def count_combinations(found: ParallelPlan) -> list[str]:
    """How many combinations were searched, and how many could not be in time."""
    counted = [(row.status(found.value), row) for row in found.rows]
    impossible = sum(status is RowStatus.INFEASIBLE for status, _ in counted)
    searched = sum(
        status is not RowStatus.INFEASIBLE and bool(row.searches or row.value is not None)
        for status, row in counted
    )
    unsearched = sum(status is RowStatus.UNKNOWN and not row.searches for status, row in counted)
    alone = len(counted) - impossible - searched - unsearched
    counts = {
        "searched": searched,
        "ruled out by bounds alone": alone,
        "over the memory limit": impossible,
    }
    text = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    lines = [f"{_combinations(len(counted))}: {text}"] if text else []
    if unsearched:
        total = _combinations(len(counted))
        lines.append(f"not searched in time: {unsearched} of {total}; raise --time-limit")
    return lines


def describe_skipped(found: ParallelPlan) -> list[str]:
    """The invalid combinations by reason, and the sizes that defaults leave out.

    Reasons that differ in numbers alone share a line, which has the most frequent one.
    """
    lines, groups = [], dict[str, list[tuple[str, int]]]()
    for entry in found.skipped_by_reason.items():
        groups.setdefault(_NUMBER.sub("0", entry[0]), []).append(entry)
    for entries in groups.values():
        total = sum(count for _, count in entries)
        similar = f" ({len(entries) - 1} similar)" if len(entries) > 1 else ""
        lines.append(f"skipped: {_combinations(total)}: {entries[0][0]}{similar}")
    if found.space.not_searched:
        lines.append(f"not looked at: {'; '.join(found.space.not_searched)}")
    return lines


def _combinations(number: int) -> str:
    return "1 combination" if number == 1 else f"{number} combinations"
