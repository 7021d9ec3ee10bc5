"""The option that names what the user runs today, of the commands that compare with it."""
# ruff: noqa: PLC0415  libraries load inside the commands

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ppopt.cli.options import option
from ppopt.cli.settings import Settings
from ppopt.problem.setting import Heading

if TYPE_CHECKING:
    from ppopt.schedule.schedule import Schedule

FILES = (".json", ".csv")
"""Endings of the names of schedule files."""
CURRENT = option(
    "FILE|STRATEGY",
    "What you run today, the first row of the table: a schedule file, or a strategy, perhaps with "
    "its partition, chunks and recompute: '1f1b partition=even recompute=full' (default: 1f1b).",
    Heading.STRATEGIES,
    names=("--given",),
)


def read_current(settings: Settings, text: str | None) -> Schedule | str | None:
    """Read a schedule file, .json or PyTorch's .csv; any other text is that of a strategy.

    Raises InputError if there is no such file, and no such strategy.
    """
    from ppopt.formats.fields import within
    from ppopt.formats.schedule_json import read_schedule
    from ppopt.strategies import resolve
    from ppopt.studies.current_schedule import parse_strategy

    if text is None:
        return None
    file = Path(text)
    if file.suffix.lower() not in FILES:
        within("given: it is no schedule file (.json, .csv)", resolve, text.partition(" ")[0])
        within("given", parse_strategy, text)
        return text
    if file.suffix.lower() == ".csv":
        return within("given", read_order_file, settings, file)
    schedule, _ = within("given", read_schedule, file)
    return schedule


def read_order_file(settings: Settings, file: Path) -> Schedule:
    """Read an order of PyTorch, .csv, and time it with the costs of the settings."""
    from ppopt.formats import torch_csv
    from ppopt.problem.objective import Objective

    objective = Objective(settings.get("objective", "makespan"))
    return torch_csv.schedule(torch_csv.read_order(file), settings.values, objective)
