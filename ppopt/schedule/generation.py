"""Event simulation: resources run operations one after another, each as early as possible.

A simulation has the state that a rule needs to choose the next operation by real times: the
progress of every class, when inputs arrive, when resources are free, live memory, and idle time.
The caller decides. There are two ways to run one:

    `append`   serial: the caller gives the operations one by one, in any order that the precedence
               allows; each starts when its resource and its inputs are ready
    `run`      parallel: whenever a resource is free and something has ended or arrived, the caller
               chooses what it starts at that instant, if anything

These are the serial and parallel schedule-generation schemes of the scheduling literature (Kolisch,
European Journal of Operational Research 90, 1996). The operations of a class run in the order of
microbatches.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np

from ppopt.cancellation import checkpoint
from ppopt.problem.arrays import Ints
from ppopt.problem.instance import Instance
from ppopt.schedule.orders import Orders

NEVER = 2**62
"""Later than any instant, and more than any memory."""
NOT_STARTED = -1
"""Start of a resource that has run nothing."""
LOOK = 4096
"""Number of events between two checkpoints."""
Event = tuple[int, int]
"""An instant in ticks, and the resource of the event."""
Choice = Callable[[int, int], int | None]
"""Function from a resource and the present time to the class that starts now, or None."""


def drained(events: list[Event]) -> Iterator[Event]:
    """Remove the next event of a heap until none remains, with checkpoints."""
    while events:
        checkpoint()
        for _ in range(LOOK):
            if not events:
                return
            yield heapq.heappop(events)


class _Inputs(NamedTuple):
    """Inputs of the operations of a class that waits for more than one operation."""

    latest: list[int]
    """Per microbatch: arrival of the last known input, in ticks."""
    missing: list[int]
    """Per microbatch: number of unknown inputs."""


class _Follower(NamedTuple):
    """A class that waits for another."""

    arrived: list[int]
    inputs: _Inputs | None
    """None: it waits for that class alone."""
    lag: int
    resource: int


class EventSimulation:
    """The operations run so far, and when the next ones may start."""

    def __init__(self, instance: Instance) -> None:
        resources = range(len(instance.resources))
        self.instance = instance
        self.done: list[int] = [0 for _ in instance.classes]
        """Operations of every class that have run."""
        waits = [len(links) for links in instance.predecessors]
        self.arrived: list[list[int]] = [
            [*[NEVER if number else 0] * op_class.size, NEVER]
            for op_class, number in zip(instance.classes, waits, strict=True)
        ]
        """Arrival of the last input of every operation, in ticks, [class][microbatch]; NEVER: not
        known yet. The last entry is for the operation after the last."""
        self.sequence: list[list[int]] = [[] for _ in resources]
        """Classes of the operations that every resource has run, in order."""
        self.free = [0 for _ in resources]
        """When every resource is free, in ticks."""
        self.first_start = [NOT_STARTED for _ in resources]
        """Start of the first operation of every resource, in ticks."""
        self.idle = [0 for _ in resources]
        """Ticks that every resource has been idle since its first operation."""
        self.max_idle = 0
        """Maximum of these."""
        self.live = [0 for _ in resources]
        """Live memory of every resource, in ticks of memory."""
        resource = (op_class.resource for op_class in instance.classes)
        amounts = instance.amounts("duration"), instance.amounts("change")
        self._placed = list(zip(resource, *amounts, strict=True))
        self._followers = self._all_followers(waits)
        self._events: list[Event] | None = None

    def _all_followers(self, waits: list[int]) -> list[list[_Follower]]:
        classes = self.instance.classes
        inputs = [
            _Inputs([0] * op_class.size, [num_inputs] * op_class.size) if num_inputs > 1 else None
            for op_class, num_inputs in zip(classes, waits, strict=True)
        ]
        return [
            [
                _Follower(self.arrived[after], inputs[after], lag, classes[after].resource)
                for after, lag in links
            ]
            for links in self.instance.successors
        ]

    def arrival(self, class_id: int) -> int | None:
        """When the inputs of the next operation of a class arrive; None: not yet known."""
        time = self.arrived[class_id][self.done[class_id]]
        return None if time == NEVER else time

    def append(self, class_id: int, earliest: int) -> int:
        """Run the next operation of a class at `earliest` or later; returns its end, in ticks."""
        resource, times, changes = self._placed[class_id]
        microbatch = self.done[class_id]
        start = free = self.free[resource]
        if self.first_start[resource] == NOT_STARTED:
            self.first_start[resource] = start = max(free, earliest)
        elif earliest > free:
            start = earliest
            self.idle[resource] += start - free
            self.max_idle = max(self.max_idle, self.idle[resource])
        end = self.free[resource] = start + times[microbatch]
        self.live[resource] += changes[microbatch]
        self.sequence[resource].append(class_id)
        self.done[class_id] = microbatch + 1
        events = self._events
        if events is not None:
            heapq.heappush(events, (end, resource))
        for arrived, inputs, lag, follower in self._followers[class_id]:
            time = end + lag
            if inputs is not None:
                latest, missing = inputs
                latest[microbatch] = max(latest[microbatch], time)
                missing[microbatch] -= 1
                if missing[microbatch]:
                    continue
                time = latest[microbatch]
            arrived[microbatch] = time
            if events is not None and (follower != resource or time > end):
                heapq.heappush(events, (time, follower))
        return end

    def run(self, choose: Choice, events: Iterable[Event]) -> None:
        """Ask `choose` at every event (time, resource), from the given first ones on."""
        queue = self._events = list(events)
        heapq.heapify(queue)
        free = self.free
        for now, resource in drained(queue):
            if free[resource] <= now:
                class_id = choose(resource, now)
                if class_id is not None:
                    self.append(class_id, now)
        self._events = None

    @property
    def complete(self) -> bool:
        """Whether all operations have run."""
        return all(
            done == op_class.size
            for done, op_class in zip(self.done, self.instance.classes, strict=True)
        )

    @property
    def makespan(self) -> int:
        """End of the last operation, in ticks."""
        return max(self.free)

    @property
    def span(self) -> int:
        """Largest time of a resource from its first start to its last end, in ticks."""
        return max(
            end - start
            for end, start in zip(self.free, self.first_start, strict=True)
            if start != NOT_STARTED
        )

    def orders(self) -> Orders:
        """The orders of all resources."""
        return class_orders(self.instance, self.sequence)


def class_orders(instance: Instance, sequences: Iterable[Iterable[int]]) -> Orders:
    """Orders from the class of every operation, per device: microbatches follow in order."""
    return [_numbers(instance, np.array(sequence, dtype=np.int64)) for sequence in sequences]


def _numbers(instance: Instance, sequence: Ints) -> Ints:
    numbers = np.empty_like(sequence)
    for class_id in sorted(set(sequence.tolist())):
        rows = sequence == class_id
        numbers[rows] = instance.codes[class_id][: np.count_nonzero(rows)]
    return numbers
