"""Chrome trace events of a schedule, for Perfetto (ui.perfetto.dev) and chrome://tracing.

A device is a process, and its operations are complete events (`X`) on the thread `compute`. A
transfer is a slice on a thread `send` of the sender and on a thread `receive` of the receiver.
A collective of a device is a slice on its thread `collective`; its optimizer is one on `compute`.
Moves to the host and back are slices on `host out` and `host in`, or on `host` if both share it.
Slices of one thread must nest, so overlapping transfers get extra threads (`send 2`). Flow arrows
(`s`, `f`) connect an operation with its successors on other devices. The counter (`C`) `memory`,
with the unit if that is known, shows the memory in use.

`ts` and `dur` are in microseconds with nanosecond precision.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from heapq import heappop, heappush
from typing import Any, NamedTuple

from ppopt.errors import InputError
from ppopt.problem import exact, units
from ppopt.problem.kinds import RECORDS, KindRecord, Per, ResourceKind
from ppopt.problem.operation import ONCE, OpKind
from ppopt.problem.resources import Resource
from ppopt.schedule.metrics import memory_profile, throughput
from ppopt.schedule.operations import Operation
from ppopt.schedule.schedule import Schedule
from ppopt.schedule.waits import waits
from ppopt.verifier.measured_steps import faults

NANOSECONDS = {unit: int(size * 10**9) for unit, size in units.SCALES["time"].items()}
"""Nanoseconds per unit of time."""
COMPUTE = 0
"""Thread of operations. Transfers use the threads from 1."""
Event = dict[str, Any]


class _Transfer(NamedTuple):
    """A transfer between two devices from `start` to `end`, in ticks."""

    start: int
    end: int
    before: Operation
    after: Operation


def chrome_trace(schedule: Schedule, unit: str | None = None) -> str:
    """Write the trace of a schedule; `unit` (s, ms, us or ns) is its unit of time if it has none.

    Without any unit, milliseconds are assumed. Raises InputError if the unit is unknown or not that
    of the schedule, or if the operations are not a valid schedule of their pipeline. The memory
    limit is ignored.
    """
    own = schedule.pipeline.time_unit
    if unit is not None and unit not in NANOSECONDS:
        raise InputError(f"time unit: {unit!r} is unknown; use {', '.join(NANOSECONDS)}")
    if None not in (unit, own) and unit != own:
        raise InputError(f"time unit: {unit} is not {own}, that of the schedule; leave it out")
    unit = own or unit or "ms"
    violations = faults(schedule)
    if violations:
        raise InputError(
            f"perfetto: not a schedule of its pipeline: {violations[0]}; correct it first"
        )
    events = ",\n".join(map(json.dumps, _events(schedule, _Clock(schedule, unit))))
    about = json.dumps(_about(schedule, unit))
    return f'{{"displayTimeUnit": "ms",\n"otherData": {about},\n"traceEvents": [\n{events}\n]}}\n'


class _Clock:
    """Converts ticks to trace times. Both ends are rounded, so adjacent slices do not overlap."""

    def __init__(self, schedule: Schedule, unit: str) -> None:
        self._per_tick = Fraction(NANOSECONDS[unit], schedule.pipeline.ticks.per_unit)

    def nanoseconds(self, ticks: int) -> int:
        return round(ticks * self._per_tick)

    def slice(self, start: int, end: int) -> Event:
        """Times of a complete event."""
        begin, length = self.nanoseconds(start), self.nanoseconds(end) - self.nanoseconds(start)
        return {"ph": "X", "ts": begin / 1000, "dur": length / 1000}


def _about(schedule: Schedule, unit: str) -> Event:
    pipeline, makespan = schedule.pipeline, schedule.metrics.makespan_ticks
    yields = throughput(pipeline, makespan)._asdict()
    return {
        "name": pipeline.name,
        "strategy": schedule.origin.strategy or "",
        "time_unit": unit,
        "memory_unit": pipeline.memory_unit,
        "stages": pipeline.num_stages,
        "microbatches": pipeline.batches,
        "makespan": exact.plain(pipeline.ticks.time(makespan)),
        **{name: value for name, value in yields.items() if value is not None},
    }


def _events(schedule: Schedule, clock: _Clock) -> Iterator[Event]:
    transfers = sorted(_transfers(schedule))
    for device in range(schedule.pipeline.num_devices):
        yield from _named("process", device, 0, f"device {device}", device)
        yield from _named("thread", device, COMPUTE, "compute", COMPUTE)
    sizes = [0] * schedule.pipeline.num_devices
    yield from _operations(schedule, clock, sizes)
    for name in ("send", "receive"):
        yield from _links([t for t in transfers if t.end > t.start], name, clock, sizes)
    yield from _arrows(transfers, clock)
    for device in range(schedule.pipeline.num_devices):
        yield from _memory(schedule, device, clock)


def _named(what: str, device: int, thread: int, name: str, sort_index: int) -> Iterator[Event]:
    where = {"ph": "M", "pid": device, "tid": thread}
    yield {"name": f"{what}_name", **where, "args": {"name": name}}
    yield {"name": f"{what}_sort_index", **where, "args": {"sort_index": sort_index}}


def _operations(schedule: Schedule, clock: _Clock, sizes: list[int]) -> Iterator[Event]:
    """Yield the slices of all operations but transfers, and the threads of queues.

    `sizes` has the number of threads of each device besides `compute` and is updated.
    """
    table, time = schedule.operations, schedule.pipeline.ticks.time
    threads = dict.fromkeys(range(schedule.pipeline.num_devices), COMPUTE)
    table = table.where(~table.on(ResourceKind.LINK))
    for row, resource in zip(table.rows(), table.resource.tolist(), strict=True):
        record = RECORDS[row.kind]
        if resource not in threads:
            sizes[row.device] += 1
            threads[resource] = thread = sizes[row.device]
            name = _thread(table.resources, resource, record)
            yield from _named("thread", row.device, thread, name, thread)
        yield {
            "name": str(row),
            "cat": record.name,
            "pid": row.device,
            "tid": threads[resource],
            **clock.slice(row.start, row.end),
            "args": {
                "kind": record.name,
                **({} if record.per is Per.DEVICE else {"stage": row.stage}),
                **({} if row.microbatch == ONCE else {"microbatch": row.microbatch}),
                "start": exact.plain(time(row.start)),
                "end": exact.plain(time(row.end)),
            },
        }


def _thread(resources: Sequence[Resource], resource_id: int, record: KindRecord) -> str:
    """Name of the thread of a resource, with its direction if each direction has one."""
    resource = resources[resource_id]
    if resources.count(resource) == 1:
        return resource.kind.value
    return f"{resource.kind.value} {('out', 'in')[record.way]}"


def _transfers(schedule: Schedule) -> Iterator[_Transfer]:
    """Yield every transfer between devices; its length is 0 if there is no delay.

    If links are resources, transfers have their own times.

    In a measured step, links take their median time. A transfer there ends no later than its
    receiver starts.
    """
    table, flow = list(schedule.operations.rows()), waits(schedule)
    compute = [
        row for row, place in zip(table, flow.compute_row.tolist(), strict=True) if place >= 0
    ]
    columns = (flow.before, flow.after, flow.makers, flow.lag)
    for before, after, maker, lag in zip(
        *(column[flow.data].tolist() for column in columns), strict=True
    ):
        source, target, through = compute[maker], table[after], table[before]
        if source.device == target.device:
            continue
        if RECORDS[through.kind].resource is ResourceKind.LINK:
            yield _Transfer(through.start, through.end, source, target)
        else:
            end = max(source.end, min(source.end + lag, target.start))
            yield _Transfer(source.end, end, source, target)


def _links(
    transfers: Iterable[_Transfer], name: str, clock: _Clock, sizes: list[int]
) -> Iterator[Event]:
    """Yield the slices of transfers on one side, on as few threads per device as possible.

    `name` is `send` or `receive`. `sizes` has the number of threads of each device besides
    `compute` and is updated.
    """
    ends: dict[int, list[tuple[int, int]]] = {}
    for transfer in transfers:
        device, peer = transfer.before.device, transfer.after.device
        if name == "receive":
            device, peer = peer, device
        threads = ends.setdefault(device, [])
        if threads and threads[0][0] <= transfer.start:
            _, thread = heappop(threads)
        else:
            sizes[device] += 1
            thread = sizes[device]
            label = f"{name} {len(threads) + 1}" if threads else name
            yield from _named("thread", device, thread, label, thread)
        heappush(threads, (transfer.end, thread))
        yield {
            "name": f"{transfer.before} {'to' if name == 'send' else 'from'} device {peer}",
            "cat": "activation" if transfer.before.kind is OpKind.F else "gradient",
            "pid": device,
            "tid": thread,
            **clock.slice(transfer.start, transfer.end),
        }


def _arrows(transfers: Iterable[_Transfer], clock: _Clock) -> Iterator[Event]:
    """Yield flow events, from the last nanosecond of one slice to the start of another."""
    for number, (_, _, before, after) in enumerate(transfers, start=1):
        shared = {"name": "needs", "cat": "flow", "id": number}
        begin, end = clock.nanoseconds(before.start), clock.nanoseconds(before.end)
        sent = max(begin, end - 1) / 1000
        arrived = clock.nanoseconds(after.start) / 1000
        yield {**shared, "ph": "s", "ts": sent, "pid": before.device, "tid": COMPUTE}
        yield {**shared, "ph": "f", "bp": "e", "ts": arrived, "pid": after.device, "tid": COMPUTE}


def _memory(schedule: Schedule, device: int, clock: _Clock) -> Iterator[Event]:
    memory, unit = schedule.pipeline.ticks.memory, schedule.pipeline.memory_unit
    name = "memory" if unit is None else f"memory ({unit})"
    profile = memory_profile(schedule, device)
    for time, level in zip(profile.time.tolist(), profile.level.tolist(), strict=True):
        yield {
            "name": name,
            "ph": "C",
            "ts": clock.nanoseconds(time) / 1000,
            "pid": device,
            "args": {"held": exact.plain(memory(level))},
        }
