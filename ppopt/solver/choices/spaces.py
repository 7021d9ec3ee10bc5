"""Spaces of choices that are searched with the schedule, and the traits that each handles."""

from __future__ import annotations

from typing import NamedTuple

from ppopt.errors import NotApplicableError
from ppopt.problem.problem import Problem
from ppopt.problem.traits import FORMS, ArgumentClass, Trait, Traits, handled, refuse_unhandled


class ChoiceSpace(NamedTuple):
    """A space of configurations of a pipeline, with bounds over them."""

    name: str
    """Field of the pipeline whose value is open."""
    instead: str
    """Values that the user can set instead of `search`."""
    handles: Traits
    """Traits with which the bounds of configurations hold."""
    per_layer: bool = False
    """Whether layers have options, of which those that save no memory are left out."""

    def check(self, problem: Problem) -> None:
        """Raise NotApplicableError if the space does not handle a trait of its configurations.

        Nor does a space of options of layers, if an option may save memory for some microbatches
        and none for others: with workspace, which does not grow with the microbatch.
        """
        traits, pipeline = traits_of_any(problem), problem.pipeline
        refuse_unhandled(f"{self.name}: search", traits, self.handles, f"give {self.instead}")
        if not self.per_layer or pipeline.limits is None or pipeline.model is None:
            return
        workspace = any(layer.largest["backward_workspace"] for layer in pipeline.model.distinct)
        if workspace and any(memory != 1 for _, memory in pipeline.factors):
            raise NotApplicableError(
                f"{self.name}: search knows no microbatches that differ in memory if a layer needs "
                f"workspace; give {self.instead}, or microbatch_memory 1"
            )


_ON_ONE_ROUTE = FORMS - {Trait.ROUTES}
_SMALLEST = handled(ArgumentClass.SMALLEST_MICROBATCH, _ON_ONE_ROUTE)
PARTITIONS = ChoiceSpace("partition", "counts, or balanced", _SMALLEST - {Trait.SLICES})
PLACEMENTS = ChoiceSpace("placement", "a named one, or a list", _SMALLEST)
OF_LAYERS = {
    "recompute": ChoiceSpace("recompute", "none or full", _SMALLEST, per_layer=True),
    "offload": ChoiceSpace("offload", "none or all", _SMALLEST, per_layer=True),
}
"""Spaces of the options of layers, by field."""
ORDERS = ChoiceSpace(
    "order",
    "given",
    handled(ArgumentClass.EVERY_OPERATION, _ON_ONE_ROUTE) - {Trait.OFFLOAD},
)


def check_layer_choices(problem: Problem) -> None:
    """Raise NotApplicableError if what is searched of layers does not handle a trait."""
    for field in problem.pipeline.searched_of_layers:
        OF_LAYERS[field].check(problem)


def traits_of_any(problem: Problem) -> Traits:
    """Traits that some configuration of a problem may have."""
    pipeline = problem.pipeline
    traits = set(problem.traits)
    if pipeline.overlap is not None:
        traits |= {Trait.PAIRS, Trait.SHORT_PAIRS}
    if pipeline.model is not None and any(layer.frozen for layer in pipeline.model.layers):
        traits.add(Trait.FROZEN)
    return frozenset(traits)
