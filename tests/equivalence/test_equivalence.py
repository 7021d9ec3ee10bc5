"""The script that compares answers and models before and after a change."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from ortools.sat.python import cp_model

import ppopt
from ppopt import Layer, Model, Pipeline
from tests.clock import HANGS
from tests.equivalence import models, records, runs
from tests.equivalence.__main__ import main

pytestmark = pytest.mark.slow

ROW: dict[str, Any] = {
    "name": "linear-00",
    "study": "solve",
    "pipeline": {"stages": 2, "batches": 1},
    "options": {},
    "may_improve": False,
    "status": "optimal",
    "value": "13/2",
    "lower_bound": "13/2",
    "proof": "work 0",
    "models": "2 abc",
    "seconds": 0.1,
}
OPEN: dict[str, Any] = {**ROW, "may_improve": True, "status": "feasible", "lower_bound": "6"}
SAMPLE = (
    *("infeasible-0", "mixed-00", "streams-04", "partition-02", "placement-02", "recompute-03"),
    *("plan-baselines-03", "frontier-07", "compare-04", "hint-08", "model-full-linear"),
    *("model-mixed-00", "model-window-00", "model-subset-limited-00"),
)


def written(path: Path, *rows: dict[str, Any]) -> Path:
    lines = [{"commit": "abc"}, *rows]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def pipeline_of(instance: runs.Instance) -> Pipeline:
    fields = dict(instance.pipeline)
    if "model" in fields:
        fields["model"] = Model(tuple(Layer(**layer) for layer in fields["model"]))
    if instance.study != "plan":
        return Pipeline(**fields)
    model: Model = fields.pop("model")
    devices = fields.pop("devices")
    return model.pipeline(devices=devices, batches=2, mem_limit=fields.get("mem_limit"))


def instances() -> list[runs.Instance]:
    known = records.of(records.read(records.KNOWN))
    return [instance for instance in known if not instance.name.startswith(models.PREFIX)]


def test_rows_have_names_of_their_own_and_every_builder_is_there() -> None:
    lines = records.KNOWN.read_text(encoding="utf-8").splitlines()
    names = [json.loads(line).get("name") for line in lines]
    assert max(Counter(names).values()) == 1
    assert len(instances()) >= 550
    questions = records.of(records.read(records.KNOWN), models.PREFIX)
    assert {question.study for question in questions} == set(models.BUILDERS)


@pytest.mark.parametrize("only", SAMPLE)
def test_a_record_is_the_same_twice(
    only: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "MOST_SECONDS", HANGS)
    path = tmp_path / "record.jsonl"
    assert main(["record", "-o", str(path), "--only", only]) == 0
    assert main(["check", str(path), "--only", only]) == 0
    head, *rows = map(json.loads, path.read_text().splitlines())
    assert len(head["commit"].split()[0]) == len(head["ppopt"]) == 40
    assert {row["status"] for row in rows} <= {"optimal", "infeasible", "built"}
    if only.startswith(models.PREFIX):
        assert all(int(row["models"].split()[0]) > 0 for row in rows)


def test_exact_values_are_compared_and_times_are_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = written(tmp_path / "before.jsonl", ROW, {**ROW, "name": "gone"})
    changed = {**ROW, "value": "7", "models": "3 abd", "seconds": 9.0}
    after = written(tmp_path / "after.jsonl", changed, {**ROW, "name": "new"})
    lines = [
        "linear-00: value 13/2 became 7",
        "linear-00: models 2 abc became 3 abd",
        "new: not in the first record",
        "gone: only in the first record",
    ]
    assert main(["compare", str(before), str(after)]) == 1
    assert capsys.readouterr().out.splitlines() == [*lines, "2 rows, 4 differences"]
    assert main(["compare", str(before), str(after), "--answers"]) == 1
    del lines[1]
    assert capsys.readouterr().out.splitlines() == [*lines, "2 rows, 3 differences"]
    assert main(["compare", str(before), str(before)]) == 0
    empty = str(written(tmp_path / "empty.jsonl"))
    assert main(["compare", empty, empty]) == 1


@pytest.mark.parametrize(
    ("changes", "count"),
    [
        ({}, 0),
        ({"value": "25/4", "models": "9 fff"}, 0),
        ({"lower_bound": "13/2", "status": "optimal"}, 0),
        ({"value": "7"}, 1),
        ({"value": "25/4", "lower_bound": "11/2"}, 2),
        ({"value": None, "status": "unknown"}, 2),
        ({"models": "9 fff"}, 1),
    ],
)
def test_what_may_improve_is_never_worse(changes: dict[str, Any], count: int) -> None:
    row = OPEN | changes
    assert len(list(records.differences({row["name"]: OPEN}, [row]))) == count


def test_models_are_recorded_where_the_search_solves_them() -> None:
    (slices,) = (instance for instance in instances() if instance.name == "mixed-slices-02")
    row = runs.outcome(ppopt, slices)
    assert int(row["models"].split()[0]) > 0
    with runs.recorded_models() as models:
        cp_model.CpSolver().solve(cp_model.CpModel())
    assert not models


def test_the_clock_stands_still_until_much_work_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    spent = [0.0]
    monkeypatch.setattr(time, "process_time", lambda: spent[0])
    with runs.standing_clock():
        began = time.monotonic()
        time.sleep(0.001)
        assert time.monotonic() == began
        spent[0] = runs.MOST_SECONDS + 1
        assert time.monotonic() > began + runs.TIME_LIMIT
    assert time.monotonic() < began + runs.TIME_LIMIT
