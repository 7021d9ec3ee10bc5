"""Lower bounds on the time of one device whose stages begin and end at given layers.

Notation, per stage of the device, in the order in which a microbatch passes them: F takes time f
and leaves k live. The backward passes its gradient on after g; until then k is live. W takes time
r; until its end p is live. If backwards are whole, g is all of their time and r = 0. There are m
microbatches. `headroom` is the limit minus static memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from ppopt.rechecker.claim import Claim
from ppopt.rechecker.cut_delays import Way
from ppopt.rechecker.idle_bound import (
    Filler,
    StageCosts,
    filled,
    is_tight,
    max_backwards,
)
from ppopt.rechecker.layer_sums import LayerSums


class StageRange(NamedTuple):
    """A stage: its number, the layers before it, and those up to its end."""

    stage_id: int
    low: int
    high: int
    recompute_time: int = 0
    """Time of its recompute, part of every backward."""
    saved: int = 0
    """Memory that its F does not keep."""


class DeviceTime:
    """Lower bounds of devices, in the ticks of the layers."""

    def __init__(self, claim: Claim, sums: LayerSums) -> None:
        self._claim, self._sums = claim, sums
        self._batches, self._span = claim.pipeline.batches, claim.span
        self._costs = lru_cache(maxsize=None)(self._costs_of)

    def work(self, stages: tuple[StageRange, ...]) -> int:
        """Time of all operations of a device."""
        return self._batches * sum(c.f + c.g + c.r for c in map(self._costs, stages))

    def lower_bound(
        self,
        device: int,
        stages: tuple[StageRange, ...],
        first: int,
        rates: tuple[int, ...] | None = None,
    ) -> int:
        """The largest lower bound of a device; `first` is the number of layers of stage 0.

        `rates`: for each stage, a lower bound of the longest F of earlier stages, for makespan.

        For the device span only the work counts if layers have no backward: their stages need not
        wait for later stages.
        """
        if self._span and not self._sums.has_all_backwards:
            return self.work(stages)
        bound = self._of_run(device, stages, first, self._batches, rates=rates)
        if self._sums.limits is not None and rates is None:
            bound = max(bound, self._repeated(device, stages, first))
        return bound

    def over_limit(self, device: int, stages: tuple[StageRange, ...]) -> bool:
        """Whether one microbatch alone exceeds the memory limit, on all stages or on one."""
        return any(self._exceeds(device, own) for own in (stages, *zip(stages, strict=True)))

    def _exceeds(self, device: int, stages: tuple[StageRange, ...]) -> bool:
        """Whether the operations of one microbatch on these stages exceed the memory limit.

        When F of a stage starts, what F keeps of this stage and all earlier ones is live. A B that
        takes time adds what W frees beyond that, and so does a W that takes time.
        """
        headroom = self._headroom(device, stages)
        stashed = 0
        for c in map(self._costs, stages):
            stashed += c.k
            live = [stashed]
            if not self._claim.fused:
                live += [stashed + max(0, c.p - c.k)] * (c.g > 0) + [c.p] * (c.r > 0)
            if headroom is not None and max(live) > headroom:
                return True
        return False

    def _costs_of(self, stage: StageRange) -> StageCosts:
        sums = self._sums
        rows = (sums.forward, sums.gradient, sums.rest, sums.stashed, sums.pending)
        f, g, r, k, p = (row[stage.high] - row[stage.low] for row in rows)
        f, g, r = (self._slowed(stage.stage_id, time) for time in (f, g + stage.recompute_time, r))
        k -= stage.saved
        return StageCosts(f, g, r, k, min(p, k) if self._claim.mixed else p)

    def mean_forward(self, stages: range, low: int, high: int) -> int:
        """Lower bound of the longest F of consecutive stages with these layers: their mean."""
        time = self._sums.forward[high] - self._sums.forward[low]
        return self._slowed(stages[0], time) if len(stages) == 1 else -(-time // len(stages))

    def _slowed(self, stage: int, time: int) -> int:
        """A time on the fastest device, on that of a stage."""
        times, parts = self._sums.slower[self._claim.pipeline.hosts[0][stage]]
        return int(time * times // parts)

    def _headroom(self, device: int, stages: Sequence[StageRange]) -> int | None:
        if self._sums.limits is None:
            return None
        static, gathered, lowest = self._sums.static, self._sums.gathered, stages[0]
        limit = self._sums.limits[device] - gathered[lowest.high] + gathered[lowest.low]
        return limit - sum(static[s.high] - static[s.low] for s in stages)

    # Ways of a microbatch between its operations.

    def _head(self, stages: tuple[StageRange, ...], position: int, first: int) -> int:
        """Before the first F of a stage: from 0, or from the first operation of the device.

        Every F follows the unshards of stage 0 and of the device's first stage.
        """
        sums, stage, lowest = self._sums, stages[position], stages[0]
        if not self._span:
            way = sums.down.up_to(stage.stage_id - 1, stage.low)
            return sums.unshard[first] + sums.forward[stage.low] + way
        unshard = sums.unshard[lowest.high] - sums.unshard[lowest.low]
        return unshard + self._delay(stages, 0, position)

    def _delay(self, stages: tuple[StageRange, ...], position: int, later: int) -> int:
        """From the start of F of a stage to the earliest one of a later stage."""
        way = stages[position : later + 1]
        work = sum(self._costs(stage).f for stage in way[:-1]) + _gaps(self._sums.forward, way)
        return work + _over(self._sums.down, way[0], way[-1])

    def _turn(self, stages: tuple[StageRange, ...], position: int) -> int:
        """From the start of F of a stage to that of the backward of the last stage here."""
        last = stages[-1]
        down = self._delay(stages, position, len(stages) - 1) + self._costs(last).f
        return down + self._beyond(last)

    def _beyond(self, stage: StageRange) -> int:
        """From the end of F of a stage to the start of its backward."""
        sums, layer = self._sums, stage.high
        work = sums.forward[-1] - sums.forward[layer] + sums.gradient[-1] - sums.gradient[layer]
        return work + sums.round_trip.beyond(stage.stage_id, layer)

    def _up(self, stages: tuple[StageRange, ...]) -> int:
        """Backwards of stages, up to their gradient, and of the layers between them."""
        return sum(self._costs(stage).g for stage in stages) + _gaps(self._sums.gradient, stages)

    def _climb(self, stages: tuple[StageRange, ...]) -> int:
        """From the start of the last stage's backward to that of the first one's."""
        work = self._up(stages) - self._costs(stages[0]).g
        return work + _over(self._sums.up, stages[0], stages[-1])

    def _closing(self, stages: Sequence[StageRange]) -> list[int]:
        """After the last operation of a stage: its sync, then the optimizer of its device."""
        sums = self._sums
        optimizer = sum(
            self._slowed(stage_id, sums.optimizer[high] - sums.optimizer[low])
            for stage_id, low, high, *_ in stages
        )
        return [sums.sync[high] - sums.sync[low] + optimizer for _, low, high, *_ in stages]

    def _end(self, stages: tuple[StageRange, ...], position: int, first: int) -> int:
        """From the start of a stage's backward to the end of what follows that microbatch."""
        sums, stage, lowest = self._sums, stages[position], stages[0]
        up = self._up(stages[: position + 1])
        own = up + _over(sums.up, lowest, stage) + self._costs(lowest).r + self._closing(stages)[0]
        if self._span:
            return own
        delays = sums.up.between(0, first, stage.stage_id - 1, stage.low)
        (closing,) = self._closing([StageRange(0, 0, first)])
        out = up + sums.gradient[lowest.low] + delays + self._slowed(0, sums.rest[first]) + closing
        return max(own, out)

    # Arguments.

    def _of_run(
        self,
        device: int,
        stages: tuple[StageRange, ...],
        first: int,
        batches: int,
        later: int = 0,
        lowest: int = 0,
        rates: tuple[int, ...] | None = None,
    ) -> int:
        """Bound of so many microbatches, by their operations from F of stage `lowest` on.

        That F may first start `later` than it might. `rates` as in `lower_bound`.
        """
        costs = [self._costs(stage) for stage in stages]
        headroom = self._headroom(device, stages)
        waiting = headroom
        if headroom is not None and len(stages) == 1 and costs[0].g > 0:
            waiting = headroom - max(0, costs[0].p - costs[0].k)
        backward = batches * sum(c.g + c.r for c in costs)
        tight = is_tight(costs, batches, headroom)
        undone, pending = (
            self._undone(costs, batches, waiting),
            self._pending(costs, batches, headroom),
        )
        idle_after = max(0, self._beyond(stages[-1]) - undone) if costs[-1].f > 0 else 0
        other_backwards = backward - sum(c.g + c.r for c in costs) - undone
        bound = 0
        for low in range(lowest, len(stages)):
            idle = self._starved(stages, low, batches, waiting, rates)
            begun = later + self._head(stages, low, first) + batches * sum(c.f for c in costs[low:])
            waited = idle + idle_after if tight else max(idle, idle_after)
            bound = max(bound, begun + backward + waited + min(self._closing(stages)))
            last = begun + (idle if tight else 0) + other_backwards + self._beyond(stages[-1])
            bound = max(bound, last + self._end(stages, len(stages) - 1, first))
            last = begun + idle + backward - costs[0].g - costs[0].r - pending
            bound = max(bound, last + self._end(stages, 0, first))
        return bound

    def _starved(
        self,
        stages: tuple[StageRange, ...],
        low: int,
        batches: int,
        waiting: int | None,
        rates: tuple[int, ...] | None,
    ) -> int:
        """Idle time between the earliest F of stage `low` and the first backward.

        Only F run meanwhile: as many as fit into `waiting`, and none before its microbatch arrives.
        Microbatches arrive at a stage at its earliest F, then at least its rate apart. So the idle
        time up to any instant is a bound: at the first F of a stage, or at the last arrival.
        """
        turn, costs = self._turn(stages, low), [*map(self._costs, stages[low:])]
        if rates is None:
            return max(0, turn - filled([Filler(c.f, c.k, batches) for c in costs], waiting))
        delays = [self._delay(stages, low, k) for k in range(low, len(stages))]
        arrivals = list(zip(delays, rates[low:], strict=True))
        instants = {turn, *delays}
        instants |= {turn - (turn - delay) % rate for delay, rate in arrivals if rate}
        idle = 0
        for end in instants:
            fillers = []
            for (delay, rate), c in zip(arrivals, costs, strict=True):
                count = batches if end > delay else 0
                if rate:
                    count = min(count, max(0, -((delay - end) // rate)))
                fillers.append(Filler(c.f, c.k, count))
            idle = max(idle, end - filled(fillers, waiting))
        return idle

    def _undone(self, costs: list[StageCosts], batches: int, waiting: int | None) -> int:
        """Maximum backward work of other microbatches open when the last stage's last F starts.

        It is at most all their work. An F of duration 0 may coincide with an operation that frees
        memory. If no W frees less than its F keeps, whole backwards are the maximum.
        """
        everything = (batches - 1) * sum(c.g + c.r for c in costs)
        if waiting is None or costs[-1].f == 0:
            return everything
        split = any(c.p < c.k for c in costs) and not self._claim.fused
        return min(everything, max_backwards(costs, batches - 1, waiting, split=split))

    def _pending(self, costs: list[StageCosts], batches: int, headroom: int | None) -> int:
        """Maximum work of W still open when the last backward of the first stage starts."""
        fillers = [Filler(c.r, c.p, batches - (not position)) for position, c in enumerate(costs)]
        if headroom is not None and costs[0].g > 0:
            headroom -= costs[0].k
            if len(costs) == 1:
                headroom -= max(0, costs[0].p - costs[0].k)
        return filled(fillers, headroom)

    def _repeated(self, device: int, stages: tuple[StageRange, ...], first: int) -> int:
        """Bounds without the first microbatches: F of a stage waits for memory repeatedly.

        Suppose F of a stage starts, and the headroom rules out n other microbatches between their F
        and a certain later end. Then all but n - 1 of the earlier ones have reached that end, and
        the last of these spent the time from F to that end.
        """
        bound = 0
        for position, stage in enumerate(stages):
            for count, way in self._waits(device, stages, position):
                times = (self._batches - 1) // count
                rest, later = self._batches - times * count, times * way
                bound = max(bound, self._of_run(device, stages, first, rest, later, position))
            if len(stages) > 1:
                bound = max(bound, self._of_run(device, (stage,), first, self._batches))
                bound = max(bound, self._repeated(device, (stage,), first))
        return bound

    def _waits(
        self, device: int, stages: tuple[StageRange, ...], position: int
    ) -> Iterator[tuple[int, int]]:
        """(n, time): F of a stage waits until one of n other microbatches has passed that time.

        The time is from their F to the end of the backward, or of its W, of a stage up to this one.
        """
        costs, headroom = [self._costs(stage) for stage in stages], self._headroom(device, stages)
        assert headroom is not None
        headroom -= sum(c.k for c in costs[: position + 1])
        turn = self._turn(stages, position)
        for at, c in enumerate(costs[: position + 1]):
            up = self._climb(stages[at:])
            stashed = sum(cost.k for cost in costs[: at + 1])
            running = 0
            if at == position and c.g > 0 and not self._claim.fused:
                running = max(0, c.p - c.k)
            count = self._too_many(headroom - running, stashed)
            yield count, turn + up + c.g
            if not self._claim.fused:
                # one of these microbatches is between its backward and the end of its W
                count_with_weight = 1 + self._too_many(headroom - c.p, min(stashed, c.p), minimum=0)
                yield max(count, count_with_weight), turn + up + c.g + c.r

    def _too_many(self, headroom: int, each: int, minimum: int = 1) -> int:
        """Minimum number of microbatches that exceed the headroom, at most all and one."""
        if headroom < 0:
            return minimum
        return max(minimum, headroom // each + 1) if each else self._batches + 1


def _gaps(times: list[int], stages: tuple[StageRange, ...]) -> int:
    """Times of the layers between stages."""
    return sum(times[upper.low] - times[lower.high] for lower, upper in pairwise(stages))


def _over(way: Way, lower: StageRange, upper: StageRange) -> int:
    """Minimum delays over the boundaries between two stages; `lower` may be `upper`."""
    return way.between(lower.stage_id, lower.high, upper.stage_id - 1, upper.low)
