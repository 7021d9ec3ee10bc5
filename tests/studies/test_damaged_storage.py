"""Damaged storages: every value of every column is input, and so is every byte of the file."""

from __future__ import annotations

import json
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

import ppopt
from ppopt.errors import InputError
from ppopt.formats.figures import LayerRun, ScheduleFigures, declared, result_schema
from ppopt.studies import outcome
from ppopt.studies.records import DamagedError, packed, trial_of, unpacked
from ppopt.studies.solve_job import SolveJob
from ppopt.studies.storage import Storage
from tests.cli.cli_run import run
from tests.factories.sweeps import (
    NAME,
    VALUES,
    Damage,
    bad_values,
    columns,
    complaints,
    done,
    flipped,
    inflict,
    small_grid,
    values,
)
from tests.tiers import first

COLUMNS = [
    *("results.status", "results.record", "studies.asked", "trials.params", "trials.row"),
    *("results.key", "results.strategy", "results.closed", "results.time_limit"),
    *("results.workers", "results.seconds", "results.version", "results.finished"),
    *("studies.study_id", "studies.study_name", "studies.base", "studies.created"),
    *("studies.command", "trials.trial_id", "trials.study_id", "trials.state", "trials.key"),
    "trials.finished",
]
"""The columns of a result come first: it is made again. See below for a value of the others."""


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A folder in memory, where there is one: a storage waits for its disk at every write."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        yield Path(name)


@pytest.fixture(scope="module")
def sound(folder: Path) -> Path:
    """A storage of one study, of which two rows have failed and one is open."""
    path = folder / "sound.db"
    study, _ = done(small_grid(), f"sqlite:///{path}", study_name=NAME)
    assert values(study) == VALUES
    with Storage(f"sqlite:///{path}") as storage:
        storage.request_rows(
            storage.study(NAME, small_grid().base.digest), [{"batches": 9}], "ppopt"
        )
    return path


@pytest.fixture
def damaged(sound: Path) -> Iterator[Path]:
    """A copy of the storage, gone at the end with what SQLite writes next to it."""
    path = sound.with_name("damaged.db")
    shutil.copy(sound, path)
    yield path
    for left in path.parent.glob("damaged.db*"):
        left.unlink()


def changed(path: Path, statement: str) -> str:
    """Change a storage by SQL; its URL."""
    with closing(sqlite3.connect(path)) as link:
        link.execute(statement)
        link.commit()
    return f"sqlite:///{path}"


def test_all_columns_are_damaged_below(sound: Path) -> None:
    assert sorted(f"{table}.{column}" for table, column in columns(sound)) == sorted(COLUMNS)


@pytest.mark.parametrize("name", first(2, COLUMNS))
def test_a_value_of_any_kind_in_any_column(name: str, sound: Path, damaged: Path) -> None:
    """A result that is damaged is made again; a study is refused in one line, or is as it was."""
    table, column = name.split(".")
    wrong = {}
    for index, value in enumerate(bad_values(column)):
        shutil.copy(sound, damaged)
        damage = Damage(table, column, index % 2, value)
        if inflict(damaged, damage):
            faults = list(complaints(damaged, made_again=table == "results"))
            wrong |= {damage: faults} if faults else {}
    assert wrong == {}


@pytest.mark.parametrize("seed", first(1, range(4)))
def test_any_bytes_of_the_file(seed: int, sound: Path, damaged: Path) -> None:
    content, wrong = sound.read_bytes(), {}
    for index in range(10):
        damaged.write_bytes(flipped(Random(f"{seed} {index}"), content))
        faults = list(complaints(damaged, made_again=False))
        wrong |= {index: faults} if faults else {}
    assert wrong == {}


JOB = SolveJob(
    ppopt.Model([ppopt.Layer(forward=time, activation=1) for time in (3, 1, 2)]).pipeline(
        devices=2, batches=2, recompute="search", mem_limit=6
    ),
    time_limit=600,
)
"""Of all readers of its document: a schedule, a certificate, layers with a choice of recompute."""


