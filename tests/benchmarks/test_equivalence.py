"""The script that compares answers before and after a change."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchmarks import equivalence
from ppopt import Pipeline

ROW: dict[str, Any] = {
    "name": "linear-00",
    "pipeline": {"stages": 2, "batches": 1},
    "options": {},
    "status": "optimal",
    "value": "13/2",
    "lower_bound": "13/2",
    "seconds": 0.1,
}


def written(path: Path, *rows: dict[str, Any]) -> Path:
    lines = [{"commit": "abc"}, *rows]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_instances_have_names_of_their_own_and_repeat() -> None:
    found = list(equivalence.instances())
    assert found == list(equivalence.instances())
    assert len(found) >= 240
    assert max(Counter(instance.name for instance in found).values()) == 1
    drawn = {f"{g}-{n:02}" for g, (count, _) in equivalence.GROUPS.items() for n in range(count)}
    assert drawn > equivalence.OPEN


def test_every_instance_is_a_pipeline_and_every_kind_is_there() -> None:
    found = [(Pipeline(**one.pipeline), one.options) for one in equivalence.instances()]
    pipes = [pipe for pipe, _ in found]
    assert {pipe.placement for pipe in pipes} > {None, "v", "interleaved"}
    assert {pipe.num_chunks for pipe in pipes} >= {1, 2, 3}
    hosts = [tuple(map(len, pipe.hosted[0])) for pipe in pipes if not pipe.named_placement]
    for share in (
        [len(set(row)) > 1 for row in hosts],
        [pipe.routes == 2 for pipe in pipes],
        [pipe.num_slices > 1 for pipe in pipes],
        [pipe.overlap is not None for pipe in pipes],
        [isinstance(pipe.p2p, tuple) for pipe in pipes],
        [max(pipe.memory_b) > 0 for pipe in pipes],
        [min(pipe.memory_b) < 0 for pipe in pipes],
        [0 in pipe.backward_input for pipe in pipes],
        [pipe.mem_limit is None for pipe in pipes],
        [pipe.mem_limit == "1f1b" for pipe in pipes],
        [isinstance(pipe.mem_limit, tuple) for pipe in pipes],
        [pipe.batches >= 64 for pipe in pipes],
        [options.get("fused", False) for _, options in found],
        [options.get("objective") == "device-span" for _, options in found],
    ):
        assert sum(share) >= 10


def test_a_record_is_the_same_twice_and_solves_the_instances(tmp_path: Path) -> None:
    one, other = tmp_path / "one.jsonl", tmp_path / "other.jsonl"
    for path in (one, other):
        equivalence.record(path, None, "infeasible-0")
    assert equivalence.compare(one, other) == 0
    head, *rows = map(json.loads, one.read_text().splitlines())
    assert len(head["commit"].split()[0]) == 40
    assert {row["status"] for row in rows} == {"infeasible"}
    assert len(rows) == 10


def test_exact_values_are_compared_and_times_are_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = written(tmp_path / "before.jsonl", ROW, {**ROW, "name": "gone"})
    changed = {**ROW, "value": "7", "seconds": 9.0}
    after = written(tmp_path / "after.jsonl", changed, {**ROW, "name": "new"})
    assert equivalence.compare(before, after) == 1
    assert capsys.readouterr().out.splitlines() == [
        "linear-00: value 13/2 became 7",
        f"gone: only in {before}",
        f"new: only in {after}",
        "2 instances, 3 differences",
    ]
    assert equivalence.compare(before, before) == 0
    empty = written(tmp_path / "empty.jsonl")
    assert equivalence.compare(empty, empty) == 1


def test_an_error_is_a_row(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("no reason")

    monkeypatch.setattr("ppopt.solve", fails)
    path = tmp_path / "out.jsonl"
    equivalence.record(path, None, "linear-00")
    (row,) = list(map(json.loads, path.read_text().splitlines()))[1:]
    assert (row["status"], row["value"]) == ("ZeroDivisionError: no reason", None)


def test_a_tree_without_the_package_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="holds no ppopt"):
        equivalence.record(tmp_path / "out.jsonl", tmp_path, "")
