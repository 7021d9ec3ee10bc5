"""The storage of studies: one SQLite file with every result, by its content, and every trial.

A storage is named by a URL, as in Optuna: `sqlite:///ppopt.db` is a file in the current folder,
`sqlite:////data/ppopt.db` one of an absolute path. There are three tables. `results` has searches
and evaluations, by the key of their content. `studies` has the name of a study, the digest of what
its trials share, the settings of all requested rows, and the last command that requested rows.
`trials` has the settings of one row of a study, and its outcome. A completed trial names its
result; trials of several studies may name the same result. `ppopt.studies.records` converts rows to
records and checks every value.

Every write is one transaction in a write-ahead log: a process that is killed loses nothing that was
written before. Several processes may read and write at the same time, on one machine; SQLite's
locks do not work over NFS.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote

from ppopt.errors import InputError
from ppopt.formats.fields import abbreviated, within
from ppopt.studies import records
from ppopt.studies.records import (
    COMPLETE,
    FAIL,
    DamagedError,
    StoredResult,
    StudyRecord,
    SweepRow,
    Trial,
    canonical,
    damage,
    one_line,
)

DEFAULT = "sqlite:///ppopt.db"
PREFIX = "sqlite:///"
PATIENCE = 30.0
"""Seconds to wait for another process that has the lock."""
APPLICATION = 0x70706F70
"""SQLite's `application_id` of ppopt's files: `ppop`."""
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
    """
    UPDATE results SET strategy = 'searched' WHERE strategy = 'optimal';
    UPDATE trials SET params = renamed_strategy(params), row = renamed_strategy(row);
    UPDATE studies SET asked = renamed_rows(asked)
    """,
)
"""Statements that upgrade a file by one version each; version 0 is an empty file."""


_RESULT = ", ".join(StoredResult._fields)
_TRIAL = ", ".join(Trial._fields)
_STUDY = "study_id, study_name, base, created, asked, command"


class StorageError(InputError):
    """Error of a storage that cannot be read or written; the message says what to do."""


def path_of(url: str) -> Path:
    """File of the URL of a storage; raises InputError if it is not a URL of SQLite."""
    name = url.removeprefix(PREFIX)
    if name == url or not name:
        raise InputError(f"storage: {url!r} is not known; write {DEFAULT} or the like")
    return Path(name)


def named_by(url: str) -> list[str]:
    """Expand a URL whose file name may contain a shell pattern: `shard-*.db`.

    Raises InputError if no file matches.
    """
    path = path_of(url)
    if path.exists() or "*" not in path.name:
        return [url]
    names = sorted(map(str, path.parent.glob(path.name)))
    if not names:
        raise InputError(f"storage: {url}: no file has such a name")
    return [PREFIX + name for name in names]


class Storage:
    """An open storage.

    A missing file is created. `readonly` opens an existing file without changing it. Raises
    StorageError if the file is not a ppopt storage, has a newer version, or cannot be used, and
    later if it cannot be read or written.
    """

    def __init__(
        self,
        url: str = DEFAULT,
        *,
        readonly: bool = False,
        patience: float = PATIENCE,
    ) -> None:
        self.url = url
        self.path = path_of(url)
        if readonly and not self.path.exists():
            raise StorageError(
                f"storage: {self.path} does not exist in {self.path.absolute().parent}; "
                "`ppopt sweep` makes one"
            )
        if not self.path.parent.is_dir():
            raise StorageError(
                f"storage: {self.path}: the folder {self.path.parent} does not exist; create it"
            )
        mode = "ro" if readonly else "rwc"
        name = f"file:{quote(os.fsencode(self.path.absolute()))}?mode={mode}"
        with self._errors():
            self._link = sqlite3.connect(name, uri=True, timeout=patience, isolation_level=None)
        self._link.text_factory = lambda text: text.decode(errors="surrogateescape")
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
        """Check the kind of the file, and upgrade it to the newest version."""
        tables = self._scalar("SELECT count(*) FROM sqlite_master")
        application = self._scalar("PRAGMA application_id")
        if application != APPLICATION and (tables or application):
            raise StorageError(
                f"storage: {self.path} is a database of another program; name another file"
            )
        version = self._scalar("PRAGMA user_version")
        if version < 0:
            raise StorageError(f"storage: {self.path}: {_DAMAGED.format(path=self.path)}")
        if version > len(MIGRATIONS):
            raise StorageError(
                f"storage: {self.path} was written by a newer ppopt (version {version} of its "
                f"tables, {len(MIGRATIONS)} is known here); update ppopt, or name another file"
            )
        if readonly and version == 0:
            raise StorageError(
                f"storage: {self.path} has nothing in it; run a command that writes it"
            )
        if readonly and version < len(MIGRATIONS):
            self._copy_to_memory()
        elif readonly:
            return
        self._link.execute("PRAGMA journal_mode = WAL")
        self._link.execute("PRAGMA synchronous = NORMAL")
        self._link.execute("PRAGMA foreign_keys = ON")
        with self._transaction():
            self._migrate()

    def _copy_to_memory(self) -> None:
        """Read an older file from a copy, which is upgraded in its place."""
        copy = sqlite3.connect(":memory:", isolation_level=None)
        copy.text_factory = self._link.text_factory
        self._link.backup(copy)
        self._link.close()
        self._link = copy

    def _migrate(self) -> None:
        self._link.create_function("renamed_strategy", 1, records.renamed_strategy)
        self._link.create_function("renamed_rows", 1, records.renamed_rows)
        version = self._scalar("PRAGMA user_version")
        for next_version, script in enumerate(MIGRATIONS[version:], version + 1):
            for statement in script.split(";"):
                self._link.execute(statement)
            self._link.execute(f"PRAGMA user_version = {next_version}")
        if version == 0:
            self._link.execute(f"PRAGMA application_id = {APPLICATION}")

    # Results.

    def result(self, key: str) -> StoredResult | None:
        """Result of a key; None if there is none. Raises DamagedError."""
        with self._errors():
            query = f"SELECT {_RESULT} FROM results WHERE key = ?"
            row = self._link.execute(query, (key,)).fetchone()
        return None if row is None else self._result(row)

    def sound_result(self, key: str, damaged: list[str]) -> StoredResult | None:
        """Result of a key; if it is damaged, None, and the reason is added to `damaged`."""
        try:
            return self.result(key)
        except DamagedError as error:
            damaged.append(one_line(error))
            return None

    def _result(self, row: Sequence[object]) -> StoredResult:
        with damage(f"storage: {self.path}: a result"):
            return records.read_record(StoredResult, row)

    def results(self) -> int:
        """Number of results."""
        with self._errors():
            return int(self._scalar("SELECT count(*) FROM results"))

    def put(self, result: StoredResult) -> None:
        """Store a result; it replaces an earlier one of the same key."""
        with self._errors(), self._transaction():
            self._put(result)

    def _put(self, result: StoredResult) -> None:
        self._insert(f"results ({_RESULT}, finished)", *result, _now())

    def _insert(self, where: str, *values: object) -> None:
        marks = ", ".join("?" * len(values))
        self._link.execute(f"INSERT OR REPLACE INTO {where} VALUES ({marks})", values)

    # Studies and their trials.

    def study(self, name: str, base: str) -> int:
        """Id of the study of a name, which is created if it does not exist.

        `base` identifies what all its trials share. Raises InputError if the study has another
        base.
        """
        with self._errors(), self._transaction():
            study = self._find(name)
            if study is None:
                self._link.execute(
                    "INSERT INTO studies (study_name, base, created) VALUES (?, ?, ?)",
                    (name, base, _now()),
                )
                return self._scalar("SELECT last_insert_rowid()")
        if study.base != base:
            raise InputError(
                f"study_name: {name} is a study of another pipeline in {self.path}; "
                "choose another name"
            )
        return study.study_id

    def _find(self, name: str) -> StudyRecord | None:
        """Study of a name; None if there is none."""
        named = self._studies("WHERE study_name = ?", within("study_name", records.utf8, name))
        return next(iter(named), None)

    def _study(self, row: Sequence[object]) -> StudyRecord:
        with damage(f"storage: {self.path}: study {row[1]}", _ELSEWHERE):
            return records.read_record(StudyRecord, row)

    def _known(self, name: str) -> StudyRecord:
        """Study of a name; raises InputError if there is none."""
        study = self._find(name)
        if study is None:
            known = [study.name for study in self._studies()]
            listed = ", ".join(known) or "it has none"
            raise InputError(f"study_name: {name} is not in {self.path}; it has: {listed}")
        return study

    def _studies(self, which: str = "ORDER BY study_id", *values: object) -> list[StudyRecord]:
        rows = self._link.execute(f"SELECT {_STUDY} FROM studies {which}", values)
        return [self._study(row) for row in rows]

    def request_rows(
        self, study: int, rows: Sequence[Mapping[str, Any]], command: str | None
    ) -> None:
        """Record the settings of requested rows, in addition to those of earlier sweeps."""
        with self._errors(), self._transaction():
            (known,) = self._studies("WHERE study_id = ?", study)
            requested = dict.fromkeys((*known.asked, *map(canonical, rows)))
            packed = records.packed(list(requested)) if len(requested) > len(known.asked) else None
            typed = command and command.encode(errors="backslashreplace").decode()
            self._link.execute(
                "UPDATE studies SET asked = coalesce(?, asked), command = ? WHERE study_id = ?",
                (packed, typed, study),
            )

    def open_rows(self, name: str) -> list[Mapping[str, Any]]:
        """Settings of the requested rows of a study that have not ended."""
        with self._errors():
            study = self._known(name)
            texts = self._open(study)
        with damage(f"storage: {self.path}: study {name}", _ELSEWHERE):
            return [within("asked", records.settings_of, text) for text in texts]

    def _open(self, study: StudyRecord) -> list[str]:
        query = "SELECT params FROM trials WHERE study_id = ?"
        ended = {params for (params,) in self._link.execute(query, (study.study_id,))}
        return [params for params in study.asked if params not in ended]

    def finish(self, study: int, row: SweepRow, result: StoredResult | None = None) -> None:
        """Store the outcome of a row, with its result if that is new, in one transaction."""
        with self._errors(), self._transaction():
            if result is not None:
                self._put(result)
            self._add(study, row)

    def _add(self, study: int, row: SweepRow) -> None:
        where = f"trials (study_id, {_TRIAL}, finished)"
        self._insert(where, study, *records.columns_of(row), _now())

    def studies(self) -> list[StudyRecord]:
        """All studies with the counts of their rows, the oldest first."""
        with self._errors():
            return [self._counted(study) for study in self._studies()]

    def _counted(self, study: StudyRecord) -> StudyRecord:
        query = "SELECT state, count(*) FROM trials WHERE study_id = ? GROUP BY state"
        ended = dict(self._link.execute(query, (study.study_id,)).fetchall())
        if unknown := ended.keys() - {COMPLETE, FAIL}:
            with damage(f"storage: {self.path}: study {study.name}", _ELSEWHERE):
                raise InputError(f"state: {abbreviated(unknown.pop())} is unknown")
        return study._replace(
            complete=ended.get(COMPLETE, 0),
            failed=ended.get(FAIL, 0),
            open=len(self._open(study)),
        )

    def trials(self, name: str) -> list[SweepRow]:
        """All rows of a study, in the order of their first completion.

        Raises InputError if there is no such study.
        """
        with self._errors():
            query = f"SELECT trial_id, {_TRIAL} FROM trials WHERE study_id = ? ORDER BY trial_id"
            rows = self._link.execute(query, (self._known(name).study_id,)).fetchall()
        trials = []
        for trial_id, *row in rows:
            with damage(f"storage: {self.path}: trial {trial_id} of study {name}", _ELSEWHERE):
                trials.append(records.trial_of(row))
        return trials

    def merge(self, source: Storage) -> list[str]:
        """Merge all results and studies of another storage in one transaction.

        Of two results with the same key, the one with more effort is stored. Returns the reasons
        for which damaged results were skipped; a sweep computes them again. Raises InputError if
        both have a study of one name with different bases.
        """
        studies = [(study, source.trials(study.name)) for study in source.studies()]
        requested = {
            study.name: [*(trial.overrides for trial in trials), *source.open_rows(study.name)]
            for study, trials in studies
        }
        numbers = {study.name: self.study(study.name, study.base) for study, _ in studies}
        for study, _ in studies:
            self.request_rows(numbers[study.name], requested[study.name], study.command)
        left_out: list[str] = []
        with self._errors(), self._transaction():
            for theirs in source._sound_results(left_out):
                ours = self.sound_result(theirs.key, [])
                if ours is None or theirs.effort > ours.effort:
                    self._put(theirs)
            for study, trials in studies:
                for trial in trials:
                    self._add(numbers[study.name], trial)
        return left_out

    def _sound_results(self, damaged: list[str]) -> Iterator[StoredResult]:
        """Iterate over the undamaged results; `damaged` collects the reasons of the others."""
        with self._errors():
            for row in self._link.execute(f"SELECT {_RESULT} FROM results"):
                try:
                    yield self._result(row)
                except DamagedError as error:
                    damaged.append(str(error))

    # SQLite.

    def _scalar(self, query: str) -> int:
        return int(self._link.execute(query).fetchone()[0])

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Commit all writes of a block, or none of them."""
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
        """Turn SQLite's errors into one line that says what to do.

        If a file is damaged, SQLite may request more memory than there is, or return a table's name
        that is not UTF-8.
        """
        try:
            yield
        except (sqlite3.Error, MemoryError, UnicodeDecodeError) as error:
            raise StorageError(f"storage: {self.path}: {_advice(error, self.path)}") from None


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


