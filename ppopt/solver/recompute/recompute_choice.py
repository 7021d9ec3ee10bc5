"""Candidate assignments of recomputed or offloaded layers to stages, with lower bounds.

The bound of a device (its head, work, and the idle time that its memory forces:
`ppopt.solver.bounds.device_bounds`) depends on the options of its own stages; those of other stages
only make it wait longer. So it is computed with no recompute or offload elsewhere, once for every
option of the device, and the largest of these over all devices holds for every assignment. The
least over the options of one device holds for all assignments (the one-device bounds of a plan's
space).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cached_property
from itertools import product
from math import prod
from typing import NamedTuple

from ppopt.errors import NotApplicableError
from ppopt.problem import partition, placement
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.problem import Problem
from ppopt.schedule.origin import Argument
from ppopt.solver.bounds.device_bounds import device_infeasible, one_device_bound
from ppopt.solver.choices.choice import Choice
from ppopt.solver.choices.configuration import Configuration, SearchedConfigurations
from ppopt.solver.choices.enumeration import Complete, Enumeration, Key, Partial
from ppopt.solver.choices.spaces import OFFLOAD, RECOMPUTE
from ppopt.solver.recompute.stage_options import StageOptions
from ppopt.solver.relaxation.delays import Delays

MOST_LISTED = 4096
"""Most assignments that are bounded one by one."""
MOST_OF_DEVICE = 512
"""Most options of one device."""


class DeviceOption(NamedTuple):
    """An option for every stage of a device."""

    numbers: tuple[int, ...]
    """Number of the option of every stage."""
    time: Fraction
    """Time added to all backwards of these stages, in the user's unit."""
    moving: Fraction
    """Time of all of their moves to the host, each way."""
    bound: Fraction
    """Lower bound of the schedules with this option, in the user's unit."""


SPACES = {"recompute": RECOMPUTE, "offload": OFFLOAD}
"""Spaces by the field that is left open."""
ARGUMENTS = {
    ("recompute",): Argument.RECOMPUTE,
    ("offload",): Argument.OFFLOAD,
    ("recompute", "offload"): Argument.RECOMPUTE_OFFLOAD,
}
"""Argument of a proof over all assignments, by what is chosen."""


