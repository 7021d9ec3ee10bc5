"""Machines that run their operations in a fixed order: earliest starts by longest paths.

A machine is a device, a link or a queue. `FixedOrder.ends` times one column of durations exactly;
`ppopt.schedule.order_columns` times many columns at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from ppopt.errors import DeadlockError
from ppopt.problem.arrays import Ints
from ppopt.problem.operation_classes import Constraints

FREE = -1
UNREACHED = -(2**60)
DONE = 0
"""Replaces an idle time that is no longer needed."""
Cycle = tuple[int, ...]
"""Positions of operations that wait for each other in a circle."""


class FixedOrder:
    """An order per machine with the precedence between operations, cut into steps.

    Operations are numbered by their position in the concatenated orders. A step waits for at most
    one step of another machine and then runs its operations back to back. An operation that waits
    for several others is preceded by steps without operations. Steps are numbered in the same
    sequence.

    The idle time of a step is the time that its machine has been idle before its operations: their
    start minus the work done before. It never decreases along a machine, and step s satisfies
    idle[s] >= idle[needed[s]] + delay[s].
    """

    def __init__(self, starts: Ints, flow: Constraints) -> None:
        """`starts` has the first position of every machine, and the end; `flow` is by position."""
        self.starts = starts
        self.machine: Ints = numbered(starts)
        """Machine of every position."""
        machine, (before, after, lag) = self.machine, flow
        implied = (machine[before] == machine[after]) & (before < after) & (lag == 0)
        edges, heads = np.flatnonzero(~implied), len(starts) - 1
        first = np.concatenate([starts[:-1], after[edges]])
        steps = np.argsort(first, kind="stable")
        self.edge: Ints = np.concatenate([np.full(heads, FREE), edges])[steps]
        """Index in `flow` of the constraint that each step waits by; FREE: none."""
        self.bounds: Ints = np.append(np.flatnonzero(steps < heads), len(steps))
        """First step of every machine, and the end."""
        self.first: Ints = np.append(first[steps], starts[-1])
        """First position of every step, and the end."""
        self.before: Ints = np.append(before, FREE)[self.edge]
        """Position of the operation that each step waits for; FREE: none."""
        self.lag: Ints = np.append(lag, 0)[self.edge]
        """Ticks between the end of that operation and the start of the step."""
        self._needed = np.searchsorted(self.first, self.before, side="right") - 1
        """Step of that operation; FREE: none."""

    @cached_property
    def _host(self) -> list[int]:
        """Machine of every step."""
        host: list[int] = numbered(self.bounds).tolist()
        return host

    def named(self, positions: Sequence[int]) -> tuple[Any, ...]:
        """What errors call the operations at some positions."""
        return tuple(positions)

    def ends(
        self, duration: Ints, release: Sequence[int] | None = None, lag: Ints | None = None
    ) -> Ints:
        """Earliest end of every position in ticks.

        Machines start at `release` or later (default 0). `lag` replaces that of every step. Raises
        DeadlockError, naming the cycle, if the constraints have one.
        """
        ends = self.ends_or_cycle(duration, release, lag)
        if isinstance(ends, tuple):
            raise DeadlockError(self.named(ends))
        return ends

    def ends_or_cycle(
        self, duration: Ints, release: Sequence[int] | None = None, lag: Ints | None = None
    ) -> Ints | Cycle:
        """The ends, as `ends` has them, or a cycle of the constraints.

        Demand-driven longest path: a machine runs until it waits for another one, which then runs;
        linear in operations.
        """
        work, delay = self._amounts(duration, self.lag if lag is None else lag)
        idle: list[int | None] = [None] * len(self.edge)
        idle.append(0)  # at FREE
        released = release or [0] * (len(self.bounds) - 1)
        programs = zip(self._programs(delay), released, strict=True)
        cycle = self._run([_idle_times(*program, idle) for program in programs], idle)
        if cycle:
            return cycle
        sizes = self.first[1:] - self.first[:-1]
        return np.repeat(np.array(idle[:FREE], dtype=np.int64), sizes) + work

    def longest_paths(self, duration: Ints, sources: Ints, steps: Sequence[Ints]) -> list[Ints]:
        """Longest paths from each source to some steps, as idle times: `[step, source]` for each.

        `sources[machine, source]` is the release of a machine by a source.
        """
        _, delay = self._amounts(duration, self.lag)
        used = np.concatenate([self._needed[self._needed != FREE], *steps])
        uses = np.bincount(used, minlength=len(self.edge) + 1).tolist()
        idle: list[Any] = [None] * len(self.edge)
        idle.append(np.full(sources.shape[1], UNREACHED))  # at FREE
        programs = zip(self._programs(delay), sources, strict=True)
        self._run([_idle_rows(*program, idle, uses) for program in programs], idle)
        return [np.stack([idle[step] for step in each]) for each in steps]

    def _amounts(self, duration: Ints, lag: Ints) -> tuple[Ints, Ints]:
        """Work of a machine up to each position, that one included, and the delay of every step.

        The delay is the minimum difference between the idle times of a step and of the needed one.
        """
        work = np.cumsum(duration)
        work -= np.append(0, work)[self.starts[:-1]][self.machine]
        begun = np.append(work - duration, 0)[self.first[:-1]]
        return work, np.where(self.before == FREE, 0, work[self.before] + lag - begun)

    def _programs(self, delay: Ints) -> Iterator[Iterator[tuple[int, int, int]]]:
        """Number, needed step and delay of every step, per machine."""
        for low, high in pairwise(self.bounds.tolist()):
            columns = (column[low:high].tolist() for column in (self._needed, delay))
            yield zip(range(low, high), *columns, strict=True)

    def _run(self, machines: Sequence[Iterator[int]], idle: Sequence[object]) -> Cycle:
        """Run every machine to its end, on demand: it runs when another one needs its step.

        Returns a cycle that stops them; empty if there is none.
        """
        host, waiting = self._host, [False] * len(machines)
        for machine, last in enumerate((self.bounds[1:] - 1).tolist()):
            running, target = machine, last
            stack: list[tuple[int, int]] = []
            while idle[last] is None:
                needed = next(machines[running], FREE)
                if idle[target] is None:
                    waiting[running] = True
                    stack.append((running, target))
                    running, target = host[needed], needed
                    if waiting[running]:
                        return self._cycle([waiter for waiter, _ in stack], idle)
                elif stack:
                    running, target = stack.pop()
                    waiting[running] = False
        return ()

    def _cycle(self, stack: list[int], idle: Sequence[object]) -> Cycle:
        """Operations of the cycle closed by the last machine of the stack, first to last."""
        blocked = [idle.index(None, self.bounds[machine]) for machine in stack]
        first = stack.index(self._host[self._needed[blocked[-1]]])
        cycle: list[int] = []
        for step in reversed(blocked[first:]):
            cycle += [int(self.before[step]), int(self.first[step])]
        return tuple(p for i, p in enumerate(cycle) if p != cycle[i - 1])


def numbered(bounds: Ints) -> Ints:
    """Which of the intervals between the bounds holds each number."""
    return np.repeat(np.arange(len(bounds) - 1), bounds[1:] - bounds[:-1])


def _idle_times(
    program: Iterator[tuple[int, int, int]], so_far: int, idle: list[Any]
) -> Iterator[int]:
    """Run the steps of a machine; yields the needed step whenever the machine must wait."""
    for step, needed, delay in program:
        while (needed_idle := idle[needed]) is None:
            yield needed
        if needed_idle + delay > so_far:  # noqa: PLR1730  max() takes as long as all the rest
            so_far = needed_idle + delay
        idle[step] = so_far


def _idle_rows(
    program: Iterator[tuple[int, int, int]], so_far: Ints, idle: list[Any], uses: list[int]
) -> Iterator[int]:
    """Like `_idle_times`, for idle times per source; drops each after its last use."""
    for step, needed, delay in program:
        while idle[needed] is None:
            yield needed
        reached = idle[needed] + delay
        uses[needed] -= 1
        if uses[needed] == 0:
            idle[needed] = DONE
        idle[step] = so_far = np.maximum(reached, so_far, out=reached)
