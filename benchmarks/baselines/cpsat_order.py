"""The plain CP-SAT model with the reasoning about order that ppopt gives to CP-SAT.

Without the linear relaxation, and with strong propagation of what precedes what on a device: how
much of the difference between ppopt and a plain model is due to these parameters alone.
"""

from __future__ import annotations

from benchmarks.baselines import cpsat
from benchmarks.baselines.problem import Limits, Outcome
from ppopt.problem.objective import Objective
from ppopt.problem.pipeline import Pipeline

PARAMETERS = (
    "linearization_level: 0 use_dynamic_precedence_in_disjunctive: true "
    "use_strong_propagation_in_disjunctive: true"
)


def solve(pipeline: Pipeline, objective: Objective, limits: Limits) -> Outcome:
    """Build the plain model and run CP-SAT on it, with these parameters."""
    return cpsat.solve(pipeline, objective, limits, PARAMETERS)