class RecomputeChoice(Choice):
    """All assignments of recompute, of offload or of both to layers that may be best.

    A key has the number of the option of every device, the cheapest in time first.
    """

    def __init__(self, problem: Problem) -> None:
        """Raises NotApplicableError if they cannot be searched."""
        pipeline = problem.pipeline
        fields = ("recompute", "offload")
        chosen = tuple(field for field in fields if getattr(pipeline, field) == "search")
        self.name, self.argument = " and ".join(chosen), ARGUMENTS[chosen]
        self._does = " or ".join(chosen)
        if pipeline.partition == partition.SEARCH or pipeline.placement == placement.SEARCH:
            raise NotApplicableError(
                f"{chosen[-1]}: search does not go with a search of partition or placement; search "
                "one, then the other with what is found"
            )
        for field in chosen:
            SPACES[field].check(problem)
        limited = pipeline.limits is not None
        self._problem = problem
        self._choices = StageOptions(
            pipeline.model,
            limited=limited,
            recompute="recompute" in chosen,
            offload="offload" in chosen,
        )
        self._base = replace(
            pipeline, model=self._choices.bare, partition=pipeline.counts, recompute=None,
            offload=None, mem_limit=pipeline.limits,
        )  # fmt: skip
        self._fronts = self._choices.of_partition(self._base.counts)
        self._none = [device for device, choices in enumerate(self.devices) if not choices]
        """Devices without memory for one microbatch with any option."""
        self._listed: Enumeration[Key] = (
            Complete(list(self.assignments())) if self.size <= MOST_LISTED else Partial()
        )

    def pipeline(self, key: Key) -> Pipeline:
        """Pipeline in which the layers of an assignment recompute or offload."""
        numbers = [0] * self._base.num_stages
        for stages, number, choices in zip(self._base.hosted[0], key, self.devices, strict=True):
            for stage, own in zip(stages, choices[number].numbers, strict=True):
                numbers[stage] = own
        return replace(self._base, model=self._choices.model(self._base.counts, numbers))

    def key(self, pipeline: Pipeline) -> Key | None:
        """Key of the assignment of a pipeline, or of one that takes no more; None: none."""
        chosen = self._choices.numbers(pipeline)
        if chosen is None:
            return None
        key = []
        for stages, choices in zip(self._base.hosted[0], self.devices, strict=True):
            own = tuple(chosen[stage] for stage in stages)
            number = next((n for n, option in enumerate(choices) if option.numbers == own), None)
            if number is None:
                return None
            key.append(number)
        return tuple(key)

    @cached_property
    def _bare(self) -> Pipeline:
        """The stages at a factor of 1 on memory: see `without_model`."""
        factors = self._base.microbatch_memory and 1
        return replace(self._base, microbatch_memory=factors).without_model()

    def _of_stages(self, stages: Sequence[int], numbers: Sequence[int]) -> Pipeline:
        """Costs with these options of some stages, stage by stage: faster than by layers."""
        chosen = [front[0] for front in self._fronts]
        for stage, number in zip(stages, numbers, strict=True):
            chosen[stage] = self._fronts[stage][number]
        return replace(
            self._bare,
            microbatch_memory=self._base.microbatch_memory,
            recompute_time=[option.time for option in chosen],
            kept=[option.kept for option in chosen],
            recompute_memory=[option.peak - option.kept for option in chosen],
            backward_workspace=0,
            offload_memory=[option.kept - option.left for option in chosen],
            offload_time=[option.moving for option in chosen],
        )

    @cached_property
    def devices(self) -> list[list[DeviceOption]]:
        """Options of every device that has memory for one microbatch; perhaps none."""
        return [self._of_device(device) for device in range(self._base.num_devices)]

    def _of_device(self, device: int) -> list[DeviceOption]:
        stages = self._base.hosted[0][device]
        fronts = [self._fronts[stage] for stage in stages]
        if prod(map(len, fronts)) > MOST_OF_DEVICE:
            raise NotApplicableError(
                f"{self.name}: device {device} has more than {MOST_OF_DEVICE} choices; use fewer "
                f"chunks{', or search one of both' if ' ' in self.name else ''}, or none"
            )
        found = []
        for numbers in product(*(range(len(front)) for front in fronts)):
            pipeline = self._of_stages(stages, numbers)
            problem = replace(self._problem, pipeline=pipeline).reduced
            if device_infeasible([Delays(problem.instance, 0)], device):
                continue
            routes = [Delays(problem.relaxed.instance, 0)]
            bound = one_device_bound(routes, device, self._problem.objective).value
            chosen = [front[n] for front, n in zip(fronts, numbers, strict=True)]
            time, moving = (
                sum(row, Fraction(0))
                for row in zip(*(option[:2] for option in chosen), strict=True)
            )
            found.append(DeviceOption(numbers, time, moving, pipeline.ticks.time(bound)))
        return sorted(found, key=lambda option: option[1:3])

    @property
    def size(self) -> int:
        """Number of assignments."""
        return prod(map(len, self.devices))

    @cached_property
    def lower_bound(self) -> Fraction:
        """Lower bound of all assignments; 0 if there is none."""
        if self._none:
            return Fraction(0)
        return max(min(choice.bound for choice in choices) for choices in self.devices)

    def assignments(self) -> Iterator[Key]:
        """All assignments."""
        return product(*(range(len(choices)) for choices in self.devices))

    def configurations(self, keys: Sequence[Key]) -> Iterator[Configuration]:
        """Configurations of assignments, with their bounds."""
        for key in keys:
            chosen = zip(key, self.devices, strict=True)
            yield Configuration(key, max(choices[number].bound for number, choices in chosen))

    def listed(self) -> Enumeration[Key]:
        """All assignments; partial if there are too many."""
        return self._listed

    def required_candidates(self) -> list[Key]:
        """Assignments with as little recompute and offload as possible, and with as much."""
        if self._none:
            return []
        ends = [(0,) * len(self.devices), tuple(len(choices) - 1 for choices in self.devices)]
        return list(dict.fromkeys(ends))

    def first(self) -> list[Key]:
        """Assignments with as much as possible, as little, the bound's own, and levels between."""
        if self._none:
            return []
        bound = tuple(
            min(range(len(choices)), key=lambda number: (choices[number].bound, number))
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
        within = tuple(
            max(number for number in range(len(choices)) if choices[number].bound <= most)
            for most in [max(choices[number].bound for number, choices in zip(
                bound, self.devices, strict=True))]
            for choices in self.devices
        )  # fmt: skip
        return list(dict.fromkeys([*levels[4::5], levels[0], bound, *levels, within]))

    def _levels(self, among: Callable[[DeviceOption], bool]) -> list[Key]:
        """Assignments from none to the last of the options `among` some, on every device."""
        each = [
            [number for number, option in enumerate(choices) if among(option)]
            for choices in self.devices
        ]
        if not all(each):
            return []
        return [tuple(some[(len(some) - 1) * part // 4] for some in each) for part in range(5)]

    def moves(self, key: Key) -> Iterator[Key]:
        """Assignments with the next option on one device, either way, and on all devices."""
        steps = [
            *(tuple(device == other for other in range(len(key))) for device in range(len(key))),
            (True,) * len(key),
        ]
        for step in steps:
            for way in (1, -1):
                moved = tuple(number + way * mine for number, mine in zip(key, step, strict=True))
                if all(0 <= n < len(c) for n, c in zip(moved, self.devices, strict=True)):
                    yield moved

    def proof(self, search: SearchedConfigurations) -> str:
        """Text of the argument behind the bound over all assignments."""
        if self._none:
            return (
                f"device {self._none[0]} has no memory for one microbatch, however many of its "
                f"layers {self._does}"
            )
        scope = (
            f"over all {self.size} choices of layers that {self._does} (those that take more "
            "time and more memory than another left out)"
        )
        if isinstance(self._listed, Partial):
            return (
                f"{scope}: the head, work and forced idle time of one device, with its own choice "
                f"of least bound and no {self._does} elsewhere, take that long; {search.searched} "
                "were searched"
            )
        return (
            f"{scope}: {search.ruled_out} are ruled out by head, work and forced idle time of a "
            f"device alone{', or of several together' if search.subsets_ruled_out else ''}, "
            f"{search.searched} were searched"
        )
