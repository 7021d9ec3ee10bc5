"""The least makespan over links, by trying every order of devices and links.

A second implementation: jobs are appended one after the other in every possible order, each as soon
as its device or link is free and what it needs has ended. For a handful of jobs only.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import product
from math import inf

from ppopt.problem.operation import Op
from ppopt.problem.pipeline import Pipeline
from tests.factories.schedules import allocated, freed
from tests.factories.streams import Job, Split, _length, _machines, _needs, jobs, places


class UndecidedError(Exception):
    """There are more states than the caller allows."""


def least_makespan(pipeline: Pipeline, *, whole: bool, max_states: float = inf) -> int | None:
    """Ticks; None where the memory limits allow no schedule.

    Raises UndecidedError beyond so many states.
    """
    return _minimum(pipeline, dict.fromkeys(places(pipeline), not whole), max_states)


def least_mixed(pipeline: Pipeline, *, max_states: float = inf) -> int | None:
    """The same, every backward whole or split, against every such choice."""
    every = places(pipeline)
    choices = product((False, True), repeat=len(every))
    each = max_states / 2 ** len(every)
    values = (_minimum(pipeline, dict(zip(every, choice, strict=True)), each) for choice in choices)
    return min((value for value in values if value is not None), default=None)


def _work(machines: dict[Job, tuple[object, ...]], length: dict[Job, int]) -> dict[object, int]:
    """Ticks of all jobs of each device and link."""
    work: dict[object, int] = defaultdict(int)
    for job, each in machines.items():
        for machine in each:
            work[machine] += length[job]
    return dict(work)


def _fits(pipeline: Pipeline, op: Op, live: int) -> bool:
    """Whether its device has headroom for what an operation allocates."""
    limits = pipeline.ticks.limits
    device = pipeline.device(op.stage, op.microbatch)
    return limits is None or live + allocated(pipeline, *op[:3]) <= limits[device]


def _minimum(pipeline: Pipeline, split: Split, max_states: float) -> int | None:
    every = jobs(pipeline, split)
    needs = {job: _needs(pipeline, split, job) for job in every}
    machines = {job: _machines(pipeline, job) for job in every}
    length = {job: _length(pipeline, job) for job in every}
    work = _work(machines, length)
    seen: dict[tuple[object, ...], bool] = {}
    best: list[int] = []
    """Makespans, each the least so far."""

    def go(
        ends: dict[object, int],
        free: dict[object, int],
        live: dict[int, int],
        left: dict[object, int],
    ) -> None:
        """Append every job in turn; `left` is the work that each device and link still has."""
        earliest_end = max(free.get(where, 0) + more for where, more in left.items())
        if best and earliest_end >= best[-1]:
            return
        if len(ends) == len(every):
            best.append(earliest_end)
            return
        key = (frozenset(ends.items()), frozenset(free.items()))
        if key in seen:
            return
        seen[key] = True
        if len(seen) > max_states:
            raise UndecidedError(f"more than {max_states:.0f} states")
        for job in every:
            name = job if isinstance(job[0], str) else job[0]
            if name in ends or not all(need in ends for need in needs[job]):
                continue
            where = machines[job]
            after = dict(live)
            if not isinstance(job[0], str):
                op = job[0]
                if not _fits(pipeline, op, live[where[0]]):
                    continue
                change = allocated(pipeline, *op[:3])
                change -= freed(pipeline, *op[:3])
                after[where[0]] += change
            begin = max(free.get(machine, 0) for machine in where)
            begin = max([begin, *(ends[need] for need in needs[job])])
            end = begin + length[job]
            rest = left | {machine: left[machine] - length[job] for machine in where}
            go(ends | {name: end}, free | dict.fromkeys(where, end), after, rest)

    static = dict(enumerate(pipeline.ticks.static))
    go({}, {}, static, work)
    return min(best, default=None)
