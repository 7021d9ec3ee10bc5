"""Ours beside other solvers, instance by instance, sides in turn; a record that can be resumed.

python -m benchmarks.race beside -o records/DATE-race.jsonl      on the core
python -m benchmarks.race ladder -o records/DATE-ladder.jsonl    how large can each go?
python -m benchmarks.race report RECORD.jsonl > RECORD.md
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import exp, inf, log
from pathlib import Path
from statistics import fmean

from benchmarks import suite
from benchmarks.attempt import Attempt, Record, attempt, describe, read
from benchmarks.baselines.problem import Limits
from benchmarks.prove import line
from benchmarks.record import table
from benchmarks.sides import BASELINES, LIBRARIES, OURS, size_of_ours, states
from benchmarks.suite import Instance

SIDES = (OURS, *BASELINES)
INSTANCES: dict[str, Callable[[], Iterator[Instance]]] = {
    "beside": suite.race,
    "ladder": suite.ladder,
}
SLOW = 1.0
"""Seconds above which a baseline's time counts for the ratios."""
CPU_STEP = 0.01
"""Seconds that a clock of processor time may be off by: shorter runs count as long."""

Rows = dict[str, dict[str, Attempt]]
"""Attempts by instance, then by side."""


def lost_in_a_row(attempts: Iterable[Attempt]) -> Counter[str]:
    """How many attempts in a row each side has lost at the end of a ladder's record."""
    lost: Counter[str] = Counter()
    for one in attempts:
        lost[one.side] = 0 if one.proved else lost[one.side] + 1
    return lost


def run(
    instances: Iterable[Instance],
    sides: tuple[str, ...],
    limits: Limits,
    record: Record,
    lost: Counter[str] | None,
) -> Iterator[Attempt]:
    """Every side on every instance, another side first each time.

    If `lost` is given, a side that fails to prove two instances in a row (one may be bad luck)
    takes no part in the next ones.
    """
    for place, instance in enumerate(instances):
        first = place % len(sides)
        for side in (*sides[first:], *sides[:first]):
            known = (side, instance.name, *limits) in record.done
            out = lost is not None and lost[side] >= 2
            if known or out or not states(side, instance.objective):
                continue
            one = _sized(attempt(side, instance, limits), instance)
            yield one
            if lost is not None:
                lost[side] = 0 if one.proved else lost[side] + 1


def _sized(one: Attempt, instance: Instance) -> Attempt:
    if one.side != OURS:
        return one
    size = size_of_ours(instance.pipeline, instance.objective)
    return one._replace(variables=size.variables, constraints=size.constraints)


def by_instance(attempts: Iterable[Attempt]) -> Rows:
    """Sort attempts by instance; stops where two sides prove different optima."""
    rows: Rows = {}
    for one in attempts:
        rows.setdefault(one.instance, {})[one.side] = one
    for name, row in rows.items():
        optima = {one.value for one in row.values() if one.status == "optimal"}
        low = max((o.bound for o in row.values() if o.status != "infeasible"), default=0)
        values = [one.value for one in row.values() if one.value is not None]
        if len(optima) > 1 or (values and min(values) < low):
            raise SystemExit(f"{name}: the sides contradict each other: {row}")
    return rows


def sides_of(attempts: Iterable[Attempt]) -> list[str]:
    """Sides in the order in which they are listed everywhere."""
    present = {one.side for one in attempts}
    return [side for side in SIDES if side in present]


def heading(title: str, path: Path, attempts: Sequence[Attempt]) -> Iterator[str]:
    """Title, machine, limits."""
    first = attempts[0]
    yield f"# {title}\n"
    yield describe(read(path)[0])
    yield (
        f"- at most {first.seconds_limit:g} s per instance and side, {first.workers} workers (Z3 "
        f"has one), seed {first.seed}; every schedule and order verified\n"
    )


