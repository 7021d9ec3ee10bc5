"""The sides of a race by name: ppopt, and the plain model of CP-SAT."""

from __future__ import annotations

import importlib
import pkgutil

import ppopt.solver
from benchmarks.outcome import Limits, Outcome, Run, Size, Solver
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.objective import Objective
from ppopt.problem.pipeline import Pipeline
from ppopt.strategies import registry

OURS, PLAIN = "ppopt", "cp-sat"
LIBRARIES = {OURS: ("ortools", "numpy"), PLAIN: ("ortools",)}
"""Distributions whose versions a side's figures depend on."""


def load(side: str) -> Solver:
    """The function of a side, all it runs loaded: that is not part of anyone's time."""
    registry()
    if side == OURS:
        for module in pkgutil.walk_packages(ppopt.solver.__path__, "ppopt.solver."):
            importlib.import_module(module.name)
        return ours
    from benchmarks import plain_cp_sat  # noqa: PLC0415  the other side has what it loads itself

    return plain_cp_sat.solve


def size_of_ours(pipeline: Pipeline, objective: Objective) -> Size:
    """Size of ppopt's model of the whole pipeline, which it builds where nothing else closes."""
    from benchmarks.plain_cp_sat import size  # noqa: PLC0415  it loads OR-Tools
    from ppopt.problem.problem import Problem  # noqa: PLC0415  likewise
    from ppopt.solver.bounds import device_bounds  # noqa: PLC0415  likewise
    from ppopt.solver.cp_sat import model  # noqa: PLC0415  likewise

    problem = Problem(pipeline, objective, BackwardKind.SPLIT)
    bound = device_bounds.device_bound(problem.instance, objective).value
    built = model.build_model(problem, horizon=2 * bound, bound=bound)
    return size(built.cp)


def ours(pipeline: Pipeline, objective: Objective, limits: Limits) -> Outcome:
    """`ppopt.solve`; for the size see `size_of_ours`."""
    from ppopt.solver.result import Progress  # noqa: PLC0415  as the line below
    from ppopt.solver.solve import solve  # noqa: PLC0415  other sides do without

    run, per_unit = Run(objective, limits), pipeline.ticks.per_unit

    def follow(progress: Progress) -> None:
        value = None if progress.value is None else int(progress.value * per_unit)
        run.note(value, int(progress.lower_bound * per_unit))

    result = solve(
        pipeline,
        objective=objective,
        time_limit=limits.seconds,
        workers=limits.workers,
        seed=limits.seed,
        progress=follow,
    )
    run.note(None, int((result.lower_bound or 0) * per_unit))
    return run.outcome(result.schedule, Size(0, 0), infeasible=result.status == "infeasible")
