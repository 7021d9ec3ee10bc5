"""Local search over streams: change the order of two neighbours on a critical path.

A schedule becomes shorter only if some node of its critical path moves (job shop: van Laarhoven,
Aarts, Lenstra, "Job shop scheduling by simulated annealing", Operations Research 40, 1992). A step
takes a node that waits for the one before it on its device or link, and moves it in front of that
one or of earlier ones. A worse schedule is accepted now and then, and after a while without gain
the search goes on from the best one.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from ppopt.solver.heuristics.stream_network import Sequences, StreamNetwork
from ppopt.solver.parameters import StreamParams


def improve(
    network: StreamNetwork,
    seed: int,
    params: StreamParams,
    over: Callable[[int], bool],
) -> Sequences:
    """Orders of least makespan found; `over(value)` is asked before every step, with the best."""
    random = Random(seed)
    present = best = network.start
    ends = network.ends(present)
    assert ends is not None, "a schedule has no circle"
    value = least = max(ends)
    since = 0
    while not over(least):
        since += 1
        moved = _moved(network, present, ends, random)
        reached = None if moved is None else network.ends(moved)
        if moved is not None and reached is not None:
            length = max(reached)
            if length <= value + params.temperature * least * random.random() ** 3:
                present, ends, value = moved, reached, length
        if value < least:
            best, least, since = present, value, 0
        elif since >= params.patience:
            present, since = best, 0
            ends = network.ends(best)
            assert ends is not None
            value = least
    return best


def _moved(
    network: StreamNetwork, sequences: Sequences, ends: list[int], random: Random
) -> Sequences | None:
    """The orders after one move; None where it does not keep the memory limit, or there is none."""
    arcs = _critical_arcs(network, sequences, ends, random)
    if not arcs:
        return None
    machine, place = random.choice(arcs)
    sequence = sequences[machine]
    target = place - 1
    while target > 0 and random.random() < 0.3:
        target -= 1
    node = sequence[place]
    changed = [*sequence[:target], node, *sequence[target:place], *sequence[place + 1 :]]
    if machine < network.pipeline.num_devices and not network.fits(machine, changed):
        return None
    return [*sequences[:machine], changed, *sequences[machine + 1 :]]


def _critical_arcs(
    network: StreamNetwork, sequences: Sequences, ends: list[int], random: Random
) -> list[tuple[int, int]]:
    """Machine and place of the nodes of a critical path that wait for the one before them there."""
    where = {
        node: (machine, place)
        for machine, sequence in enumerate(sequences)
        for place, node in enumerate(sequence)
    }
    last = max(ends)
    node = random.choice([one for one, end in enumerate(ends) if end == last])
    arcs = []
    while True:
        start = ends[node] - network.duration[node]
        machine, place = where[node]
        causes = [one for one in network.before[node] if ends[one] == start]
        ahead = sequences[machine][place - 1] if place else None
        waits = ahead is not None and ends[ahead] == start
        if waits and ahead not in network.before[node]:
            arcs.append((machine, place))
        if waits and ahead is not None:
            causes.append(ahead)
        if not causes or start == 0:
            return arcs
        node = random.choice(causes)
