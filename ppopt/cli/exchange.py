"""The commands that turn schedules into other tools' files, and such files into schedules."""
# ruff: noqa: PLC0415  libraries load inside the commands

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from time import monotonic
from typing import Annotated

import typer

from ppopt.cli.app import command, with_options
from ppopt.cli.settings import Settings, shared


class ExportFormat(StrEnum):
    """Formats that schedules are written in; `ppopt.formats.exports` has their writers."""

    TORCH_CSV = "torch-csv"
    PERFETTO = "perfetto"
    JSON = "json"
    MEGATRON = "megatron"


class ImportFormat(StrEnum):
    """Formats that schedules are read from."""

    TORCH_CSV = "torch-csv"


@command
def export(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A schedule file (.json).")],
    to: Annotated[ExportFormat, typer.Option("--to", help="What to write.", show_default=False)],
    output: Annotated[str, typer.Option("-o", "--output", metavar="OUT", help="File to write.")],
    time_unit: Annotated[
        str | None,
        typer.Option(
            "--time-unit",
            metavar="UNIT",
            help="Of a trace, the file's unit of time: s, ms (default), us or ns.",
        ),
    ] = None,
) -> int:
    """Write a schedule file in the format of another tool."""
    from ppopt.cli.files import check_place, valid_schedule
    from ppopt.errors import InputError
    from ppopt.formats import perfetto
    from ppopt.formats.exports import WRITERS
    from ppopt.formats.files import write

    check_place(Path(output))
    if time_unit is not None and to is not ExportFormat.PERFETTO:
        raise InputError(f"time-unit: {to} holds no times in another unit; leave it out")
    schedule = valid_schedule(file)
    text = WRITERS[to](schedule) if time_unit is None else perfetto.dumps(schedule, time_unit)
    write(Path(output), text)
    return 0


def import_(
    settings: Settings,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to read.")],
    source: Annotated[
        ImportFormat, typer.Option("--from", help="What the file is.", show_default=False)
    ],
) -> int:
    """Read an order of another tool, time it, and verify it."""
    from ppopt.cli import output
    from ppopt.formats import torch_csv
    from ppopt.formats.documents import label
    from ppopt.formats.fields import within
    from ppopt.problem.objective import Objective
    from ppopt.report.objects import of_evaluation
    from ppopt.verifier import checked

    assert source is ImportFormat.TORCH_CSV
    objective = Objective(settings.get("objective", "makespan"))
    began = monotonic()
    order = torch_csv.read_order(file)
    timed = within(label(file), torch_csv.schedule, order, settings.values, objective)
    made = checked(timed, enforce_limit=False)
    output.result(settings, of_evaluation(made, monotonic() - began), made)
    return 0


command(with_options(shared)(import_))
