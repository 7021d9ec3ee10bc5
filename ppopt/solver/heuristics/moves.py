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
        """Create the state of these orders; None if their precedence has a cycle."""
        start = network.earliest([*sequences, *network.absent_rows])
        return None if start is None else cls(network, sequences, start)

    @classmethod
    def of_schedule(cls, problem: Problem, schedule: Schedule) -> State:
        """Create the state of the orders of a schedule."""
        network = OperationNetwork.of(problem, schedule)
        state = cls.of(network, network.sequences(network.starts(schedule)))
        assert state is not None, "a schedule has no cycle"
        return state

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
        """Return the state with another order of a resource; None: cyclic or over a limit."""
        sequences = [*self.sequences[:resource], sequence, *self.sequences[resource + 1 :]]
        state = State.of(self.network, sequences)
        return state if state is not None and self.network.fits(state.start, resource) else None


class Move(Protocol):
    """A way to change a state."""

    def propose(self, state: State, random: Random) -> State | None:
        """Draw a neighbour of a state; None if it violates a limit, or if there is none."""


class Swap:
    """Moves an operation before the one that it waits for, or before earlier ones."""

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
    """Whether the operation starts when its predecessor on the resource ends, and only their order
    makes it wait."""


def critical_path(state: State, random: Random) -> list[CriticalNode]:
    """A critical path, from its last operation to its first; random if there are several."""
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
        present = [(predecessor, lag) for predecessor, lag in before if predecessor in where]
        causes = [
            predecessor for predecessor, lag in present if ends[predecessor] + lag == start[op]
        ]
        ahead = sequences[resource][position - 1] if position else None
        follows = ahead is not None and ends[ahead] == start[op]
        free = follows and all(ahead != predecessor for predecessor, _ in before)
        path.append(CriticalNode(resource, position, free))
        if follows and ahead is not None:
            causes.append(ahead)
        if not causes or start[op] == 0:
            return path
        op = random.choice(causes)
