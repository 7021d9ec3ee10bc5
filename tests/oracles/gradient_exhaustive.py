"""The least makespan or device span with other operations than compute, by trying every schedule.

Work around the microbatches, and activations that move to the host.

Time goes tick by tick. At every tick any operation may start whose inputs are there, whose resource
is free and whose memory fits, in any number and order; waiting is always allowed. Written from the
rules alone (DESIGN 3, rules 1 to 5, 7, 17 and 18), for a handful of operations.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from ppopt.problem.operation import OpKind
from ppopt.problem.pipeline import Pipeline
from tests.oracles.whole_backward import bw_allocates


class Job(NamedTuple):
    """One operation."""

    device: int
    resource: tuple[str, int]
    time: int
    after: frozenset[int]
    """Numbers of the operations that must have ended."""
    allocates: int
    frees: int


class State(NamedTuple):
    """What has run by some tick."""

    done: int
    """Set of the jobs that have ended, as bits."""
    running: tuple[tuple[int, int], ...]
    """Job and ticks left, sorted."""
    live: tuple[int, ...]
    elapsed: tuple[int, ...]
    """Ticks of every device from its first operation on; -1: it has not begun. Empty for a
    makespan, which is the same for all."""


Key = tuple[Any, ...]
"""Name of a job: its kind and its place."""


def jobs_of(pipeline: Pipeline, *, whole: bool) -> list[Job]:
    """All operations of one route without slices, links being delays of 0.

    Operations of one kind and stage run in the order of microbatches, which are alike.
    """
    jobs = {**_compute(pipeline, whole=whole), **_around(pipeline), **_moves(pipeline)}
    index_of = {key: index for index, key in enumerate(jobs)}
    after = _Waits(pipeline, index_of, whole=whole)
    return [
        job._replace(
            after=frozenset(
                index_of[predecessor] for predecessor in after(*key) if predecessor in index_of
            )
        )
        for key, job in jobs.items()
    ]


def _compute(pipeline: Pipeline, *, whole: bool) -> dict[Key, Job]:
    ticks, jobs = pipeline.ticks, dict[Key, Job]()
    for stage, device in enumerate(pipeline.hosts[0]):
        for kind in (OpKind.F, OpKind.BW) if whole else (OpKind.F, OpKind.B, OpKind.W):
            memory = _memory(pipeline, kind, stage)
            time = ticks.durations[kind][stage]
            for j in range(pipeline.batches):
                jobs[kind, stage, j] = Job(device, ("compute", device), time, frozenset(), *memory)
    return jobs


def _memory(pipeline: Pipeline, kind: OpKind, stage: int) -> tuple[int, int]:
    """Memory that an operation takes at its start and gives at its end, in ticks."""
    costs, unit = pipeline.costs, pipeline.ticks.memory_per_unit
    if kind is OpKind.BW:
        allocated = bw_allocates(pipeline, stage)
        return allocated, int(costs.kept[stage] * unit) + allocated
    activation, retained, change = (
        int(row[stage] * unit) for row in (costs.activation, costs.kept, costs.memory_b)
    )
    allocates, frees = {
        OpKind.F: (retained, 0),
        OpKind.B: (activation - retained + max(change, 0), max(-change, 0)),
        OpKind.W: (0, activation + change),
    }[kind]
    field = {
        OpKind.F: costs.forward_workspace,
        OpKind.B: costs.input_workspace,
        OpKind.W: costs.weight_workspace,
    }[kind]
    workspace = int(field[stage] * unit)
    return allocates + workspace, frees + workspace


def _moves(pipeline: Pipeline) -> dict[Key, Job]:
    """What moves to the host and back, of every microbatch."""
    costs, ticks, jobs = pipeline.costs, pipeline.ticks, dict[Key, Job]()
    shared, none = pipeline.host_link == "shared", frozenset[int]()
    for stage, device in enumerate(pipeline.hosts[0]):
        amount = int(costs.offload_memory[stage] * ticks.memory_per_unit)
        time = int(costs.offload_time[stage] * ticks.per_unit)
        out, back = (("host" if shared else way, device) for way in ("out", "back"))
        for j in range(pipeline.batches if amount else 0):
            jobs["out", stage, j] = Job(device, out, time, none, 0, amount)
            jobs["back", stage, j] = Job(device, back, time, none, amount, 0)
    return jobs


def _around(pipeline: Pipeline) -> dict[Key, Job]:
    costs, jobs = pipeline.ticks.costs, dict[Key, Job]()
    gathered, none = any(costs.unshard_memory), frozenset[int]()
    for stage, device in enumerate(pipeline.hosts[0]):
        queue, amount = ("collective", device), costs.unshard_memory[stage]
        if gathered or any(costs.unshard):
            jobs["unshard", stage] = Job(device, queue, costs.unshard[stage], none, amount, 0)
        if gathered or any(costs.gradient_sync):
            jobs["sync", stage] = Job(device, queue, costs.gradient_sync[stage], none, 0, amount)
    if any(costs.optimizer):
        for device in range(pipeline.num_devices):
            own_stages = [stage for stage, host in enumerate(pipeline.hosts[0]) if host == device]
            time = sum(costs.optimizer[stage] for stage in own_stages)
            jobs["optimizer", device] = Job(device, ("compute", device), time, none, 0, 0)
    return jobs


class _Waits:
    """What every job waits for, some of which may not exist."""

    def __init__(self, pipeline: Pipeline, known: dict[Key, int], *, whole: bool) -> None:
        self.pipeline, self.known = pipeline, known
        self.closing = OpKind.BW if whole else OpKind.W

    def __call__(self, kind: object, stage: int, j: int | None = None) -> list[Key]:
        assert j is not None or kind not in (*OpKind, "out", "back")
        if isinstance(kind, OpKind):
            return [(kind, stage, j - 1), *self._flow(kind, stage, j)]
        if kind in ("out", "back"):
            return [(kind, stage, j - 1), (OpKind.F if kind == "out" else "out", stage, j)]
        if kind == "sync":
            return self._closing(stage)
        return [] if kind == "unshard" else self._gradients(stage)

    def _flow(self, kind: OpKind, stage: int, j: int) -> list[Key]:
        if kind is OpKind.F:
            return [(kind, stage - 1, j), ("unshard", stage)]
        if kind is OpKind.W:
            return [(OpKind.B, stage, j)]
        return [(OpKind.F, stage, j), (kind, stage + 1, j), ("back", stage, j)]

    def _closing(self, stage: int) -> list[Key]:
        return [(self.closing, stage, j) for j in range(self.pipeline.batches)]

    def _gradients(self, device: int) -> list[Key]:
        """Syncs, or where there are none last operations, that the optimizer of a device awaits."""
        wide, hosts = self.pipeline.optimizer_barrier, enumerate(self.pipeline.hosts[0])
        stages = [stage for stage, host in hosts if wide or host == device]
        syncs: list[Key] = [("sync", stage) for stage in stages if ("sync", stage) in self.known]
        return syncs or [key for stage in stages for key in self._closing(stage)]


def least_value(pipeline: Pipeline, *, whole: bool, span: bool = False) -> int | None:
    """The least makespan or device span, in ticks; None where no schedule keeps the limits."""
    return least_of_jobs(pipeline, jobs_of(pipeline, whole=whole), span=span)


def least_of_jobs(
    pipeline: Pipeline, jobs: list[Job], *, span: bool, below: int | None = None
) -> int | None:
    """The least value of these jobs within the limits of a pipeline; None: no schedule keeps them.

    With `below`, the answer is `below` where no schedule has a lower value.

    A job of the device behind the last one is a delay: it belongs to no device.
    """
    limits, static, devices = pipeline.ticks.limits, pipeline.ticks.static, pipeline.num_devices
    if limits is not None and any(map(int.__gt__, static, limits)):
        return None
    headroom = limits and (*map(int.__sub__, limits, static), 0)
    search = _Search(jobs, headroom, devices)
    level = {State(0, (), (0,) * (devices + 1), (-1,) * devices * span)}
    best = below
    for now in range(1 + (2 if span else 1) * sum(job.time for job in jobs)):
        reached = {following for state in level for following in search.started(state)}
        ended = [state for state in reached if state.done == search.all]
        if ended and not span:
            return now
        if ended:
            shortest = min(max(state.elapsed) for state in ended)
            best = shortest if best is None else min(best, shortest)
        level = {search.stepped(state) for state in reached if state.done != search.all}
        if best is not None:
            level = {state for state in level if max(state.elapsed, default=now) < best}
        if not level:
            break
    return best


class _Search:
    def __init__(self, jobs: list[Job], headroom: tuple[int, ...] | None, devices: int) -> None:
        self.jobs, self.headroom, self.devices = jobs, headroom, devices
        self.all = 2 ** len(jobs) - 1
        self.last = [
            sum(1 << index for index, job in enumerate(jobs) if job.device == device)
            for device in range(devices)
        ]
        self.needs = [sum(1 << before for before in job.after) for job in jobs]
        self.sharing = [
            sum(1 << index for index, rival in enumerate(jobs) if rival.resource == job.resource)
            for job in jobs
        ]
        """Set of the jobs of the same resource."""

    def started(self, state: State) -> Iterator[State]:
        """All states of the same tick after any number of starts."""
        seen, todo = {state}, [state]
        while todo:
            current = todo.pop()
            yield current
            for following in self._after_one(current):
                if following not in seen:
                    seen.add(following)
                    todo.append(following)

    def _after_one(self, state: State) -> Iterator[State]:
        done, running, live, elapsed = state
        barred = done
        for index, _ in running:
            barred |= self.sharing[index]
        for index, needs in enumerate(self.needs):
            if barred >> index & 1 or needs & ~done:
                continue
            job = self.jobs[index]
            device = job.device
            total = live[device] + job.allocates
            if self.headroom is not None and total > self.headroom[device]:
                continue
            begun = elapsed
            if elapsed and device < self.devices and elapsed[device] < 0:
                begun = (*elapsed[:device], 0, *elapsed[device + 1 :])
            taken = (*live[:device], total, *live[device + 1 :])
            more = tuple(sorted((*running, (index, job.time))))
            following = State(done, more, taken, begun)
            yield following if job.time else self._ended(following)

    def _ended(self, state: State) -> State:
        """The state once all operations with no time left have ended."""
        live, done = list(state.live), state.done
        for index, left in state.running:
            if not left:
                done |= 1 << index
                live[self.jobs[index].device] -= self.jobs[index].frees
        running = tuple([entry for entry in state.running if entry[1]])
        return State(done, running, tuple(live), state.elapsed)

    def stepped(self, state: State) -> State:
        """The state a tick later."""
        running = tuple([(index, left - 1) for index, left in state.running])
        elapsed = tuple(
            [
                time if time < 0 or state.done & last == last else time + 1
                for time, last in zip(state.elapsed, self.last, strict=False)
            ]
        )
        return self._ended(State(state.done, running, state.live, elapsed))
