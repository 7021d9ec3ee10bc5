"""The layers of a stage that recompute: its choices, and what they cost and bring.

A choice says how many of its layers recompute, of every sort of layer. What it costs is time, in
every backward of the stage; what it brings is memory between F and the backward. A choice that
costs more and brings less than another of its stage is left out: in any schedule with it, the other
one can take its place, its backwards at the same starts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import NamedTuple

from ppopt.problem.layers import Layer, activation_of
from ppopt.problem.partition import Counts
from ppopt.problem.pipeline import Model, Pipeline

MOST_KEPT = 4096
"""Most stages whose choices are kept."""


class StageChoice(NamedTuple):
    """Layers of a stage that recompute."""

    time: Fraction
    """Added to B and BW, in the user's unit."""
    kept: Fraction
    """What F keeps of the activations of the stage."""
    layers: frozenset[int]
    """Places in the stage."""


class StageChoices:
    """The choices of all stages that partitions of a model may have."""

    def __init__(self, model: Model, *, limited: bool, full: bool = False) -> None:
        """Without a memory limit nothing recomputes. `full`: full recompute is there in any case.

        It may take longer than the choice before and save no more; an order that depends on times
        may hold less with it.
        """
        self.bare = model.recomputing(lambda _: False)
        """The model without recompute."""
        self._limited, self._full = limited, full
        self.of = lru_cache(maxsize=MOST_KEPT)(self._of)
        """Those of the stage of the layers `low` to `high` - 1, the shortest first."""

    def _of(self, low: int, high: int) -> list[StageChoice]:
        layers = self.bare.layers[low:high]
        found = stage_choices(layers)
        if not self._limited:
            return found[:1]
        full = full_recompute(layers) if self._full else found[-1]
        return found if found[-1].layers == full.layers else [*found, full]

    @property
    def leaves_out(self) -> bool:
        """Whether dominated choices may be left out: not where all layers that may are alike."""
        layers = [layer for layer in self.bare.layers if layer.recomputable]
        alike = {(layer.recompute_time, layer.saved) for layer in layers}
        return len(alike) > 1 or any(time <= 0 or saved <= 0 for time, saved in alike)

    def of_partition(self, counts: Counts) -> list[list[StageChoice]]:
        """Those of every stage of a partition."""
        return [self.of(*ends) for ends in ends_of(counts)]

    def model(self, counts: Counts, numbers: Sequence[int]) -> Model:
        """The model in which the layers of the choices of these numbers recompute."""
        places: set[int] = set()
        for (low, high), number in zip(ends_of(counts), numbers, strict=True):
            places |= {low + place for place in self.of(low, high)[number].layers}
        return self.bare.recomputing_at(places)

    def numbers(self, pipeline: Pipeline) -> tuple[int, ...] | None:
        """Number of the choice of every stage in which its layers recompute, or less do.

        None: a stage has none that takes no more.
        """
        layers = pipeline.model.stage_layers(pipeline.counts)
        numbers = []
        for own, front in zip(layers, self.of_partition(pipeline.counts), strict=True):
            choice = _choice_of(own, front, limited=self._limited)
            if choice is None:
                return None
            numbers.append(front.index(choice))
        return tuple(numbers)


def ends_of(counts: Counts) -> Iterator[tuple[int, int]]:
    """First layer and end of every stage of a partition."""
    return pairwise(accumulate(counts, initial=0))


def _choice_of(
    layers: Sequence[Layer], front: Sequence[StageChoice], *, limited: bool
) -> StageChoice | None:
    """The choice of a stage that recomputes as these layers do, or one that takes no more.

    That is no more time, and where memory is limited no more memory. None: there is none.
    """
    places = {place for place, layer in enumerate(layers) if layer.recompute and layer.saved > 0}
    time = sum((layers[place].recompute_time for place in places), Fraction(0))
    kept = activation_of(layers) - sum(layers[place].saved for place in places)
    same = (one for one in front if one.layers == places)
    less = (one for one in front if one.time <= time and (one.kept <= kept or not limited))
    return next(same, None) or next(less, None)


def stage_choices(layers: tuple[Layer, ...]) -> list[StageChoice]:
    """Non-dominated choices of a stage in time and memory, the shortest first.

    Layers of one time and one saving are alike: of these, the first so many recompute.
    """
    sorts: dict[tuple[Fraction, Fraction], list[int]] = {}
    for place, layer in enumerate(layers):
        if layer.saved > 0:
            sorts.setdefault((layer.recompute_time, layer.saved), []).append(place)
    front = [StageChoice(Fraction(0), activation_of(layers), frozenset())]
    for (time, saved), places in sorts.items():
        front = _least(
            StageChoice(
                one.time + count * time,
                one.kept - count * saved,
                one.layers | frozenset(places[:count]),
            )
            for one in front
            for count in range(len(places) + 1)
        )
    return front


def full_recompute(layers: tuple[Layer, ...]) -> StageChoice:
    """All layers of a stage recompute that may, also where it saves nothing."""
    places = frozenset(place for place, layer in enumerate(layers) if layer.recomputable)
    return StageChoice(
        sum((layers[place].recompute_time for place in places), Fraction(0)),
        activation_of(layers) - sum(layers[place].saved for place in places),
        places,
    )


def _least(choices: Iterator[StageChoice]) -> list[StageChoice]:
    """Those with less memory than all that take no more time."""
    found: list[StageChoice] = []
    for choice in sorted(
        choices, key=lambda choice: (choice.time, choice.kept, sorted(choice.layers))
    ):
        if not found or choice.kept < found[-1].kept:
            found.append(choice)
    return found
