"""Plans as stored objects of JSON: read back the same, and refused where they are wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from ppopt import InputError, Model, Objective
from ppopt.problem.backward_kind import BackwardKind
from ppopt.solver.options import SolveOptions, checked_options
from ppopt.studies.plan import search_plan_space
from ppopt.studies.plan_record import from_object, to_object
from ppopt.studies.plan_result import Plan
from ppopt.studies.plan_space import PlanSpace


def options() -> SolveOptions:
    return checked_options(0.5, 1)


@cache
def space(strategy: str = "searched") -> PlanSpace:
    """Recompute that is chosen, two placements, and a limit that rules some out."""
    layers = [
        {"forward": 2, "activation": 4, "kept": 1, "count": 4},
        {"role": "head", "forward": 1, "activation": 1},
    ]
    return PlanSpace(
        Model(layers), devices=2, batches=(3,), placements=("linear", "v"), chunks=(1, 2),
        recompute=("none", "search"), strategies=(strategy,), fields={"mem_limit": 13},
    )  # fmt: skip


@cache
def plan(strategy: str = "searched") -> Plan:
    return search_plan_space(space(strategy), Objective.MAKESPAN, BackwardKind.MIXED, options())


def stored() -> Any:
    return json.loads(json.dumps(to_object(plan()), allow_nan=False))


@pytest.mark.parametrize("strategy", ["searched", "1f1b"])
def test_a_plan_reads_back(strategy: str) -> None:
    first = plan(strategy)
    value = json.loads(json.dumps(to_object(first), allow_nan=False))
    restored = from_object(value, space(strategy), options())
    for name in ("status", "lower_bound", "proof", "skipped", "value", "objective"):
        assert getattr(restored, name) == getattr(first, name)
    for old, new in zip(first.rows, restored.rows, strict=True):
        for name in (
            *("configuration", "status", "lower_bound", "searches", "ruled_out_by_bounds"),
            *("value", "peak", "schedule", "pipeline"),
        ):
            assert getattr(old, name) == getattr(new, name), name
        assert old.result.proof == new.result.proof
    assert any(row.schedule is not None for row in restored.rows)


def _first(change: dict[str, Any]) -> Callable[[dict[str, Any]], None]:
    return lambda plan: plan["rows"][0].update(change)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda plan: plan.update(rows=[]), "rows: a configuration is missing"),
        (lambda plan: plan.update(rows={}), "is not a list"),
        (lambda plan: plan["rows"].append(plan["rows"][0]), "there twice"),
        (lambda plan: plan.pop("proof"), "proof is missing"),
        (lambda plan: plan.update(status="best"), "'best' is unknown"),
        (lambda plan: plan.update(lower_bound="-1"), "lower_bound: '-1' is no fraction"),
        (lambda plan: plan.update(seconds="1"), "seconds: '1' is not a finite number"),
        (_first({"configuration": {"batches": 3}}), "is not of the space"),
        (_first({"searches": -1}), "searches: -1 is not within"),
        (_first({"ruled_out": 1}), "ruled_out: 1 is neither true nor false"),
        (_first({"outcome": None}), "is not an object"),
        (lambda plan: plan["rows"][0]["effort"].update(workers=0), "workers: 0 is not within"),
        (
            lambda plan: plan["rows"][0]["outcome"].update(lower_bound="1000"),
            "the bound 1000 is above the value",
        ),
        (
            lambda plan: plan["rows"][0]["outcome"]["schedule"]["ops"][0].__setitem__(4, 1),
            "stage 0 microbatch|device|overlap|starts|end",
        ),
    ],
)  # fmt: skip
def test_refused(change: Callable[[Any], Any], fault: str) -> None:
    value = stored()
    change(value)
    with pytest.raises(InputError, match=fault):
        from_object(value, space(), options())
