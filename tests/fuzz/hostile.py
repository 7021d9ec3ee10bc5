"""Files that nobody sound would write: refused in one line, quickly, in little memory."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
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
CONFIG = "stages: 2\nbatches: 2\nforward_times: 1.5\nbackward_times: [2, 3]\np2p_time: 0.25\n"
TOKENS = (
    *("1e999", "-1", "NaN", "Infinity", "1_0", "\u0663", "null", "true", "1e-9", "0x10", "9" * 400),
    *("{}", "[]", '""', "[[[[", "- a", "&a", "*a", "!!python/object", "\\u0000"),
    *map(chr, (0, 1, 10, 34, 92, 127, 0x202E, 0xFEFF, 0x1F600)),
)
"""What is put into files."""
COMMANDS = {
    "schedule": (
        "verify {} --json",
        "verify {}",
        "view {} -o out.html",
        "export {} --to torch-csv -o out.csv",
        "export {} --to perfetto -o out.json",
        "solve --stages 2 --batches 2 --hint {} --workers 1 --time-limit 1",
    ),
    "config": (
        "solve --config {} --workers 1 --time-limit 1 --json -o out.json",
        "eval 1f1b --config {} --json -o out.json",
    ),
}


@cache
def _schedule() -> str:
    """The text of a sound schedule file."""
    with command.folder() as where:
        evaluate(Pipeline(stages=2, batches=2, p2p=1), "1f1b").to_json(where / "a.json")
        return (where / "a.json").read_text(encoding="utf-8")


class Hostile(Category):
    """Sound files, mutated as text."""

    name = "hostile"
    goal = 40
    tries = 60

    def draw(self, rng: Random) -> Case:
        """Draw a command, and mutate the file it reads."""
        kind = rng.choice(sorted(COMMANDS))
        text = _schedule() if kind == "schedule" else _config(rng)
        for _ in range(rng.randint(1, 3)):
            text = mutated(rng, text)
        suffix = ".json" if kind == "schedule" else rng.choice((".yaml", ".json", ".toml"))
        return {"line": rng.choice(COMMANDS[kind]), "name": f"bad{suffix}", "text": text}

    def check(self, case: Case) -> Iterator[Finding]:
        """Run the command on the file; what is still a sound file may pass."""
        with command.folder() as where:
            ran = _run(case, where)
            yield from judged(ran, where, case["line"].split()[0], given=[case["name"]])

    def smaller(self, case: Case) -> Iterator[Case]:
        """Yield the case with parts of the text left out."""
        text, size = case["text"], len(case["text"])
        for part in (2, 4, 8, 16):
            for start in range(0, size, size // part or 1):
                yield case | {"text": text[:start] + text[start + (size // part or 1) :]}


def _config(rng: Random) -> str:
    form = rng.randrange(3)
    if form == 0:
        return CONFIG
    if form == 1:
        return json.dumps({"stages": 2, "batches": 2, "forward_times": [1, 1.5]})
    return 'stages = 2\nbatches = 2\nforward_times = [1.5, 2]\nmem_limit = "1f1b"\n'


def mutated(rng: Random, text: str) -> str:
    """Cut, drop, repeat, insert, replace or shuffle."""
    numbers = [place for place, letter in enumerate(text) if letter.isdigit()] or [0]
    place, digit = rng.randrange(len(text) + 1), rng.choice(numbers)
    before, after = text[:place], text[place:]
    size, token = rng.choice((1, 2, 10, 50)), rng.choice(TOKENS)
    lines = text.splitlines(keepends=True)
    rng.shuffle(lines)
    variants = (
        before,
        before + after[size:],
        before + after[:size] * rng.choice((2, 30)) + after,
        before + token + after,
        text[:digit] + token + text[digit + 1 :],
        "".join(lines),
    )
    return rng.choice(variants)


def _run(case: Case, where: Any) -> Ran:
    (where / case["name"]).write_text(case["text"], encoding="utf-8", newline="")
    return command.forked(case["line"].format(case["name"]).split(), where, SECONDS)


def judged(
    ran: Ran,
    where: Path,
    what: str,
    *,
    given: Collection[str],
    accepted: Collection[int] = (0, 3, 4, 5),
) -> Iterator[Finding]:
    """Say what is wrong with how a command ended: what is refused is so quickly, in one line.

    `given`: files that were there before; `accepted`: exit codes besides 2, that of what is
    refused.
    """
    if ran.code in KILLED or ran.seconds > SLOW:
        yield Finding(f"{what}-slow", f"{ran.seconds:.0f} s; {ran.last}")
    elif ran.crashed or ran.code < 0:
        yield Finding(f"{what}-crash", ran.last)
    elif ran.code == 2:
        line = ran.err.removesuffix("\n")
        one = line.startswith("error: ") and "\n" not in line
        if not one or len(line) > LONGEST or ran.out:
            yield Finding(f"{what}-not-one-line", f"{len(ran.err)} characters: {ran.last}")
        left = sorted(path.name for path in where.iterdir() if path.name not in given)
        if left:
            yield Finding(f"{what}-writes-though-refused", str(left))
    elif ran.code not in accepted:
        yield Finding(f"{what}-exit", ran.last)
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
        made = {"line": line, "name": name, "text": text}
        with command.folder() as where:
            ran = _run(made, where)
            for finding in judged(ran, where, line.split()[0], given=[name], accepted=(5,)):
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
