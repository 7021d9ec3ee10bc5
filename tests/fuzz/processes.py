"""Runs that are killed, whose outputs cannot be written, or whose streams are closed."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random

from tests.fuzz import command
from tests.fuzz.category import Case, Category, Finding, SkippedError
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


SEARCH = {True: 30.0, False: 1.5}
"""Seconds of the search where the trouble can be seen before it, and where it cannot. The first is
far longer than a start on a busy machine."""


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
            heard = _hears(process.pid)
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


def _hears(number: int) -> bool:
    """Whether a process of this number holds SIGTERM back or handles it: `main` has begun.

    Read from the kernel's record of the process, so Linux only.
    """
    try:
        status = Path(f"/proc/{number}/status").read_text(encoding="ascii")
    except FileNotFoundError:
        return False
    masks = [line.split()[1] for line in status.splitlines() if line[:7] in ("SigBlk:", "SigCgt:")]
    return any(int(mask, 16) >> (signal.SIGTERM - 1) & 1 for mask in masks)


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


class Disks(Category):
    """An output that cannot be written, beside one that can."""

    name = "disks"
    goal = 60
    tries = 0

    def draw(self, rng: Random) -> Case:
        """Draw the trouble and which output comes first."""
        first = rng.random() < 0.5
        outputs = ["bad/a.json", "good.json"] if first else ["good.json", "bad/a.json"]
        if rng.random() < 0.3:
            outputs = [name.replace("a.json", "a.html") for name in outputs]
        trouble = rng.choice(sorted(TROUBLES))
        seconds = SEARCH[trouble in KNOWN_BEFORE]
        line = f"solve {HARD} --time-limit {seconds}"
        return {"trouble": trouble, "outputs": outputs, "line": line}

    def check(self, case: Case) -> Iterator[Finding]:
        """Run with the trouble, and look at what was saved."""
        trouble = TROUBLES[case["trouble"]]
        with command.folder() as where, trouble(where, case["outputs"]) as before:
            began = time.monotonic()
            process = command.started(words(case["line"], case["outputs"]), where, before=before)
            if case["trouble"] == "removed":
                time.sleep(1.2)
                _empty(where / "bad")
            ran = command.ended(process, began)
            yield from _judged(ran, where, case["trouble"])


def _judged(ran: Ran, where: Path, trouble: str) -> Iterator[Finding]:
    if ran.crashed:
        yield Finding(f"{trouble}-crash", ran.last)
        return
    bad = sorted((where / "bad").glob("a.*")) if trouble != "loop" else []
    written = [path.name for path in bad if path.is_file()]
    if ran.code == 0 and not written:
        yield Finding(f"{trouble}-exit-0", "an output is missing")
    if any(not command.is_whole(path) for path in bad if path.is_file()):
        yield Finding(f"{trouble}-broken-file", str(written))
    early = trouble in KNOWN_BEFORE
    if early and ran.seconds > SEARCH[True] and ran.code:
        yield Finding(f"{trouble}-found-late", f"after {ran.seconds:.1f} s; {ran.last}")
    if trouble == "removed" and "create it first" in ran.err:
        return  # it was gone before the search began
    if not early and ran.shown is None:
        yield Finding(f"{trouble}-result-lost", ran.last)
    if not early and trouble != "file-size" and not (where / "good.json").exists():
        yield Finding(f"{trouble}-healthy-output-missing", ran.last)
    if _hidden(where):
        yield Finding(f"{trouble}-temporary-left", str(_hidden(where)))


Before = Callable[[], None]


def _nothing() -> None:
    """Prepare nothing in the child."""


@contextmanager
def _full(where: Path, outputs: list[str]) -> Iterator[Before]:
    """A disk of 64 KiB, nearly full; needs root."""
    del outputs
    bad = where / "bad"
    bad.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "ppopt-fuzz", str(bad)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        raise SkippedError("no disk can be mounted here")
    try:
        (bad / "full").write_bytes(bytes(60 * 1024))
        yield _nothing
    finally:
        subprocess.run(["umount", str(bad)], check=True)


@contextmanager
def _file_size(where: Path, outputs: list[str]) -> Iterator[Before]:
    """No file above 4 KiB (`ulimit -f`)."""
    del outputs
    (where / "bad").mkdir()
    yield lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))


@contextmanager
def _removed(where: Path, outputs: list[str]) -> Iterator[Before]:
    """The folder is removed during the search."""
    del outputs
    (where / "bad").mkdir()
    yield _nothing


def _empty(bad: Path) -> None:
    for path in bad.iterdir():
        path.unlink()
    bad.rmdir()


@contextmanager
def _dangling(where: Path, outputs: list[str]) -> Iterator[Before]:
    """A link to a file in a folder that does not exist."""
    (where / "bad").mkdir()
    for name in outputs:
        if name.startswith("bad"):
            (where / name).symlink_to(where / "nowhere" / "a.json")
    yield _nothing


@contextmanager
def _loop(where: Path, outputs: list[str]) -> Iterator[Before]:
    """A link to itself."""
    (where / "bad").mkdir()
    for name in outputs:
        if name.startswith("bad"):
            (where / name).symlink_to(where / name)
    yield _nothing


@contextmanager
def _absent(where: Path, outputs: list[str]) -> Iterator[Before]:
    """There is no such folder."""
    del where, outputs
    yield _nothing


@contextmanager
def _file(where: Path, outputs: list[str]) -> Iterator[Before]:
    """The folder is a file."""
    del outputs
    (where / "bad").write_text("")
    yield _nothing


TROUBLES = {
    "full-disk": _full,
    "file-size": _file_size,
    "removed": _removed,
    "dangling": _dangling,
    "loop": _loop,
    "no-folder": _absent,
    "no-directory": _file,
}
KNOWN_BEFORE = ("dangling", "loop", "no-folder", "no-directory")
"""Troubles that can be seen before the search."""


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
