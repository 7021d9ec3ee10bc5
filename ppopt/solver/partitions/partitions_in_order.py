"""Best-first search for partitions in the order of their bounds.

The programs (`partition_program`) bound a device by its own layers. The devices before it in the
search have known stages, whose longest F delays the microbatches (argument 1 of
`layer_run_bounds`); so a device is bounded with these stages as well. A complete partition has the
bound of `partition_bounds`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
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
TOGETHER = 64
"""Maximum number of nodes that are bounded together: one alone takes almost as long."""


class _Siblings(NamedTuple):
    """Nodes that differ in the last device, and the bounds of the first of them."""

    nodes: list[_Node]
    """The smallest first."""
    bounds: list[int]


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
    number: int = 0
    """Its index among its siblings."""
    siblings: _Siblings | None = None
    """None: the bound includes the stages before the last device."""


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
        """By the first stage of a device, the tail of stage 0 and all values of the stages."""

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
            nodes += _siblings(
                _Node(bound, -1, (runs,), tail, middle)
                for bound, middle, runs in self.program.roots(tail, tail)
            )
            heapify(nodes)
            self._waiting.remove(tail)
        else:
            self.program.raise_bound(tail)
        return True

    def _following(self, node: _Node) -> list[_Node]:
        """Nodes that replace a node; a complete partition is listed."""
        if node.siblings is not None:
            bound = max(node.bound, self._bound(node.number, node.siblings))
            self._num_bounded += 1
            within = bound <= self.program.ceiling
            return [node._replace(bound=bound, siblings=None)] * within
        bound, depth, path, tail, middle, *_ = node
        if -depth == self.program.space.num_devices:
            self._listed.append((bound, self.program.counts(path)))
            return []
        return _siblings(
            _Node(max(bound, own), depth - 1, (*path, runs), tail, middle)
            for own, runs in self.program.steps(path, tail, middle)
        )

    def _bound(self, number: int, siblings: _Siblings) -> int:
        """Bound of the last device of a node; of all devices if the partition is complete."""
        nodes, bounds = siblings
        while number >= len(bounds):
            bounds += self._bounds(nodes[len(bounds) : len(bounds) + TOGETHER])
        return bounds[number]

    def _bounds(self, nodes: Sequence[_Node]) -> list[int]:
        """Bounds of siblings."""
        space, depth, tail = self.program.space, -nodes[0].depth, nodes[0].tail
        paths, middles = [node.path for node in nodes], [node.middle for node in nodes]
        known = with_longest_before(space, self.program.hosted_on(paths, middles))
        first = 0 if depth == space.num_devices else -1
        each = [self._device_bounds_of(own, tail) for own in known[first:]]
        return [max(own) for own in zip(*each, strict=True)]

    def _device_bounds_of(self, stages: list[Hosted], tail: int) -> list[int]:
        """Bounds of a device, computed once for equal values."""
        space, bounds, stage = self.program.space, self._device_bounds, stages[0].stage
        values = np.broadcast_arrays(*(value for own in stages for value in own[1:]))
        keys = [(stage, tail, *own) for own in np.array(values).T.tolist()]
        unknown = {key: index for index, key in enumerate(keys) if key not in bounds}
        if unknown:
            indices = np.array([*unknown.values()])
            selected = [own.at(indices) for own in stages]
            bound = chosen_bound(space, space.hosts[stage], selected, self.program.ceiling)
            bounds.update(zip(unknown, bound.with_tail(tail).tolist(), strict=True))
        return [bounds[key] for key in keys]


def _siblings(nodes: Iterable[_Node]) -> list[_Node]:
    """Nodes that differ in the last device, to be bounded together."""
    siblings = _Siblings(sorted(nodes), [])
    return [
        node._replace(number=number, siblings=siblings)
        for number, node in enumerate(siblings.nodes)
    ]
