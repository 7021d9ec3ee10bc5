"""Run the command line in tests: in this process, or in one of its own."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from typer.testing import CliRunner

from ppopt.cli.program import application

ENTRY = (sys.executable, "-c", "from ppopt.cli import main; main()")
"""What the installed script `ppopt` runs."""
HARD = (
    "--stages 8 --batches 64 --forward-times 10419 --backward-times 17922 --weight-times 7715 "
    "--p2p-time 408 --mem-limit 6"
)
"""A pipeline that ends far from proof after any time (4 % open after a minute): memory for fewer
microbatches than devices, and W shorter than what F and B wait for."""


class Ran(NamedTuple):
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one JSON object on stdout, read strictly."""
        assert self.err == ""
        return json.loads(self.out, parse_constant=_refuse)


def _refuse(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


def split_command(line: str) -> list[str]:
    """Split a command line as a shell does."""
    return shlex.split(line)


def run(line: str, *more: str | Path) -> Ran:
    """Run `ppopt LINE MORE...` in this process; a bug of ours is raised as it is."""
    result = CliRunner().invoke(application(), [*split_command(line), *map(str, more)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Ran(result.exit_code, result.stdout, result.stderr)


def done(line: str, *more: str | Path) -> Ran:
    """Run a command that must succeed."""
    ran = run(line, *more)
    assert ran.code == 0, ran.err
    return ran


def json_of(line: str, *more: str | Path) -> dict[str, Any]:
    """Run a command with --json that must succeed; the object on its stdout."""
    output = done(line, *more, "--json").json
    assert isinstance(output, dict)
    return output


def process(line: str, **options: Any) -> subprocess.Popen[str]:
    """Start `ppopt LINE` in a process of its own, its streams in pipes unless told otherwise."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    return subprocess.Popen(
        [*ENTRY, *split_command(line)], text=True, env=os.environ | {"COLUMNS": "100"}, **options
    )


def hears(process_id: int) -> bool:
    """Whether a process holds back or catches SIGTERM: its program has begun.

    Read from the kernel's record of the process, so Linux only.
    """
    try:
        lines = Path(f"/proc/{process_id}/status").read_text(encoding="ascii").splitlines()
    except FileNotFoundError:
        return False
    masks = [int(line.split()[1], 16) for line in lines if line[:7] in ("SigBlk:", "SigCgt:")]
    return any(mask >> (signal.SIGTERM - 1) & 1 for mask in masks)
