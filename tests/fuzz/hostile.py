"""Files that nobody sound would write: refused in one line, quickly, in little memory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from ppopt import Pipeline, evaluate
from tests.fuzz import command
from tests.fuzz.category import Case, Category, Finding
from tests.fuzz.command import KILLED, Ran

SECONDS = 20
"""Most seconds of the processor for a command; what it is asked takes well below one."""
SLOW = 8.0
"""Seconds of the processor from which a command is too slow."""
LONGEST = 2000
"""Characters of a line of error."""
LONGEST_OUTPUT = 10**6
"""Characters of output."""


@cache
def _schedule() -> str:
    """The text of a sound schedule file."""
    with command.folder() as where:
        evaluate(Pipeline(stages=2, batches=2, p2p=1), "1f1b").to_json(where / "a.json")
        return (where / "a.json").read_text(encoding="utf-8")


def judged(ran: Ran, where: Path, what: str, given: str) -> Iterator[Finding]:
    """Say what is wrong with how a command refused a file: quickly, in one line, with code 2.

    `given`: the file, the only one that may be there; exit code 5 is that of a schedule with a
    fault.
    """
    if ran.code in KILLED or ran.seconds > SLOW:
        yield Finding(f"{what}-slow", f"{ran.seconds:.0f} s; {ran.last}")
    elif ran.code not in (2, 5) or "Traceback" in ran.err:
        yield Finding(f"{what}-exit", ran.last)
    elif ran.code == 2:
        line = ran.err.removesuffix("\n")
        is_line = line.startswith("error: ") and "\n" not in line
        if not is_line or len(line) > LONGEST or ran.out:
            yield Finding(f"{what}-not-one-line", f"{len(ran.err)} characters: {ran.last}")
        left = sorted(path.name for path in where.iterdir() if path.name != given)
        if left:
            yield Finding(f"{what}-writes-though-refused", str(left))
    if len(ran.out) > LONGEST_OUTPUT:
        yield Finding(f"{what}-output-flood", f"{len(ran.out)} characters on stdout")


class Traps(Category):
    """Files that claim more than they hold, or write numbers as nobody does: always refused."""

    name = "traps"
    goal = 25
    tries = 0

    def draw(self, rng: Random) -> Case:
        """Draw a trap, a size for it, and a command."""
        trap = rng.choice(sorted(TRAPS))
        return {"trap": trap, "size": rng.choice((1, 3, 10)), "number": rng.randrange(100)}

    def check(self, case: Case) -> Iterator[Finding]:
        """Build the file, and run the command on it."""
        line, name, text = TRAPS[case["trap"]](case["size"], case["number"])
        with command.folder() as where:
            (where / name).write_text(text, encoding="utf-8", newline="")
            ran = command.forked(line.format(name).split(), where, SECONDS)
            for finding in judged(ran, where, line.split()[0], name):
                yield Finding(f"{case['trap']}-{finding.kind}", finding.words)


def _edited(**changes: Any) -> str:
    document = json.loads(_schedule())
    for key, value in changes.items():
        (document if key in document else document["pipeline"])[key] = value
    return json.dumps(document)


def _schedule_commands(number: int) -> str:
    return ("verify {} --json", "verify {}", "view {} -o out.html")[number % 3]


def _batches(size: int, number: int) -> tuple[str, str, str]:
    """Claim half a million microbatches for each unit of size, and hold two."""
    return _schedule_commands(number), "bad.json", _edited(batches=500_000 * size)


def _stages(size: int, number: int) -> tuple[str, str, str]:
    """Claim many stages on two devices."""
    count = 20_000 * size
    document = json.loads(_schedule())
    lists = {
        key: value[:1] * count
        for key, value in document["pipeline"].items()
        if isinstance(value, list) and len(value) == 2 and not isinstance(value[0], list)
    }
    placed = {"stages": count, "placement": [0, 1] * (count // 2), "placement_name": None}
    return _schedule_commands(number), "bad.json", _edited(**{**lists, **placed, "chunks": None})


def _number(size: int, number: int) -> tuple[str, str, str]:
    """Write a number in a form that no format has."""
    forms = ("1_0", "\u0661", "1__0", "0b1", "\uff11", "1,5", "1e", "--1")
    form = forms[number % len(forms)]
    keys = ("forward_times", "p2p_time", "activation")
    line = "solve --config {} --workers 1 --time-limit 1 --json -o out.json"
    text = f'stages: 2\nbatches: 2\n{keys[size % 3]}: "{form}"\n'
    return line, "bad.yaml", text


def _keys(size: int, number: int) -> tuple[str, str, str]:
    """Hold ten thousand unknown keys for each unit of size."""
    rows = "".join(f"forward_tims{i}: {i}\n" for i in range(10_000 * size))
    line = ("solve --config {} --workers 1 --json", "eval 1f1b --config {}")[number % 2]
    return line, "bad.yaml", f"stages: 2\nbatches: 2\n{rows}"


def _wide(size: int, number: int) -> tuple[str, str, str]:
    """Hold one order for PyTorch with a row of very many cells."""
    cells = ",".join(f"0F{i}" for i in range(100_000 * size))
    rows = [cells, "x" * 1000] if number % 2 else [cells]
    return "import {} --stages 2 --batches 2 -o out.json", "bad.csv", "\n".join(rows)


def _deep(size: int, number: int) -> tuple[str, str, str]:
    """Nest lists or objects very deeply."""
    depth = 10_000 * size
    text = "[" * depth if number % 2 else '{"a":' * depth
    return _schedule_commands(number), "bad.json", text


def _negative(size: int, number: int) -> tuple[str, str, str]:
    """State negative costs, or figures beyond what stays exact."""
    value = -size if number % 2 else 2**53 + size
    key = ("forward_times", "activation", "static")[number % 3]
    return _schedule_commands(number), "bad.json", _edited(**{key: [value, value]})


TRAPS = {
    "many-batches": _batches,
    "many-stages": _stages,
    "number-form": _number,
    "unknown-keys": _keys,
    "wide-order": _wide,
    "deep": _deep,
    "negative": _negative,
}


WORDS = (
    "batches=1,2",
    "batches=range(1,3)",
    "p2p_time=0.5,1e-3",
    "mem_limit=null,1f1b,80",
    "partition=[1,1],even",
    "name='a','b'",
    "strategy=optimal,1f1b",
)
"""Sound words of a sweep."""
HUGE = ("1e999999999", "-1e-999999999", "9" * 5000, "[" * 500 + "1" + "]" * 500, "-" * 990 + "1")
"""What is far too large or too deep."""
