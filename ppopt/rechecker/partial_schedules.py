"""Exact dynamic programming over partial schedules: proves a bound if all of them are pruned.

A partial schedule grows by one operation at a time, in the order of starts. Its continuations
depend on how many operations of each kind and stage it has, and on some instants: when each device
is free, and when each pending input arrives. Of two partial schedules with the same operations, one
dominates the other if none of these instants is later; only non-dominated ones are kept. Those that
cannot end below the bound are pruned. If none remains, no schedule is below the bound.

An operation is postponed if another operation could run and end before it starts: that one can run
first on its device, unless operations there compete for the memory that it allocates. The other
operation itself is not postponed, since it starts no later than it ends; this matters if its
duration is 0.

First, partial schedules with the same operations become one that has the earliest of each instant.
Whatever can follow one of them can follow it, no later. So if none of these remains, no schedule is
below the bound either. Then more of them are kept apart, and finally all.

Microbatches pass every stage in order, which loses nothing (see
`ppopt.rechecker.required`). Of the devices that are not modelled, only the time through
their stages counts. Of operations other than compute, only the time that must pass before and after
compute, and the gathered weights that are live during all of it. What moves to the host is live
while F runs, and from the start of the backward on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from operator import le
from time import monotonic
from typing import Any, NamedTuple

import numpy as np

from ppopt.problem.operation import OpKind
from ppopt.problem.traits import ArgumentClass, rechecked
from ppopt.rechecker.claim import Claim
from ppopt.rechecker.precedence import Precedence
from ppopt.rechecker.quantities import live_weights

Instants = tuple[int, ...]
"""When every device is free; then, for every delay, when each pending input arrives."""
Done = tuple[int, ...]
HANDLES = rechecked(ArgumentClass.EQUAL_MICROBATCHES)
"""Traits that the enumeration handles."""
_NEW = -1
WIDTHS = (1, 32, None)
"""Maximum numbers of partial schedules with the same operations; None: no limit."""
EACH = 1e-4
"""Approximate minimum seconds per partial schedule; an enumeration that would exceed the time limit
is not started."""


class StageOperations(NamedTuple):
    """All operations of a kind and stage."""

    kind: OpKind
    stage: int
    device: int
    """Index of its device among the modelled devices."""
    time: int
    allocates: int
    """Memory that it allocates at its start."""
    frees: int
    """Memory that it frees at its end."""
    alone: bool
    """Whether no other class of its device allocates memory, or it allocates none."""


class Extension(NamedTuple):
    """An operation added to partial schedules that have the same operations."""

    done: Done
    """The operations that they have then."""
    added: StageOperations
    arrival: int | None
    """Index among the instants of the arrival that it waits for."""
    came: tuple[int, ...]
    """Index of every arrival among the previous instants; `_NEW`: it is new."""
    lag: int
    """Time from its end to the new arrival."""
    targets: tuple[int, ...]
    """Device of every arrival."""
    remaining_times: tuple[tuple[int, int | None, int], ...]
    """(device, index of an arrival or None, minimum time that follows it)."""


class Delay(NamedTuple):
    """Minimum time from the end of an operation to the start of another of its microbatch."""

    first: int
    then: int
    lag: int


def applies(claim: Claim) -> bool:
    """Whether the pipeline has only rules that are modelled here."""
    if claim.bound is None or not claim.has_only(HANDLES):
        return False
    kinds = [*claim.kinds]
    allocated = np.array(claim.memory[0])[kinds]
    return bool(((claim.costs.times[kinds] > 0) | (allocated == 0)).all())


def refuted(claim: Claim, until: float, report: Callable[[int], None]) -> tuple[int, ...] | None:
    """Devices that no partial schedule can finish below the bound; None if one may, or time is up.

    Those that the certificate names, or all of them. `until` is an instant of `time.monotonic`;
    `report` is called with the number of devices.
    """
    if not applies(claim):
        return None
    devices = tuple(sorted(set(claim.devices or range(claim.pipeline.num_devices))))
    report(len(devices))
    if any(_none_remains(PartialSchedules(claim, devices, width), until) for width in WIDTHS):
        return devices
    return None


def _none_remains(partial: PartialSchedules, until: float) -> bool:
    """Whether all partial schedules are pruned; False if one is complete, or time is up."""
    for remaining_steps in range(partial.steps, 0, -1):
        if EACH * remaining_steps * partial.width > until - monotonic():
            return False
        if not partial.step(lambda: monotonic() > until):
            return False
        if not partial.width:
            return True
    return False


class PartialSchedules:
    """The partial schedules of some devices' operations, one operation longer at every step."""

    def __init__(self, claim: Claim, devices: tuple[int, ...], max_same: int | None = None) -> None:
        """`max_same`: maximum number with the same operations; the rest is merged."""
        pipeline = claim.pipeline
        self._max_same = max_same
        self._claim, self._devices = claim, devices
        self._hosts = pipeline.hosts[0]
        microbatch = Precedence.of_microbatch(claim)
        self._stages = [stage for stage, host in enumerate(self._hosts) if host in devices]
        self._classes = list(self._operation_classes())
        self._class_ids: dict[tuple[int, int], int] = {
            (each.kind, each.stage): class_id for class_id, each in enumerate(self._classes)
        }
        self._delays: list[Delay] = []
        """Delays between consecutive modelled stages, down and up, and the last round trip."""
        self._before: list[list[int]] = [[] for _ in self._classes]
        self._into: list[int | None] = [None] * len(self._classes)
        self._out: list[int | None] = [None] * len(self._classes)
        for first, ways in microbatch.ways(devices).items():
            for then, lag in ways.items():
                delay = Delay(self._class_ids[first[:2]], self._class_ids[then[:2]], lag)
                self._before[delay.then].append(delay.first)
                if first[0] == then[0] or (lag and first[1] == self._stages[-1]):
                    self._into[delay.then] = self._out[delay.first] = len(self._delays)
                    self._delays.append(delay)
        headrooms = [pipeline.ticks.headroom(device) for device in devices]
        self._headroom = [
            None if headroom is None else headroom - live_weights(claim, device)
            for device, headroom in zip(devices, headrooms, strict=True)
        ]
        required = microbatch.on_devices(claim, devices)
        tail = Precedence(required, microbatch).tail.of
        self._remaining = [
            [each.time + tail[number] for number in required.row((each.kind, each.stage, 0, 0))]
            for each in self._classes
        ]
        """Minimum time from the start of an operation to the end: [class][microbatch]."""
        free = tuple(microbatch.head.on[device] for device in devices)
        self._level = {(0,) * len(self._classes): [free]}
        self.steps = len(self._classes) * pipeline.batches
        """Operations that a whole schedule has."""

    def _operation_classes(self) -> Iterator[StageOperations]:
        times, (allocated, freed) = self._claim.costs.times.tolist(), self._claim.memory
        takers = Counter(
            self._hosts[stage]
            for kind in self._claim.kinds
            for stage in self._stages
            if allocated[kind][stage] > 0
        )
        limited = self._claim.pipeline.ticks.limits is not None
        for kind in self._claim.kinds:
            for stage in self._stages:
                if not self._claim.has(kind, stage):
                    continue
                host = self._hosts[stage]
                memory = allocated[kind][stage], freed[kind][stage]
                alone = not limited or memory[0] == 0 or takers[host] == 1
                device, time = self._devices.index(host), times[kind][stage]
                yield StageOperations(kind, stage, device, time, *memory, alone)

    @property
    def width(self) -> int:
        """Number of partial schedules of the present length."""
        return sum(map(len, self._level.values()))

    def step(self, stop: Callable[[], bool]) -> bool:
        """Extend all partial schedules by one operation; False if stopped before the end."""
        grown: dict[Done, list[Instants]] = {}
        for done, several in self._level.items():
            if stop():
                return False
            steps = [self._step(done, class_id) for class_id in self._next(done)]
            for instants in several:
                for step, start in self._not_postponed(steps, instants):
                    longer = self._extended(step, start, instants)
                    if longer is not None:
                        _add_non_dominated(grown.setdefault(step.done, []), longer)
        if self._max_same is not None:
            for several in grown.values():
                _merge(several, self._max_same)
        self._level = grown
        return True

    def _next(self, done: Done) -> Iterator[int]:
        """Classes whose next operation has all its inputs and fits into memory."""
        live = [0] * len(self._devices)
        for count, each in zip(done, self._classes, strict=True):
            live[each.device] += count * (each.allocates - each.frees)
        for class_id, each in enumerate(self._classes):
            count, headroom = done[class_id], self._headroom[each.device]
            ready = all(done[before] > count for before in self._before[class_id])
            fits = (
                each.allocates == 0
                or headroom is None
                or live[each.device] + each.allocates <= headroom
            )
            if count < self._claim.pipeline.batches and ready and fits:
                yield class_id

    def _step(self, done: Done, class_id: int) -> Extension:
        """What an operation of a class adds to all partial schedules with the same operations."""
        after = (*done[:class_id], done[class_id] + 1, *done[class_id + 1 :])
        known, pending = self._pending(done), self._pending(after)
        work, remaining_times = [0] * len(self._devices), list[tuple[int, int | None, int]]()
        for index, (count, each) in enumerate(zip(after, self._classes, strict=True)):
            times = self._remaining[index][count:]
            work[each.device] += len(times) * each.time
            if times:
                arrived = pending.get((self._into[index], count))
                remaining_times.append((each.device, arrived, times[0]))
        out = self._out[class_id]
        return Extension(
            after,
            self._classes[class_id],
            known.get((self._into[class_id], done[class_id])),
            tuple(known.get(arrival, _NEW) for arrival in pending),
            0 if out is None else self._delays[out].lag,
            tuple(self._classes[self._delays[delay_id].then].device for delay_id, _ in pending),
            (*((device, None, time) for device, time in enumerate(work)), *remaining_times),
        )

    def _pending(self, done: Done) -> dict[tuple[Any, int], int]:
        """Index of every pending arrival among the instants, by its delay and microbatch."""
        arrivals = (
            (delay_id, microbatch)
            for delay_id, delay in enumerate(self._delays)
            for microbatch in range(done[delay.then], done[delay.first])
        )
        return {arrival: index for index, arrival in enumerate(arrivals, len(self._devices))}

    def _not_postponed(
        self, steps: list[Extension], instants: Instants
    ) -> Iterator[tuple[Extension, int]]:
        """The operations that need not be postponed, and their starts."""
        starts = [
            instants[step.added.device]
            if step.arrival is None
            else max(instants[step.added.device], instants[step.arrival])
            for step in steps
        ]
        ends = [
            start + step.added.time
            for step, start in zip(steps, starts, strict=True)
            if step.added.alone
        ]
        before = min(ends, default=None)
        for step, start in zip(steps, starts, strict=True):
            if before is None or start <= before:
                yield step, start

    def _extended(self, step: Extension, start: int, instants: Instants) -> Instants | None:
        """A partial schedule extended by one operation; None if it cannot end below the bound."""
        size, end = len(self._devices), start + step.added.time
        grown = [max(instant, start) for instant in instants[:size]]
        grown[step.added.device] = end
        new = end + step.lag
        for source, device in zip(step.came, step.targets, strict=True):
            instant = new if source == _NEW else instants[source]
            grown.append(max(instant, grown[device]))
        bound = self._claim.bound
        assert bound is not None
        for device, arrived, remaining_time in step.remaining_times:
            at = grown[device] if arrived is None else grown[arrived]
            if remaining_time and at + remaining_time >= bound:
                return None
        return None if max(grown[:size]) >= bound else tuple(grown)


def _add_non_dominated(several: list[Instants], new: Instants) -> None:
    """Add a partial schedule unless it is dominated; drop those that it dominates."""
    for known in several:
        if all(map(le, known, new)):
            return
    several[:] = [known for known in several if not all(map(le, new, known))]
    several.append(new)


def _merge(several: list[Instants], max_same: int) -> None:
    """Keep the earliest partial schedules; the rest become one, with the earliest instants."""
    if len(several) > max_same:
        several.sort(key=sum)
        rest = several[max_same - 1 :]
        several[max_same - 1 :] = [tuple(map(min, zip(*rest, strict=True)))]
