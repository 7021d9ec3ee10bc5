"""The storage of studies: one SQLite file with every result, by its content, and every trial.

A storage is named by a URL, as Optuna names one: `sqlite:///ppopt.db` is a file in the current
folder, `sqlite:////data/ppopt.db` one of an absolute path. Three tables: `results` (a search or an
evaluation, by the key of its content), `studies` (a name, what all its trials share, the settings
of all rows that were asked for, and the last command that asked) and `trials` (the settings of one
row of a study, and how it ended). A trial that is done names its result; trials of several studies
may name the same.

Every write is one transaction in a write-ahead log: a process that is killed loses nothing that
was written before. Several processes may read and write at the same time, on one machine; SQLite's
locks do not work over NFS.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple
from urllib.parse import quote
from zlib import compress, decompress

from ppopt.errors import InputError

DEFAULT = "sqlite:///ppopt.db"
PREFIX = "sqlite:///"
PATIENCE = 30.0
"""Seconds to wait for another process that holds the lock."""
APPLICATION = 0x70706F70
"""SQLite's `application_id` of our files: `ppop`."""
MIGRATIONS = (
    """
    CREATE TABLE results (
        key TEXT PRIMARY KEY,
        strategy TEXT NOT NULL,
        status TEXT NOT NULL,
        closed INTEGER NOT NULL,
        time_limit REAL,
        workers INTEGER,
        seconds REAL NOT NULL,
        version TEXT NOT NULL,
        finished TEXT NOT NULL,
        record BLOB NOT NULL
    );
    CREATE TABLE studies (
        study_id INTEGER PRIMARY KEY,
        study_name TEXT NOT NULL UNIQUE,
        base TEXT NOT NULL,
        created TEXT NOT NULL
    );
    CREATE TABLE trials (
        trial_id INTEGER PRIMARY KEY,
        study_id INTEGER NOT NULL REFERENCES studies (study_id),
        params TEXT NOT NULL,
        state TEXT NOT NULL,
        key TEXT,
        row TEXT NOT NULL,
        finished TEXT NOT NULL,
        UNIQUE (study_id, params)
    );
    """,
    """
    ALTER TABLE studies ADD COLUMN asked BLOB;
    ALTER TABLE studies ADD COLUMN command TEXT
    """,
)
"""What makes a file of each version from one of the version before; version 0 is an empty file."""


class StoredResult(NamedTuple):
    """A search or an evaluation as it is stored; see `ppopt.studies.record`."""

    key: str
    strategy: str
    status: str
    closed: bool
    """Whether more time cannot improve it."""
    time_limit: float | None
    """Seconds it was given; None: it takes no limit."""
    workers: int | None
    seconds: float
    version: str
    record: bytes


class Trial(NamedTuple):
    """One row of a study."""

    params: Mapping[str, Any]
    """The settings in which it differs from other rows."""
    state: str
    """`complete`, or `fail`, in Optuna's words."""
    key: str | None
    """Of its result; None where it failed."""
    row: Mapping[str, Any]
    """Its figures, under the keys of `ppopt sweep --json`."""


class StudySummary(NamedTuple):
    """What is listed of a study."""

    name: str
    base: str
    created: str
    complete: int
    failed: int
    command: str | None
    """The last command that asked for rows; None: it was asked for in Python."""
    open: int
    """Rows that were asked for and have not ended."""


class StorageError(InputError):
    """A storage that cannot be read or written; the message says what to do."""


def path_of(url: str) -> Path:
    """The file of a storage's URL; raises InputError where it is none of SQLite."""
    name = url.removeprefix(PREFIX)
    if name == url or not name:
        raise InputError(f"storage: {url!r} is not known; write {DEFAULT} or the like")
    return Path(name)


def named_by(url: str) -> list[str]:
    """The URLs that one names whose file name may be a pattern, as of a shell: `shard-*.db`.

    Raises InputError where no file fits.
    """
    path = path_of(url)
    if path.exists() or "*" not in path.name:
        return [url]
    found = sorted(map(str, path.parent.glob(path.name)))
    if not found:
        raise InputError(f"storage: {url}: no file has such a name")
    return [PREFIX + name for name in found]


