"""Orders on devices as free pairs: what the models with one binary per pair share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from graphlib import TopologicalSorter
from itertools import combinations

from benchmarks.baselines.problem import Jobs, Link


@dataclass(frozen=True)
class Orders:
    """Which operations are ordered by the data flow and the queues, and which are free.

    With operations of no length, memory counted along an order is stricter than at instants, where
    ends come before starts: pipelines of such operations are outside of what these models prove.
    """

    jobs: Jobs

    @property
    def links(self) -> tuple[Link, ...]:
        """Data flow and queues."""
        return (*self.jobs.flow, *self.jobs.queue)

    @cached_property
    def sorted(self) -> list[int]:
        """All operations, each after those it waits for."""
        graph: dict[int, list[int]] = {code: [] for code in self.jobs.duration}
        for before, after, _ in self.links:
            graph[after].append(before)
        return list(TopologicalSorter(graph).static_order())

    @cached_property
    def rank(self) -> dict[int, int]:
        """Place of every operation in `sorted`."""
        return {code: place for place, code in enumerate(self.sorted)}

    @cached_property
    def _below(self) -> dict[int, int]:
        """Bit r of an operation: the operation of rank r surely runs before it."""
        below = dict.fromkeys(self.jobs.duration, 0)
        sources: dict[int, list[int]] = {code: [] for code in below}
        for before, after, _ in self.links:
            sources[after].append(before)
        for code in self.sorted:
            for before in sources[code]:
                below[code] |= below[before] | 1 << self.rank[before]
        return below

    def surely_before(self, first: int, second: int) -> bool:
        """Whether `first` runs before `second` in every schedule."""
        return bool(self._below[second] >> self.rank[first] & 1)

    def free_pairs(self) -> Iterator[tuple[int, int]]:
        """Pairs of operations of one device whose order is to be found."""
        for group in self.jobs.groups:
            for pair in combinations(group, 2):
                if not self.surely_before(*pair) and not self.surely_before(*pair[::-1]):
                    yield pair

    def heads(self) -> dict[int, int]:
        """Earliest start of every operation by the links alone, in ticks."""
        head = dict.fromkeys(self.sorted, 0)
        for before, after, lag in sorted(self.links, key=lambda link: self.rank[link.before]):
            head[after] = max(head[after], head[before] + self.jobs.duration[before] + lag)
        return head

    def tails(self) -> dict[int, int]:
        """Least time from the end of every operation to the end of the schedule, in ticks."""
        tail = dict.fromkeys(self.sorted, 0)
        for before, after, lag in sorted(self.links, key=lambda link: -self.rank[link.after]):
            tail[before] = max(tail[before], lag + self.jobs.duration[after] + tail[after])
        return tail

    def in_turn(self, start: Mapping[int, float]) -> list[list[int]]:
        """Order of every device by start; equal starts in the order of the links."""
        return [
            sorted(group, key=lambda code: (round(start[code]), self.rank[code]))
            for group in self.jobs.groups
        ]
