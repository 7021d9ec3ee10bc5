"""Spaces of choices that are searched with the schedule, and the traits that each handles."""

from __future__ import annotations

from typing import NamedTuple

from ppopt.problem.problem import Problem
from ppopt.problem.traits import BESIDE_COMPUTE, Trait, Traits, refuse_unhandled


class ChoiceSpace(NamedTuple):
    """A space of configurations of a pipeline, with bounds over them."""

    name: str
    """Field of the pipeline whose value is open."""
    instead: str
    """Values that the user can set instead of `search`."""
    handles: Traits
    """Traits with which the bounds of configurations hold."""

    def check(self, problem: Problem) -> None:
        """Raise NotApplicableError if the space does not handle a trait of its configurations."""
        traits = traits_of_any(problem)
        refuse_unhandled(f"{self.name}: search", traits, self.handles, f"give {self.instead}")


_ON_ONE_ROUTE = BESIDE_COMPUTE | {
    *(Trait.MIXED, Trait.PAIRS, Trait.SHORT_PAIRS),
    *(Trait.FROZEN, Trait.SPAN),
}
PARTITIONS = ChoiceSpace("partition", "counts, or balanced", _ON_ONE_ROUTE | {Trait.MICROBATCHES})
PLACEMENTS = ChoiceSpace("placement", "a named one, or a list", _ON_ONE_ROUTE | {Trait.SLICES})
RECOMPUTE = ChoiceSpace("recompute", "none or full", _ON_ONE_ROUTE | {Trait.SLICES})
OFFLOAD = ChoiceSpace("offload", "none or all", _ON_ONE_ROUTE | {Trait.SLICES})
ORDERS = ChoiceSpace(
    "order",
    "given",
    frozenset(
        {
            *(Trait.LINKS, Trait.STEP_WORK, Trait.MIXED, Trait.PAIRS, Trait.SHORT_PAIRS),
            *(Trait.SLICES, Trait.FROZEN, Trait.SPAN, Trait.MICROBATCHES),
            Trait.UNEQUAL_SLICES,
        }
    ),
)


def traits_of_any(problem: Problem) -> Traits:
    """Traits that some configuration of a problem may have."""
    pipeline = problem.pipeline
    traits = set(problem.traits)
    if pipeline.overlap is not None:
        traits |= {Trait.PAIRS, Trait.SHORT_PAIRS}
    if pipeline.model is not None and any(layer.frozen for layer in pipeline.model.layers):
        traits.add(Trait.FROZEN)
    return frozenset(traits)
