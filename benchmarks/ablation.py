"""What each method of the search brings: the same rounds without it, one method at a time.

python -m benchmarks.ablation run -o ablation.jsonl --seconds 3 --every 2
python -m benchmarks.ablation report ablation.jsonl

One worker, on a clock that stands still: work alone decides, on a busy machine, too.
An instance is searched with all methods by one more round at a time until it is proved or has taken
`--seconds` of the processor; then by as many rounds without each method that had a turn. A run is
resumed where it was left.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import chain, islice, product
from pathlib import Path
from typing import NamedTuple

import ppopt
from benchmarks import suite
from benchmarks.record import add_line, number, read_lines, table
from ppopt.solver.parameters import RoundParams, SolveParams
from ppopt.solver.portfolio import NAMES
from ppopt.solver.result import Progress, Result
from tests.equivalence.runs import standing_clock

NOTHING = "nothing"

ROUNDS = range(2, 6)
"""Numbers of rounds; the first one has a turn of every method."""
PER_OPERATION = 5e-5
"""Unit of the first round per operation: shorter than usual, for more rounds of the same work."""
TIME_LIMIT = 60.0


class Row(NamedTuple):
    """One instance without one method."""

    without: str
    instance: str
    group: str
    rounds: int
    turns: list[str]
    """Methods that had a turn."""
    status: str
    value: float | None
    bound: float | None
    seconds: float
    """Of the processor."""


def run(
    path: Path, methods: Iterable[str], seconds: float, instances: list[suite.Instance]
) -> None:
    """Solve instances with all methods, then without each; what the record holds is kept."""
    done = {(row.without, row.instance): row for row in read(path)}

    def add(row: Row) -> None:
        done[row.without, row.instance] = row
        add_line(path, row._asdict())

    for instance in instances:
        if (NOTHING, instance.name) not in done:
            add(_base(instance, seconds))
    for method, instance in product(methods, instances):
        base = done[NOTHING, instance.name]
        if method in base.turns and (method, instance.name) not in done:
            add(_row(instance, method, base.rounds))


def _base(instance: suite.Instance, seconds: float) -> Row:
    """Search with all methods, with one more round than the proof or the time takes."""
    for rounds in ROUNDS:
        row = _row(instance, NOTHING, rounds)
        if suite.is_proved(row.status) or row.seconds > seconds:
            break
    return row._replace(rounds=rounds + 1) if suite.is_proved(row.status) else row


def _row(instance: suite.Instance, without: str, num_rounds: int) -> Row:
    rounds = RoundParams(max_rounds=num_rounds, first_per_operation=PER_OPERATION)
    params = SolveParams(without=frozenset({without}) - {NOTHING}, rounds=rounds)
    turns: dict[str, None] = {}

    def note(progress: Progress) -> bool:
        turns[progress.phase] = None
        return False

    began = time.process_time()
    with standing_clock():
        result = _solve(instance, params, note)
    spent = round(time.process_time() - began, 3)
    figures = (number(result.value), number(result.lower_bound), spent)
    head = (without, instance.name, instance.group, num_rounds, list(turns))
    return Row(*head, result.status.value, *figures)


def _solve(instance: suite.Instance, params: SolveParams, note: ppopt.stop.Criterion) -> Result:
    return ppopt.solve(
        instance.pipeline,
        objective=instance.objective,
        backward_kind=instance.backward_kind,
        time_limit=TIME_LIMIT,
        workers=1,
        stop=note,
        params=params,
    )


def read(path: Path) -> list[Row]:
    """Rows of a record."""
    return [Row(**row) for row in read_lines(path)]


def report(rows: list[Row]) -> Iterator[str]:
    """A table in Markdown: what changes where a method is left out, over the instances of both."""
    rows_by_change: dict[str, dict[str, Row]] = defaultdict(dict)
    for row in rows:
        rows_by_change[row.without][row.instance] = row
    base = rows_by_change.pop(NOTHING, {})
    columns = ("without", "turns", "worse", "better", "proved", "time", "worse on")
    body = sorted(_cells(method, base, rest) for method, rest in rows_by_change.items())
    return table(columns, body)


def _cells(method: str, base: dict[str, Row], rest: dict[str, Row]) -> tuple[object, ...]:
    pairs = [(base[name], row) for name, row in rest.items() if name in base]
    worse = [new.instance for old, new in pairs if _is_worse(new, old)]
    better = [new.instance for old, new in pairs if _is_worse(old, new)]
    proved = [sum(suite.is_proved(row.status) for row in side) for side in zip(*pairs, strict=True)]
    times = [sum(row.seconds for row in side) for side in zip(*pairs, strict=True)]
    examples = ", ".join(worse[:4]) + (", ..." if len(worse) > 4 else "")
    return (
        *(method, f"{len(pairs)} of {len(base)}", len(worse), len(better)),
        *(f"{proved[0]} to {proved[1]}", f"{times[1] / times[0]:.3f}", examples),
    )


def _is_worse(row: Row, than: Row) -> bool:
    """Whether the value or the bound of a row is worse, or the proof is lost."""
    infinity = float("inf")
    values = [infinity if each.value is None else each.value for each in (row, than)]
    bounds = [infinity if each.bound is None else each.bound for each in (row, than)]
    return values[0] > values[1] or bounds[0] < bounds[1]


def sample(every: int, groups: str = "") -> list[suite.Instance]:
    """Every n-th instance of the core without the large ones, and all varied ones."""
    core = (instance for instance in suite.core() if instance.group != "large")
    instances = chain(suite.varied(), islice(core, 0, None, every))
    return [instance for instance in instances if instance.group.startswith(groups)]


def main() -> None:
    """Run or report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run")
    running.add_argument("-o", "--output", type=Path, required=True)
    running.add_argument("--without", nargs="*", default=NAMES, choices=NAMES)
    running.add_argument("--seconds", type=float, default=3.0)
    running.add_argument("--every", type=int, default=2)
    running.add_argument("--group", default="", help="start of the groups' names")
    reporting = commands.add_parser("report")
    reporting.add_argument("records", type=Path, nargs="+")
    arguments = parser.parse_args()
    if arguments.command == "report":
        rows = [row for path in arguments.records for row in read(path)]
        print("\n".join(report(rows)))
        return
    run(
        arguments.output,
        arguments.without,
        arguments.seconds,
        sample(arguments.every, arguments.group),
    )


if __name__ == "__main__":
    main()
