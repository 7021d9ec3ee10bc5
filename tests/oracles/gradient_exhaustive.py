"""The least makespan or device span with work around the microbatches, by trying every schedule.

Time goes tick by tick. At every tick any operation may start whose inputs are there, whose resource
is free and whose memory fits, in any number and order; waiting is always allowed. Written from the
rules alone (DESIGN 3, rules 1 to 5, 7 and 17), for a handful of operations.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from ppopt.problem.operation import OpKind
from ppopt.problem.pipeline import Pipeline


class Job(NamedTuple):
    """One operation."""

    device: int
    resource: tuple[str, int]
    time: int
    after: frozenset[int]
    """Numbers of the operations that must have ended."""
    takes: int
    gives: int


@dataclass(frozen=True)
class State:
    """What has run by some tick."""

    done: int
    """Set of the jobs that have ended, as bits."""
    running: tuple[tuple[int, int], ...]
    """Job and ticks left, sorted."""
    held: tuple[int, ...]
    elapsed: tuple[int, ...]
    """Ticks of every device from its first operation on; -1: it has not begun."""


def jobs_of(pipeline: Pipeline, *, whole: bool) -> list[Job]:
    """All operations of one route without slices, links being delays of 0."""
    ticks, hosts, jobs = pipeline.ticks, pipeline.hosts[0], list[Job]()
    stages, batches = range(pipeline.num_stages), range(pipeline.batches)
    number: dict[tuple[object, ...], int] = {}

    def add(key: tuple[object, ...], queue: str, device: int, time: int, *rest: int) -> int:
        number[key] = len(jobs)
        jobs.append(Job(device, (queue, device), time, frozenset(), *(rest or (0, 0))))
        return number[key]

    gathered = any(ticks.unshard_memory)
    for stage in stages:
        device, amount = hosts[stage], ticks.unshard_memory[stage]
        if gathered or any(ticks.unshard):
            add(("unshard", stage), "collective", device, ticks.unshard[stage], amount, 0)
        if gathered or any(ticks.gradient_sync):
            add(("sync", stage), "collective", device, ticks.gradient_sync[stage], 0, amount)
        for kind in (OpKind.F, OpKind.BW) if whole else (OpKind.F, OpKind.B, OpKind.W):
            for j in batches:
                memory = ticks.takes[kind][stage], ticks.gives[kind][stage]
                add((kind, stage, j), "compute", device, ticks.durations[kind][stage], *memory)
    if any(ticks.optimizer):
        for device in range(pipeline.num_devices):
            mine = [stage for stage in stages if hosts[stage] == device]
            time = sum(ticks.optimizer[stage] for stage in mine)
            add(("optimizer", device), "compute", device, time)
    closing = OpKind.BW if whole else OpKind.W
    for (kind, *place), job in number.items():
        after: list[tuple[object, ...]] = []
        stage, j = (*place, None)[:2]
        if kind is OpKind.F:
            after = [(OpKind.F, stage - 1, j), ("unshard", stage)]
        elif kind in (OpKind.B, OpKind.BW):
            after = [(OpKind.F, stage, j), (kind, stage + 1, j)]
        elif kind is OpKind.W:
            after = [(OpKind.B, stage, j)]
        elif kind == "sync":
            after = [(closing, stage, each) for each in batches]
        elif kind == "optimizer":
            wide = pipeline.optimizer_barrier
            waited = [each for each in stages if wide or hosts[each] == stage]
            after = [("sync", each) for each in waited]
            if not any(key in number for key in after):
                after = [(closing, each, other) for each in waited for other in batches]
        waits = frozenset(number[key] for key in after if key in number)
        jobs[job] = jobs[job]._replace(after=waits)
    return jobs


def least_value(pipeline: Pipeline, *, whole: bool, span: bool = False) -> int | None:
    """The least makespan or device span, in ticks; None where no schedule keeps the limits."""
    jobs = jobs_of(pipeline, whole=whole)
    limits, static, devices = pipeline.ticks.limits, pipeline.ticks.static, pipeline.num_devices
    if limits is not None and any(map(int.__gt__, static, limits)):
        return None
    search = _Search(jobs, limits and tuple(map(int.__sub__, limits, static)))
    level = {State(0, (), (0,) * devices, (-1,) * devices)}
    best: int | None = None
    for now in range(1 + (2 if span else 1) * sum(job.time for job in jobs)):
        reached = {one for state in level for one in search.started(state)}
        ended = [state for state in reached if state.done == search.all]
        if ended and not span:
            return now
        if ended:
            found = min(max(state.elapsed) for state in ended)
            best = found if best is None else min(best, found)
        level = {search.stepped(state) for state in reached if state.done != search.all}
        if best is not None:
            level = {state for state in level if max(state.elapsed) < best}
        if not level:
            break
    return best


class _Search:
    def __init__(self, jobs: list[Job], room: tuple[int, ...] | None) -> None:
        self.jobs, self.room = jobs, room
        self.all = 2 ** len(jobs) - 1
        self.last = [
            sum(1 << number for number, job in enumerate(jobs) if job.device == device)
            for device in range(1 + max(job.device for job in jobs))
        ]

    def started(self, state: State) -> Iterator[State]:
        """All states of the same tick after any number of starts."""
        seen, todo = {state}, [state]
        while todo:
            here = todo.pop()
            yield here
            for other in self._after_one(here):
                if other not in seen:
                    seen.add(other)
                    todo.append(other)

    def _after_one(self, state: State) -> Iterator[State]:
        busy = {self.jobs[number].resource for number, _ in state.running}
        begun = state.done | sum(1 << number for number, _ in state.running)
        for number, job in enumerate(self.jobs):
            ready = all(state.done >> other & 1 for other in job.after)
            if begun >> number & 1 or job.resource in busy or not ready:
                continue
            held, elapsed = list(state.held), list(state.elapsed)
            held[job.device] += job.takes
            if self.room is not None and held[job.device] > self.room[job.device]:
                continue
            elapsed[job.device] = max(0, elapsed[job.device])
            running = tuple(sorted((*state.running, (number, job.time))))
            yield self._ended(State(state.done, running, tuple(held), tuple(elapsed)))

    def _ended(self, state: State) -> State:
        """The state once all operations with no time left have ended."""
        held, done = list(state.held), state.done
        for number, left in state.running:
            if not left:
                done |= 1 << number
                held[self.jobs[number].device] -= self.jobs[number].gives
        running = tuple(one for one in state.running if one[1])
        return replace(state, done=done, running=running, held=tuple(held))

    def stepped(self, state: State) -> State:
        """The state a tick later."""
        running = tuple((number, left - 1) for number, left in state.running)
        elapsed = tuple(
            time if time < 0 or state.done & last == last else time + 1
            for time, last in zip(state.elapsed, self.last, strict=True)
        )
        return self._ended(replace(state, running=running, elapsed=elapsed))
