"""Ours against plain CP-SAT on the core, sides in turn; a record that can be resumed.

python -m benchmarks.race run -o records/DATE-race-cp-sat.jsonl
python -m benchmarks.race report RECORD.jsonl > RECORD.md
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import exp, inf, log
from pathlib import Path
from statistics import fmean

from benchmarks import suite
from benchmarks.attempt import Attempt, Record, attempt, describe, read
from benchmarks.outcome import Limits
from benchmarks.prove import line
from benchmarks.record import table
from benchmarks.sides import LIBRARIES, OURS, size_of_ours
from benchmarks.suite import Instance

SIDES = tuple(LIBRARIES)
SLOW = 1.0
"""Seconds above which a baseline's time counts for the ratios."""
CPU_STEP = 0.01
"""Seconds that a clock of processor time may be off by: shorter runs count as long."""

Rows = dict[str, dict[str, Attempt]]
"""Attempts by instance, then by side."""


def run(instances: Iterable[Instance], limits: Limits, record: Record) -> Iterator[Attempt]:
    """Both sides on every instance, the other one first each time."""
    for index, instance in enumerate(instances):
        for side in SIDES[:: -1 if index % 2 else 1]:
            if (side, instance.name, *limits) not in record.done:
                yield _sized(attempt(side, instance, limits), instance)


def _sized(attempt: Attempt, instance: Instance) -> Attempt:
    if attempt.side != OURS:
        return attempt
    size = size_of_ours(instance.pipeline, instance.objective)
    return attempt._replace(variables=size.variables, constraints=size.constraints)


def by_instance(attempts: Iterable[Attempt]) -> Rows:
    """Sort attempts by instance; stops where two sides prove different optima."""
    rows: Rows = {}
    for result in attempts:
        rows.setdefault(result.instance, {})[result.side] = result
    for name, row in rows.items():
        optima = {attempt.value for attempt in row.values() if attempt.status == "optimal"}
        low = max((o.bound for o in row.values() if o.status != "infeasible"), default=0)
        values = [attempt.value for attempt in row.values() if attempt.value is not None]
        if len(optima) > 1 or (values and min(values) < low):
            raise SystemExit(f"{name}: the sides contradict each other: {row}")
    return rows


def report(path: Path) -> Iterator[str]:
    """A record in Markdown; it stops where the two sides contradict each other."""
    heads, attempts = read(path)
    rows, first = by_instance(attempts), attempts[0]
    yield "# Ours beside plain CP-SAT\n"
    yield describe(heads)
    yield (
        f"- at most {first.seconds_limit:g} s per instance and side, {first.workers} workers, "
        f"seed {first.seed}; every schedule verified\n"
    )
    yield from _ratios(rows)
    yield "\n## Seconds to proof; else the gap left\n"
    yield from _table(rows, _end)
    yield "\n## Variables / constraints\n"
    yield "Of ours: the model of the whole pipeline, built only where nothing else closes.\n"
    yield from _table(rows, lambda attempt: f"{attempt.variables} / {attempt.constraints}")


def _ratios(rows: Rows) -> Iterator[str]:
    yield (
        "Ratios of times, theirs over ours, as geometric means over the instances that both prove "
        f"and the baseline needs over {SLOW:g} s for; by the clock on the wall and by the time of "
        "the process on all cores. The last column: over the instances that ours proves and it "
        "does not, its limit over our time, so at least that. Faster: proofs that take it less "
        "time than ours, or that ours does not reach.\n"
    )
    columns = ("side", "proves", "ratio (wall)", "lowest", "highest", "ratio (CPU)")
    yield from table(
        (*columns, "beyond its limit", "faster"), (_side(rows, side) for side in SIDES)
    )


def _side(rows: Rows, side: str) -> tuple[str, ...]:
    pairs = [(row[OURS], row[side]) for row in rows.values() if side in row and OURS in row]
    count = f"{sum(their.proved for _, their in pairs)} of {len(pairs)}"
    return side, count, *([""] * 6 if side == OURS else _figures(pairs))


def _figures(pairs: Sequence[tuple[Attempt, Attempt]]) -> Iterator[str]:
    both = [pair for pair in pairs if pair[0].proved and pair[1].proved and pair[1].seconds > SLOW]
    wall = [their.seconds / our.seconds for our, their in both]
    cpu = [their.cpu_seconds / max(our.cpu_seconds, CPU_STEP) for our, their in both]
    open_ = [(our, their) for our, their in pairs if our.proved and not their.proved]
    beyond = [their.seconds_limit / our.seconds for our, their in open_]
    yield f"{_mean(wall)} ({len(wall)} instances)"
    yield f"{min(wall):.1f}" if wall else ""
    yield f"{max(wall):.0f}" if wall else ""
    yield _mean(cpu)
    yield f"> {_mean(beyond)} ({len(beyond)} instances)" if beyond else ""
    yield str(sum(their.proved and their.seconds < _time(our) for our, their in pairs))


def _time(attempt: Attempt) -> float:
    """Seconds to proof."""
    return attempt.seconds if attempt.proved else inf


def _mean(ratios: Sequence[float]) -> str:
    return f"{exp(fmean(map(log, ratios))):.0f}" if ratios else "none"


def _table(rows: Rows, cell: Callable[[Attempt], str]) -> Iterator[str]:
    cells = (
        [name, *(cell(row[side]) if side in row else "" for side in SIDES)]
        for name, row in rows.items()
    )
    return table(("instance", *SIDES), cells)


def _end(attempt: Attempt) -> str:
    if attempt.proved:
        return f"{attempt.seconds:.2f}"
    return "nothing" if attempt.gap is None else f"gap {attempt.gap:.1%}"


def main() -> None:
    """Run what the record does not hold yet, or print its report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = parser.add_subparsers(dest="which", required=True)
    running = parts.add_parser("run")
    running.add_argument("-o", "--output", type=Path, required=True, help="the record")
    running.add_argument("--seconds", type=float, default=60.0, help="per instance and side")
    running.add_argument("--workers", type=int, default=2)
    running.add_argument("--seed", type=int, default=0)
    running.add_argument("--every", type=int, default=1, help="take every n-th instance only")
    parts.add_parser("report").add_argument("record", type=Path)
    arguments = parser.parse_args()
    if arguments.which == "report":
        print(*report(arguments.record), sep="\n")
        return
    limits = Limits(arguments.seconds, arguments.workers, arguments.seed)
    record = Record(arguments.output, LIBRARIES[OURS])
    for result in run(list(suite.race())[:: arguments.every], limits, record):
        record.add(result)
        print(f"{result.side}: {line(result)}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
