"""Lower bounds of one device, vectorised over all runs of layers that it may host.

A device hosts stages 1 .. v (here numbered in forward order); a microbatch visits it at F of
1 .. v, then at the backwards of v .. 1. Where these stages begin and end fixes its work, its
memory, and the least delays before, between and beyond them, whatever the other cuts are. So each
argument below bounds every schedule of every partition with these stages. Of a stage:

- `forward`: time of F
- `hand_on`: least time until a backward hands its gradient on (split: B; whole: BW)
- `backward`, `longest_backward`: least and most time of all of it (split: B + W; whole: BW)
- `activation`: memory that F leaves; `memory_b`: what B adds once it has handed on

`head` is the least time before F of stage 1, `round_trip` that from the end of F of stage v to its
backward, and there are m microbatches.

1. *Work and forced idle time*: head + m sum(forward + backward) + idle. From the start of the first
   F to that of the first backward of stage v a round trip passes, in which only F run, as many as
   memory holds. From the end of the last F of stage v to its backward another round trip passes, in
   which only backwards of microbatches that memory held run. If memory does not hold all
   microbatches, the first wait ends before the second begins.
2. *Last backward*: before the last backward of stage 1 starts, all F and all other backwards have
   run but those W for which memory was left; after it the gradient goes up to stage 0, whose own
   backward ends the schedule.
3. *Last forward*: when the last F of stage v starts, all other F have run, and of the backwards all
   but what memory still held; after it come the round trip and the way of 2.
4. *Parts of the way*: 1 to 3 for the operations from F of stage p on, and 2 for those up to the
   last backward of stage q: they start later, or are followed by more.
5. *Recurrence*: when F of stage p starts, its microbatch keeps the activations of the stages 1 ..
   p. A microbatch whose F of stage p has started keeps those of the stages 1 .. q <= p until its
   backward of stage q ends, then activation + memory_b of stage q until its W ends. Let h be the
   least time from that F to that end. If n others do not fit beside the one that starts, at least
   j + 1 of the first j + n have come to that end, one of them no sooner than h after F of stage p
   of microbatch j. What is left without the first i n microbatches starts i h later.
   For v above 1 the arguments of every stage alone count too.
6. *Pace*: F of stage 0 takes g, one after the other. So the n-th F (n = 0, 1, ...) of a stage k
   starts at the least time before the first of them, plus n g, or later; g is also at least the F
   of every hosted stage before k. Before the first backward only F run. What has come until an
   instant t before that is at most ceil((t - head of k) / g) F of every stage k. The rest of the
   time up to t is idle. This is the wait of 1, 2 and 4 if it is longer than by memory.
   (One machine with release times, as in Carlier; not for device span, whose clock starts late.)
7. *Work*: if microbatches differ, the others count each as long as the smallest. The head, the work
   of all microbatches as it is and, if backwards are whole, the way of 2 take no longer.
If layers run no backward, the first stages may not wait for those after them. The makespan does
not tell: their backwards take no time, and may as well wait. A device span does: there only the
work of a device counts.

If a stage recomputes, its backward times are longer, `activation` is smaller, and `memory_b` has
what its backward takes besides. On the way beyond the device's own stages nothing recomputes: that
only shortens the way.

1 is the bound of `ppopt.solver.bounds.device_bounds`; forced idle time as in
`ppopt.solver.bounds.idle_bounds`. Head-body-tail bounds: Carlier, EJOR 11 (1982).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ppopt.problem.arrays import Ints
from ppopt.solver.partitions.space import FOREVER, PartitionSpace

OUTWARD = 1e-9
"""Relative margin by which results of floating-point arithmetic are rounded to the safe side."""


class Hosted(NamedTuple):
    """A stage of a device: its number, and where it begins and ends, for many choices at once."""

    stage: int
    low: Ints
    """Layers before it, one entry per choice."""
    high: Ints
    """Layers up to its end."""
    again: Ints | int = 0
    """Time of its recompute, part of every backward."""
    saved: Ints | int = 0
    """Memory that its F does not keep; its backward takes it at its start."""

    def at(self, places: Ints) -> Hosted:
        """Some of the choices."""
        again, saved = (
            row if isinstance(row, int) else row[places] for row in (self.again, self.saved)
        )
        return Hosted(self.stage, self.low[places], self.high[places], again, saved)


class DeviceBound(NamedTuple):
    """Bounds of a device, one entry per choice; FOREVER: memory never suffices."""

    alone: Ints
    """Bound that ends on this device or on its way."""
    through: Ints
    """Bound up to the end of the first stage's backward, less `first_stage_tail` of that stage."""

    def with_tail(self, tail: int | Ints) -> Ints:
        """The larger of both, for a first stage of this tail."""
        return np.asarray(np.minimum(np.maximum(self.alone, self.through + tail), FOREVER))


