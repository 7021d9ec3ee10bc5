"""Rules of the source code that no import contract can state."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "ppopt"
EXACT_NUMBERS = {"solver/result.py", "schedule/origin.py"}
"""Files of the search and of schedules that have results in the user's unit."""
WHOLE_TICKS = {
    *("rechecker/claim.py", "rechecker/configurations.py", "rechecker/partitions.py"),
    *("studies/plan_baselines.py", "studies/plan_product.py", "studies/plan_set_up.py"),
}
"""Files of other packages that have values and bounds in ticks alone."""
INPUT = {"solver/solve.py"}
"""Files of the search that read what users state."""
READERS = {
    *("pipeline_reading", "field_values", "cost_fields", "setting_fields", "sequence_lengths")
}
"""Modules of `ppopt.problem` that read the input of users."""
OF_INPUT = {"Pipeline", "Model", "Layers", "Layer", "without_model"}
"""Calls that read the fields of a pipeline, or of a model, as a user states them."""


def sources(*packages: str) -> Iterator[tuple[str, ast.Module]]:
    """Name and syntax tree of every file of some packages."""
    for package in packages:
        for path in sorted((ROOT / package).rglob("*.py")):
            yield path.relative_to(ROOT).as_posix(), ast.parse(path.read_text(encoding="utf-8"))


def reads_input(tree: ast.AST) -> list[str]:
    """What a file calls, or imports, to read the input of users."""
    faults = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ppopt.problem"):
            modules = {node.module.rpartition(".")[2], *(name.name for name in node.names)}
            faults += sorted(modules & READERS)
        if isinstance(node, ast.Call):
            name, *arguments = map(ast.unparse, (node.func, *node.args))
            if name.rpartition(".")[2] in OF_INPUT:
                faults.append(name)
            if name == "replace" and arguments[0].rpartition(".")[2] == "pipeline":
                faults.append(ast.unparse(node))
    return faults


def exact(*packages: str) -> set[str]:
    """Files of some packages that handle fractions."""
    return {
        name
        for name, tree in sources(*packages)
        if any(isinstance(node, ast.Name) and node.id == "Fraction" for node in ast.walk(tree))
    }


def test_the_search_and_schedules_have_whole_ticks() -> None:
    assert exact("solver", "schedule") == EXACT_NUMBERS


def test_claims_and_the_parts_of_a_plan_have_whole_ticks() -> None:
    assert {name for name, _ in sources("rechecker", "studies")} >= WHOLE_TICKS
    assert exact("rechecker", "studies") & WHOLE_TICKS == set()


def test_the_search_reads_no_input() -> None:
    """A relaxation, or another configuration, is derived from what is read already."""
    faults = {name: reads_input(tree) for name, tree in sources("solver") if name not in INPUT}
    assert {name: own for name, own in faults.items() if own} == {}


@pytest.mark.parametrize(
    "source",
    [
        "replace(problem.pipeline, order='given')",
        "replace(pipeline, mem_limit=None)",
        "pipeline.without_model()",
        "Pipeline(stages=1, batches=1)",
        "from ppopt.problem import field_values",
        "from ppopt.problem.cost_fields import of_slice",
    ],
)
def test_what_reads_input_is_noticed(source: str) -> None:
    assert len(reads_input(ast.parse(source))) == 1


def test_what_reads_no_input_is_let_through() -> None:
    source = "replace(problem, pipeline=problem.pipeline.having(order='given')); SinglePipeline(p)"
    assert reads_input(ast.parse(source)) == []
