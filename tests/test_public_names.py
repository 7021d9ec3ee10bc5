"""What `import ppopt` offers: its names, the types of results, and silence."""

from __future__ import annotations

import ast
import inspect
import logging
from pathlib import Path
from typing import Any

import pytest

import ppopt

NAMES = [
    "Argument",
    "Baseline",
    "Certificate",
    "Claim",
    "Comparison",
    "ComparisonRow",
    "ConflictError",
    "DeadlockError",
    "Decisions",
    "DerivedModel",
    "Frontier",
    "FrontierBaseline",
    "FrontierPoint",
    "Headline",
    "HeadlineRow",
    "HintRecord",
    "InputError",
    "Jitter",
    "Layer",
    "LeastMemory",
    "Metrics",
    "MicrobatchOrder",
    "MicrobatchOrders",
    "Model",
    "MoreMemory",
    "NotApplicableError",
    "Objective",
    "Op",
    "OpKind",
    "Options",
    "Origin",
    "Pipeline",
    "Plan",
    "PlanConfiguration",
    "PlanRow",
    "PlanSpace",
    "PpoptError",
    "Progress",
    "Provenance",
    "Recheck",
    "Result",
    "RowStatus",
    "Rule",
    "RunError",
    "Schedule",
    "SolveParams",
    "StageCosts",
    "Status",
    "StrategyChoice",
    "Study",
    "SweepRow",
    "Ticks",
    "Verdict",
    "VerificationError",
    "Violation",
    "WithinShare",
    "__version__",
    "baseline",
    "best_choice",
    "calibrate",
    "compare",
    "derive_model",
    "evaluate",
    "explain",
    "frontier",
    "jitter",
    "models",
    "plan",
    "read_model",
    "read_pipeline",
    "read_schedule",
    "recheck",
    "show_versions",
    "solve",
    "stop",
    "strategies",
    "sweep",
    "verify",
]
PIPELINE = ppopt.Pipeline(stages=2, batches=3)


def test_names() -> None:
    assert dir(ppopt) == sorted(ppopt.__all__) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_there_and_says_what_it_is(name: str) -> None:
    exported = getattr(ppopt, name)
    assert name == "__version__" or inspect.getdoc(exported)


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse(Path(ppopt.__file__).read_text(encoding="utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    seen = {
        alias.asname
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen | {"__version__", "show_versions", "strategies"} == set(NAMES)


def test_unknown_name() -> None:
    with pytest.raises(AttributeError, match="no attribute 'solv'"):
        _ = ppopt.solv


def test_strategies_and_models_are_listed() -> None:
    assert ppopt.strategies()["zb-1p"].endswith("]")
    assert "8 stages" in ppopt.models()["zb-1.5b-m24"]
    from ppopt.strategies import registry  # noqa: PLC0415  the package stays one

    assert set(ppopt.strategies()) == set(registry())


def test_show_versions(capsys: pytest.CaptureFixture[str]) -> None:
    ppopt.show_versions()
    output = capsys.readouterr().out
    for name in ("ppopt", "Python", "ortools"):
        assert any(line.startswith(name) for line in output.splitlines())


class TestResultsAreOfPublicTypes:
    """Whatever a function hands out can be named in an annotation."""

    def test_solve(self) -> None:
        seen: list[object] = []
        hint = ppopt.evaluate(PIPELINE, "1f1b")
        best = ppopt.solve(PIPELINE, hint=hint, workers=1, progress=seen.append)
        parts = (best, best.status, best.objective, best.schedule, best.certificate, best.claim)
        for part in (*parts, best.certificate.argument, best.provenance, best.hint):
            assert_public(part)
        assert_public(best.schedule.metrics)
        assert_public(ppopt.recheck(best))

    def test_pipeline(self) -> None:
        for part in (PIPELINE, PIPELINE.costs, PIPELINE.ticks, PIPELINE.op(0), PIPELINE.op(0).kind):
            assert_public(part)

    def test_studies(self) -> None:
        compared = ppopt.compare(PIPELINE, jitter=0.1, workers=1)
        for part in (compared, compared.rows[0], compared.rows[0].jitter, compared.optimum):
            assert_public(part)
        frontier = ppopt.frontier(PIPELINE, workers=1)
        for part in (frontier, frontier.points[0], frontier.baselines[0]):
            assert_public(part)


def assert_public(value: object) -> None:
    name = type(value).__name__
    assert getattr(ppopt, name) is type(value)
    assert name in NAMES


@pytest.mark.parametrize("value", ["a.yaml", None, {"stages": 2, "batches": 2}])
@pytest.mark.parametrize(
    ("name", "arguments", "what"),
    [
        *((name, (), "pipeline") for name in ("solve", "compare", "frontier", "MicrobatchOrders")),
        *((name, ("1f1b",), "pipeline") for name in ("evaluate", "best_choice")),
        ("plan", (), "model"),
        ("sweep", ({"batches": [2]},), "model"),
        *((name, (), "schedule") for name in ("verify", "recheck")),
        ("jitter", (0.1,), "schedule"),
    ],
)
def test_another_type_is_refused_in_one_line(
    name: str, arguments: tuple[Any, ...], what: str, value: object
) -> None:
    with pytest.raises(ppopt.InputError) as caught:
        getattr(ppopt, name)(value, *arguments)
    assert str(caught.value).startswith(f"{what}: ")
    assert str(caught.value).endswith(f"is not a {what}; ppopt.read_{what}(FILE) reads a file")


def test_compare_takes_what_solve_takes() -> None:
    offered = inspect.signature(ppopt.compare).parameters
    for name, wanted in inspect.signature(ppopt.solve).parameters.items():
        assert offered[name].default == wanted.default
    limited = ppopt.compare(PIPELINE, mem_limit="1f1b", workers=1).optimum
    assert limited.value == ppopt.solve(PIPELINE, mem_limit="1f1b", workers=1).value
    assert limited.pipeline.mem_limit == "1f1b"


def test_silent_unless_logging_is_asked_for(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    ppopt.compare(PIPELINE, workers=1)
    assert capfd.readouterr() == ("", "")
    assert any(
        isinstance(handler, logging.NullHandler) for handler in logging.getLogger("ppopt").handlers
    )
    with caplog.at_level("INFO", logger="ppopt"):
        ppopt.compare(PIPELINE, workers=1)
    assert "strategy 1f1b" in caplog.messages
    assert any(line.startswith("optimal: value") for line in caplog.messages)


def test_every_result_with_rows_has_a_frame() -> None:
    """`rows` or, on a frontier, `points`: a result of a study."""
    results = [getattr(ppopt, name) for name in ppopt.__all__ if name[0].isupper()]
    with_rows = {
        kind.__name__
        for kind in results
        if {"rows", "points"} & getattr(kind, "__dataclass_fields__", {}).keys()
    }
    assert with_rows == {"Comparison", "Frontier", "Plan", "Study"}
    assert all(hasattr(getattr(ppopt, name), "to_frame") for name in with_rows)
