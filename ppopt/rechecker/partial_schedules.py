"""Exact dynamic programming over partial schedules: refutes a bound by leaving none of them.

A partial schedule grows by one operation at a time, in the order of starts. How it can go on
depends on how many operations of each kind and stage it has, and on some instants: when each device
is free, and when what is under way arrives. Of two partial schedules with the same operations, one
dominates the other if it is no later at any of these instants: only non-dominated ones are kept.
Those that cannot end below the bound are dropped. If none is left, no schedule is below the bound.

An operation is postponed if another one could run and end before it starts: that one may as well
run first on its device, unless other operations there compete for the memory that it takes. The
other one is itself kept, since it starts no later than it ends; this matters where it takes no
time.

Microbatches go through every stage in order, which loses nothing (see `ppopt.rechecker.model`). Of
devices left out, only the time through their stages counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from operator import le
from time import monotonic
from typing import NamedTuple

from ppopt.problem.operation import OpKind
from ppopt.problem.traits import Trait
from ppopt.rechecker.claim import Claim
from ppopt.rechecker.route_times import RouteTimes

Instants = tuple[int, ...]
"""When every device is free; then, for every delay, when what is under way arrives."""
Done = tuple[int, ...]
HANDLES = frozenset({Trait.LINKS, Trait.FROZEN})
"""Traits that the enumeration handles; links only delay."""
_NEW = -1
EACH = 1e-4
"""Least seconds per partial schedule, about: what would take longer than the limit is not begun."""


class StageOperations(NamedTuple):
    """All operations of a kind and stage."""

    kind: OpKind
    stage: int
    device: int
    """Place of its device among those looked at."""
    time: int
    takes: int
    """Memory that it takes at its start."""
    gives: int
    """Memory that it gives back at its end."""
    alone: bool
    """Whether no other class of its device takes memory, or it takes none."""


class Extension(NamedTuple):
    """An operation added to partial schedules that have the same operations."""

    done: Done
    """The operations that they have then."""
    added: StageOperations
    arrival: int | None
    """Place among the instants of the arrival that it waits for."""
    came: tuple[int, ...]
    """Where every arrival stood among the instants before; `_NEW`: it is new."""
    lag: int
    """Time from its end to the new arrival."""
    targets: tuple[int, ...]
    """Device of every arrival."""
    least: tuple[tuple[int, int | None, int], ...]
    """Device or else place of an arrival, from which so much time is left."""


class Delay(NamedTuple):
    """Least time from the end of an operation to the start of another of its microbatch."""

    first: int
    then: int
    lag: int


def applies(claim: Claim) -> bool:
    """Whether the pipeline has only the rules that are modelled here."""
    pipeline = claim.pipeline
    if claim.bound is None or not claim.has_only(HANDLES):
        return False
    kinds, stages, ticks = claim.kinds, range(pipeline.num_stages), pipeline.ticks
    return all(
        ticks.durations[kind][stage] or claim.takes(kind, stage) == 0
        for kind in kinds
        for stage in stages
    )


def refuted(claim: Claim, until: float, report: Callable[[int], None]) -> tuple[int, ...] | None:
    """Devices that no partial schedule can finish below the bound; None if one may, or time is up.

    Those that the certificate names, or all of them. `until` is an instant of `time.monotonic`;
    `report` is called with the number of devices.
    """
    if not applies(claim):
        return None
    devices = tuple(sorted(set(claim.devices or range(claim.pipeline.num_devices))))
    report(len(devices))
    partial = PartialSchedules(claim, devices)
    for left in range(partial.steps, 0, -1):
        if EACH * left * partial.width > until - monotonic():
            return None
        if not partial.step(lambda: monotonic() > until):
            return None
        if not partial.width:
            return devices
    return None


class PartialSchedules:
    """The partial schedules of some devices' operations, one operation longer at every step."""

    def __init__(self, claim: Claim, devices: tuple[int, ...]) -> None:
        pipeline = claim.pipeline
        self._claim, self._devices = claim, devices
        self._hosts = pipeline.hosts[0]
        self._times = RouteTimes(claim, self._hosts)
        self._stages = [stage for stage, host in enumerate(self._hosts) if host in devices]
        self._classes = list(self._made())
        self._place = {(each.kind, each.stage): place for place, each in enumerate(self._classes)}
        self._delays = list(self._ways())
        self._inner = [
            [self._place[kind, each.stage] for kind in claim.kinds[: claim.kinds.index(each.kind)]]
            for each in self._classes
        ]
        self._into: list[int | None] = [None] * len(self._classes)
        self._out: list[int | None] = [None] * len(self._classes)
        for number, delay in enumerate(self._delays):
            self._into[delay.then], self._out[delay.first] = number, number
        self._before = [
            [*inner, *(delay.first for delay in self._delays if delay.then == place)]
            for place, inner in enumerate(self._inner)
        ]
        self._tails: dict[int, int] = {}
        """Time from the end of an operation of every class to the end of all that wait for it."""
        for place in self._last_first():
            self._tails[place] = self._tail(place)
        ticks = pipeline.ticks
        self._room = [ticks.headroom(device) for device in devices]
        free = [0] * len(devices)
        if self._stages:
            first = self._stages[0]
            free[devices.index(self._hosts[first])] = self._times.way(OpKind.F, first)
        self._level = {(0,) * len(self._classes): [tuple(free)]}
        self.steps = len(self._classes) * pipeline.batches
        """Operations that a whole schedule has."""

    def _made(self) -> Iterator[StageOperations]:
        pipeline, ticks = self._claim.pipeline, self._claim.pipeline.ticks
        takers = Counter(
            self._hosts[stage]
            for kind in self._claim.kinds
            for stage in self._stages
            if self._claim.takes(kind, stage) > 0
        )
        for kind in self._claim.kinds:
            for stage in self._stages:
                if not self._claim.has(kind, stage):
                    continue
                host = self._hosts[stage]
                takes = self._claim.takes(kind, stage)
                alone = ticks.limits is None or takes == 0 or takers[host] == 1
                yield StageOperations(
                    kind,
                    stage,
                    self._devices.index(host),
                    pipeline.ticks.durations[kind][stage],
                    takes,
                    self._claim.gives(kind, stage),
                    alone,
                )

    def _ways(self) -> Iterator[Delay]:
        """From stage to stage looked at, and back from the last one."""
        place, back, last = self._place, self._claim.kinds[1], self._stages[-1]
        for low, high in pairwise(self._stages):
            down, up = (self._times.between(kind, low, high) for kind in (OpKind.F, back))
            yield Delay(place[OpKind.F, low], place[OpKind.F, high], down)
            if self._claim.has(back, low):
                yield Delay(place[back, high], place[back, low], up)
        trip = self._times.round_trip(last)
        if trip:
            yield Delay(place[OpKind.F, last], place[back, last], trip)

    def _last_first(self) -> list[int]:
        """All classes, each after those that wait for it."""
        kinds = self._claim.kinds

        def key(place: int) -> tuple[int, int]:
            each = self._classes[place]
            return -kinds.index(each.kind), -each.stage if each.kind is OpKind.F else each.stage

        return sorted(range(len(self._classes)), key=key)

    def _tail(self, place: int) -> int:
        """Time from the end of an operation to the end of all that wait for it, theirs known."""
        found = self._elsewhere(self._classes[place])
        after = [(delay.then, delay.lag) for delay in self._delays if delay.first == place]
        after += [(other, 0) for other, inner in enumerate(self._inner) if place in inner]
        for other, lag in after:
            found = max(found, lag + self._classes[other].time + self._tails[other])
        return found

    def _elsewhere(self, own: StageOperations) -> int:
        """Time from its end to the last W (or BW) of its microbatch on the devices left out next.

        From a backward up to the next stage looked at, or to the first; from the last F looked at,
        down and back.
        """
        durations, stages = self._claim.pipeline.ticks.durations, range(len(self._hosts))
        forward, back, *weight = (durations[kind] for kind in self._claim.kinds)
        closing = [sum(times[stage] for times in (back, *weight)) for stage in stages]
        found = 0
        if own.kind is self._claim.kinds[1]:
            for stage in range(own.stage - 1, -1, -1):
                if self._hosts[stage] in self._devices:
                    break
                up = self._times.between(own.kind, stage, own.stage)
                found = max(found, up + closing[stage])
        elif own.kind is OpKind.F and own.stage == self._stages[-1]:
            for stage in stages[own.stage + 1 :]:
                down = self._times.between(OpKind.F, own.stage, stage) + forward[stage]
                found = max(found, down + self._times.round_trip(stage) + closing[stage])
        return found

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
            steps = [self._step(done, place) for place in self._next(done)]
            for instants in several:
                for step, start in self._not_postponed(steps, instants):
                    longer = self._extended(step, start, instants)
                    if longer is not None:
                        _add_non_dominated(grown.setdefault(step.done, []), longer)
        self._level = grown
        return True

    def _next(self, done: Done) -> Iterator[int]:
        """Classes whose next operation has all it waits for, and memory."""
        held = [0] * len(self._devices)
        for number, each in zip(done, self._classes, strict=True):
            held[each.device] += number * (each.takes - each.gives)
        for place, each in enumerate(self._classes):
            number, room = done[place], self._room[each.device]
            ready = all(done[before] > number for before in self._before[place])
            fits = each.takes == 0 or room is None or held[each.device] + each.takes <= room
            if number < self._claim.pipeline.batches and ready and fits:
                yield place

    def _step(self, done: Done, place: int) -> Extension:
        """What an operation of a class adds to all partial schedules with the same operations."""
        after = (*done[:place], done[place] + 1, *done[place + 1 :])
        own, total = self._classes[place], self._claim.pipeline.batches
        first, arrivals = self._arrivals(done)
        new_first, new_arrivals = self._arrivals(after)
        came: list[int] = []
        for number, delay in enumerate(self._delays):
            took = delay.then == place
            held = range(first[number] + took, first[number] + arrivals[number])
            came += [*held, _NEW] if delay.first == place else held
        work = [0] * len(self._devices)
        least = []
        for other, each in enumerate(self._classes):
            left = total - after[other]
            work[each.device] += left * each.time
            link = self._into[other]
            arrived = None if link is None or not new_arrivals[link] else new_first[link]
            if left:
                least.append((each.device, arrived, left * each.time + self._tails[other]))
        link, out = self._into[place], self._out[place]
        return Extension(
            after,
            own,
            None if link is None else first[link],
            tuple(came),
            0 if out is None else self._delays[out].lag,
            self._targets(after),
            (*((device, None, left) for device, left in enumerate(work)), *least),
        )

    def _arrivals(self, done: Done) -> tuple[list[int], list[int]]:
        """For every delay, the place of its first arrival among the instants, and how many."""
        first, count, place = [], [], len(self._devices)
        for delay in self._delays:
            first.append(place)
            count.append(done[delay.first] - done[delay.then])
            place += count[-1]
        return first, count

    def _targets(self, done: Done) -> tuple[int, ...]:
        """Device of every arrival."""
        found: list[int] = []
        for delay in self._delays:
            found += [self._classes[delay.then].device] * (done[delay.first] - done[delay.then])
        return tuple(found)

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
        """A partial schedule with one operation more; None if it cannot end below the bound."""
        size, end = len(self._devices), start + step.added.time
        made = [max(instant, start) for instant in instants[:size]]
        made[step.added.device] = end
        new = end + step.lag
        for source, device in zip(step.came, step.targets, strict=True):
            instant = new if source == _NEW else instants[source]
            made.append(max(instant, made[device]))
        bound = self._claim.bound
        assert bound is not None
        for device, arrived, left in step.least:
            at = made[device] if arrived is None else made[arrived]
            if left and at + left >= bound:
                return None
        return None if max(made[:size]) >= bound else tuple(made)


def _add_non_dominated(several: list[Instants], new: Instants) -> None:
    """Add a partial schedule unless it is dominated; drop those that it dominates."""
    for other in several:
        if all(map(le, other, new)):
            return
    several[:] = [other for other in several if not all(map(le, new, other))]
    several.append(new)
