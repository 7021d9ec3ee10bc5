"""Write a record of `benchmarks.race` as Markdown, with its pictures beside it.

python -m benchmarks.report beside RECORD.jsonl > RECORD.md
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import exp, inf, log
from pathlib import Path
from statistics import fmean

from benchmarks import pictures
from benchmarks.attempt import Attempt
from benchmarks.sides import OURS, PARTS
from benchmarks.store import describe, read
from benchmarks.targets import time_of

SLOW = 1.0
"""Seconds above which a baseline's time counts for the ratios."""
CPU_STEP = 0.01
"""Seconds that a clock of processor time may be off by: shorter runs count as long."""

Rows = dict[str, dict[str, Attempt]]
"""Attempts by instance, then by side."""


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
    sides = pictures.sides_of(attempts)
    yield from heading("Ours beside other solvers", path, attempts)
    yield from _ratios(rows, sides)
    pictures.proved(attempts, path.with_name(f"{path.stem}-proved.svg"))
    yield f"\n![Instances proved within a time]({path.stem}-proved.svg)\n"
    if pictures.gaps(attempts, path.with_name(f"{path.stem}-gaps.svg")):
        yield f"![Gap over time]({path.stem}-gaps.svg)\n"
        yield "Gap over time, on instances taken evenly from those that some side did not prove.\n"
    yield "## Seconds to proof; else the gap left\n"
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
    yield (
        "| side | proves | ratio (wall) | lowest | highest | ratio (CPU) | beyond its limit "
        "| faster |\n|---|---|---|---|---|---|---|---|"
    )
    for side in sides:
        pairs = [(row[OURS], row[side]) for row in rows.values() if side in row and OURS in row]
        count = f"{sum(their.proved for _, their in pairs)} of {len(pairs)}"
        if side == OURS:
            yield f"| {side} | {count} | | | | | | |"
            continue
        yield f"| {side} | {count} | {' | '.join(_figures(pairs))} |"


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
    yield f"| instance | {' | '.join(sides)} |\n|---|{'---|' * len(sides)}"
    for name, row in rows.items():
        cells = (cell(row[side]) if side in row else "" for side in sides)
        yield f"| {name} | {' | '.join(cells)} |"


def _end(one: Attempt) -> str:
    if one.proved:
        return f"{one.seconds:.2f}"
    return "nothing" if one.gap is None else f"gap {one.gap:.1%}"


def ladder(path: Path) -> Iterator[str]:
    """The largest pipeline that each side proves."""
    attempts = read(path)[1]
    rows, sides = by_instance(attempts), pictures.sides_of(attempts)
    yield from heading("How large a pipeline each solver proves", path, attempts)
    yield "A side that loses two in a row takes no part in the larger ones.\n"
    yield "| side | largest proved | operations | seconds |\n|---|---|---|---|"
    for side in sides:
        best = [row[side] for row in rows.values() if side in row and row[side].proved]
        last = best[-1]
        yield f"| {side} | {last.instance} | {last.operations} | {last.seconds:.2f} |"
    pictures.ladder(attempts, path.with_name(f"{path.stem}.svg"))
    yield f"\n![Seconds to proof over size]({path.stem}.svg)\n"
    yield from _table(rows, sides, _end)


def parts(path: Path) -> Iterator[str]:
    """What each part of ours contributes."""
    attempts = read(path)[1]
    rows, sides = by_instance(attempts), [*PARTS, OURS]
    whole = {name: row for name, row in rows.items() if len(row) == len(sides)}
    yield from heading("The parts of the search, alone and together", path, attempts)
    yield (
        "Value lost: how far a part's schedule lies above the best of all parts. Bound lost: how "
        "far its bound lies below the best bound. Means over all instances; proved: by the part "
        "alone.\n"
    )
    yield "| part | proved | no schedule | value lost | bound lost |\n|---|---|---|---|---|"
    for side in sides:
        yield _part(side, list(whole.values()))
    met = sum(_meet(row) for row in whole.values())
    yield (
        f"\nOn {met} of {len(whole)} instances the bounds alone meet the schedules of construction "
        "alone: no search of the whole model is needed.\n"
    )
    yield from _table(
        whole,
        sides,
        lambda o: f"{time_of(o, o.bound)} .. {time_of(o, o.value)} ({o.seconds:.1f} s)",
    )


def _part(side: str, rows: Sequence[dict[str, Attempt]]) -> str:
    mine = [(row[side], row) for row in rows]
    values = [
        one.value / min(o.value for o in row.values() if o.value is not None) - 1
        for one, row in mine
        if one.value is not None
    ]
    lows = [1 - one.bound / max(o.bound for o in row.values()) for one, row in mine]
    return (
        f"| {side} | {sum(one.proved for one, _ in mine)} of {len(mine)} "
        f"| {sum(one.value is None for one, _ in mine)} "
        f"| {fmean(values) if values else 0:.2%} | {fmean(lows):.2%} |"
    )


def _meet(row: dict[str, Attempt]) -> bool:
    return row["ppopt bounds"].bound == row["ppopt construction"].value


def main() -> None:
    """Print a record's report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    kinds = {"beside": beside, "ladder": ladder, "parts": parts}
    parser.add_argument("kind", choices=tuple(kinds))
    parser.add_argument("record", type=Path)
    given = parser.parse_args()
    for part in kinds[given.kind](given.record):
        print(part)


if __name__ == "__main__":
    main()
