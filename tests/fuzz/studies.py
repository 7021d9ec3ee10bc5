"""Sweeps of hostile words, damaged storages, and studies of large models at short limits."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import cache
from random import Random
from typing import Any

import ppopt
from benchmarks.record import processor_clock
from tests.factories.sweeps import (
    NAME,
    Damage,
    bad_values,
    columns,
    complaints,
    done,
    flipped,
    inflict,
    small_grid,
)
from tests.fuzz import command
from tests.fuzz.category import Case, Category, Finding, SkippedError
from tests.fuzz.hostile import SECONDS, TOKENS, judged, mutated

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


class SweepWords(Category):
    """Words of a sweep, mutated as text: refused in one line, or done."""

    name = "sweep-words"
    goal = 60
    tries = 60

    def draw(self, rng: Random) -> Case:
        """Draw a word, and damage it."""
        word = rng.choice(WORDS)
        for _ in range(rng.randint(1, 2)):
            word = _damaged(rng, word)
        return {"word": word}

    def check(self, case: Case) -> Iterator[Finding]:
        """Run the sweep with little memory and time."""
        if "\0" in case["word"]:
            raise SkippedError("no word of a command holds this")
        line = ["sweep", "--stages", "2", "--batches", "2", "--jobs", "1", "--time-limit", "1"]
        words = [*line, "--json", "--", case["word"]]
        with command.folder() as where:
            ran = command.forked(words, where, SECONDS)
            yield from judged(ran, where, "sweep", given=(), accepted=(0, 7))

    def smaller(self, case: Case) -> Iterator[Case]:
        """Yield the case with parts of a text left out."""
        text, size = case["word"], len(case["word"])
        for part in (2, 4, 8, 16):
            for start in range(0, size, size // part or 1):
                yield {"word": text[:start] + text[start + (size // part or 1) :]}


def _damaged(rng: Random, text: str) -> str:
    """Replace a value by a huge one, or mutate the text."""
    if rng.random() < 0.4:
        return mutated(rng, text)
    token = rng.choice(rng.choice((HUGE, TOKENS)))
    head, equals, values = text.partition("=")
    return f"{head}{equals}{token}" if rng.random() < 0.7 else f"{head}{equals}{values},{token}"


@cache
def _sound() -> bytes:
    """The file of a sound storage."""
    with command.folder() as where:
        path = where / "sound.db"
        done(small_grid(), f"sqlite:///{path}", study_name=NAME)
        return path.read_bytes()


@cache
def _columns() -> list[tuple[str, str]]:
    with command.folder() as where:
        (where / "sound.db").write_bytes(_sound())
        return columns(where / "sound.db")


class Storages(Category):
    """Storages of which a value or some bytes are damaged, and all that reads them."""

    name = "storages"
    goal = 400
    tries = 0

    def draw(self, rng: Random) -> Case:
        """Draw a value of a column, or bytes of the file."""
        if rng.random() < 0.4:
            return {"flips": rng.randrange(10**6)}
        table, column = rng.choice(_columns())
        value = rng.choice(bad_values(column))
        return {"damage": [table, column, rng.randrange(6), repr(value)]}

    def check(self, case: Case) -> Iterator[Finding]:
        """Damage a copy, and let everything read it."""
        with command.folder() as where:
            path = where / "damaged.db"
            path.write_bytes(_sound())
            if "flips" in case:
                path.write_bytes(flipped(Random(case["flips"]), _sound()))
                name = "bytes"
            else:
                table, column, row, value = case["damage"]
                name = f"{table}.{column}"
                if not inflict(path, Damage(table, column, row, _read(value))):
                    raise SkippedError("SQLite does not take this value")
            for words in complaints(path, made_again=name.startswith("results.")):
                yield Finding(f"{name}-{words.partition(':')[0]}", words)


def _read(value: str) -> Any:
    return float("inf") if value == "inf" else eval(value, {"__builtins__": {}})


class StudyDeadlines(Category):
    """Studies of models of many layers at short limits: the time is kept."""

    name = "study-deadlines"
    goal = 15
    tries = 0
    slack = 0.5
    """Seconds of the processor beyond the promise (10 % and a second)."""

    def draw(self, rng: Random) -> Case:
        """Draw a study of a model whose partitions are searched."""
        devices = rng.choice((4, 8, 16))
        layer = {"forward": 5, "backward": 11, "activation": 2, "static": 3, "kept": "0.1"}
        count = devices * rng.choice((3, 4, 6))
        ends = {"embedding": {"forward": 1, "static": 2}, "head": {"forward": 9, "activation": 1}}
        first, last = ({"role": role} | costs for role, costs in ends.items())
        fields = {
            "devices": devices,
            "batches": devices * rng.choice((2, 4)),
            "mem_limit": rng.choice((None, 3 * count, 5 * count)),
            "partition": "search",
        }
        return {
            "study": rng.choice(("plan", "compare", "frontier", "solve")),
            "layers": [first, layer | {"count": count}, last],
            "fields": fields | ({"recompute": "search"} if rng.random() < 0.3 else {}),
            "time_limit": rng.choice((0.5, 1.0, 2.0)),
        }

    def check(self, case: Case) -> Iterator[Finding]:
        """Ask the study, and look at the clock of the processor."""
        model, fields, limit = ppopt.Model(case["layers"]), case["fields"], case["time_limit"]
        options = {"time_limit": limit, "workers": 1}
        began = time.process_time()
        with processor_clock():
            if case["study"] == "plan":
                ppopt.plan(model, **fields, **options)
            else:
                getattr(ppopt, case["study"])(model.pipeline(**fields), **options)
        used = time.process_time() - began
        if used > 1.1 * limit + 1 + self.slack:
            yield Finding(f"{case['study']}-late", f"{used:.1f} s at a limit of {limit} s")
