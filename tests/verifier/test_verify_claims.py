"""What is stated with a schedule, how its faults are drawn, and what the verifier stands on."""

from __future__ import annotations

import ast
import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppopt import InputError, recheck, solve
from ppopt.formats.schedule_json import schedule_from_object, schedule_to_object
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.schedule import Schedule
from ppopt.verifier import Rule, explain, figures, verify
from tests.factories.schedules import BW, B, F, W, peaks, schedules, table
from tests.verifier import verify_naive
from tests.verifier.verify_fixtures import one_f_one_b

# Claims


@given(schedules(), st.sampled_from(["makespan", "device-span"]))
def test_true_claims_pass(schedule: Schedule, objective: str) -> None:
    busy, makespan, span = verify_naive.busy_and_span(schedule)
    total = len(busy) * (makespan if objective == "makespan" else span)
    claims: dict[str, object] = {
        "makespan": makespan,
        "device_span": span,
        "busy": busy,
        "peak_memory": tuple(peaks(schedule)),
        "objective": objective,
        "bubble_rate": (total - sum(busy)) / total,
        "bubble_overhead": (len(busy) * makespan - sum(busy)) / sum(busy),
    }
    assert verify(schedule, claims) == []


def test_claims_are_compared_one_by_one_and_all_reported() -> None:
    claims = {
        "makespan": 8,
        "busy": [6, 7],
        "peak_memory": [2],
        "bubble_rate": 0.3333,
        "bubble_overhead": True,
        "device_span": "9",
        "latency": 3,
        "objective": "makespan",
    }
    assert [str(violation) for violation in verify(one_f_one_b(), claims)] == [
        "claim: bubble_overhead: claimed True: not a number",
        "claim: bubble_rate: claimed 0.3333: 0.3333333333333333 recomputed",
        "claim: device_span: claimed '9': not a whole number of ticks",
        "claim: latency: claimed 3: not a figure that can be recomputed",
        "claim: makespan: claimed 8: 9 ticks recomputed, that is 9",
        "claim: peak_memory: claimed [2]: not a list of 2 numbers, one per device",
        "claim: busy of device 1: claimed 7: 6 ticks recomputed, that is 6",
    ]


# The picture


def test_explain_draws_the_grid_with_an_arrow_at_the_fault() -> None:
    rows = table(one_f_one_b())
    schedule = Schedule.from_rows(
        one_f_one_b().pipeline, [rows[0], (*rows[1][:5], 4, *rows[1][6:]), *rows[2:]]
    )
    assert explain(schedule, verify(schedule)).splitlines() == [
        "1 violation",
        "duration: 0F1 on device 0 takes 3, from 1 to 4, not 1",
        "",
        "        device 0  device 1",
        "step 0       0F0       1F0",
        "step 1    -> 0F1      1BW0",
        "step 2      0BW0       1F1",
        "step 3      0BW1      1BW1",
    ]


def test_explain_cuts_a_large_schedule_around_the_first_fault() -> None:
    pipeline = Pipeline(stages=12, batches=30, p2p=1)
    rows = [
        (kind, s, j, s, 1000 * j + at, 1000 * j + at + duration)
        for s in range(12)
        for j in range(30)
        for kind, at, duration in ((F, 2 * s, 1), (BW, 100 - 3 * s, 2))
    ]
    faulty = (F, 9, 20, 9, 20017, 20018)
    broken = [faulty if row[:3] == faulty[:3] else row for row in rows]
    schedule = Schedule.from_rows(pipeline, broken)
    lines = explain(schedule, verify(schedule)).splitlines()
    assert lines[:2] == [
        "1 violation",
        "forward-order: 9F20 starts at 20017 on device 9, "
        "but 8F20 ends at 20017 on device 8 and p2p takes 1",
    ]
    assert lines[3] == "steps 32 to 47 of 0 to 59, devices 4 to 11 of 0 to 11"
    assert lines[4].split() == [word for d in range(4, 12) for word in ("device", str(d))]
    (arrow,) = [line for line in lines if "->" in line]
    assert arrow.startswith("step 40 ") and "-> 9F20" in arrow


