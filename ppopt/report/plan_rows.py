"""The rows of a plan as they are shown: formatted once, for the terminal and for the page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from ppopt.report.labels import objective_words
from ppopt.report.numbers import NONE, headed, number, percent
from ppopt.report.plan_words import configuration_words, slowdown, value_words


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


def has_batches(shown: Mapping[str, Any]) -> bool:
    """Whether configurations of several batch counts compare, by the time per microbatch."""
    return len(shown["space"]["batches"]) > 1


def value_head(shown: Mapping[str, Any]) -> str:
    """What the value of a row is, with its unit."""
    figure = "per microbatch" if has_batches(shown) else objective_words(shown)
    return headed(figure, shown["time_unit"])


def plan_rows(shown: Mapping[str, Any], digits: int | None = None) -> Iterator[PlanCells]:
    """The rows of a plan, the best first; `shown` has the keys of `ppopt plan --json`.

    `digits`: decimals that figures are rounded to.
    """
    for place, row in enumerate(shown["rows"]):
        yield _cells(row, shown, digits, is_best=place == 0)


def _cells(
    row: Mapping[str, Any], shown: Mapping[str, Any], digits: int | None, *, is_best: bool
) -> PlanCells:
    def short(figure: float | None) -> float | None:
        return figure if figure is None or digits is None else round(figure, digits)

    several, peaks = has_batches(shown), row["peak_memory"]
    value = row["value_per_microbatch" if several else "value"]
    bound = row["bound_per_microbatch" if several else "lower_bound"]
    counts = row["partition"]
    partition = row["layout"] or (NONE if counts is None else " ".join(map(str, counts)))
    return PlanCells(
        configuration=configuration_words(row),
        strategy=row["strategy"],
        placement=f"{row['placement']}/{row['chunks']}" if row["chunks"] > 1 else row["placement"],
        recompute=row["recompute"],
        batches=number(row["batches"]),
        status=row["status"],
        value=value_words(row, short(value)),
        bound=number(short(bound)),
        memory=number(short(max(peaks))) if peaks else NONE,
        bubble_rate=percent(row["bubble_rate"]),
        partition=NONE if value is None else partition,
        versus_best="best" if is_best and value is not None else slowdown(row, shown),
        is_best=is_best,
    )
