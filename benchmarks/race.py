"""Ours beside others, instance by instance, sides in turn; writes a record that can be resumed.

python -m benchmarks.race beside -o benchmarks/records/DATE-race.jsonl      other solvers
python -m benchmarks.race ladder -o benchmarks/records/DATE-ladder.jsonl    how large can each go?
python -m benchmarks.race parts  -o benchmarks/records/DATE-parts.jsonl     parts of ours, alone
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from benchmarks import suite
from benchmarks.attempt import Attempt, attempt
from benchmarks.baselines.problem import Limits
from benchmarks.prove import line
from benchmarks.sides import BASELINES, LIBRARIES, OURS, PARTS, size_of_ours, states
from benchmarks.store import Record, read
from benchmarks.suite import Instance

SIDES = {
    "beside": (OURS, *BASELINES),
    "ladder": (OURS, *BASELINES),
    "parts": (OURS, *PARTS),
}
INSTANCES: dict[str, Callable[[], Iterator[Instance]]] = {
    "beside": suite.race,
    "ladder": suite.ladder,
    "parts": suite.parts,
}


def main() -> None:
    """Run what the record does not hold yet."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("which", choices=tuple(SIDES))
    parser.add_argument("-o", "--output", type=Path, required=True, help="the record, JSON lines")
    parser.add_argument("--seconds", type=float, default=60.0, help="limit per instance and side")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--every", type=int, default=1, help="take every n-th instance only")
    parser.add_argument(
        "--sides", help="some of the sides, by comma; the record takes the others in a later run"
    )
    given = parser.parse_args()
    limits = Limits(given.seconds, given.workers, given.seed)
    sides = _chosen(SIDES[given.which], given.sides, parser)
    record = Record(given.output, dict.fromkeys(name for side in sides for name in _needs(side)))
    instances = list(INSTANCES[given.which]())[:: given.every]
    lost = lost_in_a_row(read(given.output)[1]) if given.which == "ladder" else None
    for one in run(instances, sides, limits, record, lost):
        record.add(one)
        print(f"{one.side}: {line(one)}", file=sys.stderr, flush=True)


def _chosen(
    sides: tuple[str, ...], named: str | None, parser: argparse.ArgumentParser
) -> tuple[str, ...]:
    names = sides if named is None else tuple(named.split(","))
    for name in names:
        if name not in sides:
            parser.error(f"--sides: {name} is not one of {', '.join(sides)}")
    return names


def _needs(side: str) -> tuple[str, ...]:
    return LIBRARIES[OURS if side in PARTS else side]


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

    Where `lost` is given, a side that fails to prove two instances in a row (one may be bad luck)
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


if __name__ == "__main__":
    main()
