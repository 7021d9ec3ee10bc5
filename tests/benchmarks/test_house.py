"""Counts of what is written more than once: on small trees whose counts are known."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.house import House, table

pytestmark = pytest.mark.slow

ARRIVALS = """
def arrivals(pipeline, end):
    for stage in pipeline.stages:
        lag = pipeline.p2p[stage]
        free[stage] = max(free[stage], end[stage - 1] + lag)
"""
HELD = "def held(stage, activation):\n    return sum(activation) + 1\n"


def tree(root: Path, files: dict[str, str]) -> House:
    """A checkout with these files in `ppopt/`."""
    for name, text in {"__init__.py": "", **files}.items():
        path = root / "ppopt" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return House(root)


def test_what_derives_data_flow_and_simulates_is_counted_by_place(tmp_path: Path) -> None:
    house = tree(tmp_path, {"solver/a.py": ARRIVALS, "verifier/b.py": ARRIVALS})
    assert house.data_flow == house.simulations == ["solver.a:2 arrivals"]


@pytest.mark.parametrize(
    "text",
    [
        "def next_stage(stage):\n    return stage + 1\n",
        "def link(pipeline):\n    return pipeline.p2p[0][1]\n",
        "def free(rows):\n    for row in rows:\n        free[row] = 0\n",
        "def longest(rows, lag):\n    return max(row + lag for row in rows)\n",
    ],
    ids=["a neighbour alone", "a link alone", "a clock alone", "a wait alone"],
)
def test_half_a_pattern_does_not_count(tmp_path: Path, text: str) -> None:
    house = tree(tmp_path, {"solver/a.py": text})
    assert house.data_flow == house.simulations == []


def test_memory_counts_where_it_is_calculated(tmp_path: Path) -> None:
    files = {
        "solver/a.py": HELD,
        "rechecker/b.py": HELD,
        "report/c.py": "def shown(activation):\n    return str(activation)\n",
        "report/script/d.js": "held += taken\n",
        "report/script/e.js": "show(held)\n",
    }
    assert tree(tmp_path, files).memory == ["solver/a.py", "report/script/d.js"]


def test_constants_of_the_solver_alone(tmp_path: Path) -> None:
    text = "ONE = 1\n_TWO: int = 2\nThree = int\nfour = 4\n"
    house = tree(tmp_path, {"solver/deep/a.py": text, "report/b.py": text})
    assert house.constants == ["solver.deep.a.ONE", "solver.deep.a._TWO"]


def test_circles_count_typing_and_lazy_imports_with_and_without_the_door(tmp_path: Path) -> None:
    typing = "if TYPE_CHECKING:\n    from ppopt.{} import x\n"
    lazy = "class Schedule:\n    def to_html(self):\n        from ppopt.report import html\n"
    files = {
        "solver/a.py": "import ppopt.solver.b\n",
        "solver/b.py": typing.format("solver.c"),
        "solver/c.py": "def f():\n    from ppopt.solver import a\n",
        "schedule/schedule.py": lazy,
        "report/html.py": "from ppopt.schedule.schedule import Schedule\n",
    }
    house = tree(tmp_path, files)
    assert house.circles(door=True) == [
        ["solver.a", "solver.b", "solver.c"],
        ["report.html", "schedule.schedule"],
    ]
    assert house.circles(door=False) == [["solver.a", "solver.b", "solver.c"]]


def test_names_collide_as_classes_anywhere_and_as_functions_in_a_room(tmp_path: Path) -> None:
    text = "class Run: ...\nclass _Own: ...\ndef check(): ...\ndef _own(): ...\n"
    files = {"solver/a.py": text, "solver/b.py": text, "report/c.py": text}
    house = tree(tmp_path, files)
    assert house.classes == {"Run": ["report.c", "solver.a", "solver.b"]}
    assert house.functions == {"solver/check": ["solver.a", "solver.b"]}


def test_functions_that_implement_a_field_of_the_room_do_not_collide(tmp_path: Path) -> None:
    text = "def build(): ...\ndef check(): ...\n"
    base = "Build = Callable[[int], int]\nclass Base:\n    build: Build\n    check: bool\n"
    files = {"a/a.py": text, "a/b.py": text, "a/base.py": base, "b/a.py": text, "b/b.py": text}
    assert sorted(tree(tmp_path, files).functions) == ["a/check", "b/build", "b/check"]


def test_several_trees_stand_beside_each_other(tmp_path: Path) -> None:
    old = tree(tmp_path / "old", {"solver/a.py": "ONE = 1\n\n"})
    new = tree(tmp_path / "new", {"problem/a.py": ""})
    lines = table({"old": old, "new": new}).splitlines()
    assert lines[0] == "|  | old | new |"
    assert "| module-level constants in solver/ | 1 | 0 |" in lines
    assert "| `solver`: files, lines | 1, 2 |  |" in lines
    assert "| `problem`: files, lines |  | 1, 0 |" in lines


def test_a_folder_without_the_package_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no folder ppopt"):
        House(tmp_path)
