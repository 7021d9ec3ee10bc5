"""A plan over the parallelism: the object that --json prints, and the table for the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from ppopt.problem.exact import plain_or_none
from ppopt.report.numbers import NONE, grouped, number, percent
from ppopt.report.plan_objects import of_plan
from ppopt.report.plan_words import open_words, slower_words
from ppopt.studies.parallel_result import ParallelPlan, ParallelRow


def of_parallel_plan(found: ParallelPlan) -> dict[str, Any]:
    """Object of `ppopt plan --from`: that of `ppopt plan` for the best combination, and more.

    `status`, `value`, `lower_bound` and `gap` are over all combinations; times are those of a step
    in ms. `parallelism` has every combination, the best first, and tokens per second and GPU: what
    was found, and what no combination exceeds. `status` of a combination is as that of a plan's row
    (`unknown` with `searches` 0: not searched, its bound counts in that of all). Times and memory
    that are not known are null.
    """
    space = found.space
    return of_plan(found.plan) | {
        "status": found.status.value,
        "value": plain_or_none(found.value),
        "lower_bound": plain_or_none(found.lower_bound),
        "gap": plain_or_none(found.gap),
        "solve_seconds": round(found.solve_seconds, 3),
        "parallelism": {
            "tokens_per_second_per_gpu": found.tokens_per_second(found.value),
            "bound_tokens_per_second_per_gpu": found.tokens_per_second(found.lower_bound),
            "architecture": space.architecture.name,
            "gpu": space.gpu.name,
            "gpus": space.gpus,
            "global_batch": space.global_batch,
            "rows": [_row(row, found) for row in found.rows],
            "skipped": [
                {"combination": str(combination), "reason": reason}
                for combination, reason in found.skipped.items()
            ],
            "skipped_by_reason": [
                {"reason": reason, "combinations": number}
                for reason, number in found.skipped_by_reason.items()
            ],
            "not_searched": list(space.not_searched),
            "storage": None if found.storage is None else found.storage._asdict(),
        },
    }


def _row(row: ParallelRow, found: ParallelPlan) -> dict[str, Any]:
    training, best = row.model.training, None if row.plan is None else row.plan.best
    return {
        **row.parallelism._asdict(),
        "status": row.status(found.value).value,
        "searches": row.searches,
        "devices": training.devices,
        "batches": training.batches,
        "value": plain_or_none(row.value),
        "lower_bound": plain_or_none(row.lower_bound),
        "tokens_per_second_per_gpu": found.tokens_per_second(row.value),
        "bound_tokens_per_second_per_gpu": found.tokens_per_second(row.lower_bound),
        "configuration": None if best is None else str(best.configuration),
        "peak_memory": None if best is None else plain_or_none(best.peak),
        "seconds": round(row.seconds, 3),
        "failed": row.failed,
    }


def parallel_table(shown: Mapping[str, Any]) -> Table:
    """Combinations, the best first, a row each; `shown` has the keys of `of_parallel_plan`."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 0), show_edge=False, header_style="bold")
    heads = ("tensor", "micro-\nbatch", "data", "devices", "batches", "tokens/s\nper GPU", "bound")
    for head in heads:
        table.add_column(head, justify="right")
    table.add_column("memory\n(MiB)", justify="right")
    table.add_column("versus the best", overflow="fold")
    for place, row in enumerate(shown["parallelism"]["rows"]):
        counts = ("tensor", "microbatch", "data", "devices", "batches")
        cells = [
            *(str(row[name]) for name in counts),
            _rate(row["tokens_per_second_per_gpu"]),
            _rate(row["bound_tokens_per_second_per_gpu"]),
            NONE if row["peak_memory"] is None else number(row["peak_memory"]),
            "best" if place == 0 and row["value"] is not None else slowdown(row, shown["value"]),
        ]
        table.add_row(*map(Text, cells), style="bold" if place == 0 else "")
    return table


def slowdown(row: Mapping[str, Any], best: float | None) -> str:
    """Slowdown of a combination relative to the best one, in words."""
    if row["status"] == "infeasible":
        return "does not fit"
    least = None if best is None else row["lower_bound"] / best - 1
    if best is None or least is None or row["status"] == "unknown":
        return open_words(row["searches"], least)
    more = None if row["value"] is None else row["value"] / best - 1
    if least >= 0:
        return slower_words(least, more)
    words = f"{percent(more)} slower" if more else "as fast"
    return f"{words}; at best {percent(-least)} faster"


def parallel_words(shown: Mapping[str, Any]) -> list[str]:
    """The best combination, the bound over all of them, and what the costs leave out."""
    space, lines = shown["parallelism"], []
    if shown["value"] is not None:
        best = space["rows"][0]
        expert = f", expert {best['expert']}" if best["expert"] > 1 else ""
        lines = [
            f"best: tensor {best['tensor']}, microbatch {best['microbatch']}, data "
            f"{best['data']}{expert}: {best['configuration']}",
            f"step: {number(shown['value'])} ms of {space['global_batch']} sequences on "
            f"{space['gpus']} x {space['gpu']}",
        ]
    rate, bound = (
        space[name] for name in ("tokens_per_second_per_gpu", "bound_tokens_per_second_per_gpu")
    )
    if bound is not None:
        gap = "" if shown["gap"] is None else f", gap {percent(shown['gap'])}"
        lines.append(f"tokens/s per GPU: {_rate(rate)}; no combination above {_rate(bound)}{gap}")
    unsearched = sum(row["status"] == "unknown" and not row["searches"] for row in space["rows"])
    if unsearched:
        lines.append(
            f"not searched in time: {unsearched} of {len(space['rows'])} combinations; "
            "raise --time-limit"
        )
    lines.append(
        "Derived costs leave out collectives, which slow tensor parallelism down: calibrate each "
        "(--efficiency takes one for each of --tensor)"
    )
    return lines


def skipped_words(shown: Mapping[str, Any]) -> list[str]:
    """The invalid combinations by reason, and the sizes that defaults leave out."""
    space = shown["parallelism"]
    lines = [
        f"skipped: {_combinations(group['combinations'])}: {group['reason']}"
        for group in space["skipped_by_reason"]
    ]
    if space["not_searched"]:
        lines.append(f"not searched: {'; '.join(space['not_searched'])}")
    return lines


def _combinations(number: int) -> str:
    return "1 combination" if number == 1 else f"{number} combinations"


def _rate(value: float | None) -> str:
    return NONE if value is None else grouped(value)
