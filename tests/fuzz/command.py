"""Run the command line as its user does: in a process of its own, in an empty folder."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

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
