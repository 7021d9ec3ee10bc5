"""Traits: the terms of a problem that a method, a bound or a proof must handle to apply to it.

Every method, argument for a bound, proof, decision space and strategy declares the traits that it
handles: those that join its argument class (`JOINS`), and the forms of schedules that it names. It
does not apply to a problem with any other trait (`unhandled`). So a new trait is refused everywhere
until it joins a class. Views (`ppopt.solver.problem_views`) remove traits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import Enum, StrEnum
from typing import TYPE_CHECKING

from ppopt.errors import NotApplicableError
from ppopt.problem.kinds import ResourceKind

if TYPE_CHECKING:
    from ppopt.problem.pipeline import Pipeline


class Trait(StrEnum):
    """A term of a problem beyond split or whole backwards on devices with delays and limits."""

    label: str
    """Name in messages: "... knows no `label`"."""

    def __new__(cls, value: str, label: str) -> Trait:
        """Make a trait whose text is `value`."""
        member = str.__new__(cls, value)
        member._value_, member.label = value, label
        return member

    MIXED = "mixed", "choice of split or whole backwards"
    """A backward may be split or whole."""
    PAIRS = "pairs", "overlapped pairs that save time"
    """Some F and backward take less time as an overlapped pair than one after the other."""
    SHORT_PAIRS = "short-pairs", "overlapped pairs shorter than one of their operations"
    """Some pair takes less time than one of its operations alone."""
    SLICES = "slices", "slices above 1"
    """Microbatches are cut into slices."""
    ROUTES = "routes", "routes above 1"
    """Half of the microbatches run the stages in mirrored placement."""
    LINKS = "links", "links that are resources"
    """Some links carry transfers one at a time."""
    BLOCKING = "blocking", "transfers that block both devices"
    """Transfers occupy the compute of both devices."""
    STEP_WORK = "step-work", "work around the microbatches"
    """A step has unshards, gradient syncs, optimizers or gathered weights."""
    OFFLOAD = "offload", "offload"
    """Activations move to the host."""
    FROZEN = "frozen", "frozen stages"
    """Some stages are frozen."""
    MICROBATCHES = "microbatches", "microbatches that differ"
    """Factors multiply the times or the memory of some microbatches."""
    UNEQUAL_SLICES = "unequal-slices", "slices that differ"
    """Factors multiply the times of some slices."""
    SPAN = "span", "objective device span"
    """The objective is the device span."""


Traits = frozenset[Trait]


class ArgumentClass(Enum):
    """Which operations of the instance a method, a bound or a proof covers, and why that is right.

    The value is the reason. Microbatches run in their given order.
    """

    EVERY_OPERATION = "it reads the time and the memory of every operation of every resource"
    COMPUTE = (
        "it reads the time and the memory of every operation of compute; there is no other resource"
    )
    EQUAL_COMPUTE = "all operations of a class are equal; there is no other resource than compute"
    EQUAL_MICROBATCHES = (
        "all operations of a class are equal; operations beside compute only delay it"
    )
    SMALLEST_MICROBATCH = (
        "no microbatch takes less than the smallest, whose times a class has; operations beside "
        "compute only delay it"
    )


FORMS = frozenset(
    {
        *(Trait.MIXED, Trait.PAIRS, Trait.SHORT_PAIRS, Trait.SLICES, Trait.ROUTES, Trait.SPAN),
    }
)
"""Traits that change the form of a schedule or its value. They join no class: every method names
those that it handles."""
_BESIDE_COMPUTE = frozenset(
    {
        ArgumentClass.EVERY_OPERATION,
        ArgumentClass.EQUAL_MICROBATCHES,
        ArgumentClass.SMALLEST_MICROBATCH,
    }
)
JOINS: Mapping[Trait, frozenset[ArgumentClass]] = {
    Trait.LINKS: _BESIDE_COMPUTE,
    Trait.BLOCKING: _BESIDE_COMPUTE - {ArgumentClass.EVERY_OPERATION},
    Trait.STEP_WORK: _BESIDE_COMPUTE,
    Trait.OFFLOAD: _BESIDE_COMPUTE,
    Trait.FROZEN: frozenset(ArgumentClass),
    Trait.MICROBATCHES: frozenset(
        {
            ArgumentClass.EVERY_OPERATION,
            ArgumentClass.COMPUTE,
            ArgumentClass.SMALLEST_MICROBATCH,
        }
    ),
    Trait.UNEQUAL_SLICES: frozenset(
        {
            ArgumentClass.EVERY_OPERATION,
            ArgumentClass.COMPUTE,
            ArgumentClass.EQUAL_MICROBATCHES,
        }
    ),
}
"""The argument classes that each other trait joins. Slices have classes of their own, so that the
operations of a class are equal if slices differ."""
RECHECKED = FORMS | {
    *(Trait.LINKS, Trait.BLOCKING, Trait.STEP_WORK, Trait.OFFLOAD),
    *(Trait.FROZEN, Trait.MICROBATCHES, Trait.UNEQUAL_SLICES),
}
"""Traits whose rules the re-checker states in its own code; it refuses all others."""
RESOURCES: Mapping[Trait, ResourceKind] = {
    Trait.LINKS: ResourceKind.LINK,
    Trait.STEP_WORK: ResourceKind.COLLECTIVE,
    Trait.OFFLOAD: ResourceKind.HOST,
}
"""The resources other than compute that a pipeline with a trait has."""
BESIDE_COMPUTE = frozenset({*RESOURCES, Trait.BLOCKING})
"""Traits of problems with operations other than compute."""
OF_PIPELINE: Mapping[Trait, Callable[[Pipeline], bool]] = {
    Trait.SLICES: lambda pipeline: pipeline.num_slices > 1,
    Trait.ROUTES: lambda pipeline: pipeline.routes > 1,
    Trait.LINKS: lambda pipeline: pipeline.has_transfers,
    Trait.BLOCKING: lambda pipeline: pipeline.blocks and pipeline.has_transfers,
    Trait.STEP_WORK: lambda pipeline: pipeline.has_gradient_work,
    Trait.OFFLOAD: lambda pipeline: pipeline.has_offload,
    Trait.FROZEN: lambda pipeline: any(pipeline.frozen_stages),
    Trait.MICROBATCHES: lambda pipeline: (
        {*(pipeline.microbatch_times or ()), *(pipeline.microbatch_memory or ())} - {1} != set()
    ),
    Trait.UNEQUAL_SLICES: lambda pipeline: {*(pipeline.slice_times or ())} - {1} != set(),
}
"""How traits are recognised that do not depend on the objective and the kind of backwards; the
others are recognised in `ppopt.problem.instance` and `ppopt.problem.problem`."""


def pipeline_traits(pipeline: Pipeline) -> Traits:
    """Traits of every problem of a pipeline."""
    return frozenset(trait for trait, holds in OF_PIPELINE.items() if holds(pipeline))


def handled(argument: ArgumentClass, forms: Iterable[Trait] = ()) -> Traits:
    """The traits that join an argument class, and the forms that a method of it handles."""
    return frozenset(trait for trait, joined in JOINS.items() if argument in joined).union(forms)


def rechecked(argument: ArgumentClass, forms: Iterable[Trait] = ()) -> Traits:
    """Those of them whose rules the re-checker states."""
    return handled(argument, forms) & RECHECKED


def unhandled(traits: Traits, handles: Traits) -> list[Trait]:
    """Traits that are not handled, by name; empty: what declares `handles` applies."""
    return sorted(traits - handles)


def refuse_unhandled(who: str, traits: Traits, handles: Traits, advice: str) -> None:
    """Raise NotApplicableError, naming the first trait that is not handled.

    `who` begins the message with a field, and `advice` ends it with what would work.
    """
    for trait in unhandled(traits, handles):
        raise NotApplicableError(f"{who} knows no {trait.label}; {advice}")
