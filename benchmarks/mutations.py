"""Mutation check of the tests: small mistakes in `ppopt/`, drawn by a seed, one at a time.

python -m benchmarks.mutations draw --seed 34 -o DRAWN.jsonl
python -m benchmarks.mutations run DRAWN.jsonl -o RECORD.jsonl [--tier fast|whole] [--only N,N]
python -m benchmarks.mutations report RECORD.jsonl

`draw` takes the number of mutations per package that `PACKAGES` states, five of each kind of
mistake, and writes them down with spares: `run` takes a spare where `equivalent` says why a
mutation changes nothing that anybody can see. `run` clones the checkout, puts one mutation at a
time into the clone, and runs the tests there until one fails: those that import its module, then
those of its folder, then all others of the tier. A test that fails is run again alone, with the
mutation and without. What the fast tier catches, the whole catches, too: run the whole for the
others alone. A record is resumed where it was left.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from benchmarks.record import add_line, heading, read_lines, table

ROOT = Path(__file__).parents[1]
PACKAGES = {
    "problem": 5,
    "schedule": 5,
    "verifier": 5,
    "rechecker": 4,
    "strategies": 3,
    "solver/bounds": 3,
    "solver/relaxation": 2,
    "solver/cp_sat": 2,
    "solver/exact": 1,
    "solver/dynamic_programming": 1,
    "solver/partitions": 1,
    "solver/recompute": 1,
    "formats": 2,
    "studies": 2,
    "cli": 2,
    "profiles": 1,
}
"""Mutations per package. Left out: `solver/heuristics`, where a mistake costs time and the verifier
sees the rest; `report`, which tests compare letter by letter; `torch`, which needs PyTorch."""
SPARES = 3
"""Further mutations of the same package and kind, for one that changes nothing."""
LIMIT = 7200
"""Seconds for one run of tests: what takes longer hangs, and is caught."""
TIERS = ("fast", "whole")
HANGS = "hangs"
PASSED = (0, 5)
"""Exit codes of pytest: nothing failed, or there was nothing to run."""
Edit = tuple[ast.AST, str]
"""What is replaced, and by what."""


class Mutation(NamedTuple):
    """One mistake."""

    number: int
    """From 1; spares of one mutation have its number."""
    kind: str
    file: str
    function: str
    line: int
    """In the file as it was drawn."""
    before: str
    """Lines of the file, whole."""
    after: str
    nth: int
    """Which of the places with these lines, from 0."""
    equivalent: str = ""
    """Why it changes nothing that anybody can see, written by hand; then a spare is taken."""

    def applies(self, root: Path) -> bool:
        """Whether its lines are in a checkout."""
        path = root / self.file
        return path.exists() and path.read_text(encoding="utf-8").count(self.before) > self.nth

    def apply(self, root: Path) -> None:
        """Put it into a checkout. Raises ValueError if its lines are not there."""
        if not self.applies(root):
            raise ValueError(f"{self.file}: {self.before!r} is not there any more")
        path = root / self.file
        parts = path.read_text(encoding="utf-8").split(self.before)
        head, tail = parts[: self.nth + 1], parts[self.nth + 1 :]
        text = self.before.join(head) + self.after + self.before.join(tail)
        ast.parse(text)
        path.write_text(text, encoding="utf-8")


class Row(NamedTuple):
    """What became of one mutation in one tier."""

    number: int
    spare: int
    tier: str
    caught: bool
    by: str
    """The first test that saw it, `hangs`, or empty."""
    seconds: float
    """Of the processor, children included."""


# Kinds of mistakes: each finds the places of a function where it can be made.


def off_by_one(node: ast.AST) -> Iterator[Edit]:
    """A whole number, one more."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        yield node, str(node.value + 1)


def boundary(node: ast.AST) -> Iterator[Edit]:
    """A comparison that holds at equality, or no longer does."""
    turned = {ast.Lt: ast.LtE(), ast.LtE: ast.Lt(), ast.Gt: ast.GtE(), ast.GtE: ast.Gt()}
    if isinstance(node, ast.Compare) and type(node.ops[0]) in turned:
        yield node, _unparsed(node, ops=[turned[type(node.ops[0])], *node.ops[1:]])


