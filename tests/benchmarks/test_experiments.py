"""The table of cases: their pipelines, what is compared, and a record that resumes."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from benchmarks import experiments
from benchmarks.experiments import EXPERIMENTS, KINDS, Case, Question
from ppopt import Pipeline
from ppopt.problem.backward_choice import BackwardChoice

pytestmark = pytest.mark.slow

SMALL = Pipeline(stages=2, batches=2)


@pytest.mark.parametrize("kind", KINDS)
def test_mixed_instances_are_of_their_kind(kind: str) -> None:
    """Those in which B takes longer than BW gain nothing by splitting; all others have a choice."""
    cases = [case for case in EXPERIMENTS["mixed"].cases() if case.labels[0] == kind]
    assert len(cases) == 9
    for case in cases:
        pipeline = case.question().pipeline
        costs = pipeline.costs
        both = zip(costs.backward, costs.backward_input, costs.weight, strict=True)
        assert all(bw < b + w for bw, b, w in both) == (kind != "B takes memory")
        assert any(change > 0 for change in costs.memory_b) == ("takes memory" in kind)
        choice = BackwardChoice(pipeline).uniform
        assert str(choice) == ("whole" if kind == "B above BW" else "None")


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_case_fills_every_column(name: str) -> None:
    experiment = EXPERIMENTS[name]
    case = next(experiment.cases())
    row = experiments.run(case, 0.5)
    assert len(experiments.cells(row)) == len(experiment.columns)
    assert tuple(row["others"]) == experiment.others
    assert row["bound"] <= min(v for v in (row["search"], *row["others"].values()) if v)


@pytest.mark.parametrize(
    ("other", "gain", "worse"), [(Fraction(7), 0, 0), (Fraction(14), 100, 0), (Fraction(6), -1, 1)]
)
def test_a_search_is_worse_where_another_is_better(
    other: Fraction, gain: float, worse: int
) -> None:
    """Two stages, two microbatches: the second stage waits for F, then works for 6."""
    row = experiments.run(Case(("a",), lambda: Question(SMALL, {"x": lambda _: other})), 5)
    assert row["search"] == 7
    assert experiments.worse([row]) == worse
    assert (row["gain"] > 0) == (gain > 0) and (row["gain"] < 0) == (gain < 0)
    better = f"better than all others {int(gain > 0)}"
    assert better in experiments.summary([row]) and f"worse {worse}" in experiments.summary([row])


def test_a_record_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One row first, then all of one size: what is there is not run again."""
    record = tmp_path / "record.md"
    common: list[Any] = ["mixed", "--seconds", "0.1", "-o", str(record)]
    experiments.main([*common, "--only", "B above BW | v, 3 x 8 | -"])
    log = record.with_suffix(".jsonl")
    first = log.read_text()
    log.write_text(first + '{"case": "cut')
    experiments.main([*common, "--only", "B above BW | v, 3 x 8", "--jobs", "2"])
    rows = [line for line in record.read_text().splitlines() if line.startswith("| B above")]
    assert len(rows) == 3 and rows[0].startswith("| B above BW | v, 3 x 8 | - |")
    assert log.read_text().startswith(first) and log.read_text().count("\n") == 3
