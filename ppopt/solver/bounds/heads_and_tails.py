"""Heads and tails that links, collectives and optimizer steps add to bounds on compute.

The head of an operation class is the least time from 0 to its first start; the tail is the least
time from any of its ends to the end of all: longest paths through the precedence of all operations.
If only compute is scheduled, bounds lack what other operations add to both ends.
"""

from __future__ import annotations

from functools import cached_property
from graphlib import TopologicalSorter
from typing import NamedTuple

from ppopt.problem.instance import Instance
from ppopt.problem.objective import Objective
from ppopt.problem.problem import Problem
from ppopt.problem.traits import Trait
from ppopt.solver.arguments import HEADS_AND_TAILS


class HeadTail(NamedTuple):
    """Least head and tail of some compute, in ticks."""

    head: int
    """Time before the first operation."""
    tail: int
    """Time after the last operation."""


NO_HEAD_TAIL = HeadTail(0, 0)


class HeadsAndTails:
    """Heads and tails of compute operations, from the precedence graph of all operations."""

    def __init__(self, problem: Problem) -> None:
        self._instance: Instance = problem.full_instance
        self._spans = problem.objective is Objective.DEVICE_SPAN
        count = len(self._instance.rows) * self._instance.num_positions
        self._compute: list[list[int]] = [
            [number for number in hosted if number < count]
            for hosted in self._instance.hosted[: problem.pipeline.num_devices]
        ]

    @classmethod
    def around_compute(cls, problem: Problem) -> HeadsAndTails | None:
        """Those of a problem's relaxation; None if nothing besides compute adds any."""
        adds = problem.traits & {Trait.STEP_WORK, Trait.OFFLOAD}
        relaxed = problem.relaxed
        return cls(relaxed) if adds and HEADS_AND_TAILS.applies(relaxed.traits) else None

    @cached_property
    def devices(self) -> list[HeadTail]:
        """Head and tail of the compute of every device.

        For device span they are within the time from the first operation of the device to its last.
        """
        return [self._of_device(device) for device in range(len(self._compute))]

    @property
    def compute(self) -> int:
        """Ticks to add to any bound of a schedule of all compute.

        All compute lies between the least head and the least tail. A device span has the head and
        tail of its own device.
        """
        if self._spans:
            return min(head + tail for head, tail in self.devices)
        return min(head for head, _ in self.devices) + min(tail for _, tail in self.devices)

    def _of_device(self, device: int) -> HeadTail:
        if self._spans:
            resources = self._instance.resources
            kept = {
                number
                for number, each in enumerate(self._instance.classes)
                if resources[each.resource].devices == (device,)
            }
            heads, tails = self._paths(kept)
        else:
            heads, tails = self._all
        mine = self._compute[device]
        return HeadTail(
            min(heads[number] for number in mine), min(tails[number] for number in mine)
        )

    @cached_property
    def _all(self) -> tuple[dict[int, int], dict[int, int]]:
        return self._paths(set(range(len(self._instance.classes))))

    def _paths(self, kept: set[int]) -> tuple[dict[int, int], dict[int, int]]:
        """Longest paths to the start, and from the end, of classes through the classes `kept`."""
        instance = self._instance
        before = {
            number: [(other, lag) for other, lag in instance.predecessors[number] if other in kept]
            for number in kept
        }
        order = list(
            TopologicalSorter(
                {number: [other for other, _ in rows] for number, rows in before.items()}
            ).static_order()
        )
        heads: dict[int, int] = {}
        for number in order:
            waits = [heads[other] + self._least(other) + lag for other, lag in before[number]]
            heads[number] = max(waits, default=0)
        tails = dict.fromkeys(order, 0)
        for number in reversed(order):
            for other, lag in before[number]:
                tails[other] = max(tails[other], lag + self._least(number) + tails[number])
        return heads, tails

    def _least(self, number: int) -> int:
        """Least time of an operation; 0 if it may be absent."""
        modes = self._instance.classes[number].modes
        return min(0 if mode is None else mode.duration for mode in modes)
