"""The sides of a race by name, each with the interface of `benchmarks.baselines.problem.Solver`.

One side per process: the libraries of HiGHS and of OR-Tools export the same symbols and do not go
together.
"""

from __future__ import annotations

import importlib

from benchmarks.baselines.problem import Limits, Outcome, Run, Size, Solver
from ppopt.metrics import Objective
from ppopt.pipeline import Pipeline

OURS = "ppopt"
BASELINES = {
    "cp-sat": "cpsat",
    "milp": "milp",
    "z3": "smt",
    "pyjobshop": "jobshop",
}
"""Module of every baseline."""
LIBRARIES = {
    OURS: ("ortools", "numpy"),
    "cp-sat": ("ortools",),
    "milp": ("highspy",),
    "z3": ("z3-solver",),
    "pyjobshop": ("pyjobshop", "ortools"),
}
"""Distributions whose versions a side's figures depend on."""
MAKESPAN_ONLY = frozenset({"pyjobshop"})


def load(side: str) -> Solver:
    """The function of a side, its libraries loaded: that is not part of anyone's time."""
    if side == OURS:
        for name in ("budget", "cpsat", "model", "relaxed", "whole"):
            importlib.import_module(f"ppopt.solver.{name}")
        return ours
    solver: Solver = importlib.import_module(f"benchmarks.baselines.{BASELINES[side]}").solve
    return solver


def states(side: str, objective: Objective) -> bool:
    """Whether a side can state an objective."""
    return objective is Objective.MAKESPAN or side not in MAKESPAN_ONLY


def ours(pipeline: Pipeline, objective: Objective, limits: Limits) -> Outcome:
    """`ppopt.solve`; the size is that of the whole model, built where nothing else closes."""
    from ppopt.solver.incumbent import Progress  # noqa: PLC0415  as the line below
    from ppopt.solver.solve import solve  # noqa: PLC0415  other sides do without

    run, per_unit = Run(objective, limits), pipeline.ticks.per_unit

    def follow(progress: Progress) -> None:
        value = None if progress.value is None else int(progress.value * per_unit)
        run.note(value, int(progress.lower_bound * per_unit))

    found = solve(
        pipeline,
        objective=objective,
        time_limit=limits.seconds,
        workers=limits.workers,
        seed=limits.seed,
        progress=follow,
    )
    run.note(None, int((found.lower_bound or 0) * per_unit))
    return run.outcome(found.schedule, Size(0, 0), infeasible=found.status == "infeasible")
