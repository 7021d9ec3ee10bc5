"""Sweeps done in this process, and damaged storages with all that reads them."""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import ppopt
from ppopt.errors import InputError
from ppopt.solver.engines.engine import DirectEngine, Ended
from ppopt.studies import sweep as sweeps
from ppopt.studies.solve_job import SolveJob
from ppopt.studies.storage import PREFIX, Storage
from ppopt.studies.sweep_grid import Grid, base_of, grid_of
from ppopt.studies.task import SweepDone
from tests.cli.cli_run import run


class InThisProcess(DirectEngine):
    """An engine of this process that notes which tasks it did."""

    def __init__(self) -> None:
        super().__init__()
        self._jobs: dict[int, SolveJob] = {}
        self.searched: list[SolveJob] = []
        self.hindered: Callable[[], None] = lambda: None

    def submit(self, task_id: int, task: Any) -> None:
        self._jobs[task_id] = task.job
        super().submit(task_id, task)

    def wait(self, seconds: float) -> Ended:
        ended = super().wait(seconds)
        self.searched += [
            self._jobs[task_id]
            for task_id, done in ended
            if isinstance(done, SweepDone) and done.result is not None
        ]
        self.hindered()
        return ended


def done(grid: Grid, url: str, **options: Any) -> tuple[ppopt.Study, list[SolveJob]]:
    """The study of a grid, done in this process, and what was searched or evaluated for it."""
    engine = InThisProcess()
    return sweeps.run(grid, engine, storage=url, **options), engine.searched


def values(study: ppopt.Study) -> list[Any]:
    """The value of every row."""
    return [row.value for row in study.rows]


# Damage.

NAME = "mine"
AXES = {"batches": [2, 3], "strategy": ["searched", "1f1b"], "chunks": [1, 2]}
VALUES = [7, 6.5, 9, None, 10, 9.5, 12, None]
"""Values of the rows, of two stages of F = 1 and BW = 2. A search is as long as device 1 works, 3 a
microbatch, behind its wait for the first F: 1, or 0.5 where it is of a chunk. 1F1B takes 3 for
every microbatch and one more, and has one chunk: rows of two fail."""


def small_grid() -> Grid:
    """Eight rows, two of which fail."""
    pipeline = ppopt.Pipeline(stages=2, batches=2, forward=1, backward=2, weight=1)
    return grid_of(base_of(pipeline, {"time_limit": 20}), AXES)


class Damage(NamedTuple):
    """One value of one row of a storage that is put in the place of what was there."""

    table: str
    column: str
    row: int
    """Which row of the table, counted in its order."""
    value: Any


ANY: tuple[Any, ...] = (
    *(None, -1, 2, 2.5, -1e308, 2**62, float("inf"), "", "x", "{}", "9" * 400, "a\nb", b"\xff\xfe"),
)
TEXTS = (
    *("1", "null", "[]", '{"failed": 1}', '{"status": "optimal"}', '{"batches": "x"}'),
    *('{"status": "optimal", "value": 1e999}', '{"status": "optimal", "peak_memory": ["x"]}'),
    *(
        f'{{"batches": {10**400}}}',
        "[" * 5000,
        f'{{"a": {"[" * 500}{"]" * 500}}}',
        '{"a": "\\ud800"}',
    ),
)
BLOBS = tuple(
    zlib.compress(text)
    for text in (b"\xff", b"{}", b"[1]", b"null", b"[" * 5000, b'["x"]', b'["{}", "[1]"]', b"1e999")
)
MORE = {"params": TEXTS, "row": TEXTS, "asked": BLOBS, "record": BLOBS}


def bad_values(column: str) -> tuple[Any, ...]:
    """Values that no column should have, and those that are of a column's form."""
    return (*ANY, *MORE.get(column, ()))


def columns(path: Path) -> list[tuple[str, str]]:
    """Every column of every table of a storage."""
    with closing(sqlite3.connect(path)) as link:
        tables = link.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
        return [
            (table, column[1])
            for (table,) in tables.fetchall()
            for column in link.execute(f"PRAGMA table_info({table})")
        ]


def inflict(path: Path, damage: Damage) -> bool:
    """Damage a storage; False where SQLite itself refuses that value, or changes nothing."""
    table, column, row, value = damage
    with closing(sqlite3.connect(path)) as link:
        try:
            changed = link.execute(
                f"UPDATE {table} SET {column} = ? WHERE rowid = "
                f"(SELECT rowid FROM {table} ORDER BY rowid LIMIT 1 OFFSET ?)",
                (value, row),
            )
            link.commit()
        except sqlite3.Error:
            return False
    return changed.rowcount > 0


def flipped(rng: Random, content: bytes) -> bytes:
    """A file with some bytes changed: anywhere, in its header, or in that of one of its pages."""
    changed, page = bytearray(content), 4096
    for _ in range(rng.choice((1, 1, 2, 5, 20))):
        pages = page * rng.randrange(len(content) // page)
        position = rng.choice(
            (rng.randrange(len(content)), rng.randrange(200), pages + rng.randrange(40))
        )
        changed[position] = rng.choice(
            (changed[position] ^ 1 << rng.randrange(8), rng.randrange(256), 0)
        )
    return bytes(changed)


def complaints(path: Path, *, made_again: bool) -> Iterator[str]:
    """Let everything read a damaged storage, and say what is wrong with how it goes.

    Rows that a sweep gives have the right values; what is refused is refused in one line, with exit
    code 2. `made_again`: no sweep may refuse it.
    """
    url = PREFIX + str(path)
    code, out, err = run(f"studies show {NAME} --storage {url}")
    if code not in (0, 2) or (code == 2 and (out or not _is_one_line(err))):
        yield f"show: exit code {code}, {out[:80]!r} on stdout, {err[:200]!r} on stderr"
    with suppress(InputError), Storage(url, readonly=True) as damaged:
        damaged.studies()
    with suppress(InputError):
        _merge(url, path.with_name("merged.db"))
    try:
        study, _ = done(small_grid(), url, study_name=NAME)
    except InputError as error:
        if made_again:
            yield f"sweep: {error}"
        return
    if study.not_stored is None and values(study) != VALUES:
        yield f"sweep: {values(study)}, not {VALUES}"
    if study.not_stored is not None and made_again:
        yield f"sweep: {study.not_stored}"


def _is_one_line(err: str) -> bool:
    """Whether errors end with the one line of an error, behind notes."""
    *notes, line = err.splitlines() or [""]
    return line.startswith("error: ") and all(note.startswith("note: ") for note in notes)


def _merge(url: str, target: Path) -> None:
    """Take a storage over into a new one, which must then be sound."""
    try:
        with Storage(url, readonly=True) as damaged, Storage(PREFIX + str(target)) as opened:
            opened.merge(damaged)
            for study in opened.studies():
                opened.trials(study.name)
    finally:
        target.unlink(missing_ok=True)
