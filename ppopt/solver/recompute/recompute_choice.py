"""Candidate assignments of recomputed or offloaded layers to stages, with lower bounds.

The bound of a device (head, work and forced idle time: `ppopt.solver.bounds.device_bounds`; moves
over its host link: `ppopt.solver.bounds.host_link_bound`) depends
on the options of its own stages; those of other stages only increase its waits. So it is computed
for every option of the device, without recompute or offload on other devices. The maximum over the
devices bounds an assignment. The minimum over the options of one device bounds all assignments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import product
from math import prod
from typing import NamedTuple

import numpy as np

from ppopt.cancellation import over
from ppopt.errors import NotApplicableError
from ppopt.problem.costs import Ticks
from ppopt.problem.decisions import Decisions
from ppopt.problem.partition_table import Recomputed
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.problem import Problem
from ppopt.solver.bounds.device_bounds import device_infeasible, one_device_bound
from ppopt.solver.bounds.host_link_bound import host_link_bound
from ppopt.solver.choices.choice import Choice
from ppopt.solver.choices.configuration import Configuration, SearchedConfigurations
from ppopt.solver.choices.enumeration import Complete, Enumeration, Key, Partial
from ppopt.solver.choices.spaces import check_spaces
from ppopt.solver.recompute.stage_options import (
    NUM_COSTS,
    StageFront,
    StageOption,
    StageOptions,
    ends_of,
    merged_options,
    thinned,
)
from ppopt.solver.relaxation.route_times import RouteTimes

MAX_LISTED = 4096
"""Maximum number of assignments that are bounded one by one."""
MAX_DEVICE_OPTIONS = 512
"""Maximum number of options of one device; more are thinned out."""


class DeviceOption(NamedTuple):
    """An option for every stage of a device."""

    numbers: tuple[int, ...]
    """Number of the option of every stage."""
    time: int
    """Time added to all backwards of these stages, in ticks of the layer table."""
    moving: int
    """Time of all of their moves to the host, each way."""
    bound: int
    """Lower bound of the schedules with this option, in ticks of the grid."""


class RecomputeChoice(Choice):
    """All non-dominated assignments of recompute, offload or both to layers.

    A key has the number of the option of every device, the fastest option first.
    """

    def __init__(self, problem: Problem) -> None:
        """Once time is up, options have only the bound over all options of their device.

        Raises NotApplicableError if they cannot be searched.
        """
        pipeline = problem.pipeline
        self.decisions = pipeline.open_decisions & Decisions.OF_LAYERS
        chosen = self.decisions.names
        self.name = " and ".join(chosen)
        self._does = " or ".join(chosen)
        if pipeline.open_decisions & (Decisions.PARTITION | Decisions.PLACEMENT):
            raise NotApplicableError(
                f"{chosen[-1]}: search does not go with a search of partition or placement; search "
                "one, then the other with what is found"
            )
        check_spaces(problem, self.decisions)
        self._problem = problem
        self._choices = StageOptions(pipeline, timed=True)
        self._base = pipeline.without(Decisions.OF_LAYERS, model=self._choices.bare)
        self._fronts = [self._choices.front(*ends) for ends in ends_of(self._base.counts)]
        self._shortest_bounds = [
            self._computed_bound(device, self._minima(device)) or 0
            for device in range(self._base.num_devices)
        ]
        """Bounds per device that hold for all of its options."""
        self._bounds = [self._bounds_of(device) for device in range(self._base.num_devices)]
        """Bounds per device; the minimum of a device holds for all of its options."""
        self._none = [device for device, bounds in enumerate(self._bounds) if not bounds]
        """Devices on which one microbatch does not fit with any option."""
        self._is_complete = all(map(self._enumerated, range(self._base.num_devices)))
        """Whether no non-dominated option was omitted."""
        self._listed: Enumeration[Key] = Partial()
        if self._is_complete and self.size <= MAX_LISTED:
            self._listed = Complete(list(self.assignments()))
        if not self._none and not all(self.devices):
            raise NotApplicableError(
                f"{self.name}: too many choices, and one microbatch does not fit with those tried; "
                "search one of both, or none"
            )

    def pipeline(self, key: Key) -> Pipeline:
        """Pipeline in which the layers of an assignment recompute or offload."""
        numbers = [0] * self._base.num_stages
        for stages, option_id, choices in zip(self._base.hosted[0], key, self.devices, strict=True):
            for stage, own in zip(stages, choices[option_id].numbers, strict=True):
                numbers[stage] = own
        counts = self._base.counts
        return self._base.with_partition(counts, self._choices.model(counts, numbers))

    def key(self, pipeline: Pipeline) -> Key | None:
        """Key of the assignment of a pipeline, or of one that dominates it; None: there is none."""
        chosen = self._choices.numbers(pipeline)
        if chosen is None:
            return None
        key = []
        for stages, choices in zip(self._base.hosted[0], self.devices, strict=True):
            own = tuple(chosen[stage] for stage in stages)
            option_id = next((n for n, option in enumerate(choices) if option.numbers == own), None)
            if option_id is None:
                return None
            key.append(option_id)
        return tuple(key)

    def _with_options(self, stages: Sequence[int], options: Sequence[StageOption]) -> Ticks:
        """Costs of the stages with these options of some of them.

        What a relaxed option offloads in no time is not stashed.
        """
        chosen = [front.options[0] for front in self._fronts]
        for stage, option in zip(stages, options, strict=True):
            stashed = option.stashed if option.moving else option.resident
            chosen[stage] = option._replace(stashed=stashed)
        row = self._base.stage_row
        ticks = np.array([option[:NUM_COSTS] for option in chosen], dtype=np.int64)
        time, moving, stashed, resident, workspace, peak = ticks.T
        costs = Recomputed(time, stashed, workspace, peak).costs
        moves = {"offload_memory": stashed - resident, "offload_time": moving}
        return row._replace(costs={**row.costs, **costs, **moves}).ticks(self._base)

    @cached_property
    def devices(self) -> list[list[DeviceOption]]:
        """Options of every device with which one microbatch fits; possibly none.

        If a device has too many, some are omitted.
        """
        return [self._of_device(device) for device in range(self._base.num_devices)]

    def _of_device(self, device: int) -> list[DeviceOption]:
        fronts = self._fronts_of(device)
        indices = thinned([len(front.options) for front in fronts], MAX_DEVICE_OPTIONS)
        options = []
        for numbers in product(*indices):
            chosen = [front.options[n] for front, n in zip(fronts, numbers, strict=True)]
            bound = self._bound_of(device, chosen)
            if bound is None:
                continue
            time, moving = map(sum, zip(*(option[:2] for option in chosen), strict=True))
            options.append(DeviceOption(numbers, time, moving, bound))
        return sorted(options, key=lambda option: option[1:3])

    def _fronts_of(self, device: int) -> list[StageFront]:
        return [self._fronts[stage] for stage in self._base.hosted[0][device]]

    def _enumerated(self, device: int) -> bool:
        """Whether no non-dominated option of a device was omitted."""
        fronts = self._fronts_of(device)
        combinations = prod(len(front.options) for front in fronts)
        return combinations <= MAX_DEVICE_OPTIONS and all(front.complete for front in fronts)

    def _bounds_of(self, device: int) -> list[int]:
        """Bounds whose minimum holds for all options of a device; none: no option fits."""
        if self._enumerated(device):
            return [option.bound for option in self.devices[device]]
        relaxed = [front.relaxed for front in self._fronts_of(device)]
        sizes = map(len, thinned(map(len, relaxed), MAX_DEVICE_OPTIONS))
        merged = [merged_options(*each) for each in zip(relaxed, sizes, strict=True)]
        bounds = (self._bound_of(device, options) for options in product(*merged))
        return [bound for bound in bounds if bound is not None]

    def _bound_of(self, device: int, options: Sequence[StageOption]) -> int | None:
        """Lower bound with these options of a device; None if one microbatch does not fit.

        Once time is up, the bound that holds for all options.
        """
        return self._shortest_bounds[device] if over() else self._computed_bound(device, options)

    def _minima(self, device: int) -> list[StageOption]:
        """For every stage of a device, an option that needs no more than any of its options."""
        return [
            option
            for front in self._fronts_of(device)
            for option in merged_options(front.relaxed, 1)
        ]

    def _computed_bound(self, device: int, options: Sequence[StageOption]) -> int | None:
        ticks = self._with_options(self._base.hosted[0][device], options)
        base = replace(self._problem, pipeline=self._base)
        problem = base.relaxed_by(
            lambda instance: instance.with_costs(replace(instance.costs, ticks=ticks))
        ).reduced
        if device_infeasible([RouteTimes(problem.instance, 0)], device):
            return None
        routes = [RouteTimes(problem.relaxed.instance, 0)]
        objective = self._problem.objective
        bound = one_device_bound(routes, device, objective).value
        moves = host_link_bound(problem.instance.costs, routes[0], device, objective)
        return max(bound, moves)

    @property
    def size(self) -> int:
        """Number of assignments."""
        return prod(map(len, self.devices))

    @cached_property
    def lower_bound(self) -> int:
        """Lower bound of all assignments; 0 if there is none."""
        if self._none:
            return 0
        return max(map(min, self._bounds))

    def assignments(self) -> Iterator[Key]:
        """All assignments."""
        return product(*(range(len(choices)) for choices in self.devices))

    def configurations(self, keys: Sequence[Key]) -> Iterator[Configuration]:
        """Configurations of assignments, with their bounds."""
        for key in keys:
            chosen = zip(key, self.devices, strict=True)
            yield Configuration(key, max(choices[option_id].bound for option_id, choices in chosen))

    def listed(self) -> Enumeration[Key]:
        """All assignments; partial if there are too many."""
        return self._listed

    def required_candidates(self) -> list[Key]:
        """Assignments with the minimum and the maximum of recompute and offload."""
        if self._none:
            return []
        ends = [(0,) * len(self.devices), tuple(len(choices) - 1 for choices in self.devices)]
        return list(dict.fromkeys(ends))

    def first(self) -> list[Key]:
        """Assignments with the maximum, the minimum, the smallest bounds, and levels between."""
        if self._none:
            return []
        bound = tuple(
            min(range(len(choices)), key=lambda option_id: (choices[option_id].bound, option_id))
            for choices in self.devices
        )
        levels = [
            key
            for among in (
                lambda _: True,
                lambda option: not option.moving,
                lambda option: not option.time,
            )
            for key in self._levels(among)
        ]
        max_bound = max(
            choices[option_id].bound for option_id, choices in zip(bound, self.devices, strict=True)
        )
        within = tuple(
            max(n for n, option in enumerate(choices) if option.bound <= max_bound)
            for choices in self.devices
        )
        return list(dict.fromkeys([*levels[4::5], levels[0], bound, *levels, within]))

    def _levels(self, among: Callable[[DeviceOption], bool]) -> list[Key]:
        """Assignments in five steps through the options that satisfy `among`, on every device."""
        each = [
            [option_id for option_id, option in enumerate(choices) if among(option)]
            for choices in self.devices
        ]
        if not all(each):
            return []
        return [
            tuple(some[(len(some) - 1) * quarter // 4] for some in each) for quarter in range(5)
        ]

    def moves(self, key: Key) -> Iterator[Key]:
        """Assignments with the next or previous option on one device, or on all devices."""
        steps = [
            *(tuple(device == index for index in range(len(key))) for device in range(len(key))),
            (True,) * len(key),
        ]
        for step in steps:
            for way in (1, -1):
                neighbour = tuple(
                    option_id + way * delta for option_id, delta in zip(key, step, strict=True)
                )
                if all(0 <= n < len(c) for n, c in zip(neighbour, self.devices, strict=True)):
                    yield neighbour

    def proof(self, search: SearchedConfigurations) -> str:
        """Text of the argument behind the bound over all assignments."""
        if self._none:
            return (
                f"device {self._none[0]} has no memory for one microbatch, whichever of its layers "
                f"{self._does}"
            )
        scope = (
            f"all {f'{self.size:,} ' if self._is_complete else ''}choices of layers that "
            f"{self._does} (without those that need more time and more memory than another) need "
            "at least this long"
        )
        if isinstance(self._listed, Partial):
            return (
                f"{scope}: one device already does, with its own best choice and no {self._does} "
                f"elsewhere; {search.searched} were searched"
            )
        return (
            f"{scope}: {search.ruled_out} are excluded by the time of one device"
            f"{' or of several together' if search.subsets_ruled_out else ''}, "
            f"{search.searched} were searched"
        )