class Storage:
    """An open storage.

    A file that does not exist is made, unless `create` is False. `readonly` opens an existing file
    that is not to be changed. Raises StorageError where the file is none of ours, is of a newer
    version, or cannot be used, and later where it cannot be read or written.
    """

    def __init__(
        self,
        url: str = DEFAULT,
        *,
        create: bool = True,
        readonly: bool = False,
        patience: float = PATIENCE,
    ) -> None:
        self.url = url
        self.path = path_of(url)
        if not self.path.exists() and (readonly or not create):
            raise StorageError(
                f"storage: {self.path} does not exist in {self.path.absolute().parent}; "
                "`ppopt sweep` makes one"
            )
        if not self.path.parent.is_dir():
            raise StorageError(
                f"storage: {self.path}: the folder {self.path.parent} does not exist; create it"
            )
        mode = "ro" if readonly else "rwc"
        name = f"file:{quote(str(self.path.absolute()))}?mode={mode}"
        with self._errors():
            self._link = sqlite3.connect(name, uri=True, timeout=patience, isolation_level=None)
        try:
            with self._errors():
                self._prepare(readonly=readonly)
        except BaseException:
            self._link.close()
            raise

    def __enter__(self) -> Storage:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._link.close()

    def _prepare(self, *, readonly: bool) -> None:
        """Check what kind of file it is, and bring it to the newest version."""
        tables = self._one("SELECT count(*) FROM sqlite_master")
        application = self._one("PRAGMA application_id")
        if application != APPLICATION and (tables or application):
            raise StorageError(
                f"storage: {self.path} is a database of another program; name another file"
            )
        version = self._one("PRAGMA user_version")
        if version > len(MIGRATIONS):
            raise StorageError(
                f"storage: {self.path} was written by a newer ppopt (version {version} of its "
                f"tables, {len(MIGRATIONS)} is known here); update ppopt, or name another file"
            )
        if readonly:
            if version < len(MIGRATIONS):
                what = "is of an older version" if version else "has nothing in it"
                raise StorageError(f"storage: {self.path} {what}; run a command that writes it")
            return
        self._link.execute("PRAGMA journal_mode = WAL")
        self._link.execute("PRAGMA synchronous = NORMAL")
        self._link.execute("PRAGMA foreign_keys = ON")
        with self._transaction():
            self._migrate()

    def _migrate(self) -> None:
        version = self._one("PRAGMA user_version")
        for number, script in enumerate(MIGRATIONS[version:], version + 1):
            for statement in script.split(";"):
                self._link.execute(statement)
            self._link.execute(f"PRAGMA user_version = {number}")
        if version == 0:
            self._link.execute(f"PRAGMA application_id = {APPLICATION}")

    # Results.

    def result(self, key: str) -> StoredResult | None:
        """The result of a key; None where there is none."""
        fields = ", ".join(StoredResult._fields)
        with self._errors():
            found = self._link.execute(f"SELECT {fields} FROM results WHERE key = ?", (key,))
            row = found.fetchone()
        return None if row is None else StoredResult(*row)._replace(closed=bool(row[3]))

    def results(self) -> int:
        """Number of results."""
        with self._errors():
            return int(self._one("SELECT count(*) FROM results"))

    def put(self, result: StoredResult) -> None:
        """Store a result; it replaces what was stored under its key."""
        with self._errors(), self._transaction():
            self._put(result)

    def _put(self, result: StoredResult) -> None:
        fields = (*StoredResult._fields, "finished")
        marks = ", ".join("?" * len(fields))
        self._link.execute(
            f"INSERT OR REPLACE INTO results ({', '.join(fields)}) VALUES ({marks})",
            (*result, _now()),
        )

    # Studies and their trials.

    def study(self, name: str, base: str) -> int:
        """The number of a study, which is made where it does not exist.

        `base` is what all its trials share. Raises InputError where the study has another.
        """
        with self._errors(), self._transaction():
            self._link.execute(
                "INSERT OR IGNORE INTO studies (study_name, base, created) VALUES (?, ?, ?)",
                (name, base, _now()),
            )
            number, known = self._link.execute(
                "SELECT study_id, base FROM studies WHERE study_name = ?", (name,)
            ).fetchone()
        if known != base:
            raise InputError(
                f"study_name: {name} is a study of another pipeline in {self.path}; "
                "choose another name"
            )
        return int(number)

    def ask(self, study: int, rows: Sequence[Mapping[str, Any]], command: str | None) -> None:
        """Store the settings of rows that are asked for, beside those of earlier sweeps."""
        with self._errors(), self._transaction():
            known = _asked(self._link, study)
            asked = dict.fromkeys((*known, *map(canonical, rows)))
            packed = compress(json.dumps(list(asked)).encode()) if len(asked) > len(known) else None
            self._link.execute(
                "UPDATE studies SET asked = coalesce(?, asked), command = ? WHERE study_id = ?",
                (packed, command, study),
            )

    def open_rows(self, name: str) -> list[Mapping[str, Any]]:
        """Settings of the rows of a study that were asked for and have not ended."""
        with self._errors():
            return [json.loads(one) for one in self._open(name)]

    def _open(self, name: str) -> list[str]:
        query = "SELECT study_id FROM studies WHERE study_name = ?"
        (study,) = self._link.execute(query, (name,)).fetchone()
        rows = self._link.execute("SELECT params FROM trials WHERE study_id = ?", (study,))
        ended = {params for (params,) in rows}
        return [one for one in _asked(self._link, study) if one not in ended]

    def finish(self, study: int, trial: Trial, result: StoredResult | None = None) -> None:
        """Store how a trial ended, with its result where that is new; all of it or nothing."""
        with self._errors(), self._transaction():
            if result is not None:
                self._put(result)
            self._add(study, trial)

    def _add(self, study: int, trial: Trial) -> None:
        params, row = canonical(trial.params), canonical(trial.row)
        self._link.execute(
            "INSERT OR REPLACE INTO trials (study_id, params, state, key, row, finished) "
            "VALUES (?, ?, ?, ?, ?, ?)",
            (study, params, trial.state, trial.key, row, _now()),
        )

    def studies(self) -> list[StudySummary]:
        """All studies, the oldest first."""
        with self._errors():
            rows = self._link.execute(
                "SELECT study_name, base, created, "
                "  count(*) FILTER (WHERE state = 'complete'), "
                "  count(*) FILTER (WHERE state = 'fail'), command "
                "FROM studies LEFT JOIN trials USING (study_id) GROUP BY study_id ORDER BY study_id"
            ).fetchall()
            opened = [len(self._open(row[0])) for row in rows]
        return [StudySummary(*(*row, left)) for row, left in zip(rows, opened, strict=True)]

    def trials(self, name: str) -> list[Trial]:
        """All trials of a study, in the order in which they were first done.

        Raises InputError where there is no such study.
        """
        if name not in (known := [study.name for study in self.studies()]):
            listed = ", ".join(known) or "it has none"
            raise InputError(f"study_name: {name} is not in {self.path}; it has: {listed}")
        with self._errors():
            rows = self._link.execute(
                "SELECT params, state, key, row FROM trials JOIN studies USING (study_id) "
                "WHERE study_name = ? ORDER BY trial_id",
                (name,),
            ).fetchall()
        return [
            Trial(json.loads(params), state, key, json.loads(row))
            for params, state, key, row in rows
        ]

    def merge(self, other: Storage) -> None:
        """Take over all results and studies of another storage; all of them or nothing.

        Of two results of one key the one is kept that more effort was spent on. Raises InputError
        where both have a study of one name that are of different pipelines.
        """
        fields = ", ".join(StoredResult._fields)
        with other._errors():
            keys = [key for (key,) in other._link.execute("SELECT key FROM results")]
            studies = [(study, other.trials(study.name)) for study in other.studies()]
            asked = {
                study.name: [*(one.params for one in trials), *other.open_rows(study.name)]
                for study, trials in studies
            }
        numbers = {study.name: self.study(study.name, study.base) for study, _ in studies}
        for study, _ in studies:
            self.ask(numbers[study.name], asked[study.name], study.command)
        with self._errors(), self._transaction():
            for key in keys:
                with other._errors():
                    query = f"SELECT {fields} FROM results WHERE key = ?"
                    theirs = StoredResult(*other._link.execute(query, (key,)).fetchone())
                own = self.result(key)
                if own is None or _effort(theirs) > _effort(own):
                    self._put(theirs)
            for study, trials in studies:
                for trial in trials:
                    self._add(numbers[study.name], trial)

    # SQLite.

    def _one(self, query: str) -> int:
        return int(self._link.execute(query).fetchone()[0])

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """All writes of a block, or none of them."""
        self._link.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._link.execute("COMMIT")
        except BaseException:
            if self._link.in_transaction:
                self._link.execute("ROLLBACK")
            raise

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn SQLite's errors into one line that says what to do."""
        try:
            yield
        except sqlite3.Error as error:
            raise StorageError(f"storage: {self.path}: {_advice(error, self.path)}") from None


