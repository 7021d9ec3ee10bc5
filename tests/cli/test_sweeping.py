"""`ppopt sweep`, `ppopt studies` and `ppopt solve --storage`."""

from __future__ import annotations

import csv
import json
import random
import resource
import signal
import sqlite3
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

from ppopt.cli.sweeping import STORAGE
from ppopt.studies.storage import Storage, StorageError
from tests.cli.cli_run import HARD, Ran, done, json_of, process, run
from tests.clock import HANGS, wait_until

SMALL = "sweep --stages 3 --time-limit 20 --jobs 1"
AXES = "batches=2,4 strategy=searched,1f1b"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_rows_stand_in_the_order_of_the_grid_and_are_kept(folder: Path) -> None:
    output = json_of(f"{SMALL} {AXES} -o rows.csv -o rows.json")
    rows = output["rows"]
    assert [tuple(row["overrides"].values()) for row in rows] == [
        (2, "searched"),
        (2, "1f1b"),
        (4, "searched"),
        (4, "1f1b"),
    ]
    assert [row["value"] for row in rows] == [9, 12, 14, 18]
    assert [row["status"] for row in rows] == ["optimal", "feasible"] * 2
    assert [row["failed"] for row in rows] == [None] * 4
    assert [output[key] for key in ("done", "cached", "failed", "open")] == [4, 0, 0, 0]
    assert output["storage"] == "sqlite:///ppopt.db"
    assert (folder / "ppopt.db").exists()
    assert json.loads((folder / "rows.json").read_text()) == output
    with (folder / "rows.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    assert [row["value"] for row in table] == ["9", "12", "14", "18"]
    assert [row["batches"] for row in table] == ["2", "2", "4", "4"]
    assert [row["strategy"] for row in table] == ["searched", "1f1b"] * 2

    repeated = json_of(f"{SMALL} {AXES}")
    assert [repeated[key] for key in ("done", "cached", "failed", "open")] == [4, 4, 0, 0]
    assert repeated["study"] == output["study"]
    listed = json_of("studies")
    assert listed["results"] == 4
    (study,) = listed["studies"]
    assert [study[key] for key in ("study", "done", "failed")] == [output["study"], 4, 0]
    exported = json_of(f"studies show {output['study']} -o again.csv")
    assert [row["value"] for row in exported["rows"]] == [12, 9, 18, 14]  # by its settings
    assert (folder / "again.csv").exists()


def test_a_page_is_of_a_sweep_or_of_what_is_stored(folder: Path) -> None:
    """The page of a study holds the same rows and schedules as that of its sweep."""
    done(f"{SMALL} {AXES} --study-name mine -o sweep.html")
    done("studies show mine -o stored.html")
    pages = [(folder / f"{name}.html").read_text() for name in ("sweep", "stored")]
    for page in pages:
        assert "<title>4 schedules: study mine</title>" in page
        assert "4 rows done" in page
        assert page.count('<section class="schedule"') == 4


def test_a_page_needs_a_schedule(folder: Path) -> None:
    ran = run(f"{SMALL} batches=2 mem_limit=0.1 -o sweep.html")
    assert ran.code == 7
    assert "no row has one; write .csv or .json" in ran.err
    assert not (folder / "sweep.html").exists()


def test_what_is_damaged_is_left_out_of_the_page(folder: Path) -> None:
    done(f"{SMALL} {AXES} --study-name mine")
    with sqlite3.connect("ppopt.db") as link:
        link.execute("UPDATE results SET record = x'00' WHERE strategy = '1f1b'")
    link.close()
    ran = done("studies show mine -o stored.html")
    assert ran.err.count("note: left out of the page: a stored result is damaged") == 2
    assert (folder / "stored.html").read_text().count('<section class="schedule"') == 2


def test_failed_rows_are_told_by_the_exit_code() -> None:
    ran = run(f"{SMALL} --batches 3 chunks=1,2 strategy=1f1b --json")
    assert (ran.code, ran.json["done"], ran.json["failed"]) == (7, 1, 1)
    assert ran.json["rows"][1]["failed"].startswith("chunks: 2 contradicts strategy 1f1b")
    assert ran.json["rows"][1]["status"] is None
    ran = run(f"{SMALL} --batches 3 chunks=1,2 strategy=1f1b")
    assert ran.code == 7
    assert "1 of 2 rows done, 1 of them from the storage; 1 failed" in ran.out


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("batches", "is no sweep of a setting"),
        ("batches=2 batches=3", "the same setting"),
        ("batchs=2", "did you mean batches"),
        ("batches=2 --shard 3/2", "shard: 3/2"),
        ("batches=2 --shard two", "is not I/N"),
        ("batches=2 --storage ppopt.db", "write sqlite:///ppopt.db"),
        ("batches=2 --storage sqlite:///no/x.db", "the folder no does not exist"),
        ("batches=2 -o x.txt", "unknown kind of file"),
        ("", "name settings that vary, without dashes: batches=8,16"),
    ],
)
def test_bad_usage_is_one_line_and_leaves_nothing(folder: Path, line: str, message: str) -> None:
    ran = run(f"{SMALL} {line}")
    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err
    assert ran.err.count("\n") == 1
    assert list(folder.iterdir()) == []