class KnapsackItems(NamedTuple):
    """Work that may be done `copies` times while `memory` each is held."""

    work: Ints
    memory: Ints
    copies: Ints | int


class BackwardTimes(NamedTuple):
    """Times of a backward of some layers, one entry per choice."""

    hand_on: Ints
    """Least time until its gradient leaves."""
    least: Ints
    """Least time of all of it."""
    most: Ints
    """Most time of all of it."""


def backward_times(space: PartitionSpace, low: Ints, high: Ints) -> BackwardTimes:
    """Times of a backward of layers `low` to `high`, in the ways that the space has."""
    sums = space.sums
    partial, weight, joint = (
        row[high] - row[low] for row in (sums.backward_input, sums.weight, sums.backward)
    )
    if not space.split:
        return BackwardTimes(joint, joint, joint)
    apart = partial + weight
    if not space.whole:
        return BackwardTimes(partial, apart, apart)
    both = np.minimum(partial, joint), np.minimum(apart, joint), np.maximum(apart, joint)
    return BackwardTimes(*both)


def first_stage_tail(space: PartitionSpace, high: Ints) -> Ints:
    """Least time of a backward of stage 0, less the time to hand on the gradient of its layers.

    The way out of a device counts the layers of stage 0 too; here they are taken back.
    """
    slow = space.slowness_of(space.hosts[0])
    return (backward_times(space, 0 * high, high).least - space.sums.hand_on[high]) * slow


def pace_of(space: PartitionSpace, high: int) -> int:
    """Time of F of stage 0 if it has `high` layers: no stage gets its inputs faster."""
    return int(space.sums.forward[high]) * space.slowness_of(space.hosts[0])


def device_bound(
    space: PartitionSpace, device: int, hosted: Sequence[Hosted], pace: int = 0
) -> DeviceBound:
    """The largest bound of a device by all arguments of this module.

    `pace` is the least time of F of stage 0 (see `pace_of`); 0: not known.
    """
    own = _Device(space, device, tuple(hosted), space.batches, pace=pace)
    if space.span and not space.has_all_backwards:
        work = own.work
        return DeviceBound(work, work - FOREVER)
    bound = own.way_from(0)
    if space.batches_of_work > space.batches:
        bound = _larger(bound, own.waiting_and_work)
    for first in range(1, len(hosted)):
        bound = _larger(bound, own.way_from(first))
    if own.room is not None:
        for first in range(len(hosted)):
            bound = _larger(bound, own.recurrence(first))
        for stage in hosted if len(hosted) > 1 else ():
            bound = _larger(bound, _stage_alone(space, device, stage, pace))
        short = own.least_memory() > own.room + own.static
        bound = DeviceBound(*(np.where(short, FOREVER, row) for row in bound))
    return bound


def _stage_alone(space: PartitionSpace, device: int, stage: Hosted, pace: int) -> DeviceBound:
    """Bound of one stage alone on a device, computed once for equal layers if possible."""
    key = stage.low * (space.num_layers + 1) + stage.high
    _, one, same = np.unique(key, return_index=True, return_inverse=True)
    different = stage.at(one)
    again, saved = (
        np.broadcast_to(row, one.shape)[same] for row in (different.again, different.saved)
    )
    if np.any(again != stage.again) or np.any(saved != stage.saved):
        return device_bound(space, device, [stage], pace)
    found = device_bound(space, device, [different], pace)
    return DeviceBound(*(row[same] for row in found))


