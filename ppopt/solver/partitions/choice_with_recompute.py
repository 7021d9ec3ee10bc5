"""Partitions with the layers that recompute in them, chosen together.

A configuration is a partition and, for every stage, one of its choices of layers that recompute
(`ppopt.solver.recompute.stage_choices`). Partitions come in the order of their bounds over
all choices, and the choices of a partition in the order of their own. A choice is bounded by the
devices alone, with no recompute elsewhere.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from heapq import heappop, heappush
from itertools import count, product
from math import prod
from typing import NamedTuple

import numpy as np

from ppopt.problem.arrays import Ints
from ppopt.problem.layers import activation_of
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.problem import Problem
from ppopt.schedule.origin import Argument
from ppopt.solver.choices.choice import Configuration, Key, SearchedConfigurations, UnlistedBound
from ppopt.solver.deadline import Deadline
from ppopt.solver.partitions.choice import (
    BoundedPartitions,
    PartitionOrder,
    no_partition_fits,
    one_layer_moves,
    ruled_out_words,
)
from ppopt.solver.partitions.device_bounds import Hosted, device_bound, first_stage_tail
from ppopt.solver.partitions.partition_program import Counts, PlacementPattern, pattern_of
from ppopt.solver.partitions.space import FOREVER, space_of
from ppopt.solver.recompute.stage_choices import StageChoices, ends_of
from ppopt.strategies.v_half import most_activations

MOST_OF_DEVICE = 256
"""Most choices of one device in a partition; of more, some are left out, and their bound is that of
all partitions."""


class BoundedChoice(NamedTuple):
    """A choice for every stage of a device, in the order of what it costs in time."""

    bound: int
    """No schedule with it is below, in ticks; FOREVER: memory does not suffice."""
    stages: tuple[int, ...]
    """Number of the choice of every stage."""
    microbatches: int
    """Microbatches that memory holds before their backwards."""
    activations: int
    """Activations of the stage that keeps most, as many as memory holds before its backwards."""


MOST_BEGUN = 16
"""Most partitions whose choices are put in order at a time."""

Choices = tuple[tuple[BoundedChoice, ...], ...]
"""Per device."""


class PartitionRecomputeChoice(BoundedPartitions):
    """Partitions of a model's layers into stages, each with choices of layers that recompute.

    A key has the layers of every stage, then the number of the choice of every stage.
    """

    name = "partition with recompute"
    argument = Argument.PARTITIONS_RECOMPUTE

    def __init__(self, problem: Problem, deadline: Deadline) -> None:
        """Bounds raise TimeoutError after the deadline.

        Raises NotApplicableError where partitions cannot be searched.
        """
        given, ticks = problem.pipeline, space_of(problem)
        base = replace(
            given,
            model=given.model.recomputing(lambda _: False),
            recompute=None,
            mem_limit=given.limits,
        )
        super().__init__(base, ticks, deadline)
        self._stages = self._space.num_stages
        self._begun: set[Counts] = set()
        """Partitions whose choices are in the heap."""
        self._heap: list[tuple[int, int, Key, Iterator[tuple[int, Key]]]] = []
        """The next choice of every partition begun, with its bound."""
        self._left_out = False
        """Whether a partition has choices that are no configuration."""
        self._choices = lru_cache(maxsize=4096)(self._choices_of)
        self._of_device = lru_cache(maxsize=16_384)(self._choices_of_device)
        limited = self._space.limits is not None
        self._stage_choices = StageChoices(base.model, limited=limited)

    def pipeline(self, key: Key) -> Pipeline:
        """The pipeline cut into these counts of layers, in which the chosen layers recompute."""
        counts = key[: self._stages]
        model = self._stage_choices.model(counts, key[self._stages :])
        return replace(self._base, model=model, partition=counts)

    def key(self, pipeline: Pipeline) -> Key | None:
        """Its counts of layers and choices, or choices that take no more; None: there are none."""
        numbers = self._stage_choices.numbers(pipeline)
        key = None if numbers is None else (*pipeline.counts, *numbers)
        return key if key is not None and self._is_kept(key) else None

    def configurations(self, keys: Sequence[Key]) -> Iterator[Configuration]:
        """Choices with their bounds; one whose memory cannot suffice is impossible."""
        for key in keys:
            bound = max(one.bound for one in self._of_devices(key))
            yield Configuration(key, self._time(bound), impossible=bound >= FOREVER)

    def first(self) -> Iterator[Key]:
        """The given rule's partition, once before all bounds; then even ones of low bounds."""
        given = self._simple(self._base.counts)
        yield given[0]
        bounds = self._bounds_in_order()
        if bounds is None:
            return
        for counts in self._most_even(bounds):
            yield from self._simple(counts)
        yield from given
        for counts in self._by_rule():
            yield from self._simple(counts)

    def moves(self, key: Key) -> Iterator[Key]:
        """One layer over one cut, or the next choice of one device or of all, either way."""
        counts, numbers = key[: self._stages], self._numbers(key)
        choices = self._choices(counts)
        for step in (1, -1):
            for device in range(len(choices)):
                number = numbers[device] + step
                if 0 <= number < len(choices[device]):
                    yield self._key(counts, (*numbers[:device], number, *numbers[device + 1 :]))
            moved = tuple(
                min(max(number + step, 0), len(own) - 1)
                for number, own in zip(numbers, choices, strict=True)
            )
            yield self._key(counts, moved)
        held = [one.microbatches for one in self._of_devices(key)]
        for other in one_layer_moves(counts):
            yield self._key(other, self._holding(other, held))

    def proof(self, search: SearchedConfigurations) -> str:
        """The argument behind the bound over all partitions and choices, in words."""
        space = self._space
        if search.none and self._bounds is not None:
            words = no_partition_fits(self._ticks, self._bounds)
            return f"{words}, whatever recomputes"
        return (
            f"over all {space.size} partitions of {space.num_layers} layers into "
            f"{space.num_stages} stages and all choices of layers that recompute: "
            f"{ruled_out_words(search)}{self._counted}"
        )

    # The order of bounds.

    def _following(
        self, order: PartitionOrder, known: Container[Key], most: int | None
    ) -> UnlistedBound | None:
        most = FOREVER - 1 if most is None else most
        if not self._left_out:
            passed = self._fill(order, known, most)
            if passed is not None:
                return UnlistedBound(self._time(passed))
        if self._left_out:
            return UnlistedBound(self.least)
        if not self._heap or self._heap[0][0] > most:
            return None
        return UnlistedBound(self._time(self._heap[0][0]), self._heap[0][2])

    def _fill(self, order: PartitionOrder, known: Container[Key], most: int) -> int | None:
        """Bring the unknown choice of least bound to the top of the heap, up to a bound.

        Where too many partitions come before that: a bound that no unknown choice is below.
        """
        for begun in count():
            while self._heap and self._heap[0][2] in known:
                _, number, _, rest = heappop(self._heap)
                self._push(number, rest)
            top = self._heap[0][0] if self._heap else FOREVER - 1
            following = order.peek(self._begun, min(top, most))
            if following is None or begun >= MOST_BEGUN:
                return None if following is None else following[0]
            self._begun.add(following[1])
            self._push(len(self._begun), self._in_order(*following))
        return None

    def _push(self, number: int, rest: Iterator[tuple[int, Key]]) -> None:
        following = next(rest, None)
        if following is not None:
            heappush(self._heap, (following[0], number, following[1], rest))

    def _in_order(self, least: int, counts: Counts) -> Iterator[tuple[int, Key]]:
        """The choices of a partition in the order of their bounds, none below a least bound."""
        choices = self._choices(counts)
        steps = sorted({one.bound for own in choices for one in own if one.bound < FOREVER})
        for bound in steps:
            within = [[n for n, one in enumerate(own) if one.bound <= bound] for own in choices]
            for numbers in product(*within):
                if max(own[n].bound for own, n in zip(choices, numbers, strict=True)) == bound:
                    yield max(bound, least), self._key(counts, numbers)

    # The choices of a partition.

    def _choices_of(self, counts: Counts) -> Choices:
        tail = int(first_stage_tail(self._space, np.array(counts[0])))
        ends = list(ends_of(counts))
        return tuple(
            self._of_device(device, tuple(ends[stage] for stage in stages), tail)
            for device, stages in enumerate(self._space.hosted)
        )

    def _choices_of_device(
        self, device: int, ends: tuple[tuple[int, int], ...], tail: int
    ) -> tuple[BoundedChoice, ...]:
        """The choices of a device whose stages have these layers, after a stage 0 of this tail."""
        fronts = [self._stage_choices.of(low, high) for low, high in ends]
        numbers = [list(range(len(front))) for front in fronts]
        while prod(map(len, numbers)) > MOST_OF_DEVICE:
            self._left_out = True
            longest = max(numbers, key=len)
            longest[1:-1] = longest[1:-1:2]
        combinations = list(product(*numbers))
        again, saved = (
            [
                np.array([row[number] for number in own], np.int64)
                for row, own in zip(rows, zip(*combinations, strict=True), strict=True)
            ]
            for rows in zip(*(self._points(low, high) for low, high in ends), strict=True)
        )
        hosted = [
            Hosted(stage, *(np.full(len(combinations), place) for place in own), *more)
            for stage, own, *more in zip(
                self._space.hosted[device], ends, again, saved, strict=True
            )
        ]
        bounds = device_bound(self._space, device, hosted).with_tail(tail)
        order = np.argsort(np.asarray(sum(again)), kind="stable")
        whole, each = self._held(device, hosted)
        return tuple(
            BoundedChoice(int(bounds[n]), combinations[n], int(whole[n]), int(each[n]))
            for n in order
        )

    def _points(self, low: int, high: int) -> tuple[list[int], list[int]]:
        """Time and saved memory of the choices of a stage, in ticks."""
        front = self._stage_choices.of(low, high)
        whole = activation_of(self._base.model.costed[low:high])
        per_unit = self._ticks.per_unit / self._base.device_speed[0] / self._space.slowness_of(0)
        times = [int(one.time * per_unit) for one in front]
        return times, [int((whole - one.kept) * self._ticks.memory_per_unit) for one in front]

    def _held(self, device: int, hosted: list[Hosted]) -> tuple[Ints, Ints]:
        """Microbatches, and activations of one stage, that memory holds as the last one runs."""
        limits, sums = self._space.limits, self._space.sums
        most = np.full(hosted[0].low.shape, self._space.batches)
        if limits is None:
            return most, most * len(hosted)
        static = sum(sums.static_of(one.low, one.high) for one in hosted)
        kept = [sums.activation_of(one.low, one.high) - one.saved for one in hosted]
        more = np.max([np.asarray(one.saved) for one in hosted], axis=0)
        room = np.maximum(0, limits[device] - static - more)
        whole = np.minimum(room // np.maximum(np.sum(kept, axis=0), 1), most)
        each = np.minimum(room // np.maximum(np.max(kept, axis=0), 1), most * len(hosted))
        return whole, each

    def _simple(self, counts: Counts) -> list[Key]:
        """The least that V-Half fits in, that 1F1B does, the bound's own choice, none and all."""
        choices = self._choices(counts)
        own = tuple(min(range(len(choice)), key=lambda n: choice[n].bound) for choice in choices)
        devices = self._space.num_devices
        like_1f1b = self._holding(counts, [devices - device for device in range(devices)])
        fits = tuple(
            next((n for n, one in enumerate(of) if one.bound < FOREVER), 0) for of in choices
        )
        full = tuple(len(of) - 1 for of in choices)
        found = [like_1f1b, own, fits, full]
        if pattern_of(self._space) is PlacementPattern.V:
            most = most_activations(devices)
            like_v_half = (
                next((n for n, one in enumerate(of) if one.activations >= most), len(of) - 1)
                for of in choices
            )
            found.insert(0, tuple(like_v_half))
        return list(dict.fromkeys(self._key(counts, one) for one in found))

    def _holding(self, counts: Counts, held: Sequence[int]) -> tuple[int, ...]:
        """The cheapest choice of every device that holds so many microbatches, or the most."""
        found = []
        for choices, least in zip(self._choices(counts), held, strict=True):
            most = min(least, max(choice.microbatches for choice in choices))
            found.append(next(n for n, one in enumerate(choices) if one.microbatches >= most))
        return tuple(found)

    # Keys.

    def _key(self, counts: Counts, numbers: Sequence[int]) -> Key:
        """The key of a partition and the number of the choice of every device."""
        chosen = [0] * self._stages
        for device, (stages, number) in enumerate(zip(self._space.hosted, numbers, strict=True)):
            own = self._choices(counts)[device][number].stages
            for stage, one in zip(stages, own, strict=True):
                chosen[stage] = one
        return (*counts, *chosen)

    def _numbers(self, key: Key) -> tuple[int, ...]:
        """Number of the choice of every device."""
        choices = self._choices(key[: self._stages])
        return tuple(
            next(n for n, one in enumerate(own) if one.stages == self._stages_of(key, device))
            for device, own in enumerate(choices)
        )

    def _is_kept(self, key: Key) -> bool:
        """Whether its choices of every device are among those that are looked at."""
        return all(
            any(one.stages == self._stages_of(key, device) for one in own)
            for device, own in enumerate(self._choices(key[: self._stages]))
        )

    def _stages_of(self, key: Key, device: int) -> tuple[int, ...]:
        return tuple(key[self._stages + stage] for stage in self._space.hosted[device])

    def _of_devices(self, key: Key) -> list[BoundedChoice]:
        choices = self._choices(key[: self._stages])
        return [own[n] for own, n in zip(choices, self._numbers(key), strict=True)]