def test_explain_draws_a_line_for_every_operation_of_the_busiest_device() -> None:
    """Device 0 has two stages, device 1 one; both run a microbatch."""
    pipeline = Pipeline(stages=3, batches=1, placement=(0, 0, 1))
    rows = [
        *((F, 0, 0, 0, 0, 1), (F, 1, 0, 0, 1, 2), (F, 2, 0, 1, 2, 3)),
        *((BW, 2, 0, 1, 3, 5), (BW, 1, 0, 0, 5, 7), (BW, 0, 0, 0, 7, 9)),
    ]
    lines = explain(Schedule.from_rows(pipeline, rows), []).splitlines()
    assert [line.split() for line in lines[2:]] == [
        ["device", "0", "device", "1"],
        ["step", "0", "0F0", "2F0"],
        ["step", "1", "1F0", "2BW0"],
        ["step", "2", "1BW0"],
        ["step", "3", "0BW0"],
    ]


def test_explain_of_no_violation() -> None:
    assert explain(one_f_one_b(), []).splitlines()[0] == "0 violations"


# Independence

OWN = {
    "ppopt.verifier" + ("" if path.stem == "__init__" else f".{path.stem}"): path
    for path in sorted(Path(inspect.getfile(verify)).parent.glob("*.py"))
}