def negated(node: ast.AST) -> Iterator[Edit]:
    """A condition turned round."""
    if isinstance(node, ast.If | ast.IfExp):
        yield node.test, f"not ({ast.unparse(node.test)})"


def sign(node: ast.AST) -> Iterator[Edit]:
    """A sum for a difference, or the other way round."""
    turned = {ast.Add: ast.Sub(), ast.Sub: ast.Add()}
    if isinstance(node, ast.BinOp) and type(node.op) in turned:
        yield node, f"({_unparsed(node, op=turned[type(node.op)])})"


def extreme(node: ast.AST) -> Iterator[Edit]:
    """The least for the largest, or the other way round."""
    turned = {"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum"}
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Name) and node.func.id in turned:
            yield node.func, turned[node.func.id]
        if isinstance(node.func, ast.Attribute) and node.func.attr in turned:
            yield node.func, _unparsed(node.func, attr=turned[node.func.attr])


def dropped_condition(node: ast.AST) -> Iterator[Edit]:
    """A rule that is never applied: the branch of an `if` is not taken."""
    if isinstance(node, ast.If):
        yield node.test, "False"


def dropped_statement(node: ast.AST) -> Iterator[Edit]:
    """A call that is not made, or an update that is not done."""
    call = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call | ast.YieldFrom)
    if call or isinstance(node, ast.AugAssign):
        yield node, "pass"


def one_tick_more(node: ast.AST) -> Iterator[Edit]:
    """A function that returns a whole number returns one more."""
    if (
        isinstance(node, ast.FunctionDef)
        and isinstance(node.returns, ast.Name)
        and node.returns.id == "int"
    ):
        for inner in ast.walk(node):
            if isinstance(inner, ast.Return) and inner.value is not None:
                yield inner.value, f"({ast.unparse(inner.value)}) + 1"


KINDS: Mapping[str, Callable[[ast.AST], Iterator[Edit]]] = {
    kind.__name__.replace("_", " "): kind
    for kind in (
        *(off_by_one, boundary, negated, sign, extreme),
        *(dropped_condition, dropped_statement, one_tick_more),
    )
}


def _unparsed(node: ast.AST, **changes: object) -> str:
    """The text of a node with some of its fields changed."""
    fields = {name: getattr(node, name) for name in node._fields}
    return ast.unparse(type(node)(**fields | changes))


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    """Nodes that run: no text, no annotation, no default."""
    yield node
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "args", "decorator_list") and not isinstance(
            node, ast.Call
        ):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not isinstance(child, ast.JoinedStr | ast.Raise):
                yield from _walk(child)


def places(file: Path, kind: Callable[[ast.AST], Iterator[Edit]]) -> Iterator[Mutation]:
    """All mistakes of a kind in the functions of a file, numbered 0."""
    text = file.read_text(encoding="utf-8")
    lines = text.splitlines(keepends=True)
    seen: set[tuple[int, int]] = set()
    for function in _functions(text):
        for node in _walk(function):
            for old, new in kind(node):
                where = old.lineno, old.col_offset  # type: ignore[attr-defined]
                if where not in seen:
                    seen.add(where)
                    yield _mutation(file, lines, function.name, kind.__name__, old, new)


@cache
def _functions(text: str) -> list[ast.FunctionDef]:
    """The functions of a module, inner ones too."""
    return [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]


@cache
def _of_package(package: str, kind: str) -> list[Mutation]:
    """All mistakes of a kind in a package, numbered 0."""
    files = sorted((ROOT / "ppopt" / package).glob("*.py"))
    return [mutation for file in files for mutation in places(file, KINDS[kind])]


