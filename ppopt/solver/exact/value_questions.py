"""CP-SAT is asked for schedules of given values, not for the best.

Of a long run one question is put, of a shorter one whose middle repeats: the operations of every
microbatch in the middle come one period after those of the microbatch before. A period is the work
of the busiest device on a microbatch: in the steady state of a run that meets the bound it never
idles. The model has few free operations then, whatever the microbatches, and what it finds is
stretched (`ppopt.solver.heuristics.steady_state`). Where nothing repeats like that, nothing is said
of the run.
"""

from __future__ import annotations

from dataclasses import replace

from ppopt.problem.problem import Problem
from ppopt.schedule.origin import Argument, Certificate
from ppopt.schedule.schedule import Schedule
from ppopt.solver import interrupts
from ppopt.solver.bounds import head_body_tail
from ppopt.solver.bounds.destructive_bounds import Between, question
from ppopt.solver.bounds.head_body_tail import Bound
from ppopt.solver.budget import Budget
from ppopt.solver.cp_sat import cpsat, model
from ppopt.solver.exact.full_model import searched
from ppopt.solver.heuristics.cyclic import least_period
from ppopt.solver.heuristics.steady_state import Section, SteadyState
from ppopt.solver.incumbent import Incumbent
from ppopt.solver.method import Outcome, is_plain
from ppopt.solver.parameters import CP_SAT, QuestionParams


class ValueQuestions:
    """Larger problems: questions between bound and value, or about a shorter run that repeats."""

    name = "value questions"

    def __init__(self, problem: Problem, params: QuestionParams) -> None:
        self._params = params
        self._turn = 0
        self._shorter = shorter(problem, params.per_device)

    def supports(self, problem: Problem) -> bool:
        """Problems too large for the full model, whose own model or a shorter one is not."""
        asked = self._shorter or problem
        large = problem.operations > self._params.operations and is_plain(problem)
        return large and asked.operations <= self._params.most_operations

    def run(self, incumbent: Incumbent, budget: Budget) -> Outcome:
        """Ask while the budget lasts; the incumbent takes schedules and bounds."""
        turn, before = self._turn, (incumbent.value, incumbent.bound.value)
        self._turn += 1
        if budget.over or incumbent.value is None:
            return Outcome()
        if self._shorter is None:
            self._bisect(incumbent, budget, turn)
        elif self._close(incumbent):
            self._ask_shorter(incumbent, self._shorter, budget, turn)
        fruitful = (incumbent.value, incumbent.bound.value) != before
        return Outcome(budget.spent, fruitful=fruitful)

    def _close(self, incumbent: Incumbent) -> bool:
        """Whether the bound may well be met."""
        assert incumbent.value is not None
        return self._params.close * (incumbent.value - incumbent.bound.value) <= incumbent.value

    def _bisect(self, incumbent: Incumbent, budget: Budget, turn: int) -> None:
        """Ask between bound and value."""
        assert incumbent.value is not None
        problem = incumbent.problem
        between = Between(incumbent.bound.value, incumbent.value)
        for target in between.questions(lambda: incumbent.bound.value):
            if budget.over:
                return
            at_bound = target == incumbent.bound.value and self._close(incumbent)
            part = 1 if at_bound else self._params.share
            outcome = _answer(question(problem, target), budget, part, turn)
            if outcome.schedule is not None:
                incumbent.submit(outcome.schedule)
                between.high = min(target, incumbent.value)
            elif outcome.infeasible:
                incumbent.raise_bound(_none_within(problem, target))
            else:
                between.skip(target)

    def _ask_shorter(
        self, incumbent: Incumbent, problem: Problem, budget: Budget, turn: int
    ) -> None:
        """Ask for a schedule of the bound's value by a shorter run whose middle repeats."""
        fewer = incumbent.problem.pipeline.batches - problem.pipeline.batches
        value = incumbent.bound.value - fewer * least_period(problem)
        least = head_body_tail.device_bound(problem.instance, problem.objective)
        if value < least.value:
            return
        built = question(problem, value)
        _repeat(built, least_period(problem))
        outcome = _answer(built, budget, 1, 2 * turn + 1)
        if outcome.schedule is not None:
            incumbent.submit(_stretched(incumbent, problem, outcome.schedule))


def shorter(problem: Problem, per_device: int) -> Problem | None:
    """The run to be asked for in place of a long one; None where the run itself is not long."""
    pipeline = problem.pipeline
    few = per_device * pipeline.num_devices
    if pipeline.batches <= few or pipeline.routes > 1 or pipeline.num_slices > 1:
        return None
    return replace(problem, pipeline=replace(pipeline, batches=few))


def _none_within(problem: Problem, target: int) -> Bound:
    return Bound(target + 1, f"{searched(problem)} below", Certificate(Argument.SEARCH))


def _answer(built: model.Model, budget: Budget, part: float, turn: int) -> cpsat.Outcome:
    focus = CP_SAT.schedule_subsolvers if turn % 2 else CP_SAT.proof_subsolvers
    limits = replace(budget.limits(part, focus).turned(turn), presolve=False)
    outcome = cpsat.search(built, limits, lambda _value, _bound: None)
    budget.pay(outcome.work, interrupted=outcome.interrupted)
    return outcome


@interrupts.held()
def _repeat(built: model.Model, apart: int) -> None:
    """Let the microbatches of the middle follow one another by so many ticks."""
    pipeline = built.pipeline
    first = pipeline.num_devices
    for code, start in built.start.items():
        op = pipeline.op(code)
        later = op.microbatch - first
        if 0 < later < pipeline.num_devices:
            leader = built.start[int(pipeline.code(op.kind, op.stage, first))]
            built.cp.add(start == leader + later * apart)


def _stretched(incumbent: Incumbent, problem: Problem, short: Schedule) -> Schedule:
    middle = Section(problem.pipeline.num_devices, 1, 1, float(least_period(problem)))
    return SteadyState(short, problem).unroll(incumbent.problem.pipeline, middle)