def head_and_work(space: PartitionSpace, device: int, hosted: Sequence[Hosted]) -> Ints:
    """Least time before the first F of a device, and the time of all its operations."""
    own = _Device(space, device, tuple(hosted), space.batches)
    return np.asarray(own.head(0) + own.work)


def least_memory(space: PartitionSpace, device: int, hosted: Sequence[Hosted]) -> Ints:
    """Memory without which no schedule runs, one entry per choice, in ticks of memory.

    When F of stage k starts, its microbatch holds the activations of the stages 1 .. k, for none of
    their backwards has started; a B that takes time and memory adds that. A whole backward adds
    nothing. One microbatch at a time needs no more than this, unless operations of no length take
    memory.
    """
    return _Device(space, device, tuple(hosted), space.batches).least_memory()


def most_work(items: Sequence[KnapsackItems], room: Ints | None) -> Ints:
    """Upper bound on the work of items that fit into `room` together: exact for one item.

    For several it is the least, over all prices per memory, of the price of the room and what
    every item is worth above its own price: the linear relaxation of the knapsack problem.
    """
    everything = np.asarray(sum(item.copies * item.work for item in items))
    if room is None:
        return everything
    if len(items) == 1:
        return np.where(room < 0, 0, _fitting(items[0], room) * items[0].work)
    least = everything.astype(float)
    for priced in items:
        price = priced.work / np.maximum(priced.memory, 1)
        worth = price * room + sum(
            item.copies * np.maximum(0, item.work - price * item.memory) for item in items
        )
        least = np.where(priced.memory > 0, np.minimum(least, worth), least)
    rounded = np.ceil(least * (1 + OUTWARD)).astype(np.int64)
    return np.where(room < 0, 0, np.minimum(everything, rounded))


def _fitting(item: KnapsackItems, room: Ints) -> Ints:
    """Number of times that an item fits."""
    counted = np.maximum(0, room) // np.maximum(item.memory, 1)
    return np.where(item.memory > 0, np.minimum(item.copies, counted), item.copies)


def _larger(first: DeviceBound, second: DeviceBound) -> DeviceBound:
    return DeviceBound(
        *(np.maximum(left, right) for left, right in zip(first, second, strict=True))
    )


