"""Prove optimality over the suite; writes a record that can be resumed.

python -m benchmarks.prove core -o benchmarks/records/DATE-core.jsonl --seconds 60
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks import baselines, suite
from benchmarks.attempt import Attempt, Record, attempt
from benchmarks.outcome import Limits
from benchmarks.sides import LIBRARIES, OURS
from benchmarks.suite import Instance

SUITES = {"core": suite.core, "full": suite.full, "drawn": suite.drawn}


def main() -> None:
    """Run what the record does not hold yet, one instance after another."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("which", choices=tuple(SUITES))
    parser.add_argument("-o", "--output", type=Path, required=True, help="the record, JSON lines")
    parser.add_argument("--group", default="", help="start of the group's name: `linear p=8`")
    parser.add_argument("--seconds", type=float, default=60.0, help="limit per instance")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    limits = Limits(arguments.seconds, arguments.workers, arguments.seed)
    record = Record(arguments.output, LIBRARIES[OURS])
    instances = SUITES[arguments.which]()
    for solved in run(_chosen(instances, arguments.group, record, limits), limits):
        record.add(solved)
        print(line(solved), file=sys.stderr, flush=True)


def _chosen(
    every: Iterator[Instance], group: str, record: Record, limits: Limits
) -> Iterator[Instance]:
    for instance in every:
        if instance.group.startswith(group) and (OURS, instance.name, *limits) not in record.done:
            yield instance


def run(instances: Iterator[Instance], limits: Limits) -> Iterator[Attempt]:
    """Attempts of ours, without their histories, each with the best baseline."""
    for instance in instances:
        name, value = best_baseline(instance)
        solved = attempt(OURS, instance, limits, trace=False)
        yield solved._replace(baseline=name, baseline_value=value)


def best_baseline(instance: Instance) -> tuple[str, int | None]:
    """Name and value (ticks) of the best strategy that keeps the limit; ("", None): none."""
    objective = instance.objective
    schedules = baselines.fitting(instance.pipeline, objective)
    values = {name: schedule.metrics.value_ticks(objective) for name, schedule in schedules.items()}
    best = min(values, key=lambda name: (values[name], name), default="")
    return best, values.get(best)


def line(attempt: Attempt) -> str:
    """An attempt in a line."""
    value = "none" if attempt.value is None else f"{attempt.value / attempt.per_unit:g}"
    gap = "" if attempt.gap is None else f" gap {attempt.gap:.2%}"
    bound = f"{attempt.bound / attempt.per_unit:g}"
    head = f"{attempt.instance}: {attempt.status}"
    return f"{head} {value} bound {bound}{gap} in {attempt.seconds:.2f} s"


if __name__ == "__main__":
    main()
