"""The storage: what is written stays, and what cannot be used is refused in one line."""

from __future__ import annotations

import os
import resource
import sqlite3
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from ppopt.errors import InputError
from ppopt.formats.figures import ScheduleFigures
from ppopt.studies import storage as storages
from ppopt.studies.records import StoredResult, SweepRow
from ppopt.studies.storage import Storage, StorageError, path_of
from tests.clock import HANGS


def result(key: str = "k", record: bytes = b"abc") -> StoredResult:
    return StoredResult(key, "searched", "feasible", False, 10.0, 1, 0.5, "0.1.0", record)


def trial(batches: int = 1, key: str | None = "k") -> SweepRow:
    figures = ScheduleFigures(status="optimal", value=batches)
    return SweepRow({"batches": batches}, figures, None, cached=True, key=key)


def failed(batches: int) -> SweepRow:
    return SweepRow({"batches": batches}, None, "why", cached=True)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/a.db"


def test_urls() -> None:
    assert path_of("sqlite:///ppopt.db") == Path("ppopt.db")
    assert path_of("sqlite:////data/x.db") == Path("/data/x.db")
    for wrong in ("ppopt.db", "sqlite://ppopt.db", "postgresql://host/x", "sqlite:///", ""):
        with pytest.raises(InputError, match=r"write sqlite:///ppopt\.db"):
            path_of(wrong)


def test_what_is_written_is_read(url: str) -> None:
    with Storage(url) as storage:
        assert storage.result("k") is None
        study = storage.study("mine", "base")
        storage.finish(study, trial(), result())
        storage.finish(study, failed(2))
    with Storage(url) as reopened:
        assert reopened.result("k") == result()
        assert reopened.trials("mine") == [trial(), failed(2)]
        (listed,) = reopened.studies()
        assert (listed.name, listed.complete, listed.failed) == ("mine", 1, 1)
        reopened.put(result(record=b"better"))
        assert reopened.results() == 1
        stored = reopened.result("k")
        assert stored.record == b"better"


def test_a_row_that_is_done_again_is_stored_once(url: str) -> None:
    with Storage(url) as storage:
        study = storage.study("mine", "base")
        storage.finish(study, failed(1))
        storage.finish(study, trial(), result())
        assert storage.trials("mine") == [trial()]


def test_a_study_is_of_one_base(url: str) -> None:
    with Storage(url) as storage:
        assert storage.study("mine", "base") == storage.study("mine", "base")
        with pytest.raises(InputError, match="study_name: mine is a study of another pipeline"):
            storage.study("mine", "other")
        with pytest.raises(InputError, match=r"yours is not in .*; it has: mine"):
            storage.trials("yours")


def test_merging_keeps_the_result_of_more_effort(tmp_path: Path, url: str) -> None:
    second_url = f"sqlite:///{tmp_path}/b.db"
    with Storage(url) as storage, Storage(second_url) as two:
        storage.put(result("less")._replace(time_limit=1.0))
        storage.put(result("more")._replace(time_limit=9.0))
        storage.put(result("proved")._replace(closed=True, time_limit=1.0))
        for key in ("less", "more", "proved", "new"):
            two.put(result(key, b"theirs")._replace(time_limit=5.0))
        two.finish(two.study("mine", "base"), trial(2, "new"))
        storage.finish(storage.study("mine", "base"), trial(1, "more"))
        storage.merge(two)
        results = {key: storage.result(key) for key in ("less", "more", "proved", "new")}
        taken = [key for key, stored in results.items() if stored and stored.record == b"theirs"]
        assert taken == ["less", "new"]
        assert storage.trials("mine") == [trial(1, "more"), trial(2, "new")]
        two.study("yours", "base")
        storage.study("yours", "other")
        with pytest.raises(InputError, match="a study of another pipeline"):
            storage.merge(two)


def test_several_may_use_it_at_once(url: str) -> None:
    with Storage(url) as first, Storage(url) as second, Storage(url, readonly=True) as reader:
        first.finish(first.study("mine", "base"), trial(1, "a"), result("a"))
        second.finish(second.study("mine", "base"), trial(2, "b"), result("b"))
        assert reader.results() == first.results() == 2
        assert len(reader.trials("mine")) == 2


