"""Runs that are killed, or whose streams are closed."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

from tests.cli.cli_run import hears
from tests.fuzz import command
from tests.fuzz.category import Case, Category, Finding
from tests.fuzz.command import Ran

SMALL = "--stages 3 --batches 6 --workers 1"
SMALLER = "--stages 2 --batches 2 --workers 1"
HARD = (
    "--stages 8 --batches 64 --forward-times 10419 --backward-times 17922 --weight-times 7715 "
    "--p2p-time 408 --mem-limit 6 --workers 1"
)
"""A search that is far from proof after any time."""
TWO = HARD.replace("--workers 1", "--workers 2 --placement v --chunks 2")
"""The same in two processes."""
WAYS = (
    f"solve {SMALL}",
    f"solve {HARD} --time-limit 0.5",
    f"solve {HARD} --time-limit 1",
    f"solve {TWO} --time-limit 1",
    f"eval 1f1b {SMALL}",
)
OUTPUTS: tuple[list[str], ...] = (
    ["a.json"],
    ["a.json", "b.html"],
    ["a.html", "b.json", "c.csv"],
    [],
)


def words(line: str, outputs: list[str]) -> list[str]:
    """The words of a command that prints JSON and writes files."""
    return [*line.split(), "--json", *(word for name in outputs for word in ("-o", name))]


def expired(limit: float) -> float:
    """When to give up waiting, on the clock of `time.monotonic`."""
    return time.monotonic() + limit


class Killed(Category):
    """A signal, or two, at a random moment or while a file is written."""

    name = "killed"
    goal = 560
    tries = 0

    def draw(self, rng: Random) -> Case:
        """Draw a command, its outputs, the signals, when they come, and to whom.

        A terminal sends Ctrl-C to a group of processes, `timeout` sends SIGTERM to one.
        """
        at_write = rng.random() < 0.4
        return {
            "line": rng.choice(WAYS),
            "outputs": rng.choice(OUTPUTS[:-1] if at_write else OUTPUTS),
            "signals": rng.choice(("KILL", "TERM", "TERM", "INT", "INT", "HUP", "INT INT")),
            "after": None if at_write else round(rng.choice((0.3, 1, 2)) * rng.random(), 3),
            "apart": round(0.2 * rng.random(), 3),
            "group": rng.random() < 0.5,
            "unbuffered": rng.choice(("", "1")),
        }

    def check(self, case: Case) -> Iterator[Finding]:
        """Start it, send the signals, and look at what is left."""
        with command.folder() as where:
            began = time.monotonic()
            process = command.started(
                words(case["line"], case["outputs"]),
                where,
                start_new_session=True,
                env=os.environ | {"PYTHONUNBUFFERED": case["unbuffered"]},
            )
            send = os.killpg if case["group"] else os.kill
            _moment(process, where, case["after"])
            heard = hears(process.pid)
            for name in case["signals"].split():
                if process.poll() is None:
                    send(process.pid, getattr(signal, f"SIG{name}"))
                time.sleep(case["apart"] if " " in case["signals"] else 0)
            ran = command.ended(process, began)
            yield from _whole(where, case)
            if case["signals"] == "KILL":
                yield from _after_kill(where, case)
            else:
                yield from _after_signal(ran, where, case, heard=heard)


def _moment(process: subprocess.Popen[str], where: Path, after: float | None) -> None:
    """Wait for a moment after the start, or until something is in the folder."""
    until = expired(20.0 if after is None else after)
    while process.poll() is None and time.monotonic() < until:
        if after is None and any(where.iterdir()):
            return
        time.sleep(0.0005)


def _whole(where: Path, case: Case) -> Iterator[Finding]:
    for name in case["outputs"]:
        path = where / name
        if path.exists() and not command.is_whole(path):
            yield Finding("broken-file", f"{name} of {path.stat().st_size} bytes")


def _after_kill(where: Path, case: Case) -> Iterator[Finding]:
    """Nothing may be in the way of the next run; it clears away what a dead process left."""
    again = command.ran(words(f"eval 1f1b {SMALL}", case["outputs"]), where)
    if again.code:
        yield Finding("next-run-fails", again.last)
    left = _hidden(where)
    if left:
        yield Finding("temporary-stays-after-kill", f"{left} after a further run")


def _hidden(where: Path) -> list[str]:
    return sorted(path.name for path in where.iterdir() if path.name.startswith("."))


def _after_signal(ran: Ran, where: Path, case: Case, *, heard: bool) -> Iterator[Finding]:
    names = case["signals"].replace(" ", "-").lower()
    if not heard and not ran.out and (ran.code < 0 or ran.code == 1):
        return  # Python was still starting (1: in its `site`): the first line of `main` had not run
    if "Traceback" in ran.err or ran.code == 1:
        yield Finding(f"traceback-after-{names}", ran.last)
    elif ran.code < 0:
        yield Finding(f"dies-of-{names}", f"{ran.last}, {len(ran.out)} characters on stdout")
    elif ran.code not in (0, 4):
        yield Finding(f"exit-{ran.code}-after-{names}", ran.last)
    elif ran.shown is None:
        yield Finding(f"exit-{ran.code}-without-json", f"after {names}; {ran.last}")
    elif ran.code == 0:
        missing = [name for name in case["outputs"] if not (where / name).exists()]
        if missing:
            yield Finding("output-missing", f"{missing} after {names}")
    if _hidden(where):
        yield Finding(f"temporary-left-after-{names}", str(_hidden(where)))


class ClosedStreams(Category):
    """Closed standard streams, full ones, and readers that go away."""

    name = "closed-streams"
    goal = 40
    tries = 0

    def draw(self, rng: Random) -> Case:
        """Draw a command and what becomes of each stream."""
        line = rng.choice(
            (f"solve {SMALL} --json -o a.json", f"solve {SMALL}", f"eval zb-1p {SMALL} -o a.json",
             f"compare {SMALLER}", f"frontier {SMALLER}", "strategies", "models",
             "verify none.json")
        )  # fmt: skip
        fates = [rng.choice(("open", "open", "closed", "full")) for _ in range(3)]
        return {
            "line": line,
            "streams": dict(zip(("stdin", "stdout", "stderr"), fates, strict=True)),
        }

    def check(self, case: Case) -> Iterator[Finding]:
        """Run it; it ends as always, or says that a stream cannot be written."""
        closed = [i for i, fate in enumerate(case["streams"].values()) if fate == "closed"]
        with command.folder() as where, Path("/dev/full").open("w", encoding="utf-8") as full:
            options = {name: full for name, fate in case["streams"].items() if fate == "full"}

            def close() -> None:
                for number in closed:
                    with suppress(OSError):
                        os.close(number)

            ran = command.ran(case["line"].split(), where, before=close, **options)
            wanted = (2,) if "verify" in case["line"] else (0, 2)
            fate = case["streams"]["stderr"]
            if ran.crashed or ran.code not in wanted:
                yield Finding(f"exit-{ran.code}-stderr-{fate}", f"{case['line']}: {ran.last}")
            elif ran.code == 0 and "-o" in case["line"] and not (where / "a.json").exists():
                yield Finding("output-missing", case["line"])
