"""Feasibility checks by CP-SAT: whether a schedule of all devices with a given value exists.

For many microbatches, one check is on a pipeline with fewer microbatches and a periodic middle: the
operations of every microbatch in the middle start one period after those of the microbatch before.
A period is the work of the busiest device per microbatch, because that device never idles in the
steady state of a schedule that meets the bound. The number of free operations in this model does
not depend on the number of microbatches. A schedule that it finds is unrolled to all microbatches
(`ppopt.solver.heuristics.steady_state`). If it finds none, nothing is proved about all
microbatches.
"""

from __future__ import annotations

from dataclasses import replace

from ppopt.problem.problem import Problem
from ppopt.problem.traits import ArgumentClass, Trait, handled, unhandled
from ppopt.schedule.origin import Argument, Certificate
from ppopt.schedule.schedule import Schedule
from ppopt.solver.bound import Bound
from ppopt.solver.bounds import device_bounds
from ppopt.solver.bounds.destructive_bounds import TargetSequence, feasibility_model
from ppopt.solver.bounds.proof_scope import searched
from ppopt.solver.budget import Budget
from ppopt.solver.cp_sat import cpsat
from ppopt.solver.cp_sat.model import CpSatModel
from ppopt.solver.heuristics.steady_state import UNROLLED, Section, SteadyStatePattern
from ppopt.solver.incumbent import Incumbent
from ppopt.solver.method import Outcome
from ppopt.solver.parameters import CP_SAT, FeasibilityParams


class TargetFeasibility:
    """Feasibility checks for larger problems: of target values, or with fewer microbatches."""

    name = "feasibility checks"
    handles = handled(ArgumentClass.EQUAL_COMPUTE, (Trait.ROUTES, Trait.SPAN))

    def __init__(self, problem: Problem, params: FeasibilityParams) -> None:
        self._params = params
        self._turn = 0
        self._shorter = shorter(problem, params.per_device)

    def supports(self, problem: Problem) -> bool:
        """Whether a problem is too large for the full model, but not for a feasibility model."""
        asked = self._shorter or problem
        large = problem.num_operations > self._params.operations
        return large and asked.num_operations <= self._params.max_operations

    def run(self, incumbent: Incumbent, budget: Budget) -> Outcome:
        """Solve checks while the budget lasts; submit schedules and bounds to the incumbent."""
        turn = self._turn
        self._turn += 1
        if budget.over or incumbent.value is None:
            return Outcome()
        if self._shorter is None:
            self._bisect(incumbent, budget, turn)
        elif self._close(incumbent):
            self._ask_shorter(incumbent, self._shorter, budget, turn)
        return Outcome(budget.spent)

    def _close(self, incumbent: Incumbent) -> bool:
        """Whether the gap is so small that a schedule may meet the bound."""
        assert incumbent.value is not None
        return self._params.close * (incumbent.value - incumbent.bound.value) <= incumbent.value

    def _bisect(self, incumbent: Incumbent, budget: Budget, turn: int) -> None:
        """Check targets between bound and value."""
        assert incumbent.value is not None
        problem = incumbent.problem
        sequence = TargetSequence(incumbent.bound.value, incumbent.value)
        for target in sequence.targets(lambda: incumbent.bound.value):
            if budget.over:
                return
            at_bound = target == incumbent.bound.value and self._close(incumbent)
            share = 1 if at_bound else self._params.share
            outcome = _solve_feasibility(feasibility_model(problem, target), budget, share, turn)
            if outcome.schedule is not None:
                incumbent.submit(outcome.schedule)
                sequence.high = min(target, incumbent.value)
            elif outcome.infeasible:
                certificate = Certificate(Argument.SEARCH)
                incumbent.raise_bound(Bound(target + 1, searched(problem), certificate))
            else:
                sequence.skip(target)

    def _ask_shorter(
        self, incumbent: Incumbent, problem: Problem, budget: Budget, turn: int
    ) -> None:
        """Check whether a schedule meets the bound: fewer microbatches and a periodic middle."""
        fewer = incumbent.problem.pipeline.batches - problem.pipeline.batches
        value = incumbent.bound.value - fewer * min_period(problem)
        bound = device_bounds.device_bound(problem.instance, problem.objective)
        if value < bound.value:
            return
        built = feasibility_model(problem, value)
        _repeat(built, min_period(problem))
        outcome = _solve_feasibility(built, budget, 1, 2 * turn + 1)
        if outcome.schedule is not None:
            incumbent.submit(_stretched(incumbent, problem, outcome.schedule))


def shorter(problem: Problem, per_device: int) -> Problem | None:
    """The problem with `per_device` microbatches per device; None if that does not apply."""
    pipeline = problem.pipeline
    short = per_device * pipeline.num_devices
    if pipeline.batches <= short or unhandled(problem.traits, UNROLLED):
        return None
    return problem.of_batches(short)


def min_period(problem: Problem) -> int:
    """Largest work of a device for one microbatch, in ticks."""
    times = problem.instance.times
    return max(
        sum(max(times(class_id)) for class_id in class_ids) for class_ids in problem.instance.hosted
    )


def _solve_feasibility(
    built: CpSatModel, budget: Budget, share: float, turn: int
) -> cpsat.CpSatOutcome:
    focus = CP_SAT.schedule_subsolvers if turn % 2 else CP_SAT.proof_subsolvers
    limits = replace(budget.limits(share, focus).reseeded(turn), presolve=False)
    outcome = cpsat.search(built, limits, lambda _value, _bound: None)
    budget.pay(outcome.work)
    return outcome


def _repeat(built: CpSatModel, apart: int) -> None:
    """Constrain the microbatches of the middle to follow one another `apart` ticks later."""
    pipeline = built.pipeline
    first = pipeline.num_devices
    for code, start in built.variables.start.items():
        op = pipeline.op(code)
        later = op.microbatch - first
        if 0 < later < pipeline.num_devices:
            leader = built.variables.start[int(pipeline.code(op.kind, op.stage, first))]
            built.cp.add(start == leader + later * apart)


def _stretched(incumbent: Incumbent, problem: Problem, short: Schedule) -> Schedule:
    middle = Section(problem.pipeline.num_devices, 1, 1, float(min_period(problem)))
    return SteadyStatePattern(short, problem).unroll(incumbent.problem.pipeline, middle)
