"""Bounds of one stated partition: a space with one member, whose options are bounded by instances.

The bound of a device (head, work and forced idle time: `ppopt.solver.bounds.device_bounds`; moves
over its host link: `ppopt.solver.bounds.host_link_bound`) depends on the options of its own stages;
those of other stages only increase its waits. So it is computed for every option of the device,
without recompute or offload on other devices. It counts what bounds over many partitions leave out:
workspace, slices, pairs and empty stages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from itertools import product

import numpy as np

from ppopt.cancellation import over
from ppopt.problem.partition_table import Recomputed
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.problem import Problem
from ppopt.solver.bounds.device_bounds import device_infeasible, minimum_memory, one_device_bound
from ppopt.solver.bounds.heads_and_tails import NO_HEAD_TAIL, HeadsAndTails
from ppopt.solver.bounds.host_link_bound import host_link_bound
from ppopt.solver.partitions.partition_bounds import CompleteBounds
from ppopt.solver.partitions.partition_program import Counts
from ppopt.solver.partitions.space import FOREVER
from ppopt.solver.recompute.stage_options import (
    NUM_COSTS,
    StageOption,
    StageOptions,
    ends_of,
    merged_options,
    thinned,
)
from ppopt.solver.relaxation.route_times import RouteTimes

Options = tuple[StageOption, ...]
"""An option of every stage of a device."""


class OnePartition(CompleteBounds):
    """Bounds of one partition over all options of its stages.

    Once time is up, an option has the bound over all options of its device.
    """

    def __init__(
        self, problem: Problem, base: Pipeline, options: StageOptions, max_options: int
    ) -> None:
        """`base` has the partition, and recomputes and offloads nothing that is searched.

        `max_options`: maximum number of options of one device; more are merged.
        """
        self._problem, self._base, self._max_options = problem, base, max_options
        self._fronts = [options.front(*ends) for ends in ends_of(base.counts)]
        around = HeadsAndTails.around_compute(replace(problem, pipeline=base))
        self._around = None if around is None else around.devices
        """Work around the compute of every device without these options, which only add to it."""
        self._computed = lru_cache(maxsize=16_384)(self._bound_of)
        self._floors = [
            self._bound_of(device, *self._merged(device, 1)) for device in self._devices
        ]
        """Bounds per device that hold for all of its options."""

    def of_option(self, device: int, numbers: Sequence[int]) -> int:
        """Lower bound with options of the stages of a device; FOREVER: over its memory limit."""
        stages = self._base.hosted[0][device]
        options = (self._fronts[stage].options[n] for stage, n in zip(stages, numbers, strict=True))
        return self._bound(device, tuple(options))

    @property
    def _devices(self) -> range:
        return range(self._base.num_devices)

    @cached_property
    def of_devices(self) -> list[int]:
        """Per device, the minimum bound over all of its options; FOREVER: none fits."""
        return [
            min(self._bound(device, options) for options in self._merged(device, self._max_options))
            for device in self._devices
        ]

    @property
    def min_bound(self) -> int:
        """Lower bound of the partition; FOREVER: no option is within the memory limits."""
        return max(self.of_devices)

    @property
    def min_limit(self) -> int:
        """Memory limit per device below which no option is feasible, in ticks."""
        needs = (
            min(
                minimum_memory(self._with_options(device, options).instance)[device]
                for options in self._merged(device, self._max_options)
            )
            for device in self._devices
        )
        return max(needs)

    def most_even(self, share: float) -> Counts:  # noqa: ARG002
        """The partition."""
        return self._base.counts

    def in_order(self, ceiling: int) -> Iterator[tuple[int, Counts]]:
        """The partition with its bound, if that is at most the ceiling."""
        if self.min_bound <= ceiling and self.min_bound < FOREVER:
            yield self.min_bound, self._base.counts

    def _merged(self, device: int, max_options: int) -> Iterator[Options]:
        """Options of the stages of a device, at most so many; each option needs no less than one.

        If there are more, neighbours are merged: a merged option need not exist.
        """
        relaxed = [self._fronts[stage].relaxed for stage in self._base.hosted[0][device]]
        sizes = map(len, thinned(map(len, relaxed), max_options))
        merged = (merged_options(*each) for each in zip(relaxed, sizes, strict=True))
        return product(*merged)

    def _bound(self, device: int, options: Options) -> int:
        return self._floors[device] if over() else self._computed(device, options)

    def _bound_of(self, device: int, options: Options) -> int:
        problem, objective = self._with_options(device, options), self._problem.objective
        if device_infeasible([RouteTimes(problem.instance, 0)], device):
            return FOREVER
        routes = [RouteTimes(problem.relaxed.instance, 0)]
        around = NO_HEAD_TAIL if self._around is None else self._around[device]
        bound = one_device_bound(routes, device, objective, around).value
        moves = host_link_bound(problem.instance.costs, routes[0], device, objective)
        return max(bound, moves)

    def _with_options(self, device: int, options: Options) -> Problem:
        """The problem with these options of a device, and none on other devices.

        What a relaxed option offloads in no time is not stashed.
        """
        chosen = [front.options[0] for front in self._fronts]
        for stage, option in zip(self._base.hosted[0][device], options, strict=True):
            stashed = option.stashed if option.moving else option.resident
            chosen[stage] = option._replace(stashed=stashed)
        row = self._base.stage_row
        ticks = np.array([option[:NUM_COSTS] for option in chosen], dtype=np.int64)
        time, moving, stashed, resident, workspace, peak = ticks.T
        costs = Recomputed(time, stashed, workspace, peak).costs
        moves = {"offload_memory": stashed - resident, "offload_time": moving}
        own = row._replace(costs={**row.costs, **costs, **moves}).ticks(self._base)
        return (
            replace(self._problem, pipeline=self._base)
            .relaxed_by(lambda instance: instance.with_costs(replace(instance.costs, ticks=own)))
            .reduced
        )
