"""A CSV table of layers as a config: one row per layer, in forward order.

Columns have the names of settings of a layer. A name may end in the unit of its numbers
(`forward_ms`). A column that numbers the rows is ignored.
"""

from __future__ import annotations

import csv
import io
from functools import cache
from typing import Any

from ppopt.errors import InputError
from ppopt.formats.yaml_text import parse_yaml
from ppopt.problem.layer import MAX_LAYERS
from ppopt.problem.layer_settings import LAYER_NAMES, LETTERS
from ppopt.problem.units import SCALES

_SHORT = {"fwd": "forward", "bwd": "backward", "act": "activation"}
"""Short column name -> setting."""
_UNITS = {unit.lower(): unit for scale in SCALES.values() for unit in scale}
_TEXTS = ("name", "role")
"""Settings that are text."""
_NUMBERING = ("", "index", "layer")
"""Names of a column that numbers the rows."""


def parse_csv(content: str, where: str) -> dict[str, Any]:
    """Read a table of layers as the document of a config.

    A layer whose name is a role (`embedding`, `head`) has it, if there is no column `role`. Raises
    InputError, naming the line, if the text is no table.
    """
    rows = csv.reader(io.StringIO(content), skipinitialspace=True)
    try:
        header = [name.strip() for name in next(rows, [])]
        table = [(rows.line_num, row) for row in rows if any(map(str.strip, row))]
    except csv.Error as error:
        raise InputError(f"{where}: line {rows.line_num}: not CSV: {error}") from None
    if not table or len(table) > MAX_LAYERS:
        raise InputError(
            f"{where}: has {len(table)} rows below its header; a table of layers has 1 to "
            f"{MAX_LAYERS}, and columns such as name, forward, backward, activation"
        )
    for line, row in table:
        if len(row) != len(header):
            raise InputError(
                f"{where}: line {line}: {len(row)} values; the header has {len(header)}"
            )
    named: dict[str, list[Any]] = {}
    for column, cells in zip(header, zip(*(row for _, row in table), strict=True), strict=True):
        name, unit = _setting(column)
        if name in named:
            raise InputError(f"{where}: line 1: {name} is given twice; keep one column")
        if not _numbers_rows(column, cells):
            read = _text if name in _TEXTS else _value
            named[name] = [read(cell.strip(), unit, where) for cell in cells]
    if "role" not in named and "name" in named:
        named["role"] = [
            name if isinstance(name, str) and name in LETTERS else None for name in named["name"]
        ]
    return {
        "layers": [dict(zip(named, row, strict=True)) for row in zip(*named.values(), strict=True)]
    }


def _numbers_rows(column: str, cells: tuple[str, ...]) -> bool:
    """Whether a column has the number of every row, from 0 or 1."""
    numbers = [cell.strip() for cell in cells]
    counted = any(
        numbers == [str(index) for index in range(first, first + len(cells))] for first in (0, 1)
    )
    return counted and column.lower() in _NUMBERING


def _setting(column: str) -> tuple[str, str]:
    """Name of the setting of a column, and the unit in its name; empty if it has none."""
    name, _, ending = column.rpartition("_")
    unit = _UNITS.get(ending.lower(), "") if name and column not in LAYER_NAMES else ""
    key = name if unit else column
    return _SHORT.get(key.lower(), key), unit


def _text(cell: str, *_: str) -> str | None:
    """Text of a cell as it is; None: not given."""
    return cell or None


@cache
def _value(cell: str, unit: str, where: str) -> Any:
    """Value of a cell, as a YAML file states it; None: not given. A table has no comments."""
    return cell if "#" in cell else parse_yaml(f"{cell}{unit}" if cell else "", where)
