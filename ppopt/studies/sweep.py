"""A sweep: a grid of searches and evaluations, each stored as it ends and never repeated."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any

from ppopt.cancellation import DrivenResult, driven, over, scope
from ppopt.errors import InputError, NotApplicableError, check_type
from ppopt.notebook_view import NotebookView
from ppopt.problem.pipeline import Model, Pipeline
from ppopt.schedule.schedule import Schedule
from ppopt.solver.engines.engine import Ended, Engine, run_tasks
from ppopt.solver.engines.local import LocalEngine
from ppopt.studies import outcome
from ppopt.studies.records import SweepRow, one_line
from ppopt.studies.solve_job import SolveJob
from ppopt.studies.storage import DEFAULT, Storage, StorageError
from ppopt.studies.sweep_grid import Grid, Overrides, Row, base_of, grid_of
from ppopt.studies.task import SweepDone, SweepTask

if TYPE_CHECKING:
    from pandas import DataFrame

RETRIES = 1
"""Retries of a row whose process died."""


@dataclass(frozen=True)
class Study(DrivenResult, NotebookView):
    """The rows of a sweep, in the order of its grid."""

    name: str
    storage: str
    """URL of the storage that holds the rows."""
    rows: tuple[SweepRow, ...]
    grid: Grid
    not_stored: str | None = None
    """Why the storage could not be written, which ended the sweep; rows it lacks are in `rows`."""
    damaged: tuple[str, ...] = ()
    """Why stored results could not be used; they were computed again."""

    @property
    def done(self) -> int:
        """Number of rows with a result."""
        return sum(row.figures is not None for row in self.rows)

    @property
    def cached(self) -> int:
        """Number of rows whose result was in the storage."""
        return sum(row.cached for row in self.rows)

    @property
    def failed(self) -> int:
        """Number of rows that failed."""
        return sum(row.failed is not None for row in self.rows)

    @property
    def open(self) -> int:
        """Number of rows that were not done, because the sweep ended early."""
        return len(self.rows) - self.done - self.failed

    def schedule(self, row: SweepRow) -> Schedule | None:
        """Schedule of a row from the storage, verified again; None if the row has none.

        Raises InputError if the storage has no result of the row.
        """
        job = self.grid.base.job(self._settings(row))
        with Storage(self.storage, readonly=True) as storage:
            record = storage.result(job.key)
        if record is None:
            raise InputError(f"storage: {self.storage} has no result of {dict(row.overrides)}")
        return outcome.read(record, job).schedule

    def _settings(self, row: SweepRow) -> Overrides:
        for grid_row in self.grid.rows():
            if grid_row.overrides == row.overrides:
                return grid_row.settings
        raise InputError(f"the study has no row {dict(row.overrides)}")

    def to_frame(self) -> DataFrame:
        """Rows as a pandas DataFrame; needs pandas (the extra `frame`)."""
        from pandas import DataFrame  # noqa: PLC0415  optional

        return DataFrame(
            [
                {**row.overrides, **row.object, "failed": row.failed, "cached": row.cached}
                for row in self.rows
            ]
        )

    def __repr__(self) -> str:
        open_text = f", {self.open} open" if self.open else ""
        return (
            f"Study({self.name!r}: {len(self.rows)} rows, {self.done} done ({self.cached} cached), "
            f"{self.failed} failed{open_text}; {self.storage})"
        )


def sweep(
    source: Model | Pipeline,
    grid: Mapping[str, Iterable[Any]],
    *,
    storage: str = DEFAULT,
    study_name: str | None = None,
    jobs: int | None = None,
    retries: int = RETRIES,
    dask: Any = None,
    progress: Callable[[str], None] | None = None,
    **settings: Any,
) -> Study:
    """Solve every combination of settings, and store all results.

    `grid` has the values of every setting that varies, by the name of its flag; values of the key
    `strategy` are `searched` (a search, the default) and names of strategies. `settings` are common
    to all rows, as in a config file: `stages=8, time_limit=10`. Sweeps of one `study_name` and one
    source add their rows to one study.

    Rows run in `jobs` processes (default: the available processors), each search with one worker by
    default. Stored results are verified and reused; a search that had less time continues from its
    schedule and its bound. A row whose process dies is retried `retries` times, then it has failed.
    With `dask`, a `distributed.Client`, rows run on the workers of its cluster, and `jobs` is
    ignored. Ctrl-C ends the sweep; completed rows are stored. Raises InputError on misuse, and if
    the storage cannot be used.
    """
    check_type("model", source, Model, Pipeline)
    rows = grid_of(base_of(source, settings), grid)
    if dask is None:
        executor: Engine = LocalEngine(jobs, retries)
    else:
        from ppopt.solver.engines.dask import DaskEngine  # noqa: PLC0415  an extra

        executor = DaskEngine(dask, retries)
    with closing(executor) as engine:
        return run(rows, engine, storage=storage, study_name=study_name, progress=progress)


@driven
def run(
    grid: Grid,
    engine: Engine,
    *,
    storage: str = DEFAULT,
    study_name: str | None = None,
    progress: Callable[[str], None] | None = None,
    command: str | None = None,
) -> Study:
    """Run the rows of a grid on an engine; see `sweep`.

    `command` is the command line that requests them; it is stored to show how to continue.
    """
    name, rows = study_name or grid.study_name, grid.rows()
    with Storage(storage) as opened:
        under_way = _Sweep(grid, rows, engine, opened, name, progress, command)
        under_way.run()
    return Study(
        name=name,
        storage=storage,
        rows=under_way.result(),
        grid=grid,
        not_stored=under_way.not_stored,
        damaged=tuple(under_way.damaged),
    )


class _Sweep:
    """A running sweep. Jobs of one key run one after the other: later ones reuse the result.

    Rows are submitted lazily, so that results that another sweep stores meanwhile are reused.
    """

    def __init__(
        self,
        grid: Grid,
        rows: list[Row],
        engine: Engine,
        storage: Storage,
        name: str,
        progress: Callable[[str], None] | None,
        command: str | None,
    ) -> None:
        self._grid, self._engine, self._storage = grid, engine, storage
        self._study = storage.study(name, grid.base.digest)
        self._rows = rows
        storage.request_rows(self._study, [row.overrides for row in self._rows], command)
        self._ended: list[SweepRow | None] = [None] * len(self._rows)
        self._next = iter(range(len(self._rows)))
        self._jobs: dict[int, SolveJob] = {}
        """Jobs of the rows that are submitted."""
        self._behind: defaultdict[str, deque[tuple[int, SolveJob]]] = defaultdict(deque)
        """Rows that wait for another row of the same key."""
        self._running: set[str] = set()
        self._ready: deque[tuple[int, SolveJob]] = deque()
        self._progress = progress
        self._failed = 0
        self.not_stored: str | None = None
        self.damaged: list[str] = []

    def run(self) -> None:
        """Run all rows, or end early: after Ctrl-C, or if the storage cannot be written."""

        def ends() -> bool:
            return over() or self.not_stored is not None

        with scope(inf):
            run_tasks(self._engine, self._task, self._take, ends)

    def _task(self) -> tuple[int, SweepTask] | None:
        """Task of the next row that can run now; None if there is none."""
        next_row = None if self.not_stored else self._following()
        if next_row is None:
            return None
        row_index, job = next_row
        try:
            stored = self._storage.sound_result(job.key, self.damaged)
        except StorageError as error:
            self.not_stored = str(error)
            return None
        self._running.add(job.key)
        self._jobs[row_index] = job
        return row_index, SweepTask(job, stored)

    def _following(self) -> tuple[int, SolveJob] | None:
        """Next row that can run now; None if there is none."""
        if self._ready:
            return self._ready.popleft()
        for row_index in self._next:
            try:
                job = self._grid.base.job(self._rows[row_index].settings).checked
            except (InputError, NotApplicableError) as error:
                self._end(row_index, None, SweepDone(failed=one_line(error)))
                if self.not_stored:
                    return None
                continue
            if job.key not in self._running:
                return row_index, job
            self._behind[job.key].append((row_index, job))
        return None

    def _take(self, ended: Ended) -> None:
        for row_index, each in ended:
            done = each if isinstance(each, SweepDone) else SweepDone(failed=each.failed)
            job = self._jobs.pop(row_index)
            self._running.discard(job.key)
            if done.damaged is not None:
                self.damaged.append(done.damaged)
            if done.row is not None or done.failed is not None:
                self._end(row_index, job, done)
            if self._behind[job.key]:
                self._ready.append(self._behind[job.key].popleft())

    def _end(self, row_index: int, job: SolveJob | None, done: SweepDone) -> None:
        """Store the outcome of a row."""
        overrides = self._rows[row_index].overrides
        cached = done.row is not None and done.result is None
        key = None if job is None or done.row is None else job.key
        row = self._ended[row_index] = SweepRow(overrides, done.row, done.failed, cached, key)
        self._failed += done.failed is not None
        try:
            self._storage.finish(self._study, row, done.result)
        except StorageError as error:
            self.not_stored = str(error)
        self._tell()

    def _tell(self) -> None:
        if self._progress is not None:
            ended = sum(row is not None for row in self._ended)
            failed = f", {self._failed} failed" if self._failed else ""
            self._progress(f"{ended} of {len(self._rows)} rows{failed}  (Ctrl-C keeps them)")

    def result(self) -> tuple[SweepRow, ...]:
        """All rows, in the order of the grid."""
        return tuple(
            SweepRow(row.overrides, None, None, cached=False) if ended is None else ended
            for row, ended in zip(self._rows, self._ended, strict=True)
        )
