"""Arguments for lower bounds that need no search, and the traits that each handles.

An argument is not used for an instance that has a trait outside this list. Methods that prove
bounds by search declare their traits in the same way (`ppopt.solver.method`).
"""

from __future__ import annotations

from typing import NamedTuple

from ppopt.problem.traits import BESIDE_COMPUTE, Trait, Traits


class BoundArgument(NamedTuple):
    """An argument for a lower bound."""

    text: str
    """Why it holds."""
    handles: Traits
    """Traits with which it holds: unchanged, or because the trait only adds delays."""

    def applies(self, traits: Traits) -> bool:
        """Whether it holds for instances with these traits."""
        return traits <= self.handles


_RELAXED = BESIDE_COMPUTE | {
    *(Trait.PAIRS, Trait.SLICES, Trait.ROUTES),
    *(Trait.FROZEN, Trait.SPAN),
}
"""Traits of relaxed problems: one kind of backward, and no pair shorter than its operations."""
WORK = BoundArgument(
    "a device runs all its operations, one at a time",
    _RELAXED | {Trait.MICROBATCHES, Trait.UNEQUAL_SLICES},
)
ROUND_TRIPS = BoundArgument(
    "all forwards before one of a microbatch run before it, all backwards behind its own run later",
    BESIDE_COMPUTE
    | {Trait.SLICES, Trait.UNEQUAL_SLICES, Trait.FROZEN, Trait.SPAN, Trait.MICROBATCHES},
)
FORCED_IDLE = BoundArgument(
    "memory forces a device to wait before its first backward and after its last forward",
    BESIDE_COMPUTE | {Trait.FROZEN, Trait.SPAN},
)
HEADS_AND_TAILS = BoundArgument(
    "the longest paths of all operations lead to the compute of a device, and from it",
    _RELAXED | {Trait.UNEQUAL_SLICES},
)
MINIMUM_MEMORY = BoundArgument(
    "one microbatch holds the activations of all stages of a device at once",
    _RELAXED | {Trait.MIXED, Trait.SHORT_PAIRS, Trait.MICROBATCHES, Trait.UNEQUAL_SLICES},
)
SUBSETS = BoundArgument(
    "the operations of some devices keep their order, their memory limits and the delays through "
    "all other devices",
    BESIDE_COMPUTE | {Trait.PAIRS, Trait.SHORT_PAIRS, Trait.ROUTES, Trait.FROZEN, Trait.SPAN},
)
COMMON_DIVISOR = BoundArgument(
    "the value of an optimum is a sum of times, or a mean of such sums",
    _RELAXED | {Trait.MIXED, Trait.SHORT_PAIRS},
)
LAYER_WORK = BoundArgument(
    "the devices together run F and a backward of all layers",
    BESIDE_COMPUTE
    | {Trait.MIXED, Trait.SLICES, Trait.ROUTES, Trait.FROZEN, Trait.SPAN, Trait.MICROBATCHES},
)
PEAKS = BoundArgument(
    "the peak of a device is a sum of what microbatches hold between and during operations",
    _RELAXED | {Trait.MIXED, Trait.SHORT_PAIRS, Trait.MICROBATCHES, Trait.UNEQUAL_SLICES},
)
ARGUMENTS = (
    *(WORK, ROUND_TRIPS, FORCED_IDLE, HEADS_AND_TAILS, MINIMUM_MEMORY),
    *(SUBSETS, COMMON_DIVISOR, LAYER_WORK, PEAKS),
)


def applicable(traits: Traits) -> tuple[BoundArgument, ...]:
    """Arguments that hold for instances with these traits."""
    return tuple(argument for argument in ARGUMENTS if argument.applies(traits))
