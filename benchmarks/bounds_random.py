"""Every bound of the solver on thousands of random small pipelines, beside their true optima.

python -m benchmarks.bounds_random --instances 2000 --seed 1

Stops with exit code 1 at the first bound above an optimum, or wrong verdict of the re-checker.
"""

from __future__ import annotations

import argparse
from collections import Counter
from time import monotonic

from benchmarks.record import heading
from ppopt import Objective, Verdict
from tests.factories.instances import Case
from tests.oracles import bounds
from tests.oracles.bounds import Sample
from tests.oracles.pyjobshop import UndecidedError


def main() -> None:
    """Check bounds until the instances or the time are used up, and print the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--instances", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=3600.0, help="end after the instance")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    head = heading("Bounds beside optima", "ortools", "pyjobshop")
    began, kinds, done = monotonic(), Tally(), 0
    for case in bounds.cases(given.seed, given.instances):
        for objective in Objective:
            kinds.check(case, objective)
        done += 1
        if monotonic() - began > given.seconds:
            break
    print(f"{head}\n- seed {given.seed}, {done} pipelines, {len(Objective)} objectives each")
    print(f"- {monotonic() - began:.0f} s\n\n{kinds}")


REFUSED = "re-check of a tick more, refused"
SIGNS = {-1: "below 0", 0: "0", 1: "above 0"}


class Tally:
    """Counts of bounds, of tight ones, and of the instances they are of."""

    def __init__(self) -> None:
        self._made: Counter[str] = Counter()
        self._tight: Counter[str] = Counter()
        self._instances: Counter[str] = Counter()

    def check(self, case: Case, objective: Objective) -> None:
        """Check all bounds of an instance; exits at a wrong one."""
        try:
            best = bounds.optimum(case, objective)
        except UndecidedError:
            self._instances["left out: PyJobShop was not done in time"] += 1
            return
        self._instances.update(_kinds(case, objective, best))
        for sample in bounds.samples(case, objective, best):
            if not sample.sound:
                raise SystemExit(f"WRONG BOUND: {sample}")
            self._made[sample.source] += 1
            self._tight[sample.source] += sample.tight
        self._recheck(Sample("re-check of the optimum", best, best, case, objective))

    def _recheck(self, sample: Sample) -> None:
        """The optimum must be confirmed, and one more refused (or a limit that works)."""
        confirmed = bounds.rechecked(sample, (0,))
        more = None if sample.optimum is None else sample.optimum + 1
        refused = Verdict.WRONG if more is None else bounds.rechecked(sample._replace(bound=more))
        if confirmed is Verdict.WRONG or refused is Verdict.CONFIRMED:
            raise SystemExit(f"WRONG VERDICT: {confirmed}, {refused}: {sample}")
        self._made[sample.source] += 1
        self._tight[sample.source] += confirmed is Verdict.CONFIRMED
        self._made[REFUSED] += more is not None
        self._tight[REFUSED] += more is not None and refused is Verdict.WRONG

    def __str__(self) -> str:
        """Tables of bounds and of instances."""
        lines = [
            "| bound | checked | above the optimum | equal to it, or so decided in 30 s |",
            "|---|---|---|---|",
        ]
        for source, made in sorted(self._made.items()):
            share = 100 * self._tight[source] / made
            lines.append(f"| {source} | {made} | 0 | {self._tight[source]} ({share:.1f} %) |")
        lines += ["", "| instances | number |", "|---|---|"]
        lines += [f"| {kind} | {number} |" for kind, number in sorted(self._instances.items())]
        return "\n".join(lines)


def _kinds(case: Case, objective: Objective, best: int | None) -> list[str]:
    pipeline = case.pipeline
    signs = {(change > 0) - (change < 0) for change in pipeline.ticks.memory_b}
    return [
        f"objective {objective.value}",
        f"{pipeline.num_devices} devices",
        f"placement {pipeline.placement if pipeline.named_placement else 'explicit'}",
        f"{pipeline.routes} routes",
        "backwards whole" if case.fused else "backwards split",
        "no memory limit" if pipeline.limits is None else "memory limits",
        *(f"memory_b {words} somewhere" for sign, words in SIGNS.items() if sign in signs),
        "infeasible" if best is None else "feasible",
    ]


if __name__ == "__main__":
    main()