def beside(path: Path) -> Iterator[str]:
    """Ours and the baselines."""
    attempts = read(path)[1]
    rows = by_instance(attempts)
    sides = sides_of(attempts)
    yield from heading("Ours beside other solvers", path, attempts)
    yield from _ratios(rows, sides)
    yield "\n## Seconds to proof; else the gap left\n"
    yield from _table(rows, sides, _end)
    yield "\n## Variables / constraints\n"
    yield "Of ours: the model of the whole pipeline, built only where nothing else closes.\n"
    yield from _table(rows, sides, lambda one: f"{one.variables} / {one.constraints}")


def _ratios(rows: Rows, sides: Sequence[str]) -> Iterator[str]:
    yield (
        "Ratios of times, theirs over ours, as geometric means over the instances that both prove "
        f"and the baseline needs over {SLOW:g} s for; by the clock on the wall and by the time of "
        "the process on all cores. The last column: over the instances that ours proves and it "
        "does not, its limit over our time, so at least that. Faster: proofs that take it less "
        "time than ours, or that ours does not reach.\n"
    )
    columns = ("side", "proves", "ratio (wall)", "lowest", "highest", "ratio (CPU)")
    yield from table(
        (*columns, "beyond its limit", "faster"), (_side(rows, side) for side in sides)
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


def _time(one: Attempt) -> float:
    """Seconds to proof."""
    return one.seconds if one.proved else inf


def _mean(ratios: Sequence[float]) -> str:
    return f"{exp(fmean(map(log, ratios))):.0f}" if ratios else "none"


def _table(rows: Rows, sides: Sequence[str], cell: Callable[[Attempt], str]) -> Iterator[str]:
    made = (
        [name, *(cell(row[side]) if side in row else "" for side in sides)]
        for name, row in rows.items()
    )
    return table(("instance", *sides), made)


def _end(one: Attempt) -> str:
    if one.proved:
        return f"{one.seconds:.2f}"
    return "nothing" if one.gap is None else f"gap {one.gap:.1%}"


def ladder(path: Path) -> Iterator[str]:
    """The largest pipeline that each side proves."""
    attempts = read(path)[1]
    rows, sides = by_instance(attempts), sides_of(attempts)
    yield from heading("How large a pipeline each solver proves", path, attempts)
    yield "A side that loses two in a row takes no part in the larger ones.\n"
    yield "| side | largest proved | operations | seconds |\n|---|---|---|---|"
    for side in sides:
        best = [row[side] for row in rows.values() if side in row and row[side].proved]
        last = best[-1]
        yield f"| {side} | {last.instance} | {last.operations} | {last.seconds:.2f} |"
    yield ""
    yield from _table(rows, sides, _end)


def report(path: Path) -> Iterator[str]:
    """A record in Markdown; it stops where two sides contradict each other."""
    instances = {one.group for one in read(path)[1]}
    return ladder(path) if instances == {"ladder"} else beside(path)


def main() -> None:
    """Run what the record does not hold yet, or print its report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = parser.add_subparsers(dest="which", required=True)
    for name in INSTANCES:
        part = parts.add_parser(name)
        part.add_argument("-o", "--output", type=Path, required=True, help="the record")
        part.add_argument("--seconds", type=float, default=60.0, help="per instance and side")
        part.add_argument("--workers", type=int, default=2)
        part.add_argument("--seed", type=int, default=0)
        part.add_argument("--every", type=int, default=1, help="take every n-th instance only")
        part.add_argument("--sides", default=",".join(SIDES), help="some of the sides, by comma")
    parts.add_parser("report").add_argument("record", type=Path)
    given = parser.parse_args()
    if given.which == "report":
        print(*report(given.record), sep="\n")
        return
    sides = tuple(given.sides.split(","))
    if unknown := set(sides) - set(SIDES):
        parser.error(f"--sides: {', '.join(unknown)}: none of {', '.join(SIDES)}")
    limits = Limits(given.seconds, given.workers, given.seed)
    libraries = dict.fromkeys(name for side in sides for name in LIBRARIES[side])
    record = Record(given.output, libraries)
    instances = list(INSTANCES[given.which]())[:: given.every]
    lost = lost_in_a_row(read(given.output)[1]) if given.which == "ladder" else None
    for one in run(instances, sides, limits, record, lost):
        record.add(one)
        print(f"{one.side}: {line(one)}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