def _mutation(
    file: Path, lines: Sequence[str], function: str, kind: str, old: ast.AST, new: str
) -> Mutation:
    first, last = old.lineno - 1, old.end_lineno  # type: ignore[attr-defined]
    before = "".join(lines[first:last])
    start = len(lines[first].encode()[: old.col_offset].decode())  # type: ignore[attr-defined]
    rest = lines[last - 1].encode()[old.end_col_offset :].decode()  # type: ignore[attr-defined]
    after = lines[first][:start] + new + rest
    nth = "".join(lines[:first]).count(before)
    name = kind.replace("_", " ")
    path = file.relative_to(ROOT).as_posix()
    return Mutation(0, name, path, function, first + 1, before, after, nth)


def draw(seed: int) -> list[Mutation]:
    """Mutations and spares: every kind equally often, packages as `PACKAGES` says."""
    chance = random.Random(seed)
    packages = [name for name, count in PACKAGES.items() for _ in range(count)]
    kinds = [list(KINDS)[at % len(KINDS)] for at in range(len(packages))]
    chance.shuffle(kinds)
    taken: set[tuple[str, int]] = set()
    drawn = []
    for mutation_id, (package, kind) in enumerate(zip(packages, kinds, strict=True), 1):
        fresh = [
            candidate
            for candidate in _of_package(package, kind)
            if (candidate.file, candidate.line) not in taken
        ]
        for mutation in chance.sample(fresh, min(1 + SPARES, len(fresh))):
            taken.add((mutation.file, mutation.line))
            drawn.append(mutation._replace(number=mutation_id))
    return drawn


# Running them.


def chosen(drawn: Sequence[Mutation]) -> Iterator[tuple[int, Mutation]]:
    """Of every number the first that changes something, with its place among its spares.

    Lines that are no longer in the checkout are passed over, and numbers of which none is left.
    """
    for mutation_id in sorted({mutation.number for mutation in drawn}):
        same = [mutation for mutation in drawn if mutation.number == mutation_id]
        left = (
            (spare, mutation)
            for spare, mutation in enumerate(same)
            if not mutation.equivalent and mutation.applies(ROOT)
        )
        yield from islice(left, 1)


def tried(copy: Path, spare: int, mutation: Mutation, tier: str) -> Row:
    """Run the tests of a tier with one mutation in a clone of the checkout."""
    began = _processor_seconds()
    with planted(copy, mutation):
        by = _first_failure(copy, mutation, tier)
    return Row(mutation.number, spare, tier, bool(by), by, round(_processor_seconds() - began, 1))


@contextmanager
def planted(copy: Path, mutation: Mutation) -> Iterator[None]:
    """Put a mutation into a clone, and take it out at the end."""
    mutation.apply(copy)
    try:
        yield
    finally:
        subprocess.run(["git", "-C", str(copy), "checkout", "-q", "--", "ppopt"], check=True)


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _first_failure(copy: Path, mutation: Mutation, tier: str) -> str:
    """The first test that sees the mutation; empty if none does."""
    for tests in groups_of_tests(copy, mutation.file):
        unrelated: list[str] = []
        while by := _failure(copy, [*tests, *unrelated], tier):
            if by == HANGS or _sees(copy, mutation, by):
                return by
            if by in unrelated:
                raise RuntimeError(f"{by}: fails without any mutation, too, and at its import")
            unrelated += ["--deselect", by]
    return ""


def _sees(copy: Path, mutation: Mutation, test: str) -> bool:
    """Whether a test, run alone, fails with the mutation that the clone has, and not without."""
    if not _failure(copy, [test], "whole"):
        return False
    subprocess.run(["git", "-C", str(copy), "checkout", "-q", "--", "ppopt"], check=True)
    passes = not _failure(copy, [test], "whole")
    mutation.apply(copy)
    return passes