def imported(path: Path) -> set[str]:
    """Modules that a file imports, at its top or inside a function."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            whole = node.module == "ppopt"
            names |= {f"ppopt.{a.name}" for a in node.names} if whole else {node.module or "."}
    return names


SHARED = {
    "ppopt",
    "ppopt.errors",
    *(f"ppopt.problem{name}" for name in ("", ".arrays", ".backward_times", ".costs", ".exact")),
    *(f"ppopt.problem.{name}" for name in ("backward_kind", "field_values", "first_backward")),
    *("ppopt.problem.backward_memory", "ppopt.problem.training_sizes", "ppopt.problem.frozen"),
    *(
        f"ppopt.problem.{name}"
        for name in ("layout", "layers", "link", "link_mode", "memory", "objective", "operation")
    ),
    *(f"ppopt.problem.{name}" for name in ("kinds", "layer_names", "resources")),
    *(
        f"ppopt.problem.{name}"
        for name in ("cost_table", "layer", "layer_choices", "pipeline_reading", "setting_fields")
    ),
    *(
        f"ppopt.problem.{name}"
        for name in (
            "cost_fields",
            "hosting",
            "partition",
            "pipeline",
            "pipeline_fields",
            "pipeline_structure",
        )
    ),
    *(
        f"ppopt.problem.{name}"
        for name in (
            "delays",
            "distinct",
            "grid",
            "layer_table",
            "microbatches",
            "named_enum",
            "partition_table",
            "phases",
            "phase_pairs",
            "rounding",
            "sequence_lengths",
            "stage_row",
        )
    ),
    *(
        f"ppopt.problem.{name}"
        for name in ("decisions", "layer_settings", "modules", "placement", "setting", "settings")
    ),
    *("ppopt.problem.traits", "ppopt.problem.units"),
    *(f"ppopt.schedule{name}" for name in ("", ".operations", ".origin", ".timetable")),
}
"""What the verifier stands on: problems, and the columns of a schedule."""
POSTED = {"ppopt.schedule.actions"}
"""What the rules of communication orders stand on besides."""


@pytest.mark.parametrize("path", OWN.values(), ids=OWN)
def test_the_verifier_imports_nothing_of_what_it_checks(path: Path) -> None:
    outside = {name.split(".")[0] for name in imported(path) - SHARED - POSTED - set(OWN)}
    assert outside <= {*sys.stdlib_module_names, "numpy"} - {"importlib"}


def test_loading_the_verifier_loads_nothing_of_what_it_checks() -> None:
    code = "import sys, ppopt.verifier; print(*(m for m in sys.modules if m.startswith('ppopt')))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(run.stdout.split()) - set(OWN) == SHARED


def says(schedule: Schedule, **members: object) -> Schedule:
    """The schedule as a file would give it whose origin has these members."""
    file = json.loads(json.dumps(schedule_to_object(schedule)))
    file["origin"] |= members
    return schedule_from_object(file)[0]


def test_an_origin_must_agree_with_its_schedule() -> None:
    """A forged value, bound, gap, status or objective is seen, or refused where it is none."""
    schedule = one_f_one_b()
    value = float(schedule.pipeline.ticks.time(figures(schedule).makespan))
    right = {
        "status": "optimal",
        "objective": "makespan",
        "backward_kind": "whole",
        "value": value,
        "lower_bound": value,
        "gap": 0,
    }
    assert verify(says(schedule, **right)) == []
    half = {"lower_bound": value / 2}
    assert verify(says(schedule, **right | half | {"status": "feasible", "gap": 0.5})) == []
    for wrong in (
        {"value": value - 1},
        {"lower_bound": value + 1},
        {"lower_bound": None},
        half,
        half | {"status": "feasible"},
        {"gap": 0.1},
        {"backward_kind": "split"},
        {"backward_kind": None},
        {"status": "infeasible"},
        {"status": "unknown"},
        {"status": "OPTIMAL"},
        half | {"status": "infeasible", "gap": None},
        *({key: 1e300} for key in ("value", "lower_bound", "gap")),
        *({key: -(10**300)} for key in ("value", "lower_bound", "gap")),
    ):
        violations = verify(says(schedule, **right | wrong))
        assert violations, wrong
        assert {violation.rule for violation in violations} == {Rule.CLAIM}
    for strange in (
        {"value": "27"},
        {"lower_bound": float("nan")},
        {"gap": float("inf")},
        {"objective": "speed"},
    ):
        with pytest.raises(InputError, match=f"^origin: {next(iter(strange))}: "):
            says(schedule, **right | strange)


def test_a_tick_of_a_billion_is_seen_in_an_origin() -> None:
    """Six seconds in nanoseconds: F F B W B W on one device, the last W three ticks late."""
    second = 10**9
    pipeline = Pipeline(stages=1, batches=2, forward=second, backward_input=second, weight=second)
    ran = [(F, 0), (F, 1), (B, 0), (W, 0), (B, 1)]
    rows = [
        (kind, 0, microbatch, 0, second * index, second * (index + 1))
        for index, (kind, microbatch) in enumerate(ran)
    ]
    late = (W, 0, 1, 0, 5 * second + 3, 6 * second + 3)
    schedule = Schedule.from_rows(pipeline, [*rows, late])
    claims = {"status": "optimal", "fused": False, "lower_bound": 6 * second, "gap": 0}
    wrong = verify(says(schedule, **claims, value=6 * second))
    assert [violation.message.split(":")[0] for violation in wrong] == [
        "origin gap",
        "origin status",
        "origin value",
    ]
    wrong = verify(says(schedule, **claims, value=6 * second + 3))
    assert [violation.message.split(":")[0] for violation in wrong] == [
        "origin gap",
        "origin status",
    ]


def test_a_bound_of_whole_backwards_is_none_of_split_ones() -> None:
    """Three devices, four microbatches: 18 whole; with every BW replaced by a B and a W, which
    might take less, the bound is none of theirs."""
    schedule = solve(
        Pipeline(stages=3, batches=4, mem_limit=3), backward_kind="whole", workers=1
    ).schedule
    assert verify(schedule) == []
    rows = []
    for kind, stage, microbatch, device, start, end, *_ in schedule.rows():
        if kind == BW:
            half = (start + end) // 2
            rows += [(B, stage, microbatch, device, start, half)]
            rows += [(W, stage, microbatch, device, half, end)]
        else:
            rows += [(kind, stage, microbatch, device, start, end)]
    split = Schedule.from_rows(schedule.pipeline, rows, schedule.origin)
    [wrong] = verify(split)
    message = "origin backward_kind: claimed 'whole': some backwards are split (B and W)"
    assert wrong.message == message
    with pytest.raises(InputError, match="not of those of this schedule"):
        recheck(split)
