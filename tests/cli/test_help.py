"""The help of the command line, and completion in a real shell."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from ppopt.cli.application import COMMANDS
from ppopt.cli.options import option, with_options
from ppopt.cli.program import application
from ppopt.problem.partition import BALANCED
from ppopt.problem.setting import Heading
from ppopt.problem.settings import SETTINGS
from ppopt.strategies import names
from ppopt.studies.plan_space import PlanSpace
from tests.cli.cli_run import done
from tests.tiers import first

NAMES = [name for group in COMMANDS.values() for name in group]


def sections(text: str) -> dict[str, str]:
    """The parts of a help text by their headings."""
    headings = re.findall(r"^(\S[^\n]*):\n((?:  [^\n]*\n|\n)+)", text, re.MULTILINE)
    return dict(headings)


def test_every_command_is_in_a_group() -> None:
    assert list(typer.main.get_command(application()).commands) == NAMES


def test_commands_stand_in_the_order_of_work_and_say_whole_sentences(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = done("-h").out
    assert list(sections(text))[1:] == list(COMMANDS)
    listed = re.findall(r"^  ([a-z]+)  +([A-Z].*)$", text, re.MULTILINE)
    assert [name for name, _ in listed] == NAMES
    for name, summary in listed:
        assert summary.endswith("."), name
        assert not summary.endswith("..."), name


@pytest.mark.parametrize("name", NAMES)
def test_help_of_a_command(name: str) -> None:
    text = done(f"{name} -h").out
    assert re.match(rf"Usage: \S+ {name} ", text)
    assert text == done(f"{name} --help").out
    assert "list[Path]" not in text


def test_the_default_of_a_plan_that_its_help_states_is_that_of_a_plan() -> None:
    """Others take the balanced partition; a plan searches it."""
    for name, default in (("plan", PlanSpace.partition), ("solve", BALANCED), ("eval", BALANCED)):
        stdout = " ".join(done(f"{name} -h").out.split())
        default_text = re.search(r"--partition RULE.*? \(default: (\w+)\)", stdout)
        assert default_text is not None and default_text[1] == default


@pytest.mark.parametrize("name", ["solve", "eval", "compare", "frontier", "plan"])
def test_options_stand_in_groups(name: str) -> None:
    """Every setting under its heading, but for those that make no difference to the command."""
    by_heading = sections(done(f"{name} -h").out)
    headings = [heading for heading in by_heading if heading in set(Heading)]
    assert headings == [heading.value for heading in Heading if heading.value in by_heading]
    left_out = {"solve": {"group_size", "waves", "unshard_ahead"}, "eval": {"workers"}}.get(
        name, set()
    )
    for setting in SETTINGS:
        if setting.has_flag:
            written = [
                heading for heading, rows in by_heading.items() if f"{setting.flag} " in rows
            ]
            expected = [] if setting.field in left_out else [setting.heading]
            assert written[:1] == expected, setting.flag
    assert "-h, --help" in by_heading["Output"]


def test_options_without_effect_are_accepted(tmp_path: Path) -> None:
    """All commands can be called with the same options."""
    assert "27" in done("solve --stages 4 --batches 8 --mem-limit --waves 2").out
    (tmp_path / "steps.jsonl").write_text("[1, 2]\n")
    call = f"order {tmp_path / 'steps.jsonl'} --stages 2 --reference-tokens 1"
    assert done(f"{call} --batches 9 --fused --json --quiet").out == done(call).out != ""


@pytest.mark.parametrize("flag", ["--batches", "--fused", "--backward", "--json", "--quiet"])
def test_the_help_of_order_leaves_out_what_has_no_effect(flag: str) -> None:
    assert f" {flag} " not in done("order -h").out


@pytest.mark.parametrize(
    ("name", "proves"), [("solve", True), ("plan", True), ("eval", False), ("import", False)]
)
def test_details_name_a_proof_where_one_is_printed(name: str, *, proves: bool) -> None:
    text = " ".join(done(f"{name} -h").out.split())
    assert bool(re.search(r"exact figures(,| and) the proof", text)) is proves
    assert ("exact figures and a table of idle time by cause" in text) is not proves


@pytest.mark.parametrize("name", NAMES)
def test_every_help_states_defaults_in_one_form(name: str) -> None:
    """Numbers as users type them; workers are processors."""
    text = " ".join(done(f"{name} -h").out.split())
    assert not re.search(r"\[default: [0-9]+\.0\]", text)
    workers = re.search(r"--workers N ([^-;.]*)", text)
    assert workers is None or "processors" in workers[1].lower()
    assert "as the layers say" not in text


@pytest.fixture(scope="module")
def bash(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A bash with ppopt's completion; the words after it are completed."""
    assert shutil.which("bash")
    folder = tmp_path_factory.mktemp("bin")
    command = folder / "ppopt"
    command.write_text(f"#!{sys.executable}\nfrom ppopt.cli import main\nmain()\n")
    command.chmod(0o755)
    script = (
        f'PATH="{folder}:$PATH"; eval "$(ppopt --show-completion)"; '
        "words=$(complete -p ppopt); [[ $words =~ -F\\ ([^ ]+) ]] || exit 9; "
        'COMP_WORDS=(ppopt "$@"); COMP_CWORD=$#; "${BASH_REMATCH[1]}" ppopt; '
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    return ["bash", "--norc", "-c", script, "bash"]


COMPLETED = {
    "command": (["so"], ["solve"]),
    "option": (["solve", "--stor"], ["--storage"]),
    "strategy": (["eval", "zb-h"], ["zb-h1", "zb-h2"]),
    "every strategy": (["eval", ""], list(names())),
    "model": (["solve", "--model", "zerop"], ["zeropipe-example"]),
    "choice": (["solve", "--stages", "4", "--objective", "dev"], ["device-span"]),
    "after a bare limit": (["solve", "--mem-limit", "--back"], []),
}


@pytest.mark.parametrize(("typed", "expected"), COMPLETED.values(), ids=COMPLETED)
def test_completion(typed: list[str], expected: list[str]) -> None:
    """Called as the function of the shell does: by the words so far and the place of the last."""
    variables = {
        "_PPOPT_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join(["ppopt", *typed]),
        "COMP_CWORD": str(len(typed)),
    }
    ran = CliRunner().invoke(application(), [], prog_name="ppopt", env=variables)
    offered = ran.stdout.split()
    if expected:
        assert offered == expected
    else:
        assert "--backward-times" in offered
    assert ran.stderr == ""


@pytest.mark.parametrize("case", first(1, ["choice", "every strategy"]))
def test_completion_in_bash(case: str, bash: list[str], tmp_path: Path) -> None:
    typed, expected = COMPLETED[case]
    done = subprocess.run(
        [*bash, *typed], cwd=tmp_path, capture_output=True, text=True, check=True, env=os.environ
    )
    assert (done.stdout.split(), done.stderr) == (expected, "")


def test_an_option_of_no_parameter_is_an_error() -> None:
    def command(settings: int, shard: str = "1/1") -> int:
        return settings

    with pytest.raises(TypeError, match=r"command: options of no parameter: \['where'\]"):
        with_options(command, {"shard": option("I/N", "Rows."), "where": option("X", "Rows.")})
