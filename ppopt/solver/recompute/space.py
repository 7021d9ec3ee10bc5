"""The choices of recompute of a model in layers, and bounds on what schedules can do with them.

A choice says for every stage how many of its layers recompute, of every sort of layer. What it
costs is time, in every backward of the stage; what it brings is memory between F and the backward.
A choice that costs more and brings less than another of its stage is left out: in any schedule with
it, the other one can take its place, its backwards at the same starts.

The bound of a device (its head, work, and the idle time that its memory forces:
`ppopt.solver.bounds.device_bounds`) depends on the choices of its own stages; those of others only
make it wait longer. So it is worked out with no recompute elsewhere, once for every choice of the
device, and the largest of these over all devices holds for every choice of all. The least over the
choices of one device holds whatever is chosen (the one-device bounds of a plan's space).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cached_property
from itertools import product
from math import prod
from typing import NamedTuple

from ppopt.errors import NotApplicableError
from ppopt.problem import partition, placement
from ppopt.problem.layers import Layer, activation_of
from ppopt.problem.pipeline import Model, Pipeline
from ppopt.problem.problem import Problem
from ppopt.solver.bounds.device_bounds import device_infeasible, one_device_bound
from ppopt.solver.configurations import Configuration
from ppopt.solver.relaxation.delays import Delays

MOST_LISTED = 4096
"""Most choices that are bounded one by one."""
MOST_OF_DEVICE = 512
"""Most choices of one device."""


class StageChoice(NamedTuple):
    """Layers of a stage that recompute."""

    time: Fraction
    """Added to B and BW, in the user's unit."""
    kept: Fraction
    """What F keeps of the activations of the stage."""
    layers: frozenset[int]
    """Places in the stage."""


class DeviceChoice(NamedTuple):
    """A choice of every stage of a device."""

    stages: tuple[StageChoice, ...]
    bound: Fraction
    """No schedule with it is below, in the user's unit."""


Key = tuple[int, ...]
"""Number of the choice of every device, the cheapest in time first."""


