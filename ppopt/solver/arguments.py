"""Arguments for lower bounds that need no search, and the traits that each handles.

An argument is not used for an instance that has a trait outside this list. Methods that prove
bounds by search declare their traits in the same way (`ppopt.solver.method`).
"""

from __future__ import annotations

from typing import NamedTuple

from ppopt.problem.traits import FORMS, ArgumentClass, Trait, Traits, handled


class BoundArgument(NamedTuple):
    """An argument for a lower bound."""

    text: str
    """Why it holds."""
    handles: Traits
    """Traits with which it holds: unchanged, or because the trait only adds delays."""

    def applies(self, traits: Traits) -> bool:
        """Whether it holds for instances with these traits."""
        return traits <= self.handles


_RELAXED = FORMS - {Trait.MIXED, Trait.SHORT_PAIRS}
"""Forms of relaxed problems: one kind of backward, and no pair shorter than its operations."""
WORK = BoundArgument(
    "a device runs all its operations, one at a time",
    handled(ArgumentClass.EVERY_OPERATION, _RELAXED),
)
ROUND_TRIPS = BoundArgument(
    "all forwards before one of a microbatch run before it, all backwards behind its own run later",
    handled(ArgumentClass.EVERY_OPERATION, (Trait.SLICES, Trait.SPAN)),
)
FORCED_IDLE = BoundArgument(
    "memory forces a device to wait before its first backward and after its last forward",
    handled(ArgumentClass.EQUAL_MICROBATCHES, (Trait.SPAN,)),
)
HEADS_AND_TAILS = BoundArgument(
    "the longest paths of all operations lead to the compute of a device, and from it",
    handled(ArgumentClass.EQUAL_MICROBATCHES, _RELAXED),
)
MINIMUM_MEMORY = BoundArgument(
    "one microbatch holds the activations of all stages of a device at once",
    handled(ArgumentClass.EVERY_OPERATION, FORMS),
)
SUBSETS = BoundArgument(
    "the operations of some devices keep their order, their memory limits and the delays through "
    "all other devices",
    handled(ArgumentClass.EQUAL_MICROBATCHES, FORMS - {Trait.MIXED, Trait.SLICES}),
)
COMMON_DIVISOR = BoundArgument(
    "the value of an optimum is a sum of times, or a mean of such sums",
    handled(ArgumentClass.EQUAL_MICROBATCHES, FORMS) - {Trait.UNEQUAL_SLICES},
)
LAYER_WORK = BoundArgument(
    "the devices together run F and a backward of all layers",
    handled(
        ArgumentClass.SMALLEST_MICROBATCH,
        (Trait.MIXED, Trait.SLICES, Trait.ROUTES, Trait.SPAN),
    ),
)
PEAKS = BoundArgument(
    "the peak of a device is a sum of what microbatches hold between and during operations",
    handled(ArgumentClass.EVERY_OPERATION, FORMS),
)
ARGUMENTS = (
    *(WORK, ROUND_TRIPS, FORCED_IDLE, HEADS_AND_TAILS, MINIMUM_MEMORY),
    *(SUBSETS, COMMON_DIVISOR, LAYER_WORK, PEAKS),
)


def applicable(traits: Traits) -> tuple[BoundArgument, ...]:
    """Arguments that hold for instances with these traits."""
    return tuple(argument for argument in ARGUMENTS if argument.applies(traits))
