"""The CP-SAT model: starts of all operations, under all rules of a schedule.

Symmetry breaking by microbatch order. Per route and stage the k-th forward goes to microbatch k,
the k-th backward to microbatch k, and the k-th W to microbatch k. This loses no optimum: take any
schedule and give the sorted slots of each class (kind, stage, route, slice) to the microbatches in
order. Slots of one class never overlap, so their order by start is their order by end, although
slots of pairs are longer. A constraint of constant lag between two classes says end(a_j) + lag <=
start(b_j) for every j. The k-th smallest start of b has at least k of these b_j at or before it,
hence at least k a's ending by that start minus lag. So the k-th smallest end of a meets the k-th
smallest start of b. Slots do not change, hence neither do times, memory and device use. A pair
still has two different microbatches, because F of a microbatch ends before its backwards start.

Durations play no part in this, so slots of one class may differ in their modes. If every backward
may be split or whole, the class of backwards has the slots of B and of BW. A W exists only for a
B: the k-th W goes to the k-th microbatch that is split.

If links are resources, transfers are operations. The slots of one class (kind, sending stage, route
and slice) all run on one link, one at a time, and their precedence has constant lags. So the k-th
transfer of a class goes to microbatch k, by the same argument.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from ortools.sat.python import cp_model

from ppopt.cancellation import each
from ppopt.problem.kinds import ResourceKind
from ppopt.problem.operation import OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.problem import Problem
from ppopt.schedule.schedule import Schedule
from ppopt.solver.cp_sat.device_scope import DeviceScope
from ppopt.solver.cp_sat.variables import Variables
from ppopt.solver.relaxation.symmetry import canonical, canonical_besides


@dataclass(frozen=True)
class CpSatModel:
    """A model of a problem, with the step of its objective."""

    problem: Problem
    variables: Variables
    horizon: int
    """Largest objective of the model, in ticks."""
    bound: int
    """Smallest objective of the model, in ticks."""
    step: int
    """Ticks by which a schedule must improve on another one, so that CP-SAT does not improve by one
    tick at a time."""
    instants: bool
    """Whether some operations have no length."""
    energy: int
    """Maximum memory times time of a cumulative constraint, in ticks of both."""

    @property
    def pipeline(self) -> Pipeline:
        """Pipeline of the problem."""
        return self.problem.pipeline

    @property
    def cp(self) -> cp_model.CpModel:
        """CP-SAT's model."""
        return self.variables.cp

    def low(self, steps: float) -> int:
        """Lower bound of the objective in ticks, from CP-SAT's bound on the number of steps.

        `steps` is a whole number up to rounding of floats; the objective is greater than
        `bound + step (steps - 1)`.
        """
        if self.step == 1:
            return round(steps)
        return self.bound + max(0, self.step * (round(steps) - 1) + 1)


def build_model(
    problem: Problem,
    *,
    horizon: int,
    bound: int,
    devices: Iterable[int] | None = None,
    step: int = 1,
) -> CpSatModel:
    """Model that minimises the objective over schedules with objective in [bound, horizon] (ticks).

    The model treats objectives within the same `step` ticks from the bound as equal. `devices` are
    the kept ones (default: all). A subset is a relaxation
    (`ppopt.solver.relaxation.device_relaxation`) of a problem whose backwards are all split or all
    whole, without slices. If links are resources, the model of all devices includes them; that of
    a subset has delays instead.
    """
    every = range(problem.pipeline.num_devices)
    selected = frozenset(every if devices is None else devices)
    scope = DeviceScope(problem, selected, horizon)
    name = str(problem.objective)
    variables = Variables.create(scope.tasks, scope.latest, (bound, horizon), name)
    for part in each(scope.parts()):
        part.build(variables)
    model = CpSatModel(problem, variables, horizon, bound, step, scope.has_instants, scope.energy)
    variables.cp.minimize(variables.objective if step == 1 else _steps(model))
    return model


def _steps(model: CpSatModel) -> cp_model.IntVar:
    """Steps from the bound to the objective, rounded up."""
    max_steps = -(-(model.horizon - model.bound) // model.step)
    steps = model.cp.new_int_var(0, max_steps, "")
    model.cp.add(model.variables.objective <= model.bound + model.step * steps)
    return steps


def hint(model: CpSatModel, schedule: Schedule) -> None:
    """Add a schedule as a hint, with its microbatches in canonical order."""
    cp, variables = model.cp, model.variables
    new = canonical(schedule)
    codes = set(new.tolist())
    for choice, literal in each(variables.choices.items()):
        _, stage, microbatch, slice_index = model.pipeline.op(choice)
        split = model.pipeline.code(OpKind.B, stage, microbatch, slice_index)
        cp.add_hint(literal, split in codes)
    for code, start in each(zip(new.tolist(), schedule.start.tolist(), strict=True)):
        if code in variables.present:
            cp.add_hint(variables.start[code], start)
    carried = schedule.operations.where(schedule.operations.on(ResourceKind.LINK))
    sent = canonical_besides(carried).tolist()
    for code, start in each(zip(sent, carried.start.tolist(), strict=True)):
        if code in variables.present:
            cp.add_hint(variables.start[code], start)
    second = np.flatnonzero(schedule.seconds)
    together = set(zip(new[second - 1].tolist(), new[second].tolist(), strict=True))
    for pair, chosen in each(variables.pairs.items()):
        cp.add_hint(chosen, pair[:2] in together)
    cp.add_hint(variables.objective, schedule.metrics.value_ticks(model.problem.objective))
