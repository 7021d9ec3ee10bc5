"""What is finished is not lost: outputs that fail, signals, killed runs, closed streams."""

from __future__ import annotations

import fcntl
import json
import os
import resource
import shlex
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ppopt.errors import InputError
from ppopt.formats import files
from ppopt.solver import solve as solving
from ppopt.studies import compare, frontier  # noqa: F401  bound before `solve` is replaced
from tests.cli.cli_run import ENTRY, HARD, process, run
from tests.cli.terminal import on_terminal, read_until
from tests.clock import HANGS
from tests.tiers import first, slow

SMALL = "--stages 2 --batches 2 --workers 1"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def never(*_: object, **__: object) -> None:
    raise AssertionError("the search began")


class TestBeforeTheSearch:
    """What can be known is one line before the search, and nothing is written."""

    @pytest.fixture(autouse=True)
    def no_search(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(solving, "solve", never)

    def refused(self, folder: Path, line: str, message: str) -> None:
        before = sorted(folder.rglob("*"))
        code, out, err = run(line)
        assert (code, out) == (2, "")
        assert err.startswith("error: ") and message in err
        assert err.count("\n") == 1
        assert sorted(folder.rglob("*")) == before

    @pytest.mark.parametrize("size", ["--slices 2", "--routes 2"])
    def test_a_format_that_cannot_express_the_pipeline(self, size: str, folder: Path) -> None:
        self.refused(folder, f"solve {SMALL} {size} -o a.json -o a.csv", "torch csv: ")

    def test_a_format_that_cannot_express_the_strategy(self, folder: Path) -> None:
        self.refused(folder, f"eval seq-1f1b {SMALL} -o a.json -o a.csv", "knows no slices")

    def test_a_link_to_itself(self, folder: Path) -> None:
        (folder / "loop.json").symlink_to(folder / "loop.json")
        self.refused(folder, f"solve {SMALL} -o loop.json", "symbolic links")

    def test_a_link_into_no_folder(self, folder: Path) -> None:
        (folder / "link.json").symlink_to(folder / "nowhere" / "a.json")
        self.refused(folder, f"solve {SMALL} -o link.json", "nowhere does not exist")


def test_a_link_to_a_file_that_is_not_there_yet(folder: Path) -> None:
    (folder / "real").mkdir()
    (folder / "link.json").symlink_to(folder / "real" / "a.json")
    assert run(f"eval 1f1b {SMALL} -o link.json").code == 0
    assert (folder / "link.json").is_symlink()
    assert "ops" in json.loads((folder / "real" / "a.json").read_text())


class TestAfterTheSearch:
    """An output that fails takes nothing else with it."""

    @pytest.mark.parametrize(
        "line", [f"solve {SMALL}", f"eval 1f1b {SMALL}", "compare --stages 2 --batches 2"]
    )
    def test_the_other_outputs_and_the_json_are_there(
        self, line: str, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write = files.write

        def full(path: Path, text: str) -> None:
            if path.name == "bad.json":
                raise InputError(f"output: {path}: No space left on device; choose another place")
            write(path, text)

        monkeypatch.setattr("ppopt.cli.output.write", full)
        ran = run(f"{line} --json -o a.json -o bad.json -o b.html")
        assert ran.code == 7
        assert json.loads(ran.out)["schema"] == 1
        assert ran.err.startswith("error: output: bad.json: No space left")
        assert ran.err.count("\n") == 1
        assert {path.name for path in folder.iterdir()} == {"a.json", "b.html"}
        table = run(f"{line} -o bad.json")
        assert table.code == 7
        assert len(table.out) > 100

    def test_a_limit_of_file_sizes(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")  # Python would cut compiled modules off

        def limit() -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))

        line = "eval 1f1b --stages 4 --batches 8 --json -o a.svg -o b.json"
        ran = process(line, preexec_fn=limit)
        out, err = ran.communicate(timeout=HANGS)
        assert ran.returncode == 7
        assert json.loads(out)["status"] == "feasible"
        path = folder / "a.svg"
        assert err == f"error: output: {path}: File too large; choose another place\n"
        assert [path.name for path in folder.iterdir()] == ["b.json"]

    def test_a_folder_removed_meanwhile(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (folder / "gone").mkdir()
        solve = solving.solve

        def removing(*args: Any, **options: Any) -> object:
            result = solve(*args, **options)
            (folder / "gone").rmdir()
            return result

        monkeypatch.setattr(solving, "solve", removing)
        ran = run(f"solve {SMALL} --json -o gone/a.json -o here.json")
        assert (ran.code, ran.err.count("\n")) == (7, 1)
        assert json.loads(ran.out)["status"] == "optimal"
        assert (folder / "here.json").exists()


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


PRESS = "press = lambda *_: os.kill(os.getpid(), signal.SIGINT); "


class TestSignals:
    @pytest.mark.parametrize("signal_number", [signal.SIGTERM, slow(signal.SIGHUP)])
    def test_a_request_to_end_is_as_ctrl_c(self, signal_number: int, folder: Path) -> None:
        search, terminal = on_terminal(f"solve {HARD} --json --time-limit 600 -o a.json")
        read_until(terminal, r"best [\d.]+, gap \d")
        search.send_signal(signal_number)
        read_until(terminal, None)
        out, _ = search.communicate(timeout=HANGS)
        assert search.returncode == 0
        output = json.loads(out)
        assert (output["status"], output["verified"]) == ("feasible", True)
        assert json.loads((folder / "a.json").read_text())["ops"]

    @pytest.mark.slow
    def test_the_table_says_that_it_stopped_early(self) -> None:
        search, terminal = on_terminal(f"solve {HARD} --time-limit 600")
        read_until(terminal, r"best [\d.]+, gap \d")
        search.send_signal(signal.SIGTERM)
        read_until(terminal, None)
        out, _ = search.communicate(timeout=HANGS)
        assert search.returncode == 0
        assert "stopped early" in out

    def test_nohup_stays_ignored(self) -> None:
        code = (
            "import os, signal; signal.signal(signal.SIGHUP, signal.SIG_IGN); "
            "from ppopt.cli import main, settings; old = settings.Settings.pipeline; "
            "hang = lambda self: (os.kill(os.getpid(), signal.SIGHUP), old(self))[1]; "
            f"settings.Settings.pipeline = hang; main({['eval', '1f1b', *shlex.split(SMALL)]})"
        )
        assert python(code).returncode == 0

    @pytest.mark.parametrize("command", first(1, ["eval 1f1b", "solve", "frontier", "compare"]))
    def test_ctrl_c_while_files_are_written(self, command: str, folder: Path) -> None:
        """Twice, at every file."""
        line = f"{command} {SMALL} --json -o a.json -o b.html -o c.json"
        code = (
            f"import os, signal; {PRESS}from ppopt.cli import main; "
            "from pathlib import Path; old = Path.replace; "
            "Path.replace = lambda *names: (press(), press(), old(*names))[2]; "
            f"main({shlex.split(line)})"
        )
        ran = python(code)
        assert (ran.returncode, ran.stderr) == (0, "")
        assert json.loads(ran.stdout)["schema"] == 1
        assert {path.name for path in folder.iterdir()} == {"a.json", "b.html", "c.json"}

    @pytest.mark.parametrize(
        "where", ["ppopt.solver.solve.checked_options", "ppopt.cli.output.show_result"]
    )
    def test_ctrl_c_around_a_search(self, where: str) -> None:
        """Before it begins, and after it has ended: JSON in any case."""
        module, name = where.rsplit(".", 1)
        code = (
            f"import os, signal; {PRESS}from ppopt.cli import main; import {module} as at; "
            f"old = at.{name}; at.{name} = lambda *a, **b: (press(), old(*a, **b))[1]; "
            f"main({['solve', *shlex.split(SMALL), '--json']})"
        )
        ran = python(code)
        output = json.loads(ran.stdout)
        assert ran.stderr == ""
        assert ran.returncode == {"unknown": 4, "optimal": 0}[output["status"]]
        assert (output["status"] == "optimal") == (name == "show_result")

    @pytest.mark.parametrize("command", first(1, ["eval 1f1b", "solve", "compare", "frontier"]))
    def test_before_there_is_a_result_there_is_json(self, command: str) -> None:
        code = (
            f"import os, signal; {PRESS}from ppopt.cli import main, settings; "
            "settings.Settings.pipeline = press; "
            f"main({[*command.split(), *shlex.split(SMALL), '--json']})"
        )
        ran = python(code)
        assert ran.returncode == 4
        assert ran.stderr == "error: interrupted before there was a result\n"
        output = json.loads(ran.stdout)
        assert (output["schema"], output["status"], output["schedule"]) == (1, "unknown", None)

    def test_ctrl_c_after_the_result_is_printed_changes_nothing(self) -> None:
        code = (
            "import os, signal\n"
            "from ppopt.cli import main\n"
            "from ppopt.cli.application import Group\n"
            "old = Group.main\n"
            "def pressed(*args, **named):\n"
            "    try:\n"
            "        old(*args, **named)\n"
            "    finally:\n"
            "        os.kill(os.getpid(), signal.SIGINT)\n"
            "Group.main = pressed\n"
            f"main({['eval', '1f1b', *shlex.split(SMALL), '--json']})\n"
        )
        ran = python(code)
        assert (ran.returncode, ran.stderr) == (0, "")
        assert json.loads(ran.stdout)["status"] == "feasible"

    def test_random_times_are_given_up_and_the_schedule_is_kept(self, folder: Path) -> None:
        code = (
            f"import os, signal; {PRESS}from ppopt.cli import main; "
            "from ppopt.studies import robustness; old = robustness.jitter; "
            "robustness.jitter = lambda *a, **b: (press(), old(*a, **b))[1]; "
            f"main({['eval', '1f1b', *shlex.split(SMALL), '--jitter', '0.1', '-o', 'a.json']})"
        )
        ran = python(code)
        assert (ran.returncode, ran.stderr) == (0, "")
        assert "makespan" in ran.stdout
        assert (folder / "a.json").exists()

    @pytest.mark.parametrize(
        ("signal_number", "module"),
        [
            *((signal.SIGINT, name) for name in ("ppopt.interrupts", "typer")),
            *((signal.SIGTERM, "ppopt.cli.program"), (signal.SIGHUP, "threading")),
            *(slow(signal.SIGINT, name) for name in ("ppopt.solver", "ppopt.cli.streams", "rich")),
            *(slow(signal.SIGTERM, name) for name in ("ppopt.solver", "json")),
        ],
    )
    def test_while_modules_are_loaded_it_is_one_line(
        self, signal_number: signal.Signals, module: str
    ) -> None:
        """From the first line of `main` on."""
        code = (
            "import os, sys\n"
            f"left = [{module!r}]\n"
            "class Finder:\n"
            "    def find_spec(name, *_):\n"
            "        if name in left:\n"
            "            left.clear()\n"
            f"            os.kill(os.getpid(), {int(signal_number)})\n"
            "sys.meta_path.insert(0, Finder)\n"
            "from ppopt.cli import main\n"
            f"main({['solve', *shlex.split(SMALL), '--json']})\n"
        )
        ran = python(code)
        assert ran.returncode == 4
        assert ran.stderr == "error: interrupted before there was a result\n"
        assert json.loads(ran.stdout)["status"] == "unknown"

    def test_nothing_but_python_itself_comes_before(self) -> None:
        """The script that pip installs imports `re` and `sys`, and then `main`."""
        code = (
            "import re, sys; before = set(sys.modules); "
            "from ppopt.cli import main; print(*sorted(set(sys.modules) - before))"
        )
        assert python(code).stdout == "ppopt ppopt.cli signal\n"

    @pytest.mark.parametrize("unbuffered", ["", "1"])
    def test_a_signal_while_a_full_pipe_is_written_to_cuts_nothing_off(
        self, unbuffered: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A reader that is slow, and more JSON than a pipe holds."""
        monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
        ran = process("eval 1f1b --stages 8 --batches 256 --json")
        assert ran.stdout is not None
        size = 0
        while size < 2**16:
            assert ran.poll() is None
            read = fcntl.ioctl(ran.stdout.fileno(), termios.FIONREAD, bytes(4))
            size = int.from_bytes(read, sys.byteorder)
            time.sleep(0.01)
        ran.send_signal(signal.SIGTERM)
        time.sleep(0.1)
        out, err = ran.communicate(timeout=HANGS)
        assert (ran.returncode, err) == (0, "")
        assert json.loads(out)["verified"] is True


class TestTemporaryFiles:
    def test_a_killed_process_leaves_nothing_behind_for_long(self, folder: Path) -> None:
        code = (
            "import os, signal; from pathlib import Path; from ppopt.formats.files import write; "
            "Path.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL); "
            "write(Path('a.json'), 'x')"
        )
        assert python(code).returncode == -signal.SIGKILL
        (left,) = folder.iterdir()
        assert left.name.startswith(".a.json.")
        files.write(folder / "other.json", "{}")
        assert [path.name for path in folder.iterdir()] == ["other.json"]

    def test_one_of_a_process_that_lives_stays(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        replace = Path.replace

        def slow(path: Path, target: Path) -> Path:
            monkeypatch.undo()
            files.write(folder / "b.json", "second")
            return replace(path, target)

        monkeypatch.setattr(Path, "replace", slow)
        files.write(folder / "a.json", "first")
        assert (folder / "a.json").read_text() == "first"
        assert {path.name for path in folder.iterdir()} == {"a.json", "b.json"}

    def test_files_of_others_stay(self, folder: Path) -> None:
        foreign = {".a.json.abcdefgh", "a.json.abcdefgh.ppopt-part", ".hidden"}
        for name in foreign:
            (folder / name).write_text("")
        files.write(folder / "a.json", "{}")
        assert {path.name for path in folder.iterdir()} == {"a.json", *foreign}

    def test_a_failed_write_leaves_none(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(Path, "replace", fail)
        with pytest.raises(KeyboardInterrupt):
            files.write(folder / "a.json", "{}")
        assert list(folder.iterdir()) == []


def closing(*numbers: int) -> Callable[[], None]:
    def close() -> None:
        for descriptor in numbers:
            os.close(descriptor)

    return close


class TestStreams:
    LINES = (
        f"eval 1f1b {SMALL} --json -o a.json -o a.svg",
        f"solve {SMALL} --json -o a.json",
        f"compare {SMALL}",
        "strategies",
    )

    @pytest.mark.parametrize("line", first(1, LINES))
    @pytest.mark.parametrize("closed", [(2,), (1,), (0, 1, 2)])
    def test_closed(self, line: str, closed: tuple[int, ...], folder: Path) -> None:
        ran = subprocess.run(
            [*ENTRY, *shlex.split(line)],
            stdout=None if 1 in closed else subprocess.PIPE,
            stderr=None if 2 in closed else subprocess.PIPE,
            text=True,
            preexec_fn=closing(*closed),
            check=False,
        )
        assert ran.returncode == 0
        assert (ran.stderr or "") == ""
        if "--json" in line and 1 not in closed:
            assert json.loads(ran.stdout)["verified"] is True
        if "-o" in line:
            assert json.loads((folder / "a.json").read_text())["ops"]
            assert "a.svg" not in line or (folder / "a.svg").read_text().startswith("<svg")

    @pytest.mark.parametrize("line", ["eval 1f1b --stages 2 --batches 2 -o a.svg --json"])
    def test_a_full_stderr_loses_notes_only(self, line: str) -> None:
        with Path("/dev/full").open("w") as full:
            ran = process(line, stderr=full)
            out, _ = ran.communicate(timeout=HANGS)
        assert ran.returncode == 0
        assert json.loads(out)["schedule"]

    def test_an_error_keeps_its_exit_code(self) -> None:
        with Path("/dev/full").open("w") as full:
            ran = process("verify none.json", stderr=full)
            assert ran.communicate(timeout=HANGS)[0] == ""
        assert ran.returncode == 2
