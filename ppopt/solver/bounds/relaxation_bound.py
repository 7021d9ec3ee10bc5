"""Lower bounds from subsets of devices: CP-SAT solves their relaxed models."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

from ppopt.errors import VerificationError
from ppopt.problem.problem import Problem
from ppopt.problem.traits import ArgumentClass, Trait, handled
from ppopt.solver.bound import Bound
from ppopt.solver.bounds.subset_selection import (
    Devices,
    evenly_spaced_subsets,
    single_devices,
    subset_bound,
)
from ppopt.solver.budget import Budget, SolverLimits
from ppopt.solver.cp_sat import cpsat, model
from ppopt.solver.incumbent import Incumbent
from ppopt.solver.method import Method, Outcome
from ppopt.solver.parameters import RelaxationParams


class RelaxationBound(Method):
    """Relaxed models of subsets of devices, until each is solved to its end.

    Every turn minimises them, the most promising subsets first. Each subset gets a share of the
    time. A solved subset is not tried again.
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

    def run(self, incumbent: Incumbent, budget: Budget) -> Outcome:
        """Minimise the open subsets.

        Subsets whose models cannot be built in the remaining time are skipped.
        """
        self._open = [
            devices for devices in self._open if budget.affords(self._building_seconds(devices))
        ]
        known, solved = incumbent.bound.value, set[Devices]()
        for devices in self._open:
            if budget.over or incumbent.value is None:
                break
            if budget.affords(self._building_seconds(devices)) and self._minimize(
                devices, incumbent, budget
            ):
                solved.add(devices)
        self._open = [devices for devices in self._open if devices not in solved]
        self._turn += 1
        fruitful = incumbent.bound.value > known
        return Outcome(budget.spent, exhausted=not self._open, fruitful=fruitful)

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
        focus = focuses[self._turn % len(focuses)]
        limits = replace(budget.limits(self._params.share, focus), presolve=False)
        bound, outcome = raise_by_subset(
            incumbent.problem, devices, incumbent.bound, incumbent.value, limits
        )
        budget.pay(outcome.work)
        incumbent.raise_bound(bound)
        return outcome.complete


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
    outcome = cpsat.search(relaxed, limits, lambda _value, _bound: None)
    if outcome.infeasible:
        raise VerificationError(
            f"the relaxation to devices {devices} lost a schedule of {value} ticks: "
            "please report it"
        )
    if outcome.bound <= known.value:
        return known, outcome
    return subset_bound(devices, outcome.bound), outcome
