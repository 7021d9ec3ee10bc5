"""The script that runs the core on two checkouts."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import core_sides
from benchmarks.core_sides import Row

pytestmark = pytest.mark.slow

TREE = Path(__file__).parents[2]


def row(side: str, status: str, value: float, seconds: float, instance: str = "a") -> Row:
    return Row(side, "abc", instance, "linear", 1, 5.0, status, value, 10.0, seconds)


def test_sides_are_compared_on_the_instances_that_both_have() -> None:
    rows = [
        row("before", "optimal", 10, 2.0),
        row("after", "optimal", 11, 1.0),
        row("before", "feasible", 20, 3.0, "b"),
        row("after", "optimal", 10, 1.0, "b"),
        row("before", "optimal", 10, 9.0, "c"),
    ]
    lines = list(core_sides.report(rows))
    assert lines[2:] == [
        "| linear | 2 | 1 to 2 | 5.0 to 2.0 | 0.400 | 25.000 to 4.545 | 1 |",
        "| all | 2 | 1 to 2 | 5.0 to 2.0 | 0.400 | 25.000 to 4.545 | 1 |",
    ]


def test_a_run_goes_on_where_it_was_left(tmp_path: Path) -> None:
    record = tmp_path / "sides.jsonl"
    sides = {"before": TREE, "after": TREE}
    core_sides.run(record, sides, seconds=1.0, workers=1, every=1000)
    first = record.read_text()
    core_sides.run(record, sides, seconds=1.0, workers=1, every=1000)
    assert record.read_text() == first
    before, after = core_sides.read(record)
    assert {before.side, after.side} == {"before", "after"}
    assert (before.status, before.value) == (after.status, after.value)
