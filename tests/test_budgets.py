"""No package grows beyond its budget, and the counter counts only code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests import budgets
from tests.budgets import count_nodes, faults, package_nodes, updated


def test_every_package_is_within_its_budget() -> None:
    budget = json.loads(budgets.FILE.read_text(encoding="utf-8"))
    assert faults(package_nodes(budgets.ROOT), budget) == []


@pytest.mark.parametrize(
    ("source", "nodes"),
    [
        ("", 1),  # Module
        ("x = 1", 5),  # and Assign, Name, Store, Constant
        ("x: int = 1", 5),
        ("x: dict[str, int]", 4),
        ('"""Text."""\nx = 1\n"""Text of x."""', 5),
        ("from __future__ import annotations\nimport a.b as c\n\n# text\nx = 1", 5),
        ("def f():\n    return 1", 5),  # FunctionDef, arguments, Return, Constant
        ('def f() -> list[int]:\n    """Text."""\n    return 1', 5),
        ("def f(x): return 1", 6),
        ("def f(x: int, *y: int, z: int = 1) -> int: return 1", 9),
        ("class A:\n    '''Text.'''\n    x: int\n    '''Text.'''", 5),
        ("f'{x}'", 6),  # Expr, JoinedStr, FormattedValue, Name, Load
    ],
)
def test_docstrings_imports_and_annotations_are_free(source: str, nodes: int) -> None:
    assert count_nodes(source) == nodes


def test_a_package_is_a_direct_subfolder(tmp_path: Path) -> None:
    """Files directly in the folder count by the name of the folder; other files do not count."""
    folder = tmp_path / "ppopt"
    files = {"a.py": "x = 1", "b/c.py": "x = 1", "b/d/e.py": "x: int", "b/f.js": "x", "g/h.css": ""}
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    assert package_nodes(folder) == {"ppopt": 5, "b": 9}


def budget(raises: int = 0, **packages: int) -> dict[str, Any]:
    entries = [{"nodes": raises, "users_get": "Users see what a budget is."}] if raises else []
    return {"base": sum(packages.values()) - raises, "raises": entries, "packages": packages}


@pytest.mark.parametrize(
    ("nodes", "limits", "fault"),
    [
        ({"a": 100}, budget(a=100), None),
        ({"a": 101}, budget(a=100), "a: 1 nodes above its budget of 100"),
        ({"a": 10, "b": 1}, budget(a=10), "b: a package without a budget"),
        ({"a": 10}, budget(a=10, b=1), "b: a budget without a package"),
        ({"a": 800}, budget(a=1000), None),
        ({"a": 799}, budget(a=1000), "a: 201 nodes below"),
        ({"a": 99_000}, budget(a=100_000), None),
        ({"a": 98_999}, budget(a=100_000), "a: 1001 nodes below"),
        ({"a": 10}, budget(raises=3, a=10), None),
        ({"a": 10}, budget(a=10) | {"base": 9}, "the sum 10, base and raises 9"),
        (
            {"a": 10},
            budget(a=10) | {"base": 9, "raises": [{"nodes": 1, "users_get": "Features."}]},
            "a sentence that says what users get",
        ),
    ],
)
def test_faults_of_a_budget(
    nodes: dict[str, int], limits: dict[str, Any], fault: str | None
) -> None:
    lines = faults(nodes, limits)
    assert len(lines) == (fault is not None)
    assert fault is None or fault in lines[0]


def test_a_package_may_grow_by_what_another_loses() -> None:
    assert updated({"b": 25, "a": 5}, budget(a=10, b=20), None) == budget(a=5, b=25)


def test_a_smaller_sum_lowers_the_base_and_leaves_the_raises() -> None:
    assert updated({"a": 7}, budget(raises=2, a=10), None) == budget(raises=2, a=7)


def test_a_larger_sum_needs_a_sentence() -> None:
    with pytest.raises(ValueError, match=r"the sum is 5 nodes above .* --users-get"):
        updated({"a": 15}, budget(a=10), None)
    sentence = "Users see what a budget is."
    assert updated({"a": 15}, budget(a=10), sentence) == budget(raises=5, a=15)


def test_the_table(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any) -> None:
    """`--update` writes the file; the table is printed in any case."""
    file = tmp_path / "budgets.json"
    file.write_text(json.dumps(budget(a=1200, b=20)))
    monkeypatch.setattr(budgets, "FILE", file)
    monkeypatch.setattr(budgets, "package_nodes", lambda _: {"a": 1000, "b": 30})
    budgets.main([])
    assert capsys.readouterr().out.splitlines() == [
        "package         nodes   budget  difference",
        "a                1000     1200        -200",
        "b                  30       20         +10",
        "sum              1030     1220        -190",
    ]
    budgets.main(["--update"])
    assert json.loads(file.read_text()) == budget(a=1000, b=30)
    monkeypatch.setattr(budgets, "package_nodes", lambda _: {"a": 1000, "b": 31})
    with pytest.raises(SystemExit):
        budgets.main(["--update"])
