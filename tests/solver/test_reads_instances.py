"""The search below the open decisions copies no pipeline, and its methods read no costs of one."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import ppopt
from ppopt import Pipeline

SOLVER = Path(ppopt.__file__).parent / "solver"
DECISIONS = {
    *("choices", "partitions", "placements", "recompute", "microbatch_orders"),
    *("choice_of_decisions.py", "solve.py"),
}
"""Packages and modules that choose among pipelines."""
SCHEDULES_OF_DECISIONS = "heuristics/first_schedules.py"
METHODS = ("bounds", "cp_sat", "dynamic_programming", "exact", "heuristics", "relaxation")
LAYOUT = {"batches", "routes", "slices", "stages", "order"}
"""Fields of a pipeline that are no costs: its layout, and the names of its microbatches."""
COSTS = {"costs", "factors", "limits", "links", "ticks", "costs_at", "without_model"}
READ = ({field.name for field in fields(Pipeline)} | COSTS) - LAYOUT


def all_modules() -> Iterator[tuple[str, ast.Module]]:
    """All modules of the search, by their path in `solver/`."""
    for path in sorted(SOLVER.rglob("*.py")):
        yield path.relative_to(SOLVER).as_posix(), ast.parse(path.read_text(encoding="utf-8"))


def modules() -> Iterator[tuple[str, ast.Module]]:
    """Those below the open decisions."""
    for name, module in all_modules():
        if name.split("/")[0] not in DECISIONS and name != SCHEDULES_OF_DECISIONS:
            yield name, module


def _name(node: ast.expr) -> str:
    """Last name of an expression, without its underscore: `pipeline` of `problem._pipeline`."""
    name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    return str(name).strip("_")


def _copies(node: ast.AST) -> bool:
    """Whether it calls `replace` on a pipeline, or gives a record a new one."""
    if not isinstance(node, ast.Call) or _name(node.func) != "replace":
        return False
    new = [keyword.value for keyword in node.keywords if keyword.arg == "pipeline"]
    copied = any(_name(argument) == "pipeline" for argument in node.args)
    return copied or any(isinstance(value, ast.Call) for value in new)


def copies(module: ast.Module) -> int:
    """Number of copies of pipelines."""
    return sum(map(_copies, ast.walk(module)))


def readings(module: ast.Module) -> int:
    """Number of calls of `replace` on a pipeline, which read it again, but those of its layout."""
    calls = (node for node in ast.walk(module) if isinstance(node, ast.Call))
    copied = (call for call in calls if _name(call.func) == "replace" and call.args)
    return sum(
        _name(call.args[0]) in ("pipeline", "base")
        and not {keyword.arg for keyword in call.keywords} <= LAYOUT
        for call in copied
    )


def reads(module: ast.Module) -> set[str]:
    """Costs and settings of pipelines that a module reads."""
    read = (node for node in ast.walk(module) if isinstance(node, ast.Attribute))
    return {node.attr for node in read if _name(node.value) == "pipeline"} & READ


def test_no_pipeline_is_copied() -> None:
    """But in the view of compute alone, whose schedules the verifier reads."""
    assert {name: count for name, module in modules() if (count := copies(module))} == {
        "problem_views.py": 1
    }


def test_no_relaxation_reads_a_pipeline_again() -> None:
    """But a limit of the caller."""
    calls = {name: count for name, module in all_modules() if (count := readings(module))}
    assert calls == {"solve.py": 1}


def test_methods_and_bounds_read_no_costs_of_pipelines() -> None:
    read = {name: reads(module) for name, module in modules() if name.split("/")[0] in METHODS}
    assert {name: names for name, names in read.items() if names} == {}
    assert len(read) > 40


def test_a_copy_and_a_cost_are_recognised() -> None:
    source = """
replace(problem, pipeline=replace(self._pipeline, mem_limit=None))
replace(schedule, pipeline=problem.pipeline)
instance.pipeline.ticks.durations, pipeline.batches, pipeline.forward
"""
    module = ast.parse(source)
    assert copies(module) == 2
    assert readings(module) == 1
    assert reads(module) == {"ticks", "forward"}
