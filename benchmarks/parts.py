"""The parts of ppopt's search, each alone, to see what each contributes."""

from __future__ import annotations

import time
from collections.abc import Callable

from benchmarks.baselines.problem import Limits, Outcome, Run, Size
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.problem import Objective, Problem
from ppopt.solver.bounds import head_body_tail
from ppopt.solver.bounds.relaxation_bound import Relaxations
from ppopt.solver.bounds.subset_dynamic_program import Few
from ppopt.solver.budget import Budget
from ppopt.solver.cp_sat import cpsat
from ppopt.solver.exact import full_model
from ppopt.solver.heuristics.improve import Improver
from ppopt.solver.heuristics.initial_orders import candidates
from ppopt.solver.incumbent import Search
from ppopt.solver.result import Progress
from ppopt.solver.search import FIRST_ROUND

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
        full_model.search(search, cpsat.Limits(search.left, limits.workers, limits.seed))

    return _alone(work, pipeline, objective, limits)


def _alone(work: Work, pipeline: Pipeline, objective: Objective, limits: Limits) -> Outcome:
    run, per_unit = Run(objective, limits), pipeline.ticks.per_unit

    def follow(progress: Progress) -> None:
        value = None if progress.value is None else int(progress.value * per_unit)
        run.note(value, int(progress.lower_bound * per_unit))

    began = time.monotonic()
    known = head_body_tail.device_bound(pipeline, objective, fused=False)
    problem = Problem(pipeline, objective, fused=False)
    search = Search(problem, began, began + limits.seconds, follow, known)
    search.infeasible = head_body_tail.infeasibility(pipeline, fused=False) or ""
    if not search.over:
        work(search, limits)
    run.note(None, search.bound.value)
    return run.outcome(search.best, Size(0, 0), infeasible=bool(search.infeasible))
