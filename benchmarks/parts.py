"""The parts of ppopt's search, each alone, to see what each contributes."""

from __future__ import annotations

import time
from collections.abc import Callable
from random import Random

from benchmarks.baselines.problem import Limits, Outcome, Run, Size
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.objective import Objective
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.problem import Problem
from ppopt.solver.bounds import device_bounds
from ppopt.solver.bounds.relaxation_bound import RelaxationBound
from ppopt.solver.bounds.subset_dynamic_program import SubsetDP
from ppopt.solver.budget import Budget, Clock
from ppopt.solver.exact.full_model import FullModel
from ppopt.solver.heuristics.annealing import RuleAnnealing
from ppopt.solver.heuristics.construction import HandStrategies, ListScheduling
from ppopt.solver.heuristics.iterated_local_search import IteratedLocalSearch
from ppopt.solver.heuristics.local_starts import DoubleJustification
from ppopt.solver.heuristics.pool import Pool
from ppopt.solver.incumbent import Incumbent
from ppopt.solver.method import supported
from ppopt.solver.parameters import Share, SolveParams
from ppopt.solver.turns import Turn, Turns, TurnTaker, alternate, rounds

Make = Callable[[Problem, Incumbent, Limits], Turns]
PARAMS = SolveParams()


def construction(pipeline: Pipeline, objective: Objective, limits: Limits) -> Outcome:
    """Hand strategies, list scheduling and local search; the bound is head + work alone."""

    def turns(problem: Problem, _: Incumbent, limits: Limits) -> Turns:
        pool, rng = Pool(problem, PARAMS.pool), Random(limits.seed)
        yield from alternate(
            *supported([ListScheduling(pool), HandStrategies(pool)], problem, PARAMS)
        )
        pool.end_construction()
        methods = (
            DoubleJustification(pool, PARAMS.justification),
            IteratedLocalSearch(pool, rng, PARAMS.local_search),
            RuleAnnealing(pool, rng, PARAMS.annealing),
        )
        entries = [TurnTaker(one, Share(1)) for one in supported(methods, problem, PARAMS)]
        yield from rounds(entries, problem, limits.seconds, PARAMS.rounds)

    return _alone(turns, pipeline, objective, limits)


def relaxations(pipeline: Pipeline, objective: Objective, limits: Limits) -> Outcome:
    """Bounds of subsets of devices, by dynamic programming and CP-SAT, from hand schedules on."""

    def turns(problem: Problem, _: Incumbent, limits: Limits) -> Turns:
        yield from alternate(HandStrategies(Pool(problem, PARAMS.pool)))
        methods = (SubsetDP(problem, PARAMS.subset), RelaxationBound(problem, PARAMS.relaxation))
        entries = [TurnTaker(one, Share(1)) for one in supported(methods, problem, PARAMS)]
        yield from rounds(entries, problem, limits.seconds, PARAMS.rounds)

    return _alone(turns, pipeline, objective, limits)


def model(pipeline: Pipeline, objective: Objective, limits: Limits) -> Outcome:
    """CP-SAT on the whole model, from nothing."""

    def turns(problem: Problem, _: Incumbent, limits: Limits) -> Turns:
        yield Turn(FullModel(problem, PARAMS.full_model), limits.seconds)

    return _alone(turns, pipeline, objective, limits)


def _alone(make: Make, pipeline: Pipeline, objective: Objective, limits: Limits) -> Outcome:
    run = Run(objective, limits)
    problem = Problem(pipeline, objective, BackwardKind.SPLIT)
    clock = Clock(limits.seconds, time.monotonic())
    known = device_bounds.device_bound(problem.instance, objective)
    incumbent = Incumbent(problem, known, run.note)
    incumbent.infeasible = device_bounds.infeasibility(problem.instance) or ""
    turns = make(problem, incumbent, limits)
    turn = next(turns, None)
    while turn is not None and not (clock.over or incumbent.closed):
        budget = Budget(incumbent, clock, limits.workers, limits.seed, turn.seconds)
        outcome = turn.method.run(incumbent, budget)
        try:
            turn = turns.send(outcome)
        except StopIteration:
            break
    run.note(None, incumbent.bound.value)
    return run.outcome(incumbent.best, Size(0, 0), infeasible=bool(incumbent.infeasible))
