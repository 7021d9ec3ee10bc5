"""Options of commands that search many pipelines: processes, Dask and the storage."""
# ruff: noqa: PLC0415  libraries load inside the commands

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from ppopt.errors import InputError

if TYPE_CHECKING:
    from ppopt.studies.engines.engine import Engine

STORAGE = "sqlite:///ppopt.db"
RETRIES = 1
"""Retries of a search whose process dies."""

StorageOption = Annotated[
    str,
    typer.Option("--storage", metavar="URL", help="Database of results."),
]
StudyNameOption = Annotated[
    str | None,
    typer.Option(
        "--study-name",
        metavar="NAME",
        help="Name of the study (default: made from the settings).",
    ),
]
JobsOption = Annotated[
    int | None,
    typer.Option("--jobs", metavar="N", min=1, max=1024, help="Processes (one per processor)."),
]
DaskOption = Annotated[
    str | None,
    typer.Option("--dask", metavar="ADDRESS", help="Run on the Dask scheduler at this address."),
]
DaskFileOption = Annotated[
    str | None,
    typer.Option(
        "--dask-scheduler-file",
        metavar="FILE",
        help="Run on the Dask scheduler that this file names.",
    ),
]


@contextmanager
def engine_of(
    jobs: int | None,
    dask: str | None,
    scheduler_file: str | None,
    retries: int = RETRIES,
) -> Iterator[Engine]:
    """Open the engine that the options name: Dask, or else processes of this machine.

    Raises InputError if options contradict.
    """
    if dask is None and scheduler_file is None:
        from ppopt import processors
        from ppopt.studies.engines.local import LocalEngine

        number = processors.available() if jobs is None else jobs
        with closing(LocalEngine(number, retries)) as engine:
            yield engine
        return
    if (dask and scheduler_file) or jobs:
        raise InputError("dask: excludes --jobs; give an address or a file, not both")
    from ppopt.studies.engines.dask import DaskEngine, connect

    with ExitStack() as stack:
        client = stack.enter_context(connect(dask, scheduler_file))
        yield stack.enter_context(closing(DaskEngine(client, retries)))
