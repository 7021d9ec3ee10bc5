"""Loads of experts: their numbers of tokens as a trainer recorded them."""

from __future__ import annotations

from pathlib import Path
from statistics import mean
from typing import NamedTuple

from ppopt.errors import ConflictError, InputError
from ppopt.formats.documents import label, parse_json, read_text
from ppopt.formats.fields import abbreviated, finite, within

LARGEST_FILE = 2**24
"""Bytes."""


class ExpertLoads(NamedTuple):
    """Tokens of each expert, in rows of any layers and steps."""

    rows: tuple[tuple[float, ...], ...]
    origin: str
    """The file."""

    def __str__(self) -> str:
        return self.origin

    def imbalance(self, ranks: int) -> float:
        """Tokens of the rank with the largest load, relative to the mean of ranks.

        Each rank has equally many consecutive experts. The result is the mean over the rows.
        """
        experts = len(self.rows[0])
        each = experts // ranks
        starts = range(0, experts, each)
        return mean(
            ranks * max(sum(row[start : start + each]) for start in starts) / sum(row)
            for row in self.rows
            if any(row)
        )

    def check(self, experts: int) -> None:
        """Raise ConflictError if the model has another number of experts."""
        if len(self.rows[0]) != experts:
            raise ConflictError(
                f"expert_imbalance: {self.origin} has loads of {len(self.rows[0])} experts, and "
                f"the model has {experts}; give loads of this model"
            )


def read_loads(path: Path) -> ExpertLoads:
    """Read a JSON file: tokens of each expert, or a list of such lists for layers and steps.

    Raises InputError, naming the file, if it is anything else.
    """
    where = label(path)
    document = parse_json(read_text(path, LARGEST_FILE), where, float)
    return ExpertLoads(within(where, _rows, document), where)


def _rows(document: object) -> tuple[tuple[float, ...], ...]:
    rows = document if isinstance(document, list) and document else [[]]
    if not isinstance(rows[0], list):
        rows = [rows]
    loads = tuple(tuple(map(finite, row)) if isinstance(row, list) else () for row in rows)
    if not loads[0] or len(set(map(len, loads))) > 1:
        raise InputError(
            f"{abbreviated(document)} is no list of tokens of each expert, nor a list of such "
            "lists of the same length"
        )
    if any(load < 0 for row in loads for load in row) or not any(map(sum, loads)):
        raise InputError("loads of experts are numbers from 0 on, and not all are 0")
    return loads
