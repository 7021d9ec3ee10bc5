"""Answers of small jobs of every kind, which say when stored results lose their meaning.

python -m tests.studies.search_version

writes `search_version.json`: the version of stored results, and the answers of that version.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ppopt import Model, Pipeline, versions
from ppopt.errors import NotApplicableError
from ppopt.problem.objective import Objective
from ppopt.strategies import names
from ppopt.studies.outcome import run_job
from ppopt.studies.solve_job import SolveJob, job_of
from tests.clock import HANGS

RECORD = Path(__file__).with_suffix(".json")
COSTS: dict[str, Any] = {
    "forward": [2, 3],
    "backward_input": [3, 2],
    "weight": [1, 2],
    "activation": [2, 1],
}
TWO: dict[str, Any] = {"stages": 2, "batches": 3, "p2p": 1, **COSTS}
LAYERS = Model(
    [
        {"forward": forward, "activation": 2, "recompute_time": 1, "kept": 1, "output": 1}
        for forward in (1, 3, 2)
    ]
)
OF_LAYERS: dict[str, Any] = {"stages": 2, "batches": 2, "model": LAYERS}
PIPELINES: dict[str, dict[str, Any]] = {
    "delays": TWO,
    "limits": {**TWO, "mem_limit": [5, 3]},
    "no schedule": {**TWO, "mem_limit": 1},
    "speeds": {**TWO, "device_speed": [1, 2]},
    "two chunks": {"stages": 2, "batches": 2, "chunks": 2, "placement": "v", "p2p": 1},
    "exclusive links": {**TWO, "link_mode": "exclusive"},
    "streams": {**TWO, "link_mode": "streams"},
    "slices": {**TWO, "batches": 2, "slices": 2, "slice_times": [1, 3]},
    "microbatches": {**TWO, "microbatch_times": [1, 3, 2], "microbatch_memory": [1, 2, 2]},
    "two routes": {**TWO, "batches": 2, "routes": 2},
    "pairs": {**TWO, "overlap": [5, 6]},
    "offload": {**TWO, "offload_memory": 1, "offload_time": 2, "mem_limit": [5, 3]},
    "step": {**TWO, "unshard": 2, "unshard_memory": 1, "gradient_sync": 3, "optimizer": 1},
    "frozen": {**TWO, "frozen": [True, False]},
    "recompute": {**TWO, "recompute_time": 1, "kept": [1, 0]},
    "workspace": {**TWO, "workspace": 1, "memory_b": [1, -1], "mem_limit": 5},
    "partition": {**OF_LAYERS, "partition": "search"},
    "choices": {**OF_LAYERS, "recompute": "search", "mem_limit": 4},
    "placement": {"stages": 3, "batches": 3, "placement": [0, 1, 0], "p2p": 1},
}
RUNS: dict[str, dict[str, Any]] = {
    "span": {"objective": Objective.DEVICE_SPAN},
    "split": {"backward_kind": "split"},
    "whole": {"backward_kind": "whole"},
}


def answer(job: SolveJob) -> str:
    """Status and exact value; of a strategy also a digest of its schedule."""
    try:
        result = run_job(job)
    except NotApplicableError:
        return "not applicable"
    schedule = result.schedule
    text = f"{result.status} {result.value}"
    if job.searched or schedule is None:
        return text
    rows = sorted(map(repr, schedule.rows()))
    return f"{text} {hashlib.sha256(' '.join(rows).encode()).hexdigest()[:12]}"


def jobs() -> Iterator[tuple[str, SolveJob]]:
    """Searches that end by proof, and every strategy, on pipelines of every kind."""
    pipelines = {name: Pipeline(**fields) for name, fields in PIPELINES.items()}
    effort = {"time_limit": HANGS}
    for name, pipeline in pipelines.items():
        yield f"{name}: searched", job_of(pipeline, effort)
    for name, values in RUNS.items():
        yield f"delays {name}: searched", job_of(pipelines["delays"], effort | values)
    for name in ("delays", "two chunks", "microbatches", "offload", "step"):
        for strategy in names():
            yield f"{name}: {strategy}", job_of(pipelines[name], {}, strategy)


def answers() -> dict[str, str]:
    """The answers of today's code."""
    return {name: answer(job) for name, job in jobs()}


def record() -> None:
    """Write the answers of this version."""
    state = {"version": versions.SEARCH_VERSION, "answers": answers()}
    RECORD.write_text(json.dumps(state, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    record()
