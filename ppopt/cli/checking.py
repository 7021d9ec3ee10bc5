"""The command that makes a reference schedule again."""
# ruff: noqa: PLC0415  libraries load inside the commands

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ppopt.cli.app import EXIT_CHANGED, command


@command
def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A schedule file (.json).")],
    json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Only the exit code.")] = False,
) -> int:
    """Solve or evaluate a reference schedule again, and say what changed."""
    from ppopt.cli import progress
    from ppopt.cli.files import valid_schedule
    from ppopt.cli.output import print_json
    from ppopt.formats.documents import label
    from ppopt.studies.references import check as make_again

    reference = valid_schedule(file)
    with progress.shown(quiet=quiet) as line:
        found = make_again(reference, line.update)
    if json:
        changes = [entry._asdict() for entry in found.differences]
        notes = list(found.notes)
        not_compared = [entry._asdict() for entry in found.free]
        print_json(
            {
                "schema": 1,
                "unchanged": not changes,
                "differences": changes,
                "order_compared": found.ordered,
                "not_compared": not_compared,
                "notes": notes,
            }
        )
    elif not quiet:
        same = "unchanged" if found.ordered else "status, value and lower bound unchanged"
        told = [f"{label(file)}: {entry}" for entry in found.differences]
        print(*(told or [f"{label(file)}: {same}"]), sep="\n")
        for note in (*found.notes, *(f"not compared: {entry}" for entry in found.free)):
            print(f"note: {note}")
    return EXIT_CHANGED if found.differences else 0