def members(value: Any, deepest: int, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where the values of a document stand; of a list, the first and the last."""
    if path:
        yield path
    keys = value if isinstance(value, dict) else ()
    if isinstance(value, list):
        keys = dict.fromkeys((0, len(value) - 1)) if value else ()
    if len(path) < deepest:
        for key in keys:
            yield from members(value[key], deepest, (*path, key))


def with_member(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    """The document with another value in one place."""
    changed = value_at = deepcopy(document)
    for key in path[:-1]:
        value_at = value_at[key]
    value_at[path[-1]] = value
    return changed


def test_any_value_of_a_stored_document() -> None:
    """It is refused as damaged, or says what it said before; no bound is lost or made."""
    result = outcome.run_job(JOB)
    assert result.status is ppopt.Status.OPTIMAL
    sound = outcome.stored(JOB, result)
    document = unpacked(sound.record)
    refused = taken = 0
    for path in members(document, 3):
        for value in (None, "x", -1, {}):
            changed = sound._replace(record=packed(with_member(document, path, value)))
            try:
                restored = outcome.read(changed, JOB)
            except DamagedError:
                refused += 1
                continue
            taken += 1
            assert (restored.status, restored.value) == (result.status, result.value), path
            assert restored.lower_bound == result.lower_bound, path
    assert refused > taken > 0


def test_nothing_is_infeasible_without_a_memory_limit() -> None:
    result = outcome.run_job(JOB)
    infeasible = replace(
        result, status=ppopt.Status.INFEASIBLE, schedule=None, value_ticks=None, bound_ticks=None
    )
    assert outcome.read(outcome.stored(JOB, infeasible), JOB).status is ppopt.Status.INFEASIBLE
    free = replace(JOB, pipeline=replace(JOB.pipeline, mem_limit=None))
    with pytest.raises(DamagedError, match="it is infeasible, without a memory limit"):
        outcome.read(outcome.stored(free, infeasible), free)


def test_every_figure_of_a_row_is_checked() -> None:
    """Every figure but the status may be null; none may be of another kind."""
    row = outcome.row(JOB, outcome.run_job(JOB)).to_object()
    figures = declared(ScheduleFigures)
    assert row.keys() == {key for key, figure in figures.items() if not figure.optional}
    stored = ("{}", "complete", "k", json.dumps(row))
    assert trial_of(stored).object == row
    for key in row:
        wrong = json.dumps(row | {key: {"x": None}})
        with pytest.raises(InputError, match=f"row: {key}: "):
            trial_of((*stored[:3], wrong))


def test_a_searched_order_is_read() -> None:
    row = outcome.row(JOB, outcome.run_job(JOB)).to_object() | {"order": [1, 0]}
    figures = trial_of(("{}", "complete", "k", json.dumps(row))).figures
    assert figures is not None
    assert figures.order == [1, 0]
    assert result_schema(ScheduleFigures)["properties"]["order"]["anyOf"][0]["type"] == "array"


@pytest.mark.parametrize("modules", [None, ["core_attn"]])
def test_the_layers_that_recompute_are_read(modules: list[str] | None) -> None:
    """Earlier versions stored no modules."""
    row = outcome.row(JOB, outcome.run_job(JOB)).to_object()
    run = {"name": "layer", "first": 0, "last": 1}
    for stored in (run, run | {"modules": modules}):
        row["recomputed_layers"] = [stored]
        figures = trial_of(("{}", "complete", "k", json.dumps(row))).figures
        assert figures is not None
        assert figures.recomputed_layers == [LayerRun("layer", 0, 1, stored.get("modules"))]


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("UPDATE studies SET asked = 'x'", "study mine is damaged (asked: 'x' is no compressed"),
        ("UPDATE studies SET base = x'00'", "study mine is damaged (base: b'\\x00' is not text"),
        (
            "UPDATE trials SET params = '{}}' WHERE trial_id = 1",
            "trial 1 of study mine is damaged (params: JSON: ",
        ),
        (
            "UPDATE trials SET params = CAST(x'22ff22' AS TEXT) WHERE trial_id = 2",
            "(params: it is no UTF-8 text)",
        ),
        ("UPDATE trials SET row = '{}'", "(row: status: None is unknown; it is optimal or "),
        ("UPDATE trials SET state = 'done'", "(state: 'done' is unknown; it is complete or fail)"),
        ("PRAGMA user_version = -1", "it is damaged; name another file, or save what can be read"),
        ("DROP TABLE trials", "no such table: trials; it is damaged; name another file"),
    ],
)
def test_a_damaged_study_is_one_line(statement: str, message: str, damaged: Path) -> None:
    url = changed(damaged, statement)
    code, out, err = run(f"studies show {NAME} --storage {url}")
    assert (code, out) == (2, "")
    assert message in err
    assert err.startswith("error: --storage: ")
    assert err.count("\n") == 1


def test_another_study_of_a_damaged_storage_takes_its_results(damaged: Path) -> None:
    url = changed(damaged, "UPDATE studies SET asked = 'x'")
    with pytest.raises(DamagedError, match=r"; name another study \(--study-name\), or another"):
        done(small_grid(), url, study_name=NAME)
    study, searched = done(small_grid(), url, study_name="other")
    assert values(study) == VALUES
    assert searched == []


def test_a_result_that_is_damaged_is_made_again_and_that_is_said(damaged: Path) -> None:
    """Also where its columns are damaged, and not its record; the next sweep finds it sound."""
    url = changed(damaged, "UPDATE results SET status = 'x', seconds = 'x' WHERE strategy = '1f1b'")
    study, searched = done(small_grid(), url, study_name=NAME)
    assert (study.failed, len(searched), values(study)) == (2, 2, VALUES)
    assert all(
        "a result is damaged (status: 'x' is unknown" in complaint for complaint in study.damaged
    )
    assert len(study.damaged) == 2
    study, searched = done(small_grid(), url, study_name=NAME)
    assert (searched, study.damaged) == ([], ())


def test_merging_leaves_out_what_is_damaged_and_says_so(damaged: Path) -> None:
    url = changed(damaged, "UPDATE results SET workers = 'x' WHERE strategy = '1f1b'")
    target = f"sqlite:///{damaged.parent / 'damaged.db-merged'}"
    code, _, err = run(f"studies merge {url} --storage {target}")
    assert code == 0
    assert err.count("note: left out: ") == err.count("workers: 'x' is not a whole number") == 2
    with Storage(target) as merged:
        assert merged.results() == 4
        assert len(merged.trials(NAME)) == len(VALUES)


def test_names_that_are_no_text_are_refused(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/\udcff.db"
    with pytest.raises(InputError, match="study_name: it is no UTF-8 text"):
        done(small_grid(), url, study_name="\udcff")
    study, _ = done(small_grid(), url, study_name=NAME, command="ppopt sweep -o \udcff.csv")
    assert values(study) == VALUES
    with Storage(url) as storage:
        assert storage.studies()[0].command == "ppopt sweep -o \\udcff.csv"
