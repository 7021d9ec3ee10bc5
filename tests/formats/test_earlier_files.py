"""Schedule files that earlier versions wrote: `earlier/` has them as they were written.

Those of frozen stages have rows of no length for operations that such a stage does not have.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import ppopt
from ppopt import Pipeline, Rule, Schedule
from ppopt.formats import schedule_json
from ppopt.formats.schedule_json import read_schedule
from ppopt.problem.operation import OpKind
from ppopt.schedule.operations import ALONE
from tests.cli.cli_run import done

EARLIER = Path(__file__).parent / "earlier"
SPLIT = EARLIER / "frozen_split.json"
"""Stages 0 and 1 have no backward, stage 3 no W; solved, with its bound."""
PAIRS = EARLIER / "frozen_pairs.json"
"""1F1B with overlap: F of microbatch 3 on stage 0 runs as one with a BW that is not there."""


def kinds(schedule: Schedule, stage: int) -> set[str]:
    return {OpKind(kind).name for kind in schedule.kind[schedule.stage == stage].tolist()}


def test_operations_that_a_frozen_stage_does_not_have_are_dropped() -> None:
    schedule, claims = read_schedule(SPLIT)
    assert len(json.loads(SPLIT.read_text())["ops"]) == 4 * 2 * 3
    assert [kinds(schedule, stage) for stage in range(4)] == [
        {"F"},
        {"F"},
        {"F", "B", "W"},
        {"F", "B"},
    ]
    assert ppopt.verify(schedule, claims) == []
    assert ppopt.recheck(schedule, workers=1).verdict == "confirmed"
    assert schedule.origin.strategy == "searched", "it is `optimal` in the file"
    written = schedule_json.dumps(schedule)
    assert schedule_json.loads(written, "it") == (schedule, claims)


def test_an_f_that_ran_as_one_with_such_an_operation_runs_alone() -> None:
    schedule, claims = read_schedule(PAIRS)
    assert kinds(schedule, 0) == {"F"}
    assert set(schedule.pair[schedule.stage == 0].tolist()) == {ALONE}
    assert set(schedule.pair[schedule.stage == 1].tolist()) != {ALONE}
    assert ppopt.verify(schedule, claims) == []
    pipeline = Pipeline(stages=2, batches=4, frozen=[True, False], overlap=2)
    assert schedule == ppopt.evaluate(pipeline, "1f1b-overlap")


@pytest.mark.parametrize(("kind", "stage"), [("B", 0), ("W", 3)])
def test_such_an_operation_that_takes_time_is_a_violation(
    kind: str, stage: int, tmp_path: Path
) -> None:
    document: dict[str, Any] = json.loads(SPLIT.read_text())
    (row,) = (row for row in document["ops"] if row[:3] == [kind, stage, 1])
    row[5] += 1
    (tmp_path / "longer.json").write_text(json.dumps(document))
    schedule, _ = read_schedule(tmp_path / "longer.json")
    assert {violation.rule for violation in ppopt.verify(schedule)} == {Rule.UNKNOWN}


@pytest.mark.parametrize("path", [SPLIT, PAIRS])
def test_the_program_verifies_them(path: Path) -> None:
    assert "verified" in done(f"verify {path}").out
