"""Moves of local search over orders and modes: each changes a schedule on its critical path.

A schedule becomes shorter only if some node of its critical path moves or takes less time (job
shop: van Laarhoven, Aarts, Lenstra, "Job shop scheduling by simulated annealing", Operations
Research 40, 1992).
"""

from __future__ import annotations

from operator import add
from random import Random
from typing import NamedTuple, Protocol

from ppopt.problem.instance import ABSENT
from ppopt.problem.problem import Problem
from ppopt.schedule.schedule import Schedule
from ppopt.solver.heuristics.operation_network import OperationNetwork, Sequences


class State(NamedTuple):
    """Orders of all resources, with the earliest starts."""

    network: OperationNetwork
    sequences: Sequences
    start: list[int]
    """Starts in ticks."""

    @classmethod
    def of(cls, network: OperationNetwork, sequences: Sequences) -> State | None:
        """Make the state of these orders; None if they wait in a circle."""
        start = network.earliest(sequences)
        return None if start is None else cls(network, sequences, start)

    @classmethod
    def of_schedule(cls, problem: Problem, schedule: Schedule) -> State:
        """Make the state of the orders of a schedule."""
        network = OperationNetwork.of(problem, schedule)
        found = cls.of(network, network.sequences(network.starts(schedule)))
        assert found is not None, "a schedule has no circle"
        return found

    @property
    def value(self) -> int:
        """Makespan, in ticks."""
        return max(self.ends)

    @property
    def ends(self) -> list[int]:
        """Ends of all operations, in ticks."""
        return [*map(add, self.start, self.network.time)]

    @property
    def schedule(self) -> Schedule:
        """Schedule of these starts."""
        return self.network.schedule(self.start)

    def changed(self, resource: int, sequence: list[int]) -> State | None:
        """Return the state with another order of a resource; None: in a circle or over a limit."""
        sequences = [*self.sequences[:resource], sequence, *self.sequences[resource + 1 :]]
        found = State.of(self.network, sequences)
        return found if found is not None and self.network.fits(found.start, resource) else None


class Move(Protocol):
    """A way to change a state."""

    def propose(self, state: State, random: Random) -> State | None:
        """Draw a neighbour of a state; None: the one drawn breaks a limit, or there is none."""


class Swap:
    """Moves an operation in front of the one that it waits for, or of earlier ones."""

    def propose(self, state: State, random: Random) -> State | None:
        """Draw from the operations of a critical path."""
        waiting = [node for node in critical_path(state, random) if node.waits]
        if not waiting:
            return None
        resource, position, _ = random.choice(waiting)
        sequence = state.sequences[resource]
        target = position - 1
        while target > 0 and random.random() < 0.3:
            target -= 1
        op = sequence[position]
        return state.changed(
            resource,
            [*sequence[:target], op, *sequence[target:position], *sequence[position + 1 :]],
        )


class Flip:
    """Splits a whole backward, with W right after B, or joins a split one."""

    def propose(self, state: State, random: Random) -> State | None:
        """Draw from the backwards of a critical path."""
        network, flips = state.network, state.network.table.flips
        path = critical_path(state, random)
        nodes = [(node.resource, state.sequences[node.resource][node.position]) for node in path]
        backwards = [(resource, op) for resource, op in nodes if flips[op] != ABSENT]
        if not backwards:
            return None
        resource, op = random.choice(backwards)
        (weight,) = network.table.weights(flips[op])
        sequence = [code for code in state.sequences[resource] if code != weight]
        if not network.in_first_mode(flips[op]):
            sequence.insert(sequence.index(op) + 1, weight)
        return state._replace(network=network.with_flips([flips[op]])).changed(resource, sequence)


class CriticalNode(NamedTuple):
    """An operation of a critical path."""

    resource: int
    position: int
    """Index in the order of the resource."""
    waits: bool
    """Whether the operation starts when the one before it on the resource ends, and waits for it by
    order alone."""


def critical_path(state: State, random: Random) -> list[CriticalNode]:
    """A critical path, from its last operation to its first; drawn if there are several."""
    network, sequences, start = state
    ends = state.ends
    where = {
        op: (resource, position)
        for resource, sequence in enumerate(sequences)
        for position, op in enumerate(sequence)
    }
    last = max(ends)
    op = random.choice([code for code in where if ends[code] == last])
    path = []
    while True:
        resource, position = where[op]
        before = network.table.before[op]
        present = [(other, lag) for other, lag in before if other in where]
        causes = [other for other, lag in present if ends[other] + lag == start[op]]
        ahead = sequences[resource][position - 1] if position else None
        follows = ahead is not None and ends[ahead] == start[op]
        free = follows and all(ahead != other for other, _ in before)
        path.append(CriticalNode(resource, position, free))
        if follows and ahead is not None:
            causes.append(ahead)
        if not causes or start[op] == 0:
            return path
        op = random.choice(causes)
