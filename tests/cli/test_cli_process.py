"""The command line in a process of its own: what it loads, Ctrl-C, closed pipes, terminals."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ppopt.cli import progress
from ppopt.solver.result import Progress
from tests.cli.cli_json import OF_SOLVE, assert_types
from tests.cli.cli_run import ENTRY, HARD, process
from tests.cli.terminal import on_terminal, read_until
from tests.clock import HANGS
from tests.tiers import first, slow

HEAVY = ("ortools", "numpy", "plotly", "pandas", "torch")
SMALL = "--stages 4 --batches 8"


class TestLaziness:
    @pytest.mark.parametrize("line", first(2, ["--help", "solve -h", "", "-V"]))
    def test_help_loads_nothing_heavy(self, line: str) -> None:
        assert loaded(f"from ppopt.cli import main; main({line.split()!r})") == set()

    def test_import_loads_nothing_heavy(self) -> None:
        assert loaded("import ppopt; import ppopt.cli; import ppopt.cli.commands") == set()

    def test_a_page_is_what_loads_plotly(self, tmp_path: Path) -> None:
        """The check itself sees what is loaded."""
        command = f"['eval', '1f1b', '--stages', '2', '--batches', '2', '-o', '{tmp_path}/a.html']"
        assert loaded(f"from ppopt.cli import main; main({command})") >= {"numpy", "plotly"}

    def test_a_search_that_list_scheduling_ends_loads_no_solver(self) -> None:
        """4 x 8 within the memory of 1F1B: its first schedules take as long as its bound."""
        command = "['solve', '--stages', '4', '--batches', '8', '--mem-limit']"
        assert "ortools" not in loaded(f"from ppopt.cli import main; main({command})")


def loaded(code: str) -> set[str]:
    """The heavy libraries that a piece of code loads in a fresh process."""
    tell = "import atexit, sys; atexit.register(lambda: print(*sys.modules, file=sys.stderr)); "
    ran = python(tell + code)
    assert ran.returncode == 0, ran.stderr
    return set(HEAVY) & set(ran.stderr.split())


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_python_runs_the_package_as_the_command() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "ppopt", "eval", "no-such-strategy", "--stages", "4"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 2
    assert ran.stdout == ""
    assert ran.stderr.startswith("error: strategy: 'no-such-strategy' is unknown")


class TestCtrlC:
    @pytest.mark.slow
    def test_the_best_so_far_is_kept(self, tmp_path: Path) -> None:
        path = tmp_path / "best.json"
        search, terminal = on_terminal(f"solve {HARD} --json --time-limit 600 -o {path}")
        read_until(terminal, r"best [\d.]+, gap \d")
        search.send_signal(signal.SIGINT)
        read_until(terminal, None)
        out, _ = search.communicate(timeout=HANGS)
        assert search.returncode == 0
        output = json.loads(out)
        assert_types(output, OF_SOLVE)
        assert output["status"] == "feasible"
        assert output["value"] > output["lower_bound"]
        assert json.loads(path.read_text())["claims"]["makespan"] == output["value"]

    def test_while_commands_are_loaded_it_is_one_line(self) -> None:
        code = (
            "import os, signal, sys; from ppopt.cli import main; "
            "find = lambda *_: os.kill(os.getpid(), signal.SIGINT); "
            "sys.meta_path.insert(0, type('Finder', (), {'find_spec': find})); "
            "main(['strategies'])"
        )
        ran = python(code)
        assert (ran.returncode, ran.stdout) == (4, "")
        assert ran.stderr == "error: interrupted before there was a result\n"

    @pytest.mark.slow
    def test_before_the_search_it_is_one_line(self) -> None:
        code = (
            "import os, signal; from ppopt.cli import commands, main, settings; "
            "settings.Settings.pipeline = lambda _: os.kill(os.getpid(), signal.SIGINT); "
            f"main({['solve', *SMALL.split()]})"
        )
        ran = python(code)
        assert (ran.returncode, ran.stdout) == (4, "")
        assert ran.stderr == "error: interrupted before there was a result\n"


@pytest.mark.slow
def test_the_time_limit_is_kept() -> None:
    """It ends long before a proof would. No progress: stderr is no terminal."""
    out, err = process(f"solve {HARD} --json --time-limit 2").communicate(timeout=HANGS)
    assert err == ""
    output = json.loads(out)
    assert output["status"] in ("feasible", "optimal")


class TestClosedPipes:
    @pytest.mark.parametrize(
        "line",
        [
            *(f"eval 1f1b {SMALL}", f"eval 1f1b {SMALL} --json", "--help"),
            *map(slow, (f"solve {SMALL} --details", f"solve {SMALL} --json", "models")),
        ],
    )
    def test_nobody_reads(self, line: str) -> None:
        command = process(line)
        assert command.stderr is not None
        command.stdout.close()
        with command.stderr:
            assert command.stderr.read() == ""
        assert command.wait(timeout=HANGS) == 0

    def test_files_are_written_all_the_same(self, tmp_path: Path) -> None:
        path = tmp_path / "a.json"
        command = f"{shlex.join(ENTRY)} eval 1f1b {SMALL} --json -o {path} | head -c 0"
        ran = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)
        assert (ran.stdout, ran.stderr) == ("", "")
        assert json.loads(path.read_text())["claims"]["makespan"] == 33

    @pytest.mark.parametrize(
        "line", first(1, [f"eval 1f1b {SMALL} --json", f"solve {SMALL}", "models"])
    )
    def test_a_full_disk_is_one_line(self, line: str) -> None:
        with Path("/dev/full").open("w") as full:
            command = process(line, stdout=full)
            _, err = command.communicate(timeout=HANGS)
        assert command.returncode == 2
        assert err == "error: standard output: No space left on device\n"


class TestTerminal:
    def test_progress_is_shown_on_a_terminal_until_ctrl_c(self) -> None:
        search, terminal = on_terminal(f"solve {HARD} --json --time-limit 600")
        seen = read_until(terminal, r"best [\d.]+, gap \d")
        search.send_signal(signal.SIGINT)
        seen += read_until(terminal, None)
        out, _ = search.communicate(timeout=HANGS)
        assert search.returncode == 0
        assert json.loads(out)["status"] == "feasible"
        assert re.search(r"\d of 600 s  best [\d.]+, gap [\d.]+ %  .*Ctrl-C keeps the best", seen)
        assert "\n" not in seen
        assert seen.endswith("\r")
        assert seen.split("\r")[-2].strip() == ""

    @pytest.mark.slow
    def test_quiet(self) -> None:
        search, terminal = on_terminal(f"solve {HARD} --quiet --time-limit 1.5")
        assert read_until(terminal, None) == ""
        assert search.communicate(timeout=HANGS) == ("", None)
        assert search.returncode == 0


def test_progress_stays_on_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line that wraps could not be rewritten in place: a part that has no room is left out."""
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(progress, "AFTER", 0.0)
    line = progress._Line(60)
    state = Progress(0, "method " * 9, 41, 38, per_unit=2)
    line.update(state)
    line.draw()
    assert capsys.readouterr().err.split("\r")[1] == "    0 of 60 s  best 20.5, gap 7.4 %"
    line.update(state._replace(phase="cuts", value_ticks=None))
    line.draw()
    second_line = capsys.readouterr().err.split("\r")[1]
    assert second_line.rstrip() == "    0 of 60 s  nothing found yet  cuts"
