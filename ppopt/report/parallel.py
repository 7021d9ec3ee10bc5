"""A plan over the parallelism: the object that --json prints, and the table for the terminal."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from ppopt.problem.exact import plain_or_none
from ppopt.report.numbers import NONE, grouped, number, percent
from ppopt.report.plan_objects import of_plan
from ppopt.report.plan_words import open_words, slower_words
from ppopt.studies.parallel_result import ParallelPlan
from ppopt.studies.parallel_space import DIMENSIONS, Parallelism
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
    "devices": "de-\nvices",
    "batches": "batches",
}
"""Size of a combination -> head of its column."""


def of_parallel_plan(found: ParallelPlan) -> dict[str, Any]:
    """Object of `ppopt plan --from`: that of `ppopt plan` for the best combination, and more.

    `status`, `value`, `lower_bound` and `gap` are over all combinations; times are those of a step
    in ms. `parallelism` has every combination, the best first, and tokens per second and GPU: what
    was found, and what no combination exceeds. `status` of a combination is as that of a plan's row
    (`unknown` with `searches` 0: not searched, its bound counts in that of all). Times and memory
    that are not known are null.
    """
    space = found.space
    rows = [found.row_object(row) for row in found.rows]
    return of_plan(found.plan) | {
        "proof": _proof(rows),
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
            "rows": rows,
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


def parallel_table(shown: Mapping[str, Any]) -> Table:
    """Combinations, the best first, a row each; `shown` has the keys of `of_parallel_plan`."""
    sizes = _sizes(shown)
    table = _table(
        *(_HEADS[name] for name in (*sizes, "devices", "batches")),
        *("tokens/s\nper GPU", "bound", "memory\n(MiB)"),
    )
    table.add_column("versus the best", overflow="fold")
    for place, row in enumerate(shown["parallelism"]["rows"][:MOST_SHOWN]):
        cells = [
            *(str(row[name]) for name in (*sizes, "devices", "batches")),
            _rate(row["tokens_per_second_per_gpu"]),
            _rate(row["bound_tokens_per_second_per_gpu"]),
            NONE if row["peak_memory"] is None else number(row["peak_memory"]),
            "best" if place == 0 and row["value"] is not None else slowdown(row, shown["value"]),
        ]
        table.add_row(*map(Text, cells), style="bold" if place == 0 else "")
    return table


def breakdown_table(shown: Mapping[str, Any]) -> Table | None:
    """What the steps consist of, in ms, of the combinations of the first table.

    None if no combination has a schedule.
    """
    rows = [row for row in shown["parallelism"]["rows"][:MOST_SHOWN] if row["value"] is not None]
    if not rows:
        return None
    sizes = _sizes(shown)
    heads = ("step", "compute", "commu-\nnication", "bubble", "gradient\nsync", "optimizer")
    table = _table(*(_HEADS[name] for name in sizes), *heads)
    for row in rows:
        times = [f"{row[name]:.1f}" for name in ("value", *StepBreakdown._fields)]
        table.add_row(*(str(row[name]) for name in sizes), *times)
    return table


def _table(*heads: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 0), show_edge=False, header_style="bold")
    for head in heads:
        table.add_column(head, justify="right")
    return table


def _sizes(shown: Mapping[str, Any]) -> list[str]:
    """Dimensions that are shown: context and expert only where one is above 1."""
    rows = shown["parallelism"]["rows"]
    optional = ("context", "expert")
    return [
        name for name in _HEADS
        if name in DIMENSIONS and (name not in optional or any(row[name] > 1 for row in rows))
    ]  # fmt: skip


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
    """The best combination, the bound over all of them, and how many were searched."""
    space, lines = shown["parallelism"], []
    if shown["value"] is not None:
        best = space["rows"][0]
        lines = [
            f"best: {_combination(best)}: {best['configuration']}",
            f"step: {number(shown['value'])} ms of {space['global_batch']} sequences on "
            f"{space['gpus']} x {space['gpu']}",
        ]
    rate, bound = (
        space[name] for name in ("tokens_per_second_per_gpu", "bound_tokens_per_second_per_gpu")
    )
    if bound is not None:
        gap = "" if shown["gap"] is None else f", gap {percent(shown['gap'])}"
        lines.append(f"tokens/s per GPU: {_rate(rate)}; no combination above {_rate(bound)}{gap}")
    elif rate is not None:
        lines.append(
            f"tokens/s per GPU: {_rate(rate)}; no bound: combinations were not derived in time"
        )
    lines += _counts(space["rows"])
    failed = [row for row in space["rows"] if row["failed"] is not None]
    lines += [f"failed: {_combination(row)}: {row['failed']}" for row in failed]
    if space["storage"] is not None:
        storage = space["storage"]
        lines.append(
            f"study {storage['study']} in {storage['storage']}: {storage['loaded']} of "
            f"{len(space['rows'])} combinations were stored before"
        )
    return lines


def _proof(rows: Sequence[Mapping[str, Any]]) -> str:
    """What the bound over all combinations consists of."""
    open_rows = [row for row in rows if row["lower_bound"] is not None]
    words = f"over all {'; '.join(_counts(rows))}"
    if not open_rows:
        return words
    least = min(open_rows, key=lambda row: row["lower_bound"])
    sizes = ", ".join(f"{name} {least[name]}" for name in DIMENSIONS)
    return f"{words}; the least bound is that of {sizes}"


def _counts(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """How many combinations were searched, and how many could not be in time."""
    impossible = sum(row["status"] == "infeasible" for row in rows)
    looked_at = [row for row in rows if row["searches"] or row["value"] is not None]
    searched = sum(row["status"] != "infeasible" for row in looked_at)
    unsearched = sum(row["status"] == "unknown" and not row["searches"] for row in rows)
    alone = len(rows) - impossible - searched - unsearched
    counts = {
        "searched": searched,
        "ruled out by bounds alone": alone,
        "over the memory limit": impossible,
    }
    words = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    lines = [f"{_combinations(len(rows))}: {words}"] if words else []
    if unsearched:
        lines.append(
            f"not searched in time: {unsearched} of {_combinations(len(rows))}; raise --time-limit"
        )
    return lines


def skipped_words(shown: Mapping[str, Any]) -> list[str]:
    """The invalid combinations by reason, and the sizes that defaults leave out.

    Reasons that differ in numbers alone share a line, which has the most frequent one.
    """
    space, lines = shown["parallelism"], []
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for entry in space["skipped_by_reason"]:
        groups.setdefault(_NUMBER.sub("0", entry["reason"]), []).append(entry)
    for entries in groups.values():
        total = sum(entry["combinations"] for entry in entries)
        similar = f" ({len(entries) - 1} similar)" if len(entries) > 1 else ""
        lines.append(f"skipped: {_combinations(total)}: {entries[0]['reason']}{similar}")
    if space["not_searched"]:
        lines.append(f"not looked at: {'; '.join(space['not_searched'])}")
    return lines


def _combination(row: Mapping[str, Any]) -> Parallelism:
    return Parallelism(**{name: row[name] for name in Parallelism._fields})


def _combinations(number: int) -> str:
    return "1 combination" if number == 1 else f"{number} combinations"


def _rate(value: float | None) -> str:
    return NONE if value is None else grouped(value)
