"""The guides are true: every command and its output, top to bottom, one folder per guide."""

from __future__ import annotations

import doctest
import re
import subprocess
from contextlib import nullcontext
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ppopt.cli.program import application
from ppopt.cli.schedule_files import ExportFormat
from tests.cli.cli_run import split_command
from tests.clock import processor_clock
from tests.end_to_end.documents import ROOT, load
from tests.tiers import slow

make = load("make")
GUIDES = make.guides()


@pytest.fixture
def short_polishing() -> None:
    """As long as for users."""


def test_no_guide_is_left_out() -> None:
    names = {path.name for path in GUIDES}
    assert {"README.md", "layers.md", "plan.md", "heterogeneous.md", "sweeps.md"} <= names


@pytest.mark.parametrize(
    "guide",
    [slow(guide) for guide in GUIDES],
    ids=lambda path: path.relative_to(ROOT).as_posix(),
)
def test_the_guide_is_true(guide: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most one block of a guide is too slow to be run again. Its Python comes last."""
    text = guide.read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", str(make.COLUMNS))
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    make.write_files(text, tmp_path)
    blocks = make.blocks(text)
    assert len(blocks) == text.count("```console")
    assert all(block.text() in text for block in blocks)
    quick = [block for block in blocks if not block.slow]
    assert len(quick) >= len(blocks) - 1
    commands = [command for block in quick for command in block.commands]
    for command in commands:
        printed = _output(command.line, tmp_path)
        assert make.without_times(printed) == make.without_times(command.output)
    examples = re.findall(r"```python\n(>>> .*?)```", text, re.DOTALL)
    for example in examples:
        test = doctest.DocTestParser().get_doctest(example, {}, guide.name, str(guide), 0)
        assert test.examples
        assert doctest.DocTestRunner().run(test).failed == 0
    for name in _written([*(command.line for command in commands), *examples]):
        assert (tmp_path / name).stat().st_size > 0


@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_file_is_begun_twice(guide: Path) -> None:
    """`ppopt init` writes new files only, and a reader types every block in one folder."""
    blocks = re.findall(
        r"```(?:sh|console)\n(.*?)```", guide.read_text(encoding="utf-8"), re.DOTALL
    )
    named = re.findall(r"^(?:\$ )?ppopt init (\S+)", "\n".join(blocks), re.MULTILINE)
    assert len(set(named)) == len(named)


def test_the_formats_of_export_are_those_that_there_are() -> None:
    text = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")
    (row,) = re.findall(r"^\| `ppopt export` \| (.*) \|$", text, re.MULTILINE)
    assert sorted(re.findall(r"`([\w-]+)`", row)) == sorted(ExportFormat)


def _output(line: str, folder: Path) -> str:
    """What a command prints: run in this process, which has loaded all, unless it needs a shell.

    A shell runs what its output goes through.
    """
    plain = re.fullmatch(r"ppopt ([^|;&<>$`]+?)(?: \| ([^|;&<>]*|[^;&<>]*\".*\"))?", line)
    if plain is None:
        return str(make.run(line, folder))
    one_process = "--workers 1" in line or line.startswith("ppopt verify")
    with processor_clock() if one_process else nullcontext():
        ran = CliRunner().invoke(application(), split_command(plain[1]))
    text = ran.output if plain[2] is None else ran.stderr + _through(plain[2], ran.stdout)
    return "".join(f"{row.rstrip()}\n" for row in text.splitlines())


def _through(filter_line: str, text: str) -> str:
    """What a command of the shell makes of a text."""
    command = ["bash", "-c", filter_line]
    return subprocess.run(
        command, input=text, stdout=subprocess.PIPE, text=True, check=False
    ).stdout


def _written(texts: list[str]) -> list[str]:
    return re.findall(r"(?:\s-o |\.to_\w+\(\")([\w.-]+)", "\n".join(texts))
