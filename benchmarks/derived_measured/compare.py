"""An earlier record against the present one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from benchmarks.record import table

Table = dict[tuple[str, ...], dict[str, str]]
"""Cells by the name of their column, by the cells that name the row."""


class Comparison(NamedTuple):
    """A table of the record: its columns that name a row, and those that are compared."""

    section: str
    names: tuple[str, ...]
    values: tuple[str, ...]


COMPARED = (
    Comparison("Aims", ("aim", "limit"), ("rows", "mean", "worst", "verdict")),
    Comparison("Classes", ("class",), ("rows", "mean", "signed", "over memory")),
    Comparison("Steps", ("source",), ("rows", "predicted", "mean", "median", "signed")),
    Comparison("Memory", ("source",), ("rows", "mean", "signed")),
    Comparison("Parts of layers", ("part", "kind"), ("derived", "median", "worst")),
    Comparison("Zero bubble", ("run", "measured"), ("predicted", "difference")),
    Comparison("Ranking", ("model",), ("its predicted rank", "regret")),
)


def comparison(before: str, after: Sequence[str]) -> Iterator[str]:
    """Tables with what an earlier record said and what the present one says."""
    lines = before.splitlines()
    heading = [line for line in lines if line.startswith(("- date", "- commit"))]
    yield "Before is the record of"
    yield from heading
    for compared in COMPARED:
        sides = [_table(side, compared) for side in (lines, after)]
        if any(sides):
            yield f"\n### {compared.section}\n"
            yield from _sides(compared, *sides)


def _table(lines: Sequence[str], compared: Comparison) -> Table:
    """The table of a section."""
    rows_by_key: Table = {}
    columns: list[str] = []
    inside = False
    for line in "\n".join(lines).splitlines():
        if line.startswith("#"):
            inside = line == f"## {compared.section}"
        elif inside and line.startswith("|") and line.endswith("|"):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if not columns:
                columns = cells
            elif set(line) != {"|", "-"}:
                row = dict(zip(columns, cells, strict=False))
                rows_by_key[tuple(row[name] for name in compared.names)] = row
    return rows_by_key


def _sides(
    compared: Comparison, before: Mapping[tuple[str, ...], dict[str, str]], after: Table
) -> Iterator[str]:
    columns = [f"{name} {side}" for name in compared.values for side in ("before", "after")]
    keys = [*after, *(key for key in before if key not in after)]
    rows = (
        [
            *key,
            *(
                side.get(key, {}).get(name, "-")
                for name in compared.values
                for side in (before, after)
            ),
        ]
        for key in keys
    )
    yield from table((*compared.names, *columns), rows)
