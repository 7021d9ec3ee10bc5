"""Solves the CP-SAT model of all devices, with or without a known schedule."""

from __future__ import annotations

from dataclasses import replace

from ppopt.errors import VerificationError
from ppopt.problem.instance import Instance
from ppopt.problem.objective import Objective
from ppopt.problem.problem import Problem
from ppopt.problem.traits import FORMS, ArgumentClass, Trait, handled
from ppopt.rechecker import SEED, Verdict, check
from ppopt.rechecker.claim import Claim
from ppopt.schedule.origin import Argument, Certificate
from ppopt.solver.bound import Bound
from ppopt.solver.bounds.proof_scope import searched
from ppopt.solver.budget import Budget, SolverLimits
from ppopt.solver.cp_sat import cpsat, model
from ppopt.solver.incumbent import Incumbent
from ppopt.solver.method import Outcome, is_plain
from ppopt.solver.parameters import FullModelParams
from ppopt.solver.relaxation.route_times import RouteTimes


def can_prove(problem: Problem) -> bool:
    """Whether the re-checker can confirm proofs by the model; else it only finds schedules."""
    over_links = Trait.LINKS in problem.traits
    return not over_links or problem.traits.isdisjoint({Trait.MIXED, Trait.SPAN})


class FullModel:
    """Search below the incumbent by the CP-SAT model of all devices, until proof."""

    name = "full model"
    handles = handled(ArgumentClass.EVERY_OPERATION, FORMS)

    def __init__(self, problem: Problem, params: FullModelParams) -> None:
        self._problem = problem
        self._params = params
        self._proves = can_prove(problem)
        self._exhausted = False
        """Whether it has searched everything, without the right to prove."""
        self._turn = 0

    def supports(self, problem: Problem) -> bool:
        """Whether a problem is small, or larger and has slices or overlapped pairs."""
        small = problem.num_operations <= self._params.operations or not is_plain(problem)
        return small and problem.num_operations <= self._params.max_operations

    def run(self, incumbent: Incumbent, budget: Budget) -> Outcome:
        """Search with ordering subsolvers, with a different list in each turn."""
        focuses, turn = self._params.focuses, self._turn
        self._turn += 1
        limits = budget.limits(focus=focuses[turn % len(focuses)]).reseeded(turn)
        limits = self._with_presolve(limits)
        while self._searched(incumbent, budget, limits) and not budget.search_over:
            limits = replace(limits, seconds=min(limits.seconds, budget.search_left))
        return Outcome(budget.spent, exhausted=self._exhausted)

    def _with_presolve(self, limits: SolverLimits) -> SolverLimits:
        """Reserve the time by which presolve may overrun the limit, or skip presolve."""
        presolve = self._params.presolve_seconds * self._problem.num_operations
        if limits.seconds > presolve:
            return replace(limits, seconds=limits.seconds - presolve)
        return replace(limits, presolve=False)

    def _searched(self, incumbent: Incumbent, budget: Budget, limits: SolverLimits) -> bool:
        """Search below the best value until proof, time limit or Ctrl-C; submit schedule and bound.

        Returns whether it proved that no schedule is better by a whole step: a search with finer
        steps may follow.
        """
        problem, params = incumbent.problem, self._params
        built = model.build_model(
            problem,
            horizon=_horizon(incumbent),
            bound=incumbent.bound.value,
            step=_step(incumbent, params.steps),
        )
        if incumbent.best is not None:
            model.hint(built, incumbent.best)
        value = incumbent.value

        def follow(new_value: int | None, bound: int) -> None:
            nonlocal value
            value = value if new_value is None else new_value
            incumbent.announce(value, bound if self._proves else incumbent.bound.value)

        def enough() -> bool:
            return limits.enough() or value == incumbent.bound.value

        outcome = cpsat.search(built, replace(limits, enough=enough), follow)
        budget.pay(outcome.work)
        beyond = incumbent.value is None and outcome.bound >= built.horizon
        if outcome.infeasible or (outcome.schedule is None and beyond):
            _close_infeasible(
                incumbent, min(params.recheck_seconds, max(1.0, budget.search_left)), limits
            )
            return True
        if outcome.schedule is not None:
            incumbent.submit_orders(outcome.schedule.orders)
            incumbent.submit(outcome.schedule)
        if not self._proves:
            self._exhausted = outcome.complete
            return False
        ended = outcome.complete or (
            incumbent.value is not None and outcome.bound >= incumbent.value
        )
        cut = "CP-SAT proved this bound on the model of all operations"
        proof = searched(problem) if ended else cut
        argument = Argument.TRANSFERS if Trait.LINKS in problem.traits else Argument.SEARCH
        incumbent.raise_bound(Bound(outcome.bound, proof, Certificate(argument)))
        return outcome.ended


def _step(state: Incumbent, steps: int) -> int:
    """Ticks by which a schedule must be better than the last: a share of the gap."""
    if state.value is None:
        return 1
    return max(1, (state.value - state.bound.value) // steps)


def _horizon(state: Incumbent) -> int:
    """Best value; without a schedule, an upper bound on the optimum.

    A time in which no operation and no transfer runs can be removed from a schedule. So the best
    schedule takes at most the sum of all operations and delays. The horizon is one tick more,
    because a bound that reaches the horizon ends the search.
    """
    if state.value is not None:
        return state.value
    pipeline, kinds = state.problem.pipeline, state.problem.restrictions
    routes = [
        RouteTimes(problem.instance, route) for problem in kinds for route in range(pipeline.routes)
    ]
    each = max(
        d.head(stage) + d.forward[stage] + d.round_trip(stage) + d.backward[stage] + d.tail(stage)
        for d in routes
        for stage in range(len(d.host))
    ) + max(sum(d.weight) for d in routes)
    full = state.problem.full_instance
    extra = sum(sum(full.times(class_id)) for class_id in full.auxiliary_classes)
    extra += sum(_differences(problem.instance) for problem in kinds)
    return pipeline.batches * pipeline.num_slices * each + extra + 1


def _differences(instance: Instance) -> int:
    """Ticks by which all compute exceeds that of equal microbatches as short as the shortest.

    All slices of such a microbatch are as long as the first.
    """
    total = 0
    for class_id, op_class in enumerate(instance.classes):
        row, first = (
            instance.times(class_id),
            class_id - op_class.slice * instance.pipeline.num_stages,
        )
        total += sum(max(0, time - instance.classes[first].duration) for time in row)
    return total


def _close_infeasible(state: Incumbent, seconds: float, limits: SolverLimits) -> None:
    """Record infeasibility.

    Raises VerificationError if a schedule is known, or if the re-checker finds one.
    """
    problem = state.problem
    span = problem.objective is Objective.DEVICE_SPAN
    claim = Claim(problem.pipeline, span, problem.backward_kind, bound=None)
    if state.value is not None:
        raise VerificationError(
            f"the whole model lost a schedule of {state.value} ticks: please report it"
        )
    if _is_wrong(claim, seconds, limits.workers):
        raise VerificationError("the whole model lost a schedule that there is: please report it")
    state.infeasible = (
        f"{searched(state.problem)} within the memory limits; raise them: a limit that holds "
        "B of no length beside all activations of a device always works"
    )


def _is_wrong(claim: Claim, seconds: float, workers: int) -> bool:
    recheck = check(claim, seconds, workers, SEED, lambda _: None)
    return recheck.verdict is Verdict.WRONG
