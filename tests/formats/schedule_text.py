"""A schedule file for tests, written by hand, and the schedule that it holds."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ppopt.errors import InputError
from ppopt.formats.schedule_json import loads, schedule_to_object
from ppopt.problem.operation import OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.origin import Origin
from ppopt.schedule.schedule import Schedule

OPTIONAL = ("name", "placement_name", "chunks", "mem_limit_given", "rounded")
"""Keys of the pipeline that a file may lack."""

TWO_BY_ONE = """{
"schema": 2,
"ticks_per_unit": 2,
"memory_ticks_per_unit": 4,
"pipeline": {
  "name": "tiny",
  "stages": 2,
  "batches": 1,
  "devices": 2,
  "routes": 1,
  "placement": [0, 1],
  "placement_name": "default",
  "chunks": null,
  "forward_times": [2, 3],
  "backward_times": [4, 6],
  "weight_times": [2, 2],
  "input_times": [2, 4],
  "p2p_time": 1,
  "activation": [4, 4],
  "memory_b": [-1, -1],
  "static": [8, 8],
  "mem_limit": [12, 12],
  "mem_limit_given": "1f1b",
  "rounded": []
},
"origin": {
  "strategy": "by-hand",
  "versions": {"ppopt": "0"}
},
"claims": {
  "makespan": 15,
  "device_span": 15,
  "busy": [6, 9],
  "peak_memory": [12, 12],
  "bubble_overhead": 1.0,
  "objective": "makespan",
  "bubble_rate": 0.5
},
"ops": [
["F", 0, 0, 0, 0, 2],
["BW", 0, 0, 0, 11, 15],
["F", 1, 0, 1, 3, 6],
["B", 1, 0, 1, 6, 10],
["W", 1, 0, 1, 10, 12]
]
}
"""
"""By hand, in ticks of 1/2: F0 0-2, p2p 1, F1 3-6, B1 6-10, p2p 1, BW0 11-15, W1 10-12. Busy 6 and
9 of 2 x 15: idle is half of the time, and as much as busy time. Memory in ticks of 1/4: 8 + 4."""


def tiny() -> Schedule:
    pipeline = Pipeline(
        stages=2,
        batches=1,
        forward=[1, 1.5],
        backward=[2, 3],
        weight=[1, 1],
        p2p=0.5,
        memory_b=-0.25,
        static=2,
        mem_limit="1f1b",
        name="tiny",
    )
    rows = [
        (OpKind.W, 1, 0, 1, 10, 12),
        (OpKind.BW, 0, 0, 0, 11, 15),
        (OpKind.F, 1, 0, 1, 3, 6),
        (OpKind.B, 1, 0, 1, 6, 10),
        (OpKind.F, 0, 0, 0, 0, 2),
    ]
    origin = Origin(strategy="by-hand", versions={"ppopt": "0"})
    return Schedule.from_rows(pipeline, rows, origin)


def document() -> dict[str, Any]:
    return schedule_to_object(tiny())


def refuse(changed: object) -> str:
    """Message of the refusal of a file: one line that begins with the name of the file."""
    with pytest.raises(InputError) as caught:
        loads(json.dumps(changed), "a.json")
    message = str(caught.value)
    assert message.startswith("a.json: ")
    assert message.isprintable()
    return message.removeprefix("a.json: ")
