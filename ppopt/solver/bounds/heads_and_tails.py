"""Heads and tails that links, collectives and optimizer steps add to bounds on compute.

The head of an operation class is the minimum time from 0 to its first start. Its tail is the
minimum time from any of its ends to the end of the schedule. Both are longest paths in the
precedence graph of all operations. Bounds on compute alone lack what other operations add at both
ends.
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
    """Minimum head and tail of some compute operations, in ticks."""

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
            [class_id for class_id in hosted if class_id < count]
            for hosted in self._instance.hosted[: problem.pipeline.num_devices]
        ]

    @classmethod
    def around_compute(cls, problem: Problem) -> HeadsAndTails | None:
        """Heads and tails of a relaxed problem; None if only compute operations exist."""
        adds = problem.traits & {Trait.STEP_WORK, Trait.OFFLOAD}
        relaxed = problem.relaxed
        return cls(relaxed) if adds and HEADS_AND_TAILS.applies(relaxed.traits) else None

    @cached_property
    def devices(self) -> list[HeadTail]:
        """Head and tail of the compute of every device.

        For device span they lie between the first and the last operation of the device.
        """
        return [self._of_device(device) for device in range(len(self._compute))]

    @property
    def compute(self) -> int:
        """Ticks to add to any bound of a schedule of all compute.

        All compute runs after the minimum head and before the minimum tail. A device span has the
        head and tail of its own device.
        """
        if self._spans:
            return min(head + tail for head, tail in self.devices)
        return min(head for head, _ in self.devices) + min(tail for _, tail in self.devices)

    def _of_device(self, device: int) -> HeadTail:
        if self._spans:
            resources = self._instance.resources
            class_ids = {
                class_id
                for class_id, op_class in enumerate(self._instance.classes)
                if resources[op_class.resource].devices == (device,)
            }
            heads, tails = self._paths(class_ids)
        else:
            heads, tails = self._all
        compute_classes = self._compute[device]
        return HeadTail(
            min(heads[class_id] for class_id in compute_classes),
            min(tails[class_id] for class_id in compute_classes),
        )

    @cached_property
    def _all(self) -> tuple[dict[int, int], dict[int, int]]:
        return self._paths(set(range(len(self._instance.classes))))

    def _paths(self, class_ids: set[int]) -> tuple[dict[int, int], dict[int, int]]:
        """Longest paths to the start, and from the end, of classes, through `class_ids`."""
        instance = self._instance
        before = {
            class_id: [
                (predecessor, lag)
                for predecessor, lag in instance.predecessors[class_id]
                if predecessor in class_ids
            ]
            for class_id in class_ids
        }
        order = list(
            TopologicalSorter(
                {
                    class_id: [predecessor for predecessor, _ in rows]
                    for class_id, rows in before.items()
                }
            ).static_order()
        )
        heads: dict[int, int] = {}
        for class_id in order:
            waits = [
                heads[predecessor] + self._min_duration(predecessor) + lag
                for predecessor, lag in before[class_id]
            ]
            heads[class_id] = max(waits, default=0)
        tails = dict.fromkeys(order, 0)
        for class_id in reversed(order):
            for predecessor, lag in before[class_id]:
                tails[predecessor] = max(
                    tails[predecessor], lag + self._min_duration(class_id) + tails[class_id]
                )
        return heads, tails

    def _min_duration(self, class_id: int) -> int:
        """Minimum duration of an operation; 0 if it may be absent."""
        modes = self._instance.classes[class_id].modes
        return min(0 if mode is None else mode.duration for mode in modes)