def _failure(copy: Path, tests: Sequence[str], tier: str) -> str:
    """Run tests until one fails; its name, or what else went wrong, empty if nothing did."""
    command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", *tests]
    command += ["-m", ""] if tier == "whole" else []
    with subprocess.Popen(
        command,
        cwd=copy,
        env=os.environ | {"PYTHONPATH": str(copy), "CI": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as run:
        try:
            output, _ = run.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            os.killpg(run.pid, signal.SIGKILL)
            return HANGS
    if run.returncode in PASSED:
        return ""
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", output, re.MULTILINE)
    if failed is None:
        raise RuntimeError(output)
    return failed[1]


def groups_of_tests(root: Path, file: str) -> list[list[str]]:
    """All tests as arguments of pytest, in three runs: what sees a mistake in a file comes first.

    Tests that import its module, those of the folder of its package, and all others.
    """
    module = file.removesuffix(".py").replace("/", ".")
    files = sorted(path.relative_to(root).as_posix() for path in root.glob("tests/**/test_*.py"))
    near = [path for path in files if module in (root / path).read_text(encoding="utf-8")]
    folder = f"tests/{file.split('/')[1]}/"
    beside = [path for path in files if path.startswith(folder) and path not in near]
    rest = [path for path in files if path not in {*near, *beside}]
    return [group for group in (near, beside, rest) if group]


def run(drawn: Sequence[Mutation], record: Path, tier: str, only: frozenset[int]) -> None:
    """Try what the record does not hold yet."""
    done = {(row.number, row.spare, row.tier) for row in read(record)}
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "clone"
        subprocess.run(["git", "clone", "-q", str(ROOT), str(copy)], check=True)
        for spare, mutation in chosen(drawn):
            asked = not only or mutation.number in only
            if asked and (mutation.number, spare, tier) not in done:
                row = tried(copy, spare, mutation, tier)
                print(*row, flush=True)
                add_line(record, row._asdict())


def read(path: Path) -> list[Row]:
    """Lines of a record."""
    return [Row(**line) for line in read_lines(path)]


def report(drawn: Sequence[Mutation], rows: Sequence[Row]) -> Iterator[str]:
    """A table in Markdown: a line for each mutation, and how many each tier catches."""
    table_rows = []
    caught = dict.fromkeys(TIERS, 0)
    for spare, mutation in chosen(drawn):
        of_tier = {row.tier: row for row in rows if row[:2] == (mutation.number, spare)}
        outcomes = [of_tier.get("fast"), of_tier.get("whole", of_tier.get("fast"))]
        for tier, row in zip(TIERS, outcomes, strict=True):
            caught[tier] += row is not None and row.caught
        where = f"`{mutation.file}:{mutation.line}`, `{mutation.function}`"
        lines = (f"`{_one_line(text)}`" for text in (mutation.before, mutation.after))
        cells = (str(mutation.number), mutation.kind, where, *lines, *map(_outcome, outcomes))
        table_rows.append(cells)
    yield ", ".join(f"{tier} tier: {count} caught" for tier, count in caught.items())
    yield ""
    yield from table(("", "mistake", "where", "line", "after", "fast", "whole"), table_rows)


def _outcome(row: Row | None) -> str:
    if row is None:
        return "not run"
    return f"`{row.by.removeprefix('tests/')}`" if row.caught else "missed"


def _one_line(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def main() -> None:
    """Draw, run or report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    drawing = commands.add_parser("draw")
    drawing.add_argument("--seed", type=int, default=34)
    drawing.add_argument("-o", "--output", type=Path, required=True)
    for name in ("run", "report"):
        command = commands.add_parser(name)
        command.add_argument("drawn", type=Path)
        command.add_argument("-o", "--output", type=Path, required=True, help="the record")
    commands.choices["run"].add_argument("--tier", choices=TIERS, default="fast")
    commands.choices["run"].add_argument("--only", default="", help="numbers: 3,17")
    arguments = parser.parse_args()
    if arguments.command == "draw":
        lines = (json.dumps(mutation._asdict()) + "\n" for mutation in draw(arguments.seed))
        arguments.output.write_text("".join(lines), encoding="utf-8")
        return
    drawn = [Mutation(**line) for line in read_lines(arguments.drawn)]
    if arguments.command == "run":
        only = frozenset(
            int(mutation_id) for mutation_id in arguments.only.split(",") if mutation_id
        )
        run(drawn, arguments.output, arguments.tier, only)
        return
    print(heading("Mutation check of the tests"), "", sep="\n")
    print(*report(drawn, read(arguments.output)), sep="\n")


if __name__ == "__main__":
    main()
