"""Moves of local search over orders and modes: each changes a schedule on its critical path.

A schedule becomes shorter only if some node of its critical path moves or takes less time (job
shop: van Laarhoven, Aarts, Lenstra, "Job shop scheduling by simulated annealing", Operations
Research 40, 1992).
"""

from __future__ import annotations

from random import Random
from typing import NamedTuple, Protocol

from ppopt.problem.objective import Objective
from ppopt.schedule.schedule import Schedule
from ppopt.solver.heuristics.order_network import OrderNetwork, Sequences


class State(NamedTuple):
    """Orders of all machines, and when their nodes end."""

    network: OrderNetwork
    sequences: Sequences
    ends: list[int]
    """In ticks."""

    @classmethod
    def of(cls, network: OrderNetwork, sequences: Sequences) -> State | None:
        """The state of these orders; None where they wait in a circle."""
        ends = network.ends(sequences)
        return None if ends is None else cls(network, sequences, ends)

    def schedule(self, objective: Objective) -> Schedule:
        """The schedule of these orders."""
        return self.network.schedule(self.sequences, objective)


class Move(Protocol):
    """A way to change a state."""

    def propose(self, state: State, random: Random) -> State | None:
        """Draw a neighbour of a state; None: the one drawn breaks a limit, or there is none."""


class Swap:
    """A node that waits for the one before it moves in front of that one or of earlier ones."""

    def propose(self, state: State, random: Random) -> State | None:
        """Draw from the nodes of a critical path."""
        network, sequences, _ = state
        waiting = [(one.machine, one.place) for one in critical_path(state, random) if one.waits]
        if not waiting:
            return None
        machine, place = random.choice(waiting)
        sequence = sequences[machine]
        target = place - 1
        while target > 0 and random.random() < 0.3:
            target -= 1
        node = sequence[place]
        changed = [*sequence[:target], node, *sequence[target:place], *sequence[place + 1 :]]
        if machine < network.pipeline.num_devices and not network.fits(machine, changed):
            return None
        return State.of(network, [*sequences[:machine], changed, *sequences[machine + 1 :]])


class Flip:
    """A whole backward becomes a split one, its W right after its B, or a split one whole."""

    def propose(self, state: State, random: Random) -> State | None:
        """Draw from the backwards of a critical path."""
        network, sequences, _ = state
        path = critical_path(state, random)
        nodes = [(one.machine, sequences[one.machine][one.place]) for one in path]
        backwards = [(machine, node) for machine, node in nodes if network.backward(node)]
        if not backwards:
            return None
        machine, node = random.choice(backwards)
        changed = network.with_flip(sequences, node)
        if not changed.fits(machine, changed.start[machine]):
            return None
        return State.of(changed, changed.start)


class CriticalNode(NamedTuple):
    """A node of a critical path."""

    machine: int
    place: int
    """Its place in the order of the machine."""
    waits: bool
    """Whether it starts when the node before it there ends, and waits for it by order alone."""


def critical_path(state: State, random: Random) -> list[CriticalNode]:
    """A critical path, from its last node to its first; drawn where there are several."""
    network, sequences, ends = state
    where = {
        node: (machine, place)
        for machine, sequence in enumerate(sequences)
        for place, node in enumerate(sequence)
    }
    last = max(ends)
    node = random.choice([one for one, end in enumerate(ends) if end == last])
    path = []
    while True:
        start = ends[node] - network.duration[node]
        machine, place = where[node]
        before = network.before[node]
        causes = [other for other, lag in before if ends[other] + lag == start]
        ahead = sequences[machine][place - 1] if place else None
        follows = ahead is not None and ends[ahead] == start
        free = follows and all(ahead != other for other, _ in before)
        path.append(CriticalNode(machine, place, free))
        if follows and ahead is not None:
            causes.append(ahead)
        if not causes or start == 0:
            return path
        node = random.choice(causes)
