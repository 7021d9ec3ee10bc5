"""A CP-SAT model of a problem: its variables, and how its objective counts in steps."""

from __future__ import annotations

from dataclasses import dataclass, field

from ortools.sat.python import cp_model

from ppopt.problem.arrays import Ints
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.problem import Problem
from ppopt.solver.relaxation.pairs import Pair


@dataclass(frozen=True)
class CpSatModel:
    """A CP-SAT model of some devices of a pipeline, the others replaced by delays.

    `start[code]` holds the variable of an operation number.
    """

    problem: Problem
    devices: frozenset[int]
    """The devices kept."""
    cp: cp_model.CpModel
    start: dict[int, cp_model.IntVar]
    objective: cp_model.IntVar
    duration: Ints
    """Duration of every operation number run alone, in ticks."""
    horizon: int
    """Largest objective of the model, in ticks."""
    bound: int
    """Least objective of the model, in ticks."""
    step: int
    """Ticks by which a schedule must be better than another one to count as better, so that CP-SAT
    does not improve by one tick at a time."""
    latest: int
    """Last instant of the model, in ticks."""
    pairs: dict[Pair, cp_model.IntVar]
    """Whether two operations run as one."""
    end: dict[int, cp_model.LinearExpr]
    """End of every operation number."""
    split: dict[int, cp_model.IntVar] = field(default_factory=dict)
    """Per number of a W that is not in every schedule: whether it is there, with its B, and its BW
    is not."""

    @property
    def pipeline(self) -> Pipeline:
        """The pipeline of the problem."""
        return self.problem.pipeline

    @property
    def instants(self) -> bool:
        """Whether some operations have no length."""
        return not all(self.duration[code] for code in self.start)

    def low(self, steps: float) -> int:
        """Lower bound of the objective in ticks, from CP-SAT's bound on the number of steps.

        `steps` is a whole number up to rounding of floats; the objective is greater than
        `bound + step (steps - 1)`.
        """
        if self.step == 1:
            return round(steps)
        return self.bound + max(0, self.step * (round(steps) - 1) + 1)


def steps(model: CpSatModel) -> cp_model.IntVar:
    """Steps from the bound to the objective, rounded up."""
    most = -(-(model.horizon - model.bound) // model.step)
    steps = model.cp.new_int_var(0, most, "")
    model.cp.add(model.objective <= model.bound + model.step * steps)
    return steps
