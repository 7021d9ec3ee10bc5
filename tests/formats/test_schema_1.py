"""Schedule files of schema 1 are read: there, transfers stand behind all other operations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ppopt.formats.schedule_json import dumps, loads
from ppopt.problem.pipeline import Pipeline
from ppopt.studies.evaluate import evaluate
from ppopt.verifier import verify

FOLDER = Path(__file__).parent / "schema_1"
WORK = {"unshard": 1, "gradient_sync": 3, "optimizer": 1, "unshard_memory": 2}
OFFLOAD = {"offload_memory": 0.5, "offload_time": 1}
WRITTEN: dict[str, tuple[dict[str, Any], str]] = {
    "compute": ({"batches": 2}, "zb-h1"),
    "streams": ({"batches": 2, "p2p": 1, "link_mode": "streams"}, "1f1b"),
    "step-work": ({"batches": 2, **WORK}, "interleaved"),
    "offload": ({"batches": 2, **OFFLOAD}, "1f1b"),
    "pairs-and-routes": ({"batches": 4, "overlap": 3}, "dualpipe"),
    "slices": ({"batches": 2}, "seq-1f1b"),
    "all": ({"batches": 2, "p2p": 1, "link_mode": "exclusive", **WORK, **OFFLOAD}, "chimera"),
}
"""Two stages with these costs, and the strategy that each file holds."""


@pytest.mark.parametrize("name", WRITTEN)
def test_files_of_schema_1_are_read(name: str) -> None:
    text = (FOLDER / f"{name}.json").read_text(encoding="utf-8")
    assert json.loads(text)["schema"] == 1
    fields, strategy = WRITTEN[name]
    schedule, claims = loads(text, name)
    assert schedule == evaluate(Pipeline(stages=2, **fields), strategy)
    assert verify(schedule, claims) == []


@pytest.mark.parametrize("name", WRITTEN)
def test_they_are_written_in_schema_2(name: str) -> None:
    """The same rows, all sorted by device, then start."""
    old = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    schedule, _ = loads(json.dumps(old), name)
    new = json.loads(dumps(schedule))
    assert new["schema"] == 2
    assert sorted(map(str, new["ops"])) == sorted(map(str, old["ops"]))
    assert new["ops"] == sorted(new["ops"], key=lambda row: (row[3], row[4]))
    assert {key: new[key] for key in new if key not in ("schema", "ops")} == {
        key: old[key] for key in old if key not in ("schema", "ops")
    }
