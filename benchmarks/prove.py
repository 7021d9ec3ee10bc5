"""Prove optimality over the suite: status, value, bound, gap and seconds of every instance.

python benchmarks/prove.py "linear p=8" --seconds 60 --every 5
"""

from __future__ import annotations

import argparse
from itertools import chain

import suite
from machine import heading

from ppopt import solve


def main() -> None:
    """Solve the instances of a group, one after another, and print a row for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("group", help="start of the group's name, such as `linear p=8` or `large`")
    parser.add_argument("--seconds", type=float, default=60.0, help="limit per instance")
    parser.add_argument("--every", type=int, default=1, help="take every n-th instance only")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    every = chain(suite.linear(), suite.two_chunks(), suite.spans(), suite.large())
    chosen = [one for one in every if one.group.startswith(given.group)][:: given.every]
    print(heading(f"Proofs: {given.group}", "ortools"), end="\n\n")
    print("| instance | status | value | bound | gap % | seconds |\n|---|---|---|---|---|---|")
    optimal = 0
    for instance in chosen:
        found = solve(
            instance.pipeline,
            objective=instance.objective,
            time_limit=given.seconds,
            seed=given.seed,
        )
        optimal += found.status == "optimal"
        value, bound, gap = (float(x or 0) for x in (found.value, found.lower_bound, found.gap))
        print(
            f"| {instance.name} | {found.status} | {value:g} | {bound:g} | {100 * gap:.2f} "
            f"| {found.solve_seconds:.2f} |",
            flush=True,
        )
    print(f"\n{optimal} of {len(chosen)} proved optimal")


if __name__ == "__main__":
    main()
