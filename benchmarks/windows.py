"""Settings of CP-SAT for the windows of window LNS, compared by window search alone.

python -m benchmarks.windows --seconds 20 --seeds 1 2

One worker, from the best schedule of priority rules and baselines; seconds of the processor. Large
instances of the suite with tight memory, and even partitions of models with two chunks.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import NamedTuple

import ppopt
from benchmarks import suite
from benchmarks.record import table
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.objective import Objective
from ppopt.problem.problem import Problem
from ppopt.schedule.schedule import Schedule
from ppopt.solver.bounds import device_bounds
from ppopt.solver.budget import Budget
from ppopt.solver.heuristics.construction import Baselines, ListScheduling
from ppopt.solver.heuristics.operation_network import OperationNetwork
from ppopt.solver.heuristics.window import SemiActiveSchedule
from ppopt.solver.heuristics.window_lns import WindowSearch
from ppopt.solver.incumbent import Incumbent
from ppopt.solver.parameters import SolveParams, WindowParams
from ppopt.solver.portfolio import NAMES

SETTINGS: tuple[tuple[str, ...], ...] = ((), ("ordering",), ("ordering_quick_restart",))
"""Subsolvers of `ppopt.solver.cp_sat.cpsat`; empty: CP-SAT's own search."""
INSTANCES = (
    *("28.3b p=16 m=128 K=12", "28.3b p=32 m=64 K=24", "1.5b p=8 m=64 K=6"),
    *("v 1.5b p=8 m=32 K=8 chunks", "interleaved 1.5b p=8 m=32 K=10 chunks"),
)
MODELS = {"internvl2-26b": "interleaved", "deepseek-v3": "v"}
"""Placements, with two chunks and 80 GiB."""


class Start(NamedTuple):
    """A schedule to improve."""

    name: str
    problem: Problem
    schedule: Schedule


def starts() -> Iterator[Start]:
    """Best schedules of priority rules and baselines."""
    pipelines = {
        instance.name: instance.pipeline for instance in suite.full() if instance.name in INSTANCES
    }
    for model, placement in MODELS.items():
        pipelines[model] = replace(
            ppopt.read_pipeline(model), placement=placement, chunks=2, mem_limit="80GiB"
        )
    constructing = {ListScheduling.name, Baselines.name}
    params = SolveParams(without=frozenset(NAMES) - constructing)
    for name, pipeline in pipelines.items():
        result = ppopt.solve(pipeline, backward_kind="split", workers=1, params=params)
        assert result.schedule is not None
        problem = Problem(pipeline, Objective.MAKESPAN, BackwardKind.SPLIT).reduced
        yield Start(name, problem, result.schedule)


def value(start: Start, focus: tuple[str, ...], seconds: float, seed: int) -> tuple[float, int]:
    """Value after some seconds of the processor, and operations of the last window."""
    incumbent = Incumbent(start.problem, device_bounds.known_bound(start.problem))
    end = time.process_time() + seconds
    budget = Budget(incumbent, 60 * seconds, stopped=lambda: time.process_time() > end)
    network = OperationNetwork(start.problem)
    search = WindowSearch(network, Random(seed), WindowParams(focus=focus))
    first = SemiActiveSchedule.of(network, network.starts(start.schedule))
    best = search.search(first, budget, lambda _: None)
    return float(start.problem.pipeline.ticks.time(best.value)), round(search.size)


def main() -> None:
    """Print a line per instance and seed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--seeds", type=int, nargs="*", default=[1])
    arguments = parser.parse_args()
    rows = []
    for start in starts():
        for seed in arguments.seeds:
            cells = [value(start, focus, arguments.seconds, seed) for focus in SETTINGS]
            rows.append((start.name, seed, *(f"{best:.1f} ({size})" for best, size in cells)))
    names = [focus[0] if focus else "own" for focus in SETTINGS]
    print("\n".join(table(("instance", "seed", *names), rows)))


if __name__ == "__main__":
    main()