class TestSolve:
    ASKED = "solve --stages 3 --batches 4 --workers 1 --time-limit 20 --storage sqlite:///a.db"

    def test_a_result_is_taken_from_the_storage(self) -> None:
        first, repeated = json_of(self.ASKED), json_of(self.ASKED)
        assert repeated == first
        assert "note: the result was in a.db, and is verified again" in done(self.ASKED).err
        plain = json_of(self.ASKED.partition(" --storage")[0])
        assert {key: plain[key] for key in plain if key != "solve_seconds"} == {
            key: first[key] for key in first if key != "solve_seconds"
        }

    def test_a_sweep_and_a_search_share_results(self) -> None:
        done(f"{SMALL} --storage sqlite:///a.db batches=2,4")
        assert "note: the result was in a.db" in done(self.ASKED).err

    def test_what_is_damaged_is_solved_again(self) -> None:
        first = json_of(self.ASKED)
        with sqlite3.connect("a.db") as link:
            link.execute("UPDATE results SET record = substr(record, 1, 50)")
        link.close()
        ran = done(self.ASKED)
        assert "a stored result is damaged" in ran.err
        assert "solved again" in ran.err
        assert json_of(self.ASKED)["value"] == first["value"]

    def test_a_storage_that_cannot_be_used(self, folder: Path) -> None:
        (folder / "a.db").write_text("something else\n" * 50)
        ran = run(self.ASKED)
        assert (ran.code, ran.out) == (2, "")
        assert ran.err == ("error: --storage: a.db: it is no SQLite database; name another file\n")

    def test_a_result_that_cannot_be_stored_is_shown(self, monkeypatch: pytest.MonkeyPatch) -> None:
        put = Storage.put

        def full(self: Storage, *args: object) -> None:
            self._link.execute("PRAGMA query_only = 1")
            put(self, *args)  # type: ignore[arg-type]

        monkeypatch.setattr(Storage, "put", full)
        ran = run(f"{self.ASKED} --json")
        assert ran.code == 7
        assert json.loads(ran.out)["value"] == 14
        assert ran.err.startswith("error: storage: a.db: it is read-only")

    def test_it_does_not_go_with_a_hint(self) -> None:
        done("eval 1f1b --stages 3 --batches 4 -o hint.json")
        ran = run(f"{self.ASKED} --hint hint.json")
        assert (ran.code, ran.out) == (2, "")
        assert "leave them out" in ran.err


def test_shards_are_merged() -> None:
    rows = "batches=range(2,5) strategy=1f1b --study-name mine"
    for shard in (1, 2):
        storage = f"--storage sqlite:///{shard}.db"
        assert json_of(f"{SMALL} {rows} --shard {shard}/2 {storage}")["done"] == 3 - shard
    merged = json_of("studies merge sqlite:///1.db sqlite:///2.db --storage sqlite:///all.db")
    (study,) = merged["studies"]
    assert (study["study"], study["done"], merged["results"]) == ("mine", 3, 3)
    whole = json_of(f"{SMALL} {rows} --storage sqlite:///all.db")
    assert (whole["done"], whole["cached"]) == (3, 3)
    assert [row["value"] for row in whole["rows"]] == [12, 15, 18]


def test_shards_are_named_by_a_pattern() -> None:
    """The shell cannot expand it behind `sqlite:///`."""
    for shard in (1, 2):
        rows = f"{SMALL} batches=range(2,4) strategy=1f1b --shard {shard}/2"
        json_of(f"{rows} --storage sqlite:///shard-{shard}.db")
    merged = json_of("studies merge sqlite:///shard-*.db --storage sqlite:///all.db")
    assert merged["results"] == 2


def test_where_a_shard_is_missing_no_storage_is_made() -> None:
    json_of(f"{SMALL} batches=2 strategy=1f1b --storage sqlite:///1.db")
    ran = run("studies merge sqlite:///1.db sqlite:///no.db --storage sqlite:///all.db")
    assert (ran.code, ran.out) == (2, "")
    assert not Path("all.db").exists()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("studies", "ppopt.db does not exist"),
        ("studies show", "write `ppopt studies show NAME`"),
        ("studies mine", "write `ppopt studies show mine`"),
        ("studies merge", "write `ppopt studies show NAME` or `ppopt studies merge URL...`"),
        ("studies merge sqlite:///no.db", "no.db does not exist"),
        ("studies merge sqlite:///no-*.db", "no-*.db: no file has such a name"),
        ("studies -o x.csv", "name the study"),
        ("studies show mine -o x.txt", "unknown kind of file"),
        (f"{SMALL} batches=2 --dask 127.0.0.1:1 --jobs 2", "excludes --jobs"),
    ],
)
def test_bad_usage_of_studies(line: str, message: str) -> None:
    ran = run(line)
    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err