def _asked(link: sqlite3.Connection, study: int) -> list[str]:
    """Settings of the rows of a study that were asked for, as text."""
    (packed,) = link.execute("SELECT asked FROM studies WHERE study_id = ?", (study,)).fetchone()
    return [] if packed is None else list(json.loads(decompress(packed)))


def _effort(result: StoredResult) -> tuple[bool, float]:
    """How much was spent on a result: all that it takes, or so many seconds."""
    return bool(result.closed), result.time_limit or 0.0


def canonical(value: object) -> str:
    """JSON text, the same for equal values."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


_ADVICE = {
    sqlite3.SQLITE_FULL: "the disk is full; free some space, then run the same command again: what "
    "is stored is not done again",
    sqlite3.SQLITE_IOERR: "it cannot be written or read; is the disk full, or over a quota? "
    "When that is mended, run the same command again: what is stored is not done again",
    sqlite3.SQLITE_READONLY: "it is read-only; change its permissions or name another file",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened; check its folder and permissions",
    sqlite3.SQLITE_PERM: "no permission; change its permissions or name another file",
    sqlite3.SQLITE_NOTADB: "it is no SQLite database; name another file",
    sqlite3.SQLITE_CORRUPT: "it is damaged; name another file, or save what can be read: "
    "`sqlite3 {path} .recover | sqlite3 saved.db`",
} | dict.fromkeys(
    (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED),
    "another process has locked it for too long; end that process (`fuser {path}` names it), then "
    "run the same command again: what is stored is not done again",
)


def _advice(error: sqlite3.Error, path: Path) -> str:
    """What happened and what to do, by SQLite's primary result code."""
    words = _ADVICE.get(getattr(error, "sqlite_errorcode", 0) & 0xFF)
    return str(error) if words is None else words.format(path=path)
