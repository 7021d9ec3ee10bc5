"""Spaces of choices that are searched with the schedule, and the traits that each handles."""

from __future__ import annotations

from typing import NamedTuple

from ppopt.errors import NotApplicableError
from ppopt.problem.decisions import Decisions
from ppopt.problem.problem import Problem
from ppopt.problem.traits import FORMS, ArgumentClass, Trait, Traits, handled, refuse_unhandled


class ChoiceSpace(NamedTuple):
    """The configurations of a decision, with bounds over them."""

    instead: str
    """Values that the user can set instead of `search`."""
    handles: Traits
    """Traits with which the bounds of configurations hold."""
    per_layer: bool = False
    """Whether layers have options, of which those that save no memory are left out."""

    def check(self, problem: Problem, field: str) -> None:
        """Raise NotApplicableError if the space does not handle a trait of its configurations.

        Nor does a space of options of layers, if an option may save memory for some microbatches
        and none for others: with workspace, which does not grow with the microbatch.
        """
        traits, pipeline = traits_of_any(problem), problem.pipeline
        refuse_unhandled(f"{field}: search", traits, self.handles, f"give {self.instead}")
        if not self.per_layer or pipeline.limits is None or pipeline.model is None:
            return
        workspace = any(layer.largest["backward_workspace"] for layer in pipeline.model.distinct)
        if workspace and any(memory != 1 for _, memory in pipeline.factors):
            raise NotApplicableError(
                f"{field}: search knows no microbatches that differ in memory if a layer needs "
                f"workspace; give {self.instead}, or microbatch_memory 1"
            )


_ON_ONE_ROUTE = FORMS - {Trait.ROUTES}
_SMALLEST = handled(ArgumentClass.SMALLEST_MICROBATCH, _ON_ONE_ROUTE)
_OF_RECOMPUTE = ChoiceSpace("none or full", _SMALLEST, per_layer=True)
SPACES = {
    Decisions.PARTITION: ChoiceSpace("counts, or balanced", _SMALLEST - {Trait.SLICES}),
    Decisions.PLACEMENT: ChoiceSpace("a named one, or a list", _SMALLEST),
    Decisions.RECOMPUTE: _OF_RECOMPUTE,
    Decisions.OFFLOAD: ChoiceSpace("none or all", _SMALLEST, per_layer=True),
    Decisions.RECOMPUTE_SET: _OF_RECOMPUTE,
    Decisions.ORDER: ChoiceSpace(
        "given",
        handled(ArgumentClass.EVERY_OPERATION, _ON_ONE_ROUTE) - {Trait.OFFLOAD},
    ),
}


def check_spaces(problem: Problem, decisions: Decisions) -> None:
    """Raise NotApplicableError if the space of a decision does not handle a trait."""
    for decision, field in zip(decisions, decisions.fields, strict=True):
        SPACES[decision].check(problem, field)


def traits_of_any(problem: Problem) -> Traits:
    """Traits that some configuration of a problem may have."""
    pipeline = problem.pipeline
    traits = set(problem.traits)
    if pipeline.overlap is not None:
        traits |= {Trait.PAIRS, Trait.SHORT_PAIRS}
    if pipeline.model is not None and any(layer.frozen for layer in pipeline.model.layers):
        traits.add(Trait.FROZEN)
    return frozenset(traits)
