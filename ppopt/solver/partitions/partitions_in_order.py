"""Best-first search for partitions in the order of their bounds.

The programs (`partition_program`) bound a device by its own layers. The devices before it in the
search have known stages, whose longest F delays the microbatches (argument 1 of
`layer_run_bounds`); so a device is bounded with these stages as well. A complete partition has the
bound of `partition_bounds`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from heapq import heapify, heappop, heappush
from itertools import count
from typing import NamedTuple

import numpy as np

from ppopt.cancellation import checkpoint
from ppopt.solver.partitions.device_runs import Runs
from ppopt.solver.partitions.layer_run_bounds import Hosted, with_longest_before
from ppopt.solver.partitions.option_bounds import chosen_bound
from ppopt.solver.partitions.partition_program import Counts, PartitionProgram
from ppopt.solver.partitions.space import FOREVER

MAX_BOUNDED = 128
"""Maximum number of nodes that are bounded for the minimum bound. Interleaved placement, `none`:
2,623.3 for internvl2-26b in 0.3 s; 312 nodes raise it to 2,625.7."""


class _Node(NamedTuple):
    """Partitions whose first devices have certain layers; the smallest node is expanded first."""

    bound: int
    depth: int
    """Minus the number of these devices."""
    path: tuple[Runs, ...]
    tail: int
    """Tail of stage 0."""
    middle: int
    """Middle cut."""
    is_bounded: bool = False
    """Whether the bound includes the stages before the last device."""


class PartitionsInOrder:
    """Partitions with bounds up to the ceiling of a program, the smallest bound first."""

    def __init__(self, program: PartitionProgram) -> None:
        """Create a search; what time has ended is resumed by the next query."""
        self.program = program
        self.bound_so_far = -1
        """Lower bound of the partitions not listed yet; above the ceiling it need not be exact."""
        self._nodes: list[_Node] = []
        """Heap."""
        self._listed: list[tuple[int, Counts]] = []
        self._num_bounded = 0
        self._device_bounds: dict[tuple[int, ...], int] = {}
        """By the tail of stage 0 and all values of the stages."""

    @cached_property
    def min_bound(self) -> int:
        """Lower bound of all partitions; FOREVER if it is above the ceiling.

        The minimum bound, unless that takes too many nodes.
        """
        while not self._listed and self._num_bounded < MAX_BOUNDED:
            if not self._advance():
                return FOREVER
        return self._listed[0][0] if self._listed else self.bound_so_far

    def __iter__(self) -> Iterator[tuple[int, Counts]]:
        for index in count():
            while len(self._listed) <= index:
                if not self._advance():
                    return
            yield self._listed[index]

    @cached_property
    def _waiting(self) -> set[int]:
        """Tails of stage 0 whose partitions are not in the heap."""
        return set(self.program.first_stages)

    def _advance(self) -> bool:
        """Take one step; whether there was one. Time may end only before it changes anything."""
        checkpoint()
        nodes, known_bound = self._nodes, self.program.known_bound
        tail = min(self._waiting, key=known_bound, default=None)
        lowest = FOREVER if tail is None else known_bound(tail)
        if nodes and nodes[0].bound <= lowest:
            self.bound_so_far = nodes[0].bound
            following = self._following(nodes[0])
            heappop(nodes)
            for node in following:
                heappush(nodes, node)
            return True
        self.bound_so_far = lowest
        if tail is None or lowest == FOREVER:
            return False
        if self.program.is_exact(tail):
            nodes += [
                _Node(bound, -1, (runs,), tail, middle)
                for bound, middle, runs in self.program.roots(tail, tail)
            ]
            heapify(nodes)
            self._waiting.remove(tail)
        else:
            self.program.raise_bound(tail)
        return True

    def _following(self, node: _Node) -> list[_Node]:
        """Nodes that replace a node; a complete partition is listed."""
        if not node.is_bounded:
            bound = max(node.bound, self._bound(node))
            self._num_bounded += 1
            within = bound <= self.program.ceiling
            return [node._replace(bound=bound, is_bounded=True)] * within
        _, depth, path, tail, middle, _ = node
        if -depth == self.program.space.num_devices:
            self._listed.append((node.bound, self.program.counts(path)))
            return []
        return [
            _Node(max(node.bound, bound), depth - 1, (*path, runs), tail, middle)
            for bound, runs in self.program.steps(path, tail, middle)
        ]

    def _bound(self, node: _Node) -> int:
        """Bound of the last device of a node; of all devices if the partition is complete."""
        space = self.program.space
        known = with_longest_before(space, self.program.hosted_on(node.path, node.middle))
        first = 0 if -node.depth == space.num_devices else -1
        return max(self._device_bound(stages, node.tail) for stages in known[first:])

    def _device_bound(self, stages: list[Hosted], tail: int) -> int:
        """Bound of a device, computed once."""
        key = tail, *(np.asarray(value).item() for own in stages for value in own)
        if key not in self._device_bounds:
            device, ceiling = self.program.space.hosts[stages[0].stage], self.program.ceiling
            bound = chosen_bound(self.program.space, device, stages, ceiling).with_tail(tail)
            self._device_bounds[key] = int(bound[0])
        return self._device_bounds[key]
