"""Prove optimality over the suite; writes a record that can be resumed.

python -m benchmarks.prove core -o benchmarks/records/DATE-core.jsonl --seconds 60
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks import hand, suite
from benchmarks.attempt import Attempt, Record, attempt
from benchmarks.outcome import Limits
from benchmarks.sides import LIBRARIES, OURS
from benchmarks.suite import Instance


def main() -> None:
    """Run what the record does not hold yet, one instance after another."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("which", choices=("core", "full"))
    parser.add_argument("-o", "--output", type=Path, required=True, help="the record, JSON lines")
    parser.add_argument("--group", default="", help="start of the group's name: `linear p=8`")
    parser.add_argument("--seconds", type=float, default=60.0, help="limit per instance")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    limits = Limits(given.seconds, given.workers, given.seed)
    record = Record(given.output, LIBRARIES[OURS])
    every = suite.core() if given.which == "core" else suite.full()
    for one in run(_chosen(every, given.group, record, limits), limits):
        record.add(one)
        print(line(one), file=sys.stderr, flush=True)


def _chosen(
    every: Iterator[Instance], group: str, record: Record, limits: Limits
) -> Iterator[Instance]:
    for instance in every:
        if instance.group.startswith(group) and (OURS, instance.name, *limits) not in record.done:
            yield instance


def run(instances: Iterator[Instance], limits: Limits) -> Iterator[Attempt]:
    """Attempts of ours, without their histories, each beside the best strategy by hand."""
    for instance in instances:
        name, value = best_by_hand(instance)
        one = attempt(OURS, instance, limits, trace=False)
        yield one._replace(hand=name, hand_value=value)


def best_by_hand(instance: Instance) -> tuple[str, int | None]:
    """Name and value (ticks) of the best strategy that keeps the limit; ("", None): none."""
    objective = instance.objective
    made = hand.fitting(instance.pipeline, objective)
    values = {name: one.metrics.value_ticks(objective) for name, one in made.items()}
    best = min(values, key=lambda name: (values[name], name), default="")
    return best, values.get(best)


def line(one: Attempt) -> str:
    """An attempt in a line."""
    value = "none" if one.value is None else f"{one.value / one.per_unit:g}"
    gap = "" if one.gap is None else f" gap {one.gap:.2%}"
    bound = f"{one.bound / one.per_unit:g}"
    return f"{one.instance}: {one.status} {value} bound {bound}{gap} in {one.seconds:.2f} s"


if __name__ == "__main__":
    main()
