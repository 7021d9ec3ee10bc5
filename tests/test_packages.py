"""What becomes of tests whose package is absent, and what the run says of them."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import conftest
from tests.packages import needed


def test_a_package_that_is_there_is_imported() -> None:
    assert needed("json.decoder").JSONDecoder().decode("1") == 1


def test_without_its_package_a_test_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all must be there it is an error, but for what the extra `test-all` does not have."""
    monkeypatch.setattr("tests.packages.find_spec", lambda _: None)
    monkeypatch.delenv("PPOPT_NEEDS_ALL", raising=False)
    with pytest.raises(pytest.skip.Exception, match=r"^nowhere is absent: pip .*\[test-all\]"):
        needed("nowhere.at_all")
    monkeypatch.setenv("PPOPT_NEEDS_ALL", "1")
    with pytest.raises(ModuleNotFoundError):
        needed("nowhere.at_all")
    with pytest.raises(pytest.skip.Exception, match="torchtitan is absent"):
        needed("torchtitan")


def test_files_that_may_need_a_package_are_marked() -> None:
    """A file that imports `needed` is marked whole, and no other is."""
    marked: list[str] = []
    items = [
        SimpleNamespace(module=SimpleNamespace(**names), add_marker=marked.append)
        for names in ({"needed": needed}, {})
    ]
    conftest.pytest_collection_modifyitems(items)
    assert marked == ["extra"]


def test_the_run_counts_what_was_not_tested() -> None:
    lines: list[str] = []
    reasons = [
        ("test", "b is absent: pip"),
        ("test", "a"),
        ("file", "b is absent: pip"),
        ("test", "a"),
    ]
    terminal: Any = SimpleNamespace(
        stats={"skipped": [report(thing, f"Skipped: {reason}") for thing, reason in reasons]},
        section=lambda title, **_: lines.append(title),
        write_line=lambda line, **_: lines.append(line),
    )
    conftest.pytest_terminal_summary(terminal)
    assert lines == ["not tested", "2 tests: a", "1 file, 1 test: b is absent: pip"]
    lines.clear()
    terminal.stats = {}
    conftest.pytest_terminal_summary(terminal)
    assert lines == []


def report(thing: str, reason: str) -> Any:
    where = ("tests/test_a.py", 1, reason)
    if thing == "file":
        return pytest.CollectReport("tests/test_a.py", "skipped", where, [])
    return pytest.TestReport("a", where, {}, "skipped", where, "setup")


ROOT = Path(__file__).parents[1]


def modules(*extras: str) -> set[str]:
    """What may be imported with some extras of pyproject.toml."""
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    names = (re.match(r"[\w-]+", line) for extra in extras for line in listed[extra])
    return {name[0].replace("-", "_").removesuffix("_solver") for name in names if name}


def test_no_file_of_tests_needs_more_than_the_extra_test() -> None:
    """At its top; `needed` skips the file where a package of `test-all` is absent."""
    absent = modules("test-all", "dask", "docs", "torch") - modules("test")
    assert {"torch", "distributed", "deno"} <= absent
    for file in (ROOT / "tests").rglob("*.py"):
        if not re.match("test_|conftest", file.name):
            continue
        text = file.read_text(encoding="utf-8")
        for node in ast.parse(text).body if any(map(text.__contains__, absent)) else ():
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert absent.isdisjoint(name.partition(".")[0] for name in names), file