@pytest.mark.parametrize("count", [20, 21])
def test_of_many_open_rows_some_are_listed(folder: Path, count: int) -> None:
    with Storage(f"sqlite:///{folder / 'ppopt.db'}") as storage:
        study = storage.study("mine", "base")
        storage.request_rows(study, [{"batches": batches} for batches in range(count)], "ppopt")
    lines = done("studies show mine").out.splitlines()
    assert sum(line.startswith("open: batches=") for line in lines) == 20
    assert ("1 more are open; --json has them" in lines) == (count == 21)


@pytest.mark.slow
@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM])
def test_a_sweep_that_is_stopped_goes_on_where_it_was(folder: Path, signal_number: int) -> None:
    line = f"sweep {HARD.replace('--batches 64 ', '')} batches=24,25,26 strategy=1f1b,searched"
    ran = process(f"{line} --time-limit 600 --jobs 1 --json")
    wait_until(rows_stored)
    ran.send_signal(signal_number)
    out, err = ran.communicate(timeout=HANGS)
    assert ran.returncode == 0, err
    output = json.loads(out)
    assert output["failed"] == 0
    assert output["open"] >= 4
    assert output["done"] + output["open"] == 6
    assert output["rows"][0]["status"] == "feasible"
    command = f"ppopt {line} --time-limit 600 --jobs 1 --json"
    stored = json_of(f"studies show {output['study']}")
    assert (stored["open"], len(stored["open_rows"])) == (output["open"], output["open"])
    assert {"batches": 26, "strategy": "searched"} in stored["open_rows"]
    stdout = done(f"studies show {output['study']}").out
    assert f"to continue: {command}" in stdout and "open: batches=26 strategy=searched" in stdout
    assert f"to continue {output['study']}: {command}" in done("studies").out
    repeated = json_of(f"{line} --time-limit 1 --jobs 2")
    assert json_of("studies")["studies"][0]["open"] == 0
    assert (repeated["done"], repeated["open"]) == (6, 0)
    assert repeated["rows"][0]["cached"]


def rows_stored() -> int:
    """Results that are stored by now; none where the file is not made yet."""
    with suppress(StorageError), Storage(readonly=True) as storage:
        return storage.results()
    return 0


@pytest.mark.slow
class TestFullDisk:
    """The sweep ends with exit code 7 and says why; what was stored is not done again."""

    LINE = "sweep --stages 3 --jobs 1 batches=range(2,202) strategy=1f1b"

    def check(self, ran: Ran, message: str, url: str = STORAGE) -> int:
        """Check how it ended; returns the number of rows that were stored."""
        assert ran.code == 7
        assert message in ran.err
        assert ran.err.endswith("run the same command again: what is stored is not done again\n")
        output = json.loads(ran.out)
        assert 0 < output["done"] < 200
        assert output["failed"] == 0
        stored = int(json_of(f"studies --storage {url}")["results"])
        assert 0 < stored < output["done"]
        return stored

    def test_a_small_file_system(self, folder: Path) -> None:
        small = folder / "small"
        small.mkdir()
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(small)],
            capture_output=True,
            text=True,
            check=False,
        )
        if mounted.returncode:
            pytest.skip(f"no small file system here: {mounted.stderr.strip()}")
        try:
            line = f"{self.LINE} --storage sqlite:///small/a.db"
            stored = self.check(
                run(f"{line} --json"),
                "storage: small/a.db: the disk is full",
                "sqlite:///small/a.db",
            )
            subprocess.run(["mount", "-o", "remount,size=8m", str(small)], check=True)
            output = json_of(line)
            assert (output["done"], output["failed"]) == (200, 0)
            assert output["cached"] == stored
        finally:
            subprocess.run(["umount", str(small)], check=True)

    def test_a_quota(self) -> None:
        """No file may grow beyond 200 KiB."""
        size = (200 * 1024, resource.RLIM_INFINITY)
        ran = process(
            f"{self.LINE} --json",
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, size),
        )
        out, err = ran.communicate(timeout=HANGS)
        stored = self.check(Ran(ran.returncode, out, err), "is the disk full, or over a quota?")
        output = json_of(self.LINE)
        assert (output["done"], output["failed"]) == (200, 0)
        assert output["cached"] == stored


@pytest.mark.slow
def test_a_sweep_that_is_killed_again_and_again_has_lost_nothing() -> None:
    """Its processes end by themselves, and the rows that it had stored are taken from there."""
    line = "sweep --stages 3 --jobs 1 batches=range(2,60) strategy=1f1b"
    stored, drawn = 0, random.Random(0)
    for _ in range(3):
        ran = process(f"{line} --json")
        wait_until(lambda more=stored + 3: rows_stored() >= more)
        time.sleep(drawn.uniform(0, 0.1))
        ran.kill()
        ran.communicate()
        assert rows_stored() >= stored + 3
        stored = rows_stored()
    output = json_of(line)
    assert (output["done"], output["failed"]) == (58, 0)
    assert output["cached"] >= stored
    assert [row["value"] for row in output["rows"]] == [3 * (b + 2) for b in range(2, 60)]
