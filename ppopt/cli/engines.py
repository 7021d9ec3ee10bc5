"""Options of commands that search many pipelines: processes, Dask and the storage."""
# ruff: noqa: PLC0415  libraries load inside the commands

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING

from ppopt.cli.options import option
from ppopt.errors import InputError

if TYPE_CHECKING:
    from ppopt.solver.engines.engine import Engine

STORAGE = "sqlite:///ppopt.db"
RETRIES = 1
"""Retries of a search whose process dies."""

ENGINE_OPTIONS = {
    "storage": option("URL", "Database of results."),
    "study_name": option("NAME", "Name of the study (default: made from the settings)."),
    "jobs": option("N", "Processes (one per processor).", min=1, max=1024),
    "dask": option("ADDRESS", "Run on the Dask scheduler at this address."),
    "dask_scheduler_file": option("FILE", "Run on the Dask scheduler that this file names."),
}


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
    from ppopt.solver.engines.dask import DaskEngine, connect
    from ppopt.solver.engines.local import LocalEngine

    with ExitStack() as stack:
        if dask is None and scheduler_file is None:
            yield stack.enter_context(closing(LocalEngine(jobs, retries)))
            return
        if (dask and scheduler_file) or jobs:
            raise InputError("dask: excludes --jobs; give an address or a file, not both")
        client = stack.enter_context(connect(dask, scheduler_file))
        yield stack.enter_context(closing(DaskEngine(client, retries)))
