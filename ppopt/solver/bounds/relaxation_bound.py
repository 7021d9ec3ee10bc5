"""Lower bounds from subsets of devices: CP-SAT solves their relaxed models."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

from ppopt.errors import VerificationError
from ppopt.problem.problem import Problem
from ppopt.problem.traits import ArgumentClass, Trait, handled
from ppopt.solver.bound import Bound
from ppopt.solver.bounds.destructive_bounds import TargetSequence, feasibility_model
from ppopt.solver.bounds.subset_selection import (
    Devices,
    evenly_spaced_subsets,
    single_devices,
    subset_bound,
)
from ppopt.solver.budget import Budget, SolverLimits
from ppopt.solver.cp_sat import cpsat, model
from ppopt.solver.cp_sat.model import CpSatModel
from ppopt.solver.incumbent import Incumbent
from ppopt.solver.method import Method, Outcome
from ppopt.solver.parameters import CP_SAT, RelaxationParams


class RelaxationBound(Method):
    """Relaxed models of subsets of devices, until each is solved to its end.

    Odd turns minimise, the most promising subsets first. Even turns solve feasibility models of
    target values (`destructive_bounds`): first for the subsets that raised the bound, last for
    those that did not. Each subset gets a share of the time. A solved subset is not tried again.
    """

    name = "relaxation bounds"
    handles = handled(ArgumentClass.EQUAL_MICROBATCHES, (Trait.PAIRS, Trait.ROUTES, Trait.SPAN))

    def __init__(self, problem: Problem, params: RelaxationParams) -> None:
        self._params = params
        self._turn = 0
        self._problem = problem
        pipeline = problem.pipeline
        first, *larger = (
            single_devices(pipeline),
            *(evenly_spaced_subsets(pipeline, count) for count in params.subset_sizes),
        )
        self._open = [*first[: params.first], *chain.from_iterable(larger), *first[params.first :]]
        self._next = self._open
        """Open subsets, in the order in which feasibility models are solved."""

    def run(self, incumbent: Incumbent, budget: Budget) -> Outcome:
        """Minimise the open subsets, or solve feasibility models of target values.

        Subsets whose models cannot be built in the remaining time are skipped.
        """
        self._open = [
            devices for devices in self._open if budget.affords(self._building_seconds(devices))
        ]
        affordable = set(self._open)
        self._next = [devices for devices in self._next if devices in affordable]
        asks = self._turn % 2
        raised, in_vain, settled = self._tried(
            self._next if asks else self._open, incumbent, budget
        )
        if asks:
            done = {*raised, *in_vain, *settled}
            self._next = [
                *raised,
                *(devices for devices in self._next if devices not in done),
                *in_vain,
            ]
        self._open = [devices for devices in self._open if devices not in settled]
        self._next = [devices for devices in self._next if devices not in settled]
        self._turn += 1
        return Outcome(budget.spent, exhausted=not self._open, fruitful=bool(raised))

    def _tried(
        self, sets: list[Devices], incumbent: Incumbent, budget: Budget
    ) -> tuple[list[Devices], ...]:
        """Try subsets in turn; return those that raised the bound, did not raise it, are solved."""
        solve = self._ask if self._turn % 2 else self._minimize
        raised: list[Devices] = []
        in_vain: list[Devices] = []
        settled: list[Devices] = []
        for devices in sets:
            if budget.over or incumbent.value is None:
                break
            if not budget.affords(self._building_seconds(devices)):
                continue
            before = incumbent.bound.value
            if solve(devices, incumbent, budget):
                settled.append(devices)
            else:
                (raised if incumbent.bound.value > before else in_vain).append(devices)
        return raised, in_vain, settled

    def _building_seconds(self, devices: Devices) -> float:
        """Estimated seconds to build the model of a subset: its operations, and objective cuts."""
        problem, params = self._problem, self._params
        hosted = problem.pipeline.hosted
        stages = sum(len(route[device]) for route in hosted for device in devices)
        operations = problem.num_operations * stages // sum(map(len, chain.from_iterable(hosted)))
        return params.operation_seconds * operations + params.cut_seconds * problem.num_operations

    def _minimize(self, devices: Devices, incumbent: Incumbent, budget: Budget) -> bool:
        """Minimise a relaxed model; return whether its minimum is proved."""
        assert incumbent.value is not None
        focuses = self._params.focuses
        focus = focuses[self._turn // 2 % len(focuses)]
        limits = replace(budget.limits(self._params.share, focus), presolve=False)
        bound, outcome = raise_by_subset(
            incumbent.problem, devices, incumbent.bound, incumbent.value, limits
        )
        budget.pay(outcome.work)
        incumbent.raise_bound(bound)
        return outcome.complete

    def _ask(self, devices: Devices, incumbent: Incumbent, budget: Budget) -> bool:
        """Bisect the minimum by feasibility models; return whether it is proved."""
        assert incumbent.value is not None
        share = self._params.share
        portion = budget.share(share)
        sequence = TargetSequence(incumbent.bound.value, incumbent.value)
        for target in sequence.targets(lambda: incumbent.bound.value):
            if portion.over:
                break
            limits = replace(portion.limits(share, CP_SAT.proof_subsolvers), presolve=False)
            outcome = _solve_relaxed(feasibility_model(incumbent.problem, target, devices), limits)
            portion.pay(outcome.work)
            if outcome.infeasible:
                incumbent.raise_bound(subset_bound(devices, target + 1))
            elif outcome.ended:
                sequence.high = target
            else:
                sequence.skip(target)
        budget.pay(portion.spent)
        return sequence.low == sequence.high


def raise_by_subset(
    problem: Problem,
    devices: Devices,
    known: Bound,
    value: int,
    limits: SolverLimits,
) -> tuple[Bound, cpsat.CpSatOutcome]:
    """Raise a known bound by the relaxation to `devices`, at most to the value of a schedule.

    If the relaxed model is not solved to optimality, its best bound counts, never its best
    solution. Raises VerificationError if the relaxed model is infeasible: a bug.
    """
    relaxed = model.build_model(problem, horizon=value, bound=known.value, devices=devices)
    outcome = _solve_relaxed(relaxed, limits)
    if outcome.infeasible:
        raise VerificationError(
            f"the relaxation to devices {devices} lost a schedule of {value} ticks: "
            "please report it"
        )
    if outcome.bound <= known.value:
        return known, outcome
    return subset_bound(devices, outcome.bound), outcome


def _solve_relaxed(built: CpSatModel, limits: SolverLimits) -> cpsat.CpSatOutcome:
    return cpsat.search(built, limits, lambda _value, _bound: None)