def test_an_older_file_is_brought_up_to_date(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the tables had got a column since."""
    with Storage(url) as storage:
        storage.finish(storage.study("mine", "base"), trial(), result())
    added = "ALTER TABLE results ADD COLUMN note TEXT; CREATE INDEX by_note ON results (note)"
    monkeypatch.setattr(storages, "MIGRATIONS", (*storages.MIGRATIONS, added))
    with Storage(url, readonly=True) as older:
        assert older.trials("mine") == [trial()]
    with sqlite3.connect(path_of(url)) as link:
        assert link.execute("PRAGMA user_version").fetchone() == (len(storages.MIGRATIONS) - 1,)
    link.close()
    for _ in range(2):
        with Storage(url) as reopened:
            assert reopened.result("k") == result()
            assert reopened.trials("mine") == [trial()]
    with sqlite3.connect(path_of(url)) as link:
        assert link.execute("PRAGMA user_version").fetchone() == (len(storages.MIGRATIONS),)
        assert link.execute("SELECT note FROM results").fetchall() == [(None,)]
    link.close()
    monkeypatch.undo()
    with pytest.raises(StorageError, match="was written by a newer ppopt"):
        Storage(url)


def test_a_file_of_version_1_is_brought_up_to_date(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its studies do not know which rows were asked for: none of theirs is open."""
    monkeypatch.setattr(storages, "MIGRATIONS", storages.MIGRATIONS[:1])
    Storage(url).close()
    link = sqlite3.connect(path_of(url))
    link.execute("INSERT INTO studies VALUES (1, 'mine', 'base', 'then')")
    link.commit()
    link.close()
    monkeypatch.undo()
    with Storage(url) as reopened:
        (study,) = reopened.studies()
        assert (study.name, study.open, study.command) == ("mine", 0, None)


def test_a_file_of_version_2_has_the_present_name_of_the_search(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In results, rows and requests; what is not compressed JSON stays as it is."""
    requests = [{"batches": batches, "strategy": "optimal"} for batches in (1, 2)]
    figures = ScheduleFigures(status="optimal", strategy="optimal", value=1)
    monkeypatch.setattr(storages, "MIGRATIONS", storages.MIGRATIONS[:2])
    with Storage(url) as storage:
        study = storage.study("mine", "base")
        storage.request_rows(study, requests, None)
        storage.finish(
            study,
            SweepRow(requests[0], figures, None, cached=True, key="k"),
            result()._replace(strategy="optimal"),
        )
        storage.study("damaged", "base")
    with sqlite3.connect(path_of(url)) as link:
        link.execute("UPDATE studies SET asked = x'00' WHERE study_name = 'damaged'")
    link.close()
    monkeypatch.undo()
    for readonly in (True, False):
        with Storage(url, readonly=readonly) as reopened:
            assert reopened.result("k") == result()
            (row,) = reopened.trials("mine")
            assert row.overrides == {"batches": 1, "strategy": "searched"}
            assert row.figures is not None and row.figures.strategy == "searched"
            assert row.status == "optimal"
            assert reopened.open_rows("mine") == [{"batches": 2, "strategy": "searched"}]
            with pytest.raises(InputError, match="study damaged is damaged"):
                reopened.open_rows("damaged")


def test_rows_that_were_asked_for_and_have_not_ended_are_open(url: str, tmp_path: Path) -> None:
    """Also those of an earlier sweep, and in a storage that takes them over."""
    rows = [{"batches": 2}, {"batches": 3}]
    with Storage(url) as storage:
        study_id = storage.study("mine", "base")
        storage.request_rows(study_id, rows, "ppopt sweep batches=2,3")
        storage.request_rows(study_id, rows[:1], "ppopt sweep batches=2")
        assert storage.open_rows("mine") == rows
        storage.finish(study_id, replace(trial(), overrides=rows[0]), result())
        (study,) = storage.studies()
        assert (study.open, study.command) == (1, "ppopt sweep batches=2")
        with Storage(f"sqlite:///{tmp_path}/other.db") as second:
            second.merge(storage)
            assert second.open_rows("mine") == storage.open_rows("mine") == rows[1:]
            assert second.studies()[0].command == "ppopt sweep batches=2"


def test_a_migration_that_fails_changes_nothing(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with Storage(url) as storage:
        storage.put(result())
    wrong = "ALTER TABLE results ADD COLUMN note TEXT; SELECT one FROM nowhere"
    monkeypatch.setattr(storages, "MIGRATIONS", (*storages.MIGRATIONS, wrong))
    with pytest.raises(StorageError, match="no such table"):
        Storage(url)
    monkeypatch.undo()
    with Storage(url) as reopened:
        assert reopened.result("k") == result()


class TestRefused:
    def test_a_missing_file(self, url: str) -> None:
        with pytest.raises(StorageError, match="does not exist"):
            Storage(url, readonly=True)
        assert not path_of(url).exists()

    def test_a_missing_folder(self, tmp_path: Path) -> None:
        with pytest.raises(StorageError, match=r"the folder .* does not exist"):
            Storage(f"sqlite:///{tmp_path}/no/a.db")

    def test_a_folder(self, tmp_path: Path) -> None:
        with pytest.raises(StorageError, match="cannot be opened"):
            Storage(f"sqlite:///{tmp_path}")

    def test_a_database_of_another_program(self, url: str) -> None:
        link = sqlite3.connect(path_of(url))
        link.execute("CREATE TABLE theirs (x)")
        link.close()
        before = path_of(url).read_bytes()
        with pytest.raises(StorageError, match="a database of another program"):
            Storage(url)
        assert path_of(url).read_bytes() == before

    def test_a_file_that_is_no_database(self, url: str) -> None:
        path_of(url).write_text("not a database, but a text of some length\n" * 100)
        with pytest.raises(StorageError, match="no SQLite database"):
            Storage(url)

    def test_a_damaged_file(self, url: str) -> None:
        with Storage(url) as storage:
            for index in range(50):
                storage.put(result(str(index), os.urandom(2000)))
        content = bytearray(path_of(url).read_bytes())
        content[4096:] = os.urandom(len(content) - 4096)
        path_of(url).write_bytes(content)
        with (
            Storage(url) as reopened,
            pytest.raises(StorageError, match=r"it is damaged; .*recover"),
        ):
            reopened.result("7")
        assert path_of(url).read_bytes()[:4096] == content[:4096]

    def test_an_empty_file_is_taken(self, url: str) -> None:
        path_of(url).touch()
        with Storage(url) as storage:
            storage.put(result())


def test_a_lock_is_waited_for_and_then_told(url: str) -> None:
    with Storage(url, patience=0.05) as storage:
        storage.put(result("a"))
        writer = sqlite3.connect(path_of(url), isolation_level=None)
        writer.execute("BEGIN IMMEDIATE")
        with pytest.raises(StorageError, match="another process has locked it"):
            storage.put(result("b"))
        assert storage.result("a") == result("a")
        writer.execute("COMMIT")
        writer.close()
        storage.put(result("b"))
        assert storage.results() == 2


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """No file of this process grows beyond: as a full disk, or a quota."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_loses_nothing_that_was_written(url: str) -> None:
    with Storage(url) as storage:
        storage.put(result("a"))
        with largest_file(200_000), pytest.raises(StorageError, match="disk"):
            deque(storage.put(result(f"b{index}", os.urandom(20_000))) for index in range(100))
        stored = storage.results()
        storage.put(result("c"))
    with Storage(url) as reopened:
        assert reopened.result("a") == result("a")
        assert reopened.results() == stored + 1 > 1


def test_a_killed_writer_loses_nothing_that_was_written(url: str) -> None:
    code = (
        "import os, sys; from ppopt.studies.records import StoredResult\n"
        "from ppopt.studies.storage import Storage\n"
        "one = Storage(sys.argv[1])\n"
        "for number in range(5):\n"
        "    one.put(StoredResult(str(number), 's', 'optimal', True, 1.0, 1, 1.0, 'v', b'x'))\n"
        "one._link.execute('BEGIN IMMEDIATE')\n"
        "one._put(StoredResult('half', 's', 'optimal', True, 1.0, 1, 1.0, 'v', b'x'))\n"
        "os.kill(os.getpid(), 9)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code, url], timeout=HANGS, check=False)
    assert ran.returncode == -9
    with Storage(url) as reopened:
        assert reopened.results() == 5
        assert reopened.result("half") is None


def test_a_file_that_may_not_be_written(url: str) -> None:
    with Storage(url) as storage:
        storage._link.execute("PRAGMA query_only = 1")
        with pytest.raises(StorageError, match="it is read-only; change its permissions"):
            storage.put(result())