class _Device:
    """The quantities of the arguments, for many choices of a device's stages at once."""

    def __init__(
        self,
        space: PartitionSpace,
        device: int,
        hosted: tuple[Hosted, ...],
        batches: int | Ints,
        later: int | Ints = 0,
        pace: int = 0,
    ) -> None:
        """`batches` microbatches, the first of which reaches the device `later` than it might.

        Those after the first come `pace` apart, if they are all.
        """
        sums = space.sums
        self.space, self.device, self.hosted, self.later = space, device, hosted, later
        self.pace = 0 if space.span else pace
        self.batches: Ints = np.asarray(batches) + 0 * hosted[0].low
        ends = [(stage.low, stage.high) for stage in hosted]
        slow = space.slowness_of(device)
        self.forward = [(sums.forward[high] - sums.forward[low]) * slow for low, high in ends]
        times = [backward_times(space, low, high) for low, high in ends]
        more = list(zip(times, hosted, strict=True))
        self.hand_on = [(time.hand_on + stage.again) * slow for time, stage in more]
        self.backward = [(time.least + stage.again) * slow for time, stage in more]
        self.longest_backward = [(time.most + stage.again) * slow for time, stage in more]
        self.weight = [
            whole - part for whole, part in zip(self.backward, self.hand_on, strict=True)
        ]
        """Least time of a backward after its gradient is handed on."""
        self.activation = [
            sums.activation_of(stage.low, stage.high) - stage.saved for stage in hosted
        ]
        changes = [
            sums.memory_b[stage.high] - sums.memory_b[stage.low] + stage.saved for stage in hosted
        ]
        self.memory_b = changes if space.split else [0 * change for change in changes]
        self.until_weight = [
            kept + change for kept, change in zip(self.activation, self.memory_b, strict=True)
        ]
        """Memory of a microbatch between its B and its W."""
        self.static = np.asarray(sum(sums.static_of(low, high) for low, high in ends))
        limits = space.limits
        self.room: Ints | None = None if limits is None else limits[device] - self.static
        self.held = np.asarray(sum(self.activation))
        """Memory of a microbatch between its last F and its first backward here."""
        self.tight = (
            np.zeros(self.held.shape, bool)
            if self.room is None
            else self.batches * self.held > self.room
        )
        """Whether memory does not hold all microbatches at once."""

    @cached_property
    def round_trip(self) -> Ints:
        """From the end of F of the last hosted stage to the start of its backward."""
        last = self.hosted[-1]
        return np.asarray(self.space.sums.round_trip[last.stage, last.high])

    @property
    def work(self) -> Ints:
        """Time of all operations, of all microbatches."""
        return self.space.of_all_batches(np.asarray(sum(self.forward) + sum(self.backward)))

    @property
    def waiting_and_work(self) -> DeviceBound:
        """Argument 7: the least wait for the first input, then all operations."""
        end = self.head(0) + self.work
        found = DeviceBound(end, end - FOREVER)
        return found if self.space.split else _larger(found, self._ends(end - self.backward[0]))

    def head(self, first: int) -> Ints:
        """Least time before the first F of a hosted stage.

        For device span it counts from the first F of the device.
        """
        sums, stage = self.space.sums, self.hosted[first]
        if self.space.span:
            return np.asarray(self.later + self._down(0) - self._down(first))
        return np.asarray(self.later + sums.lead_in[stage.stage, stage.low])

    def _down(self, first: int) -> Ints:
        """From the start of F of a hosted stage to the end of F of the last one."""
        low, high = self.hosted[first], self.hosted[-1]
        links = _between(self.space.delays.forward, low.stage, high.stage)
        own = np.asarray(sum(self.forward[first:]))
        return np.asarray(own + self._others(self.space.sums.forward, first) + links)

    def _up(self, last: int) -> Ints:
        """From the start of the backward of a hosted stage to that of the first one."""
        low, high = self.hosted[0], self.hosted[last]
        links = _between(self.space.delays.backward, low.stage, high.stage)
        own = sum((self._least_hand_on(k) for k in range(1, last + 1)), start=0 * low.low)
        return np.asarray(own + self._others(self.space.sums.hand_on, 0, last) + links)

    def _least_hand_on(self, k: int) -> Ints:
        """Time to hand on the gradient of a hosted stage, by the least of every layer."""
        hand_on, stage = self.space.sums.hand_on, self.hosted[k]
        slow = self.space.slowness_of(self.device)
        return np.asarray((hand_on[stage.high] - hand_on[stage.low] + stage.again) * slow)

    def _others(self, sums: Ints, first: int, last: int | None = None) -> Ints:
        """Least time of the stages of other devices between hosted stages."""
        pairs = pairwise(self.hosted[first : None if last is None else last + 1])
        gaps = []
        for low, high in pairs:
            hosts = self.space.hosts[low.stage + 1 : high.stage]
            least = min(map(self.space.slowness_of, hosts), default=1)
            gaps.append((sums[high.low] - sums[low.high]) * least)
        return np.asarray(sum(gaps, start=0 * self.hosted[0].low))

    def _ends(self, start: Ints) -> DeviceBound:
        """Bound from the start of a backward of the first hosted stage."""
        sums, stage = self.space.sums, self.hosted[0]
        alone = start + self.backward[0]
        if self.space.span:
            return DeviceBound(alone, alone - FOREVER)
        out = self._least_hand_on(0) + sums.way_out[stage.stage, stage.low]
        return DeviceBound(alone, start + out)

    def _taken(self, k: int) -> Ints:
        """Memory that every backward of a hosted stage takes while it runs."""
        certain = self.space.split and not self.space.whole
        return np.where(self.hand_on[k] > 0, np.maximum(0, self.memory_b[k]), 0) * certain

    @cached_property
    def _taken_by_b(self) -> Ints:
        """Memory that B of the only hosted stage takes; 0 if there are several stages."""
        return self._taken(0) * (len(self.hosted) == 1)

    @cached_property
    def _room_of_waiting(self) -> Ints | None:
        """Room for microbatches before their backwards: one of these must be able to run."""
        return None if self.room is None else self.room - self._taken_by_b

    def _wait(self, first: int = 0) -> Ints:
        """Idle time between the first F of a hosted stage and the first backward."""
        stages = range(first, len(self.hosted))
        forwards = [
            KnapsackItems(self.forward[k], self.activation[k], self.batches) for k in stages
        ]
        way = self._down(first) + self.round_trip
        wait = np.maximum(0, way - most_work(forwards, self._room_of_waiting))
        return np.maximum(wait, self._paced_wait(first, way)) if self.pace else np.asarray(wait)

    def _paced_wait(self, first: int, way: Ints) -> Ints:
        """Argument 6: idle time up to `way` after the head of a hosted stage.

        Looked at are that instant, and the last before it at which an F of each stage comes.
        """
        stages, start = range(first, len(self.hosted)), self.head(first)
        heads = [self.head(k) - start for k in stages]
        paces = [np.max([0 * way + self.pace, *self.forward[:k]], axis=0) for k in stages]

        def idle(until: Ints) -> Ints:
            come = (
                np.clip(-((head - until) // pace), 0, self.batches)
                for head, pace in zip(heads, paces, strict=True)
            )
            done = sum(count * self.forward[k] for count, k in zip(come, stages, strict=True))
            return np.asarray(until - done)

        found = [idle(way)]
        for head, pace in zip(heads, paces, strict=True):
            found.append(idle(np.minimum(way, head + np.maximum(0, way - head) // pace * pace)))
        return np.asarray(np.max(found, axis=0))

    def _unfinished(self, times: list[Ints]) -> Ints:
        """Most backward work of other microbatches left when the last F of the last stage starts.

        A microbatch before its backward holds its activation and has all of `times` left; one
        before its W holds `until_weight` and has what B leaves of it. An F of no length may share
        its instant.
        """
        others = self.batches - 1
        everything = np.asarray(others * sum(times))
        if self.room is None or self._room_of_waiting is None:
            return everything
        items = [
            KnapsackItems(time, activation, others)
            for time, activation in zip(times, self.activation, strict=True)
        ]
        most = most_work(items, self._room_of_waiting - self.held)
        gives = np.any([change < 0 for change in self.memory_b], axis=0)
        if self.space.split and gives.any():
            parts = zip(times, self.hand_on, self.until_weight, strict=True)
            items += [KnapsackItems(time - own, memory, others) for time, own, memory in parts]
            most = np.where(gives, most_work(items, self.room - self.held), most)
        most = np.minimum(everything, most)
        return np.where(self.forward[-1] > 0, most, everything)

    @cached_property
    def _left(self) -> Ints:
        """Idle time of argument 1 after the last F."""
        left = np.maximum(0, self.round_trip - self._unfinished(self.longest_backward))
        return np.where(self.forward[-1] > 0, left, 0)

    @cached_property
    def _pending(self) -> Ints:
        """Most work of W left when the last backward of the first hosted stage starts."""
        items = [
            KnapsackItems(time, memory, self.batches - (0 if k else 1))
            for k, (time, memory) in enumerate(zip(self.weight, self.until_weight, strict=True))
        ]
        room = self.room
        if room is not None:
            room = room - np.where(self.hand_on[0] > 0, self.activation[0], 0) - self._taken_by_b
        return most_work(items, room)

    def way_from(self, first: int) -> DeviceBound:
        """Arguments 1 to 4, for the operations from F of hosted stage `first` on."""
        wait, start = self._wait(first), self.head(first)
        forwards = np.asarray(self.batches * sum(self.forward[first:]))
        backwards = np.asarray(self.batches * sum(self.backward))
        idle = np.where(self.tight, wait + self._left, np.maximum(wait, self._left))
        work = start + forwards + backwards + idle
        last = start + wait + forwards + backwards - self.backward[0] - self._pending
        others = np.asarray((self.batches - 1) * sum(self.backward)) - self._unfinished(
            self.backward
        )
        turn = start + np.where(self.tight, wait, 0) + forwards + others + self.round_trip
        found = _larger(self._ends(last), self._ends(turn + self._up(len(self.hosted) - 1)))
        found = _larger(found, DeviceBound(work, found.through))
        for stage in range(len(self.hosted)):
            found = _larger(found, self._up_to_backward(stage, start + wait + forwards))
        return found

    def _up_to_backward(self, last: int, begun: Ints) -> DeviceBound:
        """Argument 4, up to the last backward of hosted stage `last`, after all F and idle time."""
        above = np.asarray(self.batches * sum(self.hand_on[last + 1 :], start=0 * begun))
        return self._ends(begun + above + (self.batches - 1) * self.hand_on[last] + self._up(last))

    def recurrence(self, first: int) -> DeviceBound:
        """Argument 5 from F of hosted stage `first`, for the most repetitions and one less."""
        found = DeviceBound(0 * self.held, 0 * self.held - FOREVER)
        work = np.asarray(sum(self.forward[first:]) + sum(self.backward))
        for fit, gap in self._repetitions(first):
            most: Ints = np.where(gap > fit * work, (self.batches - 1) // fit, 0)
            for times in (most, most - 1):
                here = np.flatnonzero(times > 0)
                if here.size:
                    rest = self._at(here, self.batches - times * fit, times * gap)
                    for row, own in zip(found, rest.way_from(first), strict=True):
                        row[here] = np.maximum(row[here], own)
        return found

    def _repetitions(self, first: int) -> Iterator[tuple[Ints, Ints]]:
        """Of argument 5 with p = `first`: n and h, by stage q, for the ends of B and of W.

        If memory waits for an end of B, none is running when an F starts; the next that does
        adds what it takes. If it waits for an end of W, enough have come to that of B, and one
        of these has not come to that of W.
        """
        assert self.room is not None
        room, up = self.room - sum(self.activation[: first + 1]), self._up(len(self.hosted) - 1)
        way = self._down(first) + self.round_trip + up
        for k in range(first + 1):
            before, after = np.asarray(sum(self.activation[: k + 1])), self.until_weight[k]
            arrives = way - self._up(k)
            handed_on = KnapsackItems(self.hand_on[k], before, self.batches)
            number = 1 + _fitting(handed_on, room - self._taken(k) * (k == first))
            yield number, arrives + self.hand_on[k]
            done = KnapsackItems(self.backward[k], np.minimum(before, after), self.batches)
            more = np.where(room < after, 1, 2 + _fitting(done, room - after))
            yield np.maximum(number, more), arrives + self.backward[k]

    def _at(self, places: Ints, batches: Ints, later: Ints) -> _Device:
        """Some of the choices, with other numbers of microbatches, which come later."""
        hosted = tuple(stage.at(places) for stage in self.hosted)
        return _Device(self.space, self.device, hosted, batches[places], later[places])

    def least_memory(self) -> Ints:
        """See the function of this name."""
        need, before = 0 * self.held, 0 * self.held
        for k, activation in enumerate(self.activation):
            before = before + activation
            need = np.maximum(need, before)
            if self.space.split and not self.space.whole:
                at_b = before + np.maximum(0, self.memory_b[k])
                need = np.maximum(need, np.where(self.hand_on[k] > 0, at_b, 0))
                need = np.maximum(need, np.where(self.weight[k] > 0, self.until_weight[k], 0))
        return np.asarray(self.static + need)


def _between(rows: tuple[tuple[int, ...], ...], low: int, high: int) -> int:
    """Least delays between two stages, over all places of the cuts."""
    return sum(min(rows[stage][1:-1], default=0) for stage in range(low, high))
