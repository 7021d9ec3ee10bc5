"""Pareto-optimal sets of recomputed or offloaded layers of one stage: time against memory.

An option says how many layers of every sort recompute or offload. Recompute costs time in every
backward of the stage; offload takes the host link for some time, each way. Both save memory between
F and the backward. An option that costs more and saves less than another of its stage is left out.
In any schedule with it the other one can take its place: its backwards and its moves out at the
same starts, its moves back at the same ends.
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
"""Most stages whose options are cached."""


class StageOption(NamedTuple):
    """Layers of a stage that recompute or offload; times and memory in the user's units."""

    time: Fraction
    """Time added to B and BW."""
    moving: Fraction
    """Time of the moves to the host, each way."""
    kept: Fraction
    """Activations of the stage that F keeps."""
    left: Fraction
    """Activations kept, without those that move to the host."""
    layers: frozenset[int]
    """Indices, within the stage, of the layers that recompute."""
    offloaded: frozenset[int]
    """Indices, within the stage, of the layers that offload."""

    def costs_no_more(self, other: StageOption) -> bool:
        """Whether the option takes no more time than another one, and no longer moves."""
        return self.time <= other.time and self.moving <= other.moving

    def takes_no_more(self, other: StageOption) -> bool:
        """Whether a schedule with another option is valid with this one."""
        less = self.kept <= other.kept and self.left <= other.left
        return less and self.costs_no_more(other)


class StageOptions:
    """Options of all stages that partitions of a model may have."""

    def __init__(
        self,
        model: Model,
        *,
        limited: bool,
        full: bool = False,
        recompute: bool = True,
        offload: bool = False,
    ) -> None:
        """Choose `recompute`, `offload` or both; what is not chosen is as the layers say.

        Without a memory limit, layers that need not recompute or offload do neither. `full`: full
        recompute is included in any case. It may take longer than the option before and save no
        more; an order that depends on times may hold less with it.
        """
        given = _as_given(model.layers)
        self.bare = model.with_choice(
            () if recompute else given.layers, () if offload else given.offloaded
        )
        """Model without what is chosen."""
        self._limited, self._full = limited, full and recompute
        self._searched = recompute, offload
        self.of = lru_cache(maxsize=MOST_KEPT)(self._of)
        """Options of the stage of the layers `low` to `high` - 1, the shortest first."""

    def _of(self, low: int, high: int) -> list[StageOption]:
        layers = self.bare.costed[low:high]
        recompute, offload = self._searched
        found = stage_options(layers, recompute=recompute, offload=offload)
        if not self._limited:
            return found[:1]
        if not self._full:
            return found
        full = full_recompute(layers)
        return found if any(option.layers == full.layers for option in found) else [*found, full]

    @property
    def leaves_out(self) -> bool:
        """Whether dominated options may be left out: not if the layers that may are all alike."""
        layers = [layer for layer in self.bare.layers if layer.recomputable]
        alike = {(layer.recompute_time, layer.saved) for layer in layers}
        return len(alike) > 1 or any(time <= 0 or saved <= 0 for time, saved in alike)

    def of_partition(self, counts: Counts) -> list[list[StageOption]]:
        """Options of every stage of a partition."""
        return [self.of(*ends) for ends in ends_of(counts)]

    def model(self, counts: Counts, numbers: Sequence[int]) -> Model:
        """Model in which the layers of the options of these numbers recompute or offload."""
        again: set[int] = set()
        moved: set[int] = set()
        for (low, high), number in zip(ends_of(counts), numbers, strict=True):
            choice = self.of(low, high)[number]
            again |= {low + place for place in choice.layers}
            moved |= {low + place for place in choice.offloaded}
        return self.bare.with_choice(again, moved)

    def numbers(self, pipeline: Pipeline) -> tuple[int, ...] | None:
        """Number of the option of every stage that does as the layers of a pipeline, or less.

        None if a stage has no option that takes no more.
        """
        layers = pipeline.model.stage_layers(pipeline.counts)
        numbers = []
        for own, front in zip(layers, self.of_partition(pipeline.counts), strict=True):
            choice = self._choice_of(own, front)
            if choice is None:
                return None
            numbers.append(front.index(choice))
        return tuple(numbers)

    def _choice_of(
        self, layers: Sequence[Layer], front: Sequence[StageOption]
    ) -> StageOption | None:
        """Option of a stage that does as these layers, or one that takes no more; None: none.

        No more means no more time, and with a memory limit no more memory.
        """
        given = _as_given(layers)
        same = (option for option in front if option[-2:] == given[-2:])
        less = (
            option
            for option in front
            if option.takes_no_more(given) or (not self._limited and option.costs_no_more(given))
        )
        return next(same, None) or next(less, None)


def ends_of(counts: Counts) -> Iterator[tuple[int, int]]:
    """First layer and end of every stage of a partition."""
    return pairwise(accumulate(counts, initial=0))


def stage_options(
    layers: tuple[Layer, ...], *, recompute: bool = True, offload: bool = False
) -> list[StageOption]:
    """Non-dominated options of a stage in time, moves and memory, the shortest first.

    Layers of the same times and savings are alike: of these, the first ones recompute, and the next
    ones offload.
    """
    sorts: dict[tuple[Fraction, ...], list[int]] = {}
    for place, layer in enumerate(layers):
        again = recompute and layer.saved > 0
        moved = offload and layer.offload_memory > 0 and not layer.recompute
        if again or moved:
            nothing = Fraction(0), Fraction(0)
            sort = (layer.recompute_time, layer.saved) if again else nothing
            ways = (layer.offload_time, layer.offload_memory) if moved else nothing
            sorts.setdefault((*sort, *ways), []).append(place)
    front = [_as_given(layers)]
    for (time, saved, moving, memory), places in sorts.items():
        front = _least(
            StageOption(
                option.time + again * time,
                option.moving + moved * moving,
                option.kept - again * saved,
                option.left - again * saved - moved * memory,
                option.layers | frozenset(places[:again]),
                option.offloaded | frozenset(places[again : again + moved]),
            )
            for option in front
            for again in range(len(places) + 1 if saved else 1)
            for moved in range(len(places) - again + 1 if memory else 1)
        )
    return front


def full_recompute(layers: tuple[Layer, ...]) -> StageOption:
    """Option in which all layers of a stage recompute that may, also if it saves nothing."""
    places = frozenset(place for place, layer in enumerate(layers) if layer.recomputable)
    given, saved = _as_given(layers), sum(layers[place].saved for place in places)
    return given._replace(
        time=sum((layers[place].recompute_time for place in places), Fraction(0)),
        kept=given.kept - saved,
        left=given.left - saved,
        layers=places,
    )


def _as_given(layers: Sequence[Layer]) -> StageOption:
    """Option of a stage whose layers do as they say."""
    again = frozenset(place for place, layer in enumerate(layers) if layer.recompute)
    moved = frozenset(place for place, layer in enumerate(layers) if layer.offload)
    time = sum((layers[place].recompute_time for place in again), Fraction(0))
    saved = sum(layers[place].saved for place in again)
    kept = activation_of(layers) - saved
    moving = sum((layers[place].offload_time for place in moved), Fraction(0))
    left = kept - sum(layers[place].offload_memory for place in moved)
    return StageOption(time, moving, kept, left, again, moved)


def _least(choices: Iterator[StageOption]) -> list[StageOption]:
    """Options that no other one dominates."""
    found: list[StageOption] = []
    for choice in sorted(choices, key=lambda choice: (*choice[:4], *map(sorted, choice[4:]))):
        if not any(option.takes_no_more(choice) for option in reversed(found)):
            found.append(choice)
    return found
