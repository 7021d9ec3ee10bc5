"""The commands of studies: `ppopt sweep` and `ppopt studies`."""
# ruff: noqa: PLC0415  libraries load inside the commands

from __future__ import annotations

import re
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from ppopt.cli.application import (
    EXIT_INCOMPLETE,
    EXIT_UNKNOWN,
    JsonFlag,
    QuietFlag,
    command,
)
from ppopt.cli.settings import Settings, with_settings
from ppopt.errors import InputError
from ppopt.solver import interrupts

if TYPE_CHECKING:
    from ppopt.studies.grid import Grid
    from ppopt.studies.sweep import Study

STORAGE = "sqlite:///ppopt.db"
_SHARD = re.compile(r"([0-9]{1,6})/([0-9]{1,6})")

StorageOption = Annotated[
    str,
    typer.Option("--storage", metavar="URL", help=f"Where results are kept ({STORAGE})."),
]


@command
@with_settings
def sweep(
    settings: Settings,
    values: Annotated[
        list[str],
        typer.Argument(
            metavar="KEY=VALUES...",
            help="Settings that vary, by the names of their flags, and `strategy`: "
            "batches=8,16 chunks=range(1,5) strategy=optimal,1f1b.",
        ),
    ],
    where: Annotated[
        list[str] | None,
        typer.Option(
            "--where",
            metavar="CONDITION",
            help="Only combinations for which it holds: 'chunks < 2 or batches >= 16'; repeatable.",
        ),
    ] = None,
    storage: StorageOption = STORAGE,
    study_name: Annotated[
        str | None,
        typer.Option("--study-name", metavar="NAME", help="Name of the study (made of the sweep)."),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option("--jobs", metavar="N", min=1, max=1024, help="Processes (one per processor)."),
    ] = None,
    retries: Annotated[
        int,
        typer.Option("--retries", metavar="N", min=0, max=100, help="Of rows whose process dies."),
    ] = 1,
    memory_per_job: Annotated[
        str | None,
        typer.Option("--memory-per-job", metavar="SIZE", help="Bound of a process, as in 4GiB."),
    ] = None,
    shard: Annotated[
        str, typer.Option("--shard", metavar="I/N", help="Only every N-th row, from the I-th.")
    ] = "1/1",
) -> int:
    """Solve every combination of settings, and keep the results in a storage."""
    from ppopt import processors
    from ppopt.cli import progress, studies_output
    from ppopt.studies import sweep as sweeps
    from ppopt.studies.engines.local import LocalEngine

    studies_output.check_formats(settings.output)
    grid = _grid(settings, values, where or [], shard)
    memory = None if memory_per_job is None else _bytes(memory_per_job)
    interrupts.only_record()
    engine = LocalEngine(jobs or processors.available(), retries, memory)
    with closing(engine), progress.shown(quiet=settings.quiet) as line:
        found = sweeps.run(
            grid, engine, storage=storage, study_name=study_name, progress=line.update
        )
    code = studies_output.show(settings.output, found, as_json=settings.json, quiet=settings.quiet)
    return code or _exit_code(found)


def _grid(settings: Settings, values: list[str], where: list[str], shard: str) -> Grid:
    from ppopt.problem.settings import same_setting
    from ppopt.studies.grid import Base, grid_of
    from ppopt.studies.overrides import parse

    found = _SHARD.fullmatch(shard)
    if found is None:
        raise InputError(f"shard: {shard!r} is not I/N, as in 1/8")
    axes = {}
    for override in map(parse, values):
        if override.key in axes:
            raise same_setting(override.key, override.key)
        axes[override.key] = override.values
    base = {key: value for key, value in settings.values.items() if key != "output"}
    return grid_of(Base(base), axes, where, (int(found[1]), int(found[2])))


def _bytes(size: str) -> int:
    from ppopt.problem import exact
    from ppopt.problem.settings import Unit
    from ppopt.problem.units import resolve

    found = resolve(Unit.MEMORY, "B", {"memory_per_job": size}).values["memory_per_job"]
    number = int(exact.read(found, "memory_per_job").value)
    if number < 2**28:
        raise InputError(f"memory_per_job: {size} is below 256MiB, which Python alone takes")
    return number


def _exit_code(found: Study) -> int:
    if found.failed or found.not_stored:
        return EXIT_INCOMPLETE
    return EXIT_UNKNOWN if found.interrupted and not found.done else 0


@command
def studies(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Show the rows of this study.")
    ] = None,
    storage: StorageOption = STORAGE,
    output: Annotated[
        list[str] | None,
        typer.Option("-o", "--output", metavar="FILE", help="Write its rows: .csv or .json."),
    ] = None,
    json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> int:
    """List the studies of a storage, or show and export one."""
    from ppopt.cli import studies_output
    from ppopt.cli.files import writable
    from ppopt.studies.storage import Storage

    targets = writable(output or [])
    studies_output.check_formats(targets)
    if name is None and targets:
        raise InputError("output: name the study whose rows are to be written")
    with Storage(storage, readonly=True) as opened:
        if name is None:
            return studies_output.list_studies(opened, as_json=json, quiet=quiet)
        return studies_output.show_trials(opened, name, targets, as_json=json, quiet=quiet)
