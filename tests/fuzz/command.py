"""Run the command line as its user does: in a process of its own, in an empty folder."""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

ENTRY = (sys.executable, "-c", "from ppopt.cli import main; main()")
"""What the installed script `ppopt` runs."""
MEMORY = 3 * 2**30
"""Bytes of address space of a forked command: several times what a small file needs."""
PATIENCE = 110.0
"""Seconds after which a forked command is killed in any case."""
KILLED = (-signal.SIGKILL, -signal.SIGXCPU)
FORK = multiprocessing.get_context("forkserver")
"""Processes forked from a server that has loaded the product: they start in milliseconds."""
FORK.set_forkserver_preload(
    [
        "__main__",
        "ppopt.cli.commands",
        "ppopt.cli.exchange",
        "ppopt.solver.solve",
        "ppopt.report.html",
        "ortools.sat.python.cp_model",
    ]
)


class Ran(NamedTuple):
    """What a command left behind."""

    code: int
    """Exit code; negative: the signal that ended it."""
    out: str
    err: str
    seconds: float
    """Of the wall clock; of the processor for a forked command that was not killed."""

    @property
    def crashed(self) -> bool:
        """Whether it ended as bugs of ours end."""
        return self.code == 1 or "Traceback" in self.err

    @property
    def shown(self) -> Any:
        """The JSON on stdout; None if there is none."""
        try:
            return json.loads(self.out)
        except ValueError:
            return None

    @property
    def last(self) -> str:
        """Its exit code and the last line of stderr."""
        lines = self.err.strip().splitlines() or ["nothing on stderr"]
        return f"exit {self.code}: {lines[-1][:200]}"


@contextmanager
def folder() -> Iterator[Path]:
    """A folder for one case, gone at the end."""
    with TemporaryDirectory(prefix="ppopt-fuzz-") as name:
        yield Path(name)


def forked(words: Sequence[str], where: Path, seconds: int) -> Ran:
    """Run a command in a fork with limited memory; it is killed after so many of the processor."""
    with folder() as streams:
        process = FORK.Process(target=_command, args=(list(words), where, streams, seconds))
        process.start()
        process.join(PATIENCE)
        if process.exitcode is None:
            process.kill()
            process.join()
        out, err = (
            (streams / name).read_text(encoding="utf-8", errors="replace")
            if (streams / name).exists()
            else ""
            for name in ("out", "err")
        )
        used = streams / "seconds"
        spent = float(used.read_text()) if used.exists() else float(seconds)
    assert process.exitcode is not None
    return Ran(process.exitcode, out, err, spent)


def _command(words: list[str], where: Path, streams: Path, seconds: int) -> None:
    """Be the command: this process runs nothing else."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(streams / name, os.O_WRONLY | os.O_CREAT), number)
    sys.stdout, sys.stderr = (os.fdopen(n, "w", encoding="utf-8") for n in (1, 2))
    os.chdir(where)
    code = 1
    try:
        from ppopt.cli import main  # noqa: PLC0415  the server has loaded it

        main(words)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1 if end.code else 0
    except BaseException:
        traceback.print_exc()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    (streams / "seconds").write_text(str(time.process_time()))
    os._exit(code)


def started(words: Sequence[str], where: Path, **options: Any) -> subprocess.Popen[str]:
    """Start a command in a process of its own, which hears Ctrl-C also where this one does not."""
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
    before = options.pop("before", lambda: None)

    def prepare() -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        before()

    return subprocess.Popen(
        [*ENTRY, *words],
        cwd=where,
        text=True,
        preexec_fn=prepare,  # noqa: PLW1509  this process has one thread
        **(streams | options),
    )


def ended(process: subprocess.Popen[str], began: float, seconds: float = 60.0) -> Ran:
    """Wait for a command, and kill it after so many seconds."""
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
    return Ran(process.returncode, out or "", err or "", time.monotonic() - began)


def ran(words: Sequence[str], where: Path, **options: Any) -> Ran:
    """Run a command in a process of its own, to its end."""
    began = time.monotonic()
    return ended(started(words, where, **options), began)


def is_whole(path: Path) -> bool:
    """Whether an output file is complete, by its kind."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".json":
        try:
            return "ops" in json.loads(text)
        except ValueError:
            return False
    return text.rstrip().endswith("</html>") if path.suffix == ".html" else text.endswith("\n")
