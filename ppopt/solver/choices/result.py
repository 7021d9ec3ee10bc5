"""The result of a search over configurations: the best schedule, with the bound over all."""

from __future__ import annotations

from ppopt.problem.problem import Problem
from ppopt.schedule.origin import Argument, Certificate, HintRecord
from ppopt.schedule.schedule import Schedule
from ppopt.solver.bound import start_scope
from ppopt.solver.bounds.proof_scope import delay_scope
from ppopt.solver.choices.choice import Choice
from ppopt.solver.choices.configuration import SearchedConfigurations
from ppopt.solver.options import SolveOptions
from ppopt.solver.result import Result, Status


def result_of(
    choice: Choice,
    problem: Problem,
    state: SearchedConfigurations,
    options: SolveOptions,
    *,
    hint: HintRecord | None = None,
) -> Result:
    """Result of a search of the configurations of a choice, whose schedule is verified."""
    best = None if state.best is None else state.best.result
    weight = 1 if state.best is None else state.best.weight
    bound = None if state.infeasible else -(-state.lower_bound // weight)
    value = None if best is None else best.value_ticks
    scope = start_scope(problem) + delay_scope(problem)
    with options.scope():
        proof = choice.proof(state)
    result = Result(
        pipeline=problem.pipeline if best is None else best.pipeline,
        objective=problem.objective,
        backward_kind=problem.backward_kind,
        status=Status.of(value, bound),
        schedule=None,
        value_ticks=value,
        bound_ticks=bound,
        proof=proof + ("" if bound is None else scope),
        certificate=choice.certificate(state),
        provenance=options.provenance,
        solve_seconds=options.spent,
        hint=hint,
    )
    if best is None or best.schedule is None:
        return result
    return result.with_schedule(best.schedule)


def known_result(problem: Problem, schedule: Schedule, options: SolveOptions) -> Result:
    """Result for a schedule that is known without a search; it proves nothing."""
    pipeline = schedule.pipeline
    return Result(
        pipeline=pipeline,
        objective=problem.objective,
        backward_kind=problem.backward_kind,
        status=Status.FEASIBLE,
        schedule=schedule,
        value_ticks=schedule.metrics.value_ticks(problem.objective),
        bound_ticks=None,
        proof="known without a search",
        certificate=Certificate(Argument.SEARCH),
        provenance=options.provenance,
        solve_seconds=0.0,
    )