class RecomputeSpace:
    """Every choice of recompute of a pipeline's layers that may be best."""

    name = "recompute"

    def __init__(self, problem: Problem) -> None:
        """Raises NotApplicableError where recompute cannot be searched."""
        pipeline = problem.pipeline
        if pipeline.partition == partition.SEARCH or pipeline.placement == placement.SEARCH:
            raise NotApplicableError(
                "recompute: search does not go with a search of partition or placement; search "
                "one, then the other with what is found"
            )
        if pipeline.routes > 1:
            raise NotApplicableError("recompute: search knows one route only; leave routes out")
        model = pipeline.model.recomputing(lambda _: False)
        self._problem = problem
        self._base = replace(
            pipeline, model=model, partition=pipeline.counts, recompute=None,
            mem_limit=pipeline.limits,
        )  # fmt: skip
        self._recomputing = model.with_recompute("full").layers
        self._stages = model.stage_layers(self._base.counts)
        self._starts = [sum(self._base.counts[:stage]) for stage in range(len(self._stages))]

    def pipeline(self, key: Key) -> Pipeline:
        """The pipeline in which the layers of a choice recompute."""
        chosen: dict[int, StageChoice] = {}
        for stages, number, choices in zip(self._base.hosted[0], key, self.devices, strict=True):
            chosen |= dict(zip(stages, choices[number].stages, strict=True))
        return self._with(chosen)

    def key(self, pipeline: Pipeline) -> Key | None:
        """The choice in which the layers of a pipeline recompute, or one that takes no more.

        None: there is none.
        """
        stages = [
            choice_of(layers, self._front(stage), limited=self._base.limits is not None)
            for stage, layers in enumerate(pipeline.model.stage_layers(pipeline.counts))
        ]
        numbers = []
        for hosted, choices in zip(self._base.hosted[0], self.devices, strict=True):
            own = tuple(stages[stage] for stage in hosted)
            number = next((n for n, one in enumerate(choices) if one.stages == own), None)
            if number is None:
                return None
            numbers.append(number)
        return tuple(numbers)

    def _front(self, stage: int) -> list[StageChoice]:
        """The choices of a stage; without a limit nothing recomputes."""
        found = stage_choices(self._stages[stage])
        return found if self._base.limits is not None else found[:1]

    def _with(self, chosen: dict[int, StageChoice]) -> Pipeline:
        places = {
            self._starts[stage] + place for stage, one in chosen.items() for place in one.layers
        }
        model: Model = self._base.model
        made = tuple(
            self._recomputing[number] if number in places else layer
            for number, layer in enumerate(model.layers)
        )
        return replace(self._base, model=replace(model, layers=made))

    @cached_property
    def _bare(self) -> Pipeline:
        return self._base.without_model()

    def _of_stages(self, chosen: dict[int, StageChoice]) -> Pipeline:
        """The same costs as `_with`, given stage by stage: quicker to make than layers."""
        times, kept = [Fraction(0)] * self._bare.num_stages, list(self._bare.costs.activation)
        for stage, one in chosen.items():
            times[stage], kept[stage] = one.time, one.kept
        return replace(self._bare, recompute_time=times, kept=kept)

    @cached_property
    def devices(self) -> list[list[DeviceChoice]]:
        """The choices of every device that has memory for one microbatch; perhaps none."""
        return [self._of_device(device) for device in range(self._base.num_devices)]

    def _of_device(self, device: int) -> list[DeviceChoice]:
        stages = self._base.hosted[0][device]
        fronts = list(map(self._front, stages))
        if prod(map(len, fronts)) > MOST_OF_DEVICE:
            raise NotApplicableError(
                f"recompute: device {device} has more than {MOST_OF_DEVICE} choices; use fewer "
                "chunks, or none or full"
            )
        found = []
        for choice in product(*fronts):
            pipeline = self._of_stages(dict(zip(stages, choice, strict=True)))
            problem = replace(self._problem, pipeline=pipeline).reduced
            if device_infeasible([Delays(problem.instance, 0)], device):
                continue
            routes = [Delays(problem.relaxed.instance, 0)]
            bound = one_device_bound(routes, device, self._problem.objective).value
            found.append(DeviceChoice(choice, pipeline.ticks.time(bound)))
        return sorted(found, key=lambda one: sum(stage.time for stage in one.stages))

    @property
    def size(self) -> int:
        """Number of choices."""
        return prod(map(len, self.devices))

    @cached_property
    def least(self) -> Fraction:
        """No schedule is below, whatever is chosen."""
        return max(min(choice.bound for choice in choices) for choices in self.devices)

    @property
    def listed(self) -> list[Key] | None:
        """All choices; None: there are too many."""
        return list(self.every()) if self.size <= MOST_LISTED else None

    def every(self) -> Iterator[Key]:
        """Every choice."""
        return product(*(range(len(choices)) for choices in self.devices))

    def configuration(self, key: Key) -> Configuration:
        """A choice with its bound."""
        bounds = (choices[number].bound for number, choices in zip(key, self.devices, strict=True))
        return Configuration(key, max(bounds))

    def extremes(self) -> list[Key]:
        """As little recompute as possible, and as much."""
        ends = [(0,) * len(self.devices), tuple(len(choices) - 1 for choices in self.devices)]
        return list(dict.fromkeys(ends))

    def simple(self) -> list[Key]:
        """As much recompute as possible, as little, the bound's own choice, and levels between."""
        bound = tuple(
            min(range(len(choices)), key=lambda number: (choices[number].bound, number))
            for choices in self.devices
        )
        levels = [
            tuple((len(choices) - 1) * part // 4 for choices in self.devices) for part in range(5)
        ]
        within = tuple(
            max(number for number in range(len(choices)) if choices[number].bound <= most)
            for most in [max(choices[number].bound for number, choices in zip(
                bound, self.devices, strict=True))]
            for choices in self.devices
        )  # fmt: skip
        return list(dict.fromkeys([levels[-1], levels[0], bound, *levels, within]))

    def moves(self, key: Key) -> Iterator[Key]:
        """One device with the next choice, either way; and all of them."""
        steps = [
            *(tuple(device == one for one in range(len(key))) for device in range(len(key))),
            (True,) * len(key),
        ]
        for step in steps:
            for way in (1, -1):
                moved = tuple(number + way * mine for number, mine in zip(key, step, strict=True))
                if all(0 <= n < len(c) for n, c in zip(moved, self.devices, strict=True)):
                    yield moved


def choice_of(
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
