"""The README and what belongs to it: tables, picture, links and options are checked."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import ppopt
from ppopt.formats.schedule_json import read_schedule
from ppopt.strategies import names
from tests.cli.cli_run import done
from tests.end_to_end.documents import ROOT, load
from tests.packages import needed
from tests.tiers import first

DOCUMENTS = (
    *("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "models/README.md", "benchmarks/README.md"),
    *(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("[!_]*.md")),
)


make = load("make")
README = make.README.read_text(encoding="utf-8")


def test_every_strategy_is_in_the_table() -> None:
    table = make.tables_of(make.STRATEGIES.read_text(encoding="utf-8"))["strategies"]
    assert table == make.strategies_table(), "renew it by `python docs/scripts/make.py`"
    assert all(f"| `{name}` |" in table for name in names())


def test_every_setting_is_in_the_table() -> None:
    tables = make.tables_of(make.MODELS.read_text(encoding="utf-8"))
    written = {"settings": make.settings_table(), "layers": make.layers_table()}
    assert tables == written, "renew it by `python docs/scripts/make.py`"
    guide = make.tables_of((ROOT / "docs" / "layers.md").read_text(encoding="utf-8"))
    assert guide == {"layers": make.layers_table()}, "renew it by `python docs/scripts/make.py`"


@pytest.mark.parametrize("picture", make.PICTURES, ids=lambda path: path.stem)
def test_picture_is_that_of_its_schedule(picture: Path) -> None:
    schedule, claims = read_schedule(picture.with_suffix(".json"))
    assert ppopt.verify(schedule, claims) == []
    assert schedule.pipeline.ticks == make.PICTURES[picture].ticks
    drawn = replace(schedule, origin=replace(schedule.origin, from_file=False))
    assert picture.read_text(encoding="utf-8") == make.draw(picture, drawn)


@pytest.mark.parametrize("picture", first(1, make.PICTURES), ids=lambda path: path.stem)
def test_schedule_of_a_picture_is_optimal(picture: Path) -> None:
    """Another version of the solver may find another optimum: only the value must be the same."""
    schedule, _ = read_schedule(picture.with_suffix(".json"))
    solved = make.solve(make.PICTURES[picture])
    assert solved.metrics.makespan_ticks == schedule.metrics.makespan_ticks


def test_the_readme_is_one_screen_or_two() -> None:
    assert len(README.splitlines()) <= 150
    text = " ".join(README.split())
    baseline = ppopt.evaluate(
        make.PICTURES[ROOT / "docs" / "pictures" / "llama-3.1-8b.svg"], "1f1b"
    )
    optimum, _ = read_schedule(ROOT / "docs" / "pictures" / "llama-3.1-8b.json")
    gain = baseline.makespan / optimum.makespan
    assert f"{100 * (gain - 1):.0f} % more throughput than 1F1B in the same memory" in text


def test_there_is_one_command_for_the_main_job_and_one_for_the_tests() -> None:
    commands = dict(re.findall(r"<!-- command: (\w+) -->\n```sh\n([^\n]+)\n```\n", README))
    assert commands == {
        "main": "python3 -m venv .venv && .venv/bin/pip install . && "
        ".venv/bin/ppopt solve --stages 4 --batches 8 --mem-limit",
        "test": "python3 -m venv .venv && .venv/bin/pip install -e '.[test]' && "
        ".venv/bin/pytest -n 2",
    }


def test_the_example_strategy_of_contributing_works() -> None:
    """One at a time, 4 x 8 at unit costs: 4 F, 4 B and a W before the next one, 8 times."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    use = (
        "import ppopt\n"
        "made = ppopt.evaluate(ppopt.Pipeline(stages=4, batches=8), 'one-at-a-time')\n"
        "print(made.metrics.makespan_ticks, made.metrics.peak_memory_ticks)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", example + use], capture_output=True, text=True, check=True
    )
    assert ran.stdout == "72 (1, 1, 1, 1)\n"


@pytest.mark.slow
def test_the_python_of_the_readme_has_right_types(tmp_path: Path) -> None:
    needed("mypy")
    lines = re.findall(r"^(?:>>>|\.\.\.) (.*\n)", README, re.MULTILINE)
    assert any("ppopt.solve(" in line for line in lines)
    (tmp_path / "readme.py").write_text("".join(lines))
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", tmp_path, "readme.py"]
    checked = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_to_files(document: str) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert target.startswith("https://") or (ROOT / document).parent.joinpath(target).exists()


def test_options_named_are_options() -> None:
    commands = ("init", "solve", "eval", "compare", "verify", "run")
    helps = [done(f"{name} --help").out for name in (*commands, "")]
    renamed = ("command-line.md", "strategies.md")
    texts = ((ROOT / "docs" / name).read_text(encoding="utf-8") for name in renamed)
    text = "\n".join([README, *texts])
    ppopt_lines = [line for line in text.splitlines() if "pip install" not in line]
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", "\n".join(ppopt_lines)))
    assert named <= set(re.findall(r"--[a-z][a-z0-9-]+", "\n".join(helps)))
    assert {"--mem-limit", "--placement", "--group-size"} <= named
