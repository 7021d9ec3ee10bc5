"""The parts of ppopt's search, each alone, to see what each contributes."""

from __future__ import annotations

import time
from collections.abc import Callable

from benchmarks.baselines.problem import Limits, Outcome, Run, Size
from ppopt.metrics import Objective
from ppopt.pipeline import Pipeline
from ppopt.solver import bounds, cpsat, whole
from ppopt.solver.budget import Budget
from ppopt.solver.candidates import candidates
from ppopt.solver.improve import Improver
from ppopt.solver.incumbent import Problem, Progress, Search
from ppopt.solver.prefix.few import Few
from ppopt.solver.relaxed import Relaxations
from ppopt.solver.solve import FIRST_ROUND

Work = Callable[[Search, Limits], None]


def construction(pipeline: Pipeline, objective: Objective, limits: Limits) -> Outcome:
    """Hand strategies, list scheduling and local search; the bound is head + work alone."""

    def work(search: Search, limits: Limits) -> None:
        improver = Improver(search, limits.seed)
        improver.construct()
        improver.settle(1.0)
        while improver.ready and not search.over:
            improver.climb(search.left)

    return _alone(work, pipeline, objective, limits)


def relaxations(pipeline: Pipeline, objective: Objective, limits: Limits) -> Outcome:
    """What few devices need, by sweeps and relaxed models, below the best strategy by hand."""

    def work(search: Search, limits: Limits) -> None:
        for orders in candidates(pipeline, fused=False):
            search.offer(orders)
        few, models, seconds = Few(search), Relaxations(search), FIRST_ROUND
        while not search.over and (few.open or not models.settled):
            few.raise_bound(Budget.of(search, limits.workers, limits.seed, seconds))
            models.raise_bound(Budget.of(search, limits.workers, limits.seed, seconds))
            seconds *= 2

    return _alone(work, pipeline, objective, limits)


def model(pipeline: Pipeline, objective: Objective, limits: Limits) -> Outcome:
    """CP-SAT on the whole model, from nothing."""

    def work(search: Search, limits: Limits) -> None:
        whole.search(search, cpsat.Limits(search.left, limits.workers, limits.seed))

    return _alone(work, pipeline, objective, limits)


def _alone(work: Work, pipeline: Pipeline, objective: Objective, limits: Limits) -> Outcome:
    run, per_unit = Run(objective, limits), pipeline.ticks.per_unit

    def follow(progress: Progress) -> None:
        value = None if progress.value is None else int(progress.value * per_unit)
        run.note(value, int(progress.lower_bound * per_unit))

    began = time.monotonic()
    known = bounds.device_bound(pipeline, objective, fused=False)
    problem = Problem(pipeline, objective, fused=False)
    search = Search(problem, began, began + limits.seconds, follow, known)
    search.infeasible = bounds.infeasibility(pipeline, fused=False) or ""
    if not search.over:
        work(search, limits)
    run.note(None, search.bound.value)
    return run.outcome(search.best, Size(0, 0), infeasible=bool(search.infeasible))
