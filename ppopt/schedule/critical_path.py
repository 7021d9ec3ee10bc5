"""The critical path: a chain of operations that explains the makespan."""

from __future__ import annotations

import numpy as np

from ppopt.problem.arrays import Ints
from ppopt.problem.offload import HostLink
from ppopt.problem.operation import AuxiliaryKind, OpKind
from ppopt.schedule.idle import FREE, Arrivals, arrivals
from ppopt.schedule.schedule import Schedule


def critical_path(schedule: Schedule, arrived: Arrivals | None = None) -> Ints:
    """Rows of a complete schedule along a critical path, first to last.

    From the operation that ends last, back through what each waited for longest: the operation
    before it on its device, or the one whose data arrive last (the device where both end at one
    time). If every operation starts as early as it can, the chain begins at 0 and leaves out no
    time but transfers; elsewhere the schedule itself waits between two of its operations.

    The chain also leads through auxiliary operations. These have no row and are left out.
    """
    arrived = arrived or arrivals(schedule)
    before = _before(schedule)
    free = np.where(before == FREE, FREE, schedule.end[before])
    needed = np.where(arrived.needed == FREE, FREE, arrived.ready)
    cause = np.where(free >= needed, before, arrived.needed)
    latest = np.maximum(free, needed)
    for nodes, end in (
        (_unshards(schedule), arrived.gathered),
        (_reloads(schedule), arrived.reloaded),
    ):
        waits = (nodes != FREE) & (end > latest)
        cause, latest = np.where(waits, nodes, cause), np.maximum(latest, end)
    every = [*cause.tolist(), *_causes_of_auxiliary(schedule)]
    node = int(_ends(schedule).argmax())
    path = [node]
    while (node := every[node]) != FREE:
        path.append(node)
    return np.array([node for node in path[::-1] if node < len(schedule)], dtype=np.int64)


def _before(schedule: Schedule) -> Ints:
    """Row that the device runs before each row or its pair; FREE before its first."""
    first = np.append(True, schedule.device[1:] != schedule.device[:-1])
    before = np.where(first, FREE, np.arange(len(schedule)) - 1)
    second = np.flatnonzero(schedule.seconds)
    before[second] = before[second - 1]
    return before


# Nodes: the rows of the schedule, and behind them its auxiliary operations.


def _ends(schedule: Schedule) -> Ints:
    """End of every node, in ticks."""
    return np.append(schedule.end, schedule.auxiliary.end)


def _routes(schedule: Schedule) -> Ints:
    return schedule.microbatch * schedule.pipeline.routes // schedule.pipeline.batches


def _unshards(schedule: Schedule) -> Ints:
    """Node of the unshard that every F waits for; FREE: none. Of a pair, that of its F."""
    given = schedule.auxiliary
    node = np.full((schedule.pipeline.routes, schedule.pipeline.num_stages), FREE)
    opens = np.flatnonzero(given.kind == AuxiliaryKind.UNSHARD)
    node[given.route[opens], given.stage[opens]] = len(schedule) + opens
    found = np.where(schedule.kind == OpKind.F, node[_routes(schedule), schedule.stage], FREE)
    second = np.flatnonzero(schedule.seconds)
    found[second - 1] = found[second] = np.maximum(found[second - 1], found[second])
    return found


def _reloads(schedule: Schedule) -> Ints:
    """Node of the move from the host that every backward waits for; FREE: none."""
    given, pipeline = schedule.auxiliary, schedule.pipeline
    shape = (pipeline.num_stages, pipeline.batches, pipeline.num_slices)
    node, back = np.full(shape, FREE), np.flatnonzero(given.kind == AuxiliaryKind.RELOAD)
    node[given.stage[back], given.microbatch[back], given.slice[back]] = len(schedule) + back
    backward = np.isin(schedule.kind, (OpKind.B, OpKind.BW))
    places = schedule.stage, schedule.microbatch, schedule.slice
    found = np.where(backward, node[places], FREE)
    second = np.flatnonzero(schedule.seconds)
    found[second - 1] = found[second]
    return found


def _causes_of_auxiliary(schedule: Schedule) -> list[int]:
    """Node that every auxiliary operation waits for longest; FREE: none."""
    end = _ends(schedule)
    waits = (_waits_of(schedule, row) for row in range(len(schedule.auxiliary)))
    return [max(nodes, key=lambda node: end[node], default=FREE) for nodes in waits]


def _waits_of(schedule: Schedule, row: int) -> list[int]:
    """Nodes that end before an auxiliary operation starts."""
    given, count = schedule.auxiliary, len(schedule)
    kind, device = given.kind[row], given.device[row]
    if AuxiliaryKind(kind).per_microbatch:
        return _waits_of_move(schedule, row)
    syncs = given.kind == AuxiliaryKind.GRADIENT_SYNC
    if kind == AuxiliaryKind.OPTIMIZER:
        everyone = schedule.pipeline.optimizer_barrier
        waits = np.flatnonzero(syncs & ((given.device == device) | everyone)) + count
        if not len(waits):
            waits = np.flatnonzero((schedule.device == device) | everyone)
        return list(waits.tolist())
    queued = ~given.moves & (given.kind != AuxiliaryKind.OPTIMIZER)
    queue = np.flatnonzero((given.device == device) & queued)
    before: list[int] = (queue[queue < row][-1:] + count).tolist()
    if kind == AuxiliaryKind.UNSHARD:
        return before
    mine = (schedule.stage == given.stage[row]) & (_routes(schedule) == given.route[row])
    return [*before, *np.flatnonzero(mine).tolist()]


def _waits_of_move(schedule: Schedule, row: int) -> list[int]:
    """What a move to the host or back waits for: its F or the move there, and its link."""
    given, count = schedule.auxiliary, len(schedule)
    shared = schedule.pipeline.host_link is HostLink.SHARED
    same = given.moves if shared else given.kind == given.kind[row]
    queue = np.flatnonzero(same & (given.device == given.device[row]))
    before: list[int] = (queue[queue < row][-1:] + count).tolist()
    there, others = (
        (table.stage == given.stage[row])
        & (table.microbatch == given.microbatch[row])
        & (table.slice == given.slice[row])
        for table in (schedule, given)
    )
    if given.kind[row] == AuxiliaryKind.RELOAD:
        out = np.flatnonzero(others & (given.kind == AuxiliaryKind.OFFLOAD)) + count
        return [*before, *out.tolist()]
    return [*before, *np.flatnonzero(there & (schedule.kind == OpKind.F)).tolist()]
