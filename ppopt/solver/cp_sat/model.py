"""The CP-SAT model: starts of all operations, under all rules of a schedule.

Symmetry breaking by microbatch order. Per route and stage the k-th forward goes to microbatch k,
the k-th backward to microbatch k, and the k-th W to microbatch k. This loses no optimum: take any
schedule and give the sorted slots of each class (kind, stage, route, slice) to the microbatches in
order. Slots of one class never overlap, so sorting them by start also sorts them by end, although
slots of pairs are longer. A constraint of constant lag between two classes says end(a_j) + lag <=
start(b_j) for every j. The k-th smallest start of b has at least k of these b_j at or before it,
hence at least k a's ending by that start minus lag. So the k-th smallest end of a meets the k-th
smallest start of b. Slots do not change, hence neither do times, memory and device use. A pair
still has two different microbatches, because F of a microbatch ends before its backwards start.

Durations play no part in this, so slots of one class may differ in their modes. If a backward is
split or whole, whichever is better, the class of backwards has the slots of B and of BW. W is there
only beside a B: the k-th W goes to the k-th microbatch that is split.

If links are resources, what they carry are operations: the slots of one class (kind, sending
stage, route and slice) all run on one link, one at a time, and precedence has constant lags from
what they carry and to what needs it. So the k-th transfer of a class goes to microbatch k, by the
same argument.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from ortools.sat.python import cp_model

from ppopt.problem.kinds import ResourceKind
from ppopt.problem.operation import OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.problem import Problem
from ppopt.schedule.schedule import Schedule
from ppopt.solver import interrupts
from ppopt.solver.cp_sat.device_scope import DeviceScope
from ppopt.solver.cp_sat.variables import Variables
from ppopt.solver.relaxation.symmetry import canonical, canonical_besides


@dataclass(frozen=True)
class CpSatModel:
    """A model of a problem, and how its objective counts in steps."""

    problem: Problem
    variables: Variables
    horizon: int
    """Largest objective of the model, in ticks."""
    bound: int
    """Least objective of the model, in ticks."""
    step: int
    """Ticks by which a schedule must be better than another one to count as better, so that CP-SAT
    does not improve by one tick at a time."""
    instants: bool
    """Whether some operations have no length."""

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


@interrupts.deferred()
def build_model(
    problem: Problem,
    *,
    horizon: int,
    bound: int,
    devices: Iterable[int] | None = None,
    step: int = 1,
) -> CpSatModel:
    """Model of all schedules with objective in [bound, horizon] (ticks), least objective first.

    The model treats objectives within the same `step` ticks from the bound as equal. `devices` are
    those kept (default all): a subset gives a relaxation
    (`ppopt.solver.relaxation.device_relaxation`) of problems whose backwards are all split, or all
    whole, and not cut into slices. If links are resources, the model of all devices has them;
    that of a subset has delays.
    """
    every = range(problem.pipeline.num_devices)
    scope = DeviceScope(problem, frozenset(every if devices is None else devices), horizon)
    name = str(problem.objective)
    variables = Variables.create(scope.tasks, scope.latest, (bound, horizon), name)
    for part in scope.parts():
        part.build(variables)
    model = CpSatModel(problem, variables, horizon, bound, step, scope.has_instants)
    variables.cp.minimize(variables.objective if step == 1 else _steps(model))
    return model


def _steps(model: CpSatModel) -> cp_model.IntVar:
    """Steps from the bound to the objective, rounded up."""
    most = -(-(model.horizon - model.bound) // model.step)
    steps = model.cp.new_int_var(0, most, "")
    model.cp.add(model.variables.objective <= model.bound + model.step * steps)
    return steps


@interrupts.deferred()
def hint(model: CpSatModel, schedule: Schedule) -> None:
    """Hint at a schedule, its microbatches in canonical order."""
    cp, variables = model.cp, model.variables
    new = canonical(schedule)
    there = set(new.tolist())
    for choice, literal in variables.choices.items():
        _, stage, microbatch, part = model.pipeline.op(choice)
        split = model.pipeline.code(OpKind.B, stage, microbatch, part)
        cp.add_hint(literal, split in there)
    for code, start in zip(new.tolist(), schedule.start.tolist(), strict=True):
        if code in variables.there:
            cp.add_hint(variables.start[code], start)
    carried = schedule.operations.where(schedule.operations.on(ResourceKind.LINK))
    sent = canonical_besides(carried).tolist()
    for code, start in zip(sent, carried.start.tolist(), strict=True):
        if code in variables.there:
            cp.add_hint(variables.start[code], start)
    second = np.flatnonzero(schedule.seconds)
    together = set(zip(new[second - 1].tolist(), new[second].tolist(), strict=True))
    for pair, chosen in variables.pairs.items():
        cp.add_hint(chosen, pair[:2] in together)
    cp.add_hint(variables.objective, schedule.metrics.value_ticks(model.problem.objective))
