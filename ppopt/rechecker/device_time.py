"""What one device must wait for, do and hold, where its stages begin and end at given layers.

Notation, per stage of the device, in the order of a microbatch's way: F takes f and leaves k in
memory. The backward hands its gradient on after g; until then k is held. W takes r; until its end p
is held. If backwards are whole, g is all and r = 0. There are m microbatches; `room` is the
limit less static memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import lru_cache
from math import floor
from typing import NamedTuple

from ppopt.rechecker.claim import Claim
from ppopt.rechecker.cut_delays import Way
from ppopt.rechecker.idle_bound import Filler, filled
from ppopt.rechecker.layer_sums import LayerSums


class StageRange(NamedTuple):
    """A stage: its number, the layers before it, and those up to its end."""

    number: int
    low: int
    high: int
    again: int = 0
    """Time of its recompute, part of every backward."""
    saved: int = 0
    """Memory that its F does not keep."""


class Costs(NamedTuple):
    """Costs of a stage; see the module."""

    f: int
    g: int
    r: int
    k: int
    p: int


class DeviceTime:
    """Lower bounds of devices, in the ticks of the layers."""

    def __init__(self, claim: Claim, sums: LayerSums) -> None:
        self._claim, self._sums = claim, sums
        self._batches, self._span = claim.pipeline.batches, claim.span
        self._costs = lru_cache(maxsize=None)(self._costs_of)

    def work(self, stages: tuple[StageRange, ...]) -> int:
        """Time of all operations of a device."""
        return self._batches * sum(c.f + c.g + c.r for c in map(self._costs, stages))

    def least(self, device: int, stages: tuple[StageRange, ...], first: int) -> int:
        """The largest bound of a device; `first` is the number of layers of stage 0.

        Of a device span only the work counts if layers have no backward: their stages need not
        wait for those after them.
        """
        if self._span and not self._sums.has_all_backwards:
            return self.work(stages)
        found = self._of_run(device, stages, first, self._batches)
        if self._sums.limits is not None:
            found = max(found, self._by_area(device, stages))
            found = max(found, self._repeated(device, stages, first))
        return found

    def over_limit(self, device: int, stages: tuple[StageRange, ...]) -> bool:
        """Whether one microbatch alone holds too much.

        At the start of F of a stage it holds what it keeps of this and all stages before; B that
        takes time adds what W gives back beyond that, and so does W that takes time.
        """
        room = self._room(device, stages)
        held = 0
        for c in map(self._costs, stages):
            held += c.k
            lasting = [held]
            if not self._claim.fused:
                lasting += [held + max(0, c.p - c.k)] * (c.g > 0) + [c.p] * (c.r > 0)
            if room is not None and max(lasting) > room:
                return True
        return False

    def _costs_of(self, stage: StageRange) -> Costs:
        sums = self._sums
        rows = (sums.forward, sums.gradient, sums.rest, sums.kept, sums.pending)
        f, g, r, k, p = (row[stage.high] - row[stage.low] for row in rows)
        f, g, r = (self._slowed(stage.number, time) for time in (f, g + stage.again, r))
        k -= stage.saved
        return Costs(f, g, r, k, min(p, k) if self._claim.either else p)

    def _slowed(self, stage: int, time: int) -> int:
        """A time on the fastest device, on that of a stage."""
        times, parts = self._sums.slower[self._claim.pipeline.hosts[0][stage]]
        return int(time * times // parts)

    def _longer(self, stages: Sequence[StageRange]) -> tuple[int, int]:
        """By how much F, and backwards until they hand on, of stages take longer than counted.

        Ways are summed up with the times of layers on the fastest device, without recompute.
        """
        sums, costs = self._sums, [self._costs(stage) for stage in stages]
        forward, gradient = (
            sum(row[stage.high] - row[stage.low] for stage in stages)
            for row in (sums.forward, sums.gradient)
        )
        return sum(c.f for c in costs) - forward, sum(c.g for c in costs) - gradient

    def _room(self, device: int, stages: Sequence[StageRange]) -> int | None:
        if self._sums.limits is None:
            return None
        static = self._sums.static
        return self._sums.limits[device] - sum(static[s.high] - static[s.low] for s in stages)

    # Ways of a microbatch between its operations.

    def _head(self, stages: tuple[StageRange, ...], place: int) -> int:
        """Before the first F of a stage; for device span, since the first F of the device."""
        sums, stage = self._sums, stages[place]
        if not self._span:
            return sums.forward[stage.low] + sums.down.up_to(stage.number - 1, stage.low)
        first = stages[0]
        way = sums.forward[stage.low] - sums.forward[first.low] + _over(sums.down, first, stage)
        return way + self._longer(stages[:place])[0]

    def _turn(self, stages: tuple[StageRange, ...], place: int) -> int:
        """From the start of F of a stage to that of the backward of the last stage here."""
        sums, stage, last = self._sums, stages[place], stages[-1]
        down = sums.forward[last.high] - sums.forward[stage.low] + _over(sums.down, stage, last)
        return down + self._longer(stages[place:])[0] + self._beyond(last)

    def _beyond(self, stage: StageRange) -> int:
        """From the end of F of a stage to the start of its backward."""
        sums, place = self._sums, stage.high
        work = sums.forward[-1] - sums.forward[place] + sums.gradient[-1] - sums.gradient[place]
        return work + sums.there_and_back.beyond(stage.number, place)

    def _end(self, stages: tuple[StageRange, ...], place: int, first: int) -> int:
        """From the start of a stage's backward to the end of what that microbatch has left."""
        sums, stage, lowest = self._sums, stages[place], stages[0]
        up = sums.gradient[stage.high] - sums.gradient[lowest.high]
        up += _over(sums.up, lowest, stage)
        longer = self._longer(stages[1 : place + 1])[1]
        up += longer
        own = up + self._costs(lowest).g + self._costs(lowest).r
        if self._span:
            return own
        delays = sums.up.between(0, first, stage.number - 1, stage.low)
        way = sums.gradient[stage.high] + delays + self._slowed(0, sums.rest[first])
        return max(own, way + longer + self._longer(stages[:1])[1])

    # Arguments.

    def _of_run(
        self,
        device: int,
        stages: tuple[StageRange, ...],
        first: int,
        batches: int,
        later: int = 0,
        lowest: int = 0,
    ) -> int:
        """Bound of so many microbatches, by their operations from F of stage `lowest` on.

        That F may first start `later` than it might.
        """
        costs, places = [self._costs(stage) for stage in stages], range(len(stages))
        room = self._room(device, stages)
        waiting = room
        if room is not None and len(stages) == 1 and costs[0].g > 0:
            waiting = room - max(0, costs[0].p - costs[0].k)
        backward = batches * sum(c.g + c.r for c in costs)
        tight = room is not None and batches * sum(c.k for c in costs) > room
        undone, pending = (
            self._undone(costs, batches, waiting, room),
            self._pending(costs, batches, room),
        )
        left = max(0, self._beyond(stages[-1]) - undone) if costs[-1].f > 0 else 0
        others = backward - sum(c.g + c.r for c in costs) - undone
        found = 0
        for low in places[lowest:]:
            fillers = [Filler(c.f, c.k, batches) for c in costs[low:]]
            idle = max(0, self._turn(stages, low) - filled(fillers, waiting))
            if not later and not self._span:
                idle = max(idle, self._late_inputs(stages, low, first))
            begun = later + self._head(stages, low) + batches * sum(c.f for c in costs[low:])
            found = max(found, begun + backward + (idle + left if tight else max(idle, left)))
            for high in places:
                before = batches * sum(c.g for c in costs[high:]) - costs[high].g
                found = max(found, begun + idle + before + self._end(stages, high, first))
            last = begun + (idle if tight else 0) + others + self._beyond(stages[-1])
            found = max(found, last + self._end(stages, len(stages) - 1, first))
            last = begun + idle + backward - costs[0].g - costs[0].r - pending
            found = max(found, last + self._end(stages, 0, first))
        return found

    def _late_inputs(self, stages: tuple[StageRange, ...], place: int, first: int) -> int:
        """Idle time before any backward may run, from when F of a stage may run, of F from it on.

        Inputs come one after the other: F of stage 0, and of every stage here that lies before,
        takes its time. Up to an instant at most those F run whose inputs have come by then.
        """
        start, gap = self._head(stages, place), self._slowed(0, self._sums.forward[first])
        end = start + self._turn(stages, place)
        gap = max([gap, *(self._costs(stage).f for stage in stages[:place])])
        coming = []
        for at, stage in enumerate(stages[place:], place):
            coming.append((self._head(stages, at), gap, self._costs(stage).f))
            gap = max(gap, self._costs(stage).f)
        if not coming[0][1]:
            return 0
        instants = {end} | {head + (end - head) // gap * gap for head, gap, _ in coming}

        def idle(until: int) -> int:
            counts = (min(self._batches, max(0, -((head - until) // g))) for head, g, _ in coming)
            return until - start - sum(n * f for n, (*_, f) in zip(counts, coming, strict=True))

        return max(map(idle, instants))

    def _undone(
        self, costs: list[Costs], batches: int, waiting: int | None, room: int | None
    ) -> int:
        """Most backward work of other microbatches left when the last F of the last stage starts.

        That microbatch holds what it keeps of all stages; the others fit beside it. An F of no
        length may share its instant with what makes room.
        """
        everything = (batches - 1) * sum(c.g + c.r for c in costs)
        if room is None or waiting is None or costs[-1].f == 0:
            return everything
        fillers = [Filler(c.g + c.r, c.k, batches - 1) for c in costs]
        if any(c.p < c.k for c in costs) and not self._claim.fused:
            fillers += [Filler(c.r, c.p, batches - 1) for c in costs]
            waiting = room
        return min(everything, filled(fillers, waiting - sum(c.k for c in costs)))

    def _pending(self, costs: list[Costs], batches: int, room: int | None) -> int:
        """Most work of W left when the last backward of the first stage starts."""
        fillers = [Filler(c.r, c.p, batches - (not place)) for place, c in enumerate(costs)]
        if room is not None and costs[0].g > 0:
            room -= costs[0].k
            if len(costs) == 1:
                room -= max(0, costs[0].p - costs[0].k)
        return filled(fillers, room)

    def _repeated(self, device: int, stages: tuple[StageRange, ...], first: int) -> int:
        """Bounds without the first microbatches: F of a stage waits for memory again and again.

        Say F of a stage starts, and memory cannot hold so many others that have started theirs and
        have not come to a certain end. Then all but fewer have, and the last of these took its way
        from that F to that end.
        """
        found = 0
        for place, stage in enumerate(stages):
            for number, way in self._waits(device, stages, place):
                most = (self._batches - 1) // number
                for times in {most, most - 1} - {0, -1}:
                    rest, later = self._batches - times * number, times * way
                    found = max(found, self._of_run(device, stages, first, rest, later, place))
            if len(stages) > 1:
                found = max(found, self._of_run(device, (stage,), first, self._batches))
                found = max(found, self._repeated(device, (stage,), first))
        return found

    def _waits(
        self, device: int, stages: tuple[StageRange, ...], place: int
    ) -> Iterator[tuple[int, int]]:
        """How many others F of a stage cannot start beside, and their way from F to an end.

        Ends are that of the backward, and that of its W, of every stage up to this one.
        """
        costs, room = [self._costs(stage) for stage in stages], self._room(device, stages)
        assert room is not None
        room -= sum(c.k for c in costs[: place + 1])
        turn = self._turn(stages, place)
        for at, c in enumerate(costs[: place + 1]):
            up = self._climb(stages, at)
            kept = sum(cost.k for cost in costs[: at + 1])
            running = 0
            if at == place and c.g > 0 and not self._claim.fused:
                running = max(0, c.p - c.k)
            number = self._too_many(room - running, kept)
            yield number, turn + up + c.g
            if not self._claim.fused:
                # one of them is between its backward and the end of its W
                more = 1 + self._too_many(room - c.p, min(kept, c.p), least=0)
                yield max(number, more), turn + up + c.g + c.r

    def _too_many(self, room: int, each: int, least: int = 1) -> int:
        """The least number of microbatches that do not fit into a room, at most all and one."""
        if room < 0:
            return least
        return max(least, room // each + 1) if each else self._batches + 1

    def _climb(self, stages: tuple[StageRange, ...], place: int) -> int:
        """From the start of the last stage's backward to that of another stage's."""
        sums, stage, last = self._sums, stages[place], stages[-1]
        up = sums.gradient[last.high] - sums.gradient[stage.high] + _over(sums.up, stage, last)
        return up + self._longer(stages[place + 1 :])[1]

    def _by_area(self, device: int, stages: tuple[StageRange, ...]) -> int:
        """Memory times time: what all microbatches hold is at most what the limit has room for.

        The room is not full at once, nor to the end: operations fill and empty it one by one.
        """
        room = self._room(device, stages)
        costs = [self._costs(stage) for stage in stages]
        if room is None or room <= 0:
            return 0
        held = 0
        for stage, c in zip(stages, costs, strict=True):
            held += c.k * (c.f + self._beyond(stage) + c.g) + c.p * c.r
            held += 0 if self._claim.fused else max(0, c.p - c.k) * c.g
        area = Fraction(self._batches * held)
        takes = [(c.f, c.k) for c in costs]
        gives = [(c.g, c.k) for c in costs]
        if not self._claim.fused:
            takes += [(c.g, max(0, c.p - c.k)) for c in costs]
            gives = [(c.g, max(0, c.k - c.p)) for c in costs] + [(c.r, c.p) for c in costs]
        (rise, free), (fall, more) = _ramp(takes, room), _ramp(gives, room)
        if rise + fall <= self._batches * sum(c.f + c.g + c.r for c in costs):
            area += free + more
        return self._head(stages, 0) + floor(area / room)


def _over(way: Way, lower: StageRange, upper: StageRange) -> int:
    """Least delays over the boundaries between two stages; `lower` may be `upper`."""
    return way.between(lower.number, lower.high, upper.number - 1, upper.low)


def _ramp(operations: list[tuple[int, int]], room: int) -> tuple[Fraction, Fraction]:
    """Least time in which operations of (time, memory) fill a room; what stays free meanwhile.

    After t they hold at most what the largest holds, and t times the best rate.
    """
    rates = [Fraction(memory, time) if time else None for time, memory in operations if memory]
    largest = max(memory for _, memory in operations)
    if not rates or None in rates or largest >= room:
        return Fraction(0), Fraction(0)
    rate = max(rate for rate in rates if rate is not None)
    length = (room - largest) / rate
    return length, length * (room - largest) / 2