_ELSEWHERE = "name another study (--study-name), or another storage"
_DAMAGED = (
    "it is damaged; name another file, or save what can be read: "
    "`sqlite3 {path} .recover | sqlite3 saved.db`"
)
_ADVICE = {
    sqlite3.SQLITE_FULL: "the disk is full; free some space, then run the same command again: what "
    "is stored is not done again",
    sqlite3.SQLITE_IOERR: "it cannot be written or read; is the disk full, or over a quota? "
    "Correct that, then run the same command again: what is stored is not done again",
    sqlite3.SQLITE_READONLY: "it is read-only; change its permissions or name another file",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened; check its folder and permissions",
    sqlite3.SQLITE_PERM: "no permission; change its permissions or name another file",
    sqlite3.SQLITE_NOTADB: "it is no SQLite database; name another file",
    sqlite3.SQLITE_CORRUPT: _DAMAGED,
} | dict.fromkeys(
    (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED),
    "another process has locked it for too long; end that process (`fuser {path}` names it), then "
    "run the same command again: what is stored is not done again",
)


def _advice(error: Exception, path: Path) -> str:
    """Text that says what happened and what to do, by SQLite's primary result code."""
    advice = _ADVICE.get(getattr(error, "sqlite_errorcode", 0) & 0xFF)
    if advice is None:
        return f"{error or 'no memory'}; {_DAMAGED.format(path=path)}"
    return advice.format(path=path)
