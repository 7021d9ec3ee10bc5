"""Lower bounds of one device, vectorised over all runs of layers that it may host.

A device hosts stages 1 .. v (here numbered in forward order). A microbatch visits it for F of
1 .. v, then for the backwards of v .. 1. The layers of these stages determine its work, its memory,
and the minimum delays before, between and after them, whatever the other cuts are. So each argument
below bounds every schedule of every partition with these stages. Quantities of a stage:

- `forward`: time of F
- `gradient_time`: minimum time from the start of a backward to its gradient (split: B; whole: BW)
- `backward`, `longest_backward`: minimum and maximum time of a backward (split: B + W; whole: BW)
- `activation`: memory that F allocates and retains; `memory_b`: change of memory by B

`head` is the minimum time before F of stage 1. `round_trip` is the minimum time from the end of F
of stage v to the start of its backward. There are m microbatches.

1. *Work and forced idle time*: head + m sum(forward + backward) + idle. Between the start of the
   first F and the start of the first backward of stage v there is a round trip, in which only F
   run, as many as fit into memory. Between the end of the last F of stage v and its backward there
   is another round trip, in which only backwards of live microbatches run. If not all microbatches
   fit into memory, the first wait ends before the second begins.
   *Arrivals*: for makespan, F of stage k starts at least a later than the head, and the j-th one
   after that j times the longest F of earlier stages later, s. So at most ceil((w - a) / s) start
   in the time w after the head. This bounds the idle time of every w up to the round trip.
2. *Last backward*: before the last backward of stage 1 starts, all F and all other backwards have
   run, except the W whose memory may still be live. After it the gradient passes up to stage 0,
   whose own backward ends the schedule.
3. *Last forward*: when the last F of stage v starts, all other F have run, and all backwards except
   those of live microbatches. After it come the round trip and the gradient path of 2.
4. *Subsets of the stages*: 1 to 3 for the operations from F of stage p on: they start later.
5. *Recurrence*: after F of stage p has started, the activations of its microbatch on the stages
   1 .. q <= p are live until its backward of stage q ends. From then until its W ends, activation +
   memory_b of stage q is live. Let h be the minimum time from that F to that end. If at most n - 1
   other microbatches fit, then j + 1 of the first j + n must have reached that end, one of them at
   least h after F of stage p of microbatch j. So the schedule without the first i n microbatches
   starts i h later.
   For v above 1 the arguments of every stage alone count too.
6. *Work*: if microbatches differ, 1 to 5 count all of them as long as the smallest. The head and
   the sum of all work are a bound as well; if backwards are whole, the way of 2 follows.
Each argument adds the work once per step (`ppopt.problem.features.gradient_work`). No F starts
before the unshard of the first layer ends: the head includes it, and all arrivals are as much
later. A device span begins with the unshard of stage 1 at the latest. The last operation of a stage
precedes its gradient sync, which precedes the optimizer of all stages of the device. During all F
and B of the device the gathered weights of stage 1 are live: they count as static memory.

If layers run no backward, the first stages need not wait for later stages. For makespan this makes
no difference: backwards of duration 0 may wait without cost. For device span it does, so only the
work of a device counts.

If a stage recomputes, its backward times are longer, `activation` is smaller, and `memory_b`
includes what its backward allocates again. On other devices nothing recomputes in these bounds,
which only shortens their delays.

1 is the bound of `ppopt.solver.bounds.device_bounds`; forced idle time as in
`ppopt.solver.bounds.idle_bounds`. Head-body-tail bounds: Carlier, EJOR 11 (1982).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain, pairwise
from typing import Any, NamedTuple

import numpy as np

from ppopt.problem.arrays import Ints
from ppopt.solver.partitions.space import FOREVER, PartitionSpace

OUTWARD = 1e-9
"""Relative margin by which results of floating-point arithmetic are rounded to the safe side."""


class Hosted(NamedTuple):
    """A stage of a device, with its first layer and its end, for many choices at once."""

    stage: int
    low: Ints
    """Layers before it, one entry per choice."""
    high: Ints
    """Layers up to its end."""
    recompute_time: Ints | int = 0
    """Recompute time, added to every backward."""
    saved: Ints | int = 0
    """Memory that its F does not retain; its backward allocates it at its start."""
    longest_before: Ints | int = 0
    """Lower bound of the longest F of earlier stages, for makespan; 0: unknown."""

    def at(self, selected: Ints) -> Hosted:
        """Select choices."""
        rows: Iterator[Any] = (row if isinstance(row, int) else row[selected] for row in self[1:])
        return Hosted(self.stage, *rows)

    @classmethod
    def joined(cls, stages: Sequence[Hosted]) -> Hosted:
        """The choices of several, one after the other."""
        rows = (np.broadcast_arrays(*stage[1:]) for stage in stages)
        return cls(stages[0].stage, *map(np.concatenate, zip(*rows, strict=True)))


class DeviceBound(NamedTuple):
    """Bounds of a device, one entry per choice; FOREVER: its memory limit is too small."""

    alone: Ints
    """Bound for an end on this device, or on a path from it."""
    through: Ints
    """Bound up to the end of the backward of stage 0, minus `first_stage_tail` of that stage."""

    def with_tail(self, tail: int | Ints) -> Ints:
        """The larger of both, if stage 0 has this tail."""
        return np.asarray(np.minimum(np.maximum(self.alone, self.through + tail), FOREVER))


class KnapsackItems(NamedTuple):
    """Work that can be done up to `copies` times, each with `memory` that is live meanwhile."""

    work: Ints
    memory: Ints
    copies: Ints | int


class BackwardTimes(NamedTuple):
    """Times of a backward of some layers, one entry per choice."""

    gradient_time: Ints
    """Minimum time until the gradient is computed."""
    minimum: Ints
    """Minimum time of the whole backward."""
    maximum: Ints
    """Maximum time of the whole backward."""


def backward_times(space: PartitionSpace, low: Ints, high: Ints) -> BackwardTimes:
    """Times of a backward of layers `low` to `high`, over the kinds that the space allows."""
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
    """Minimum time from the start of a backward of stage 0, minus the gradient time of its layers.

    It ends with the optimizer step of these layers. The path out of a device includes the gradient
    times of stage 0, which are subtracted here.
    """
    slow, sums = space.slowness_of(space.hosts[0]), space.sums
    own = backward_times(space, 0 * high, high).minimum + sums.optimizer[high]
    return (own - sums.gradient_time[high]) * slow + sums.gradient_sync[high]


def with_longest_before(
    space: PartitionSpace, devices: Iterable[Sequence[Hosted]]
) -> list[list[Hosted]]:
    """Stages of several devices, each with the longest F of earlier stages.

    The longest of consecutive stages of other devices is at least as long as their mean.
    """
    hosted = [list(stages) for stages in devices]
    if space.span:
        return hosted
    forward, stage, layers = space.sums.forward, 0, 0 * hosted[0][0].low
    longest, before = layers, {}
    for own in sorted(chain(*hosted), key=lambda own: own.stage):
        between = (forward[own.low] - forward[layers]) * space.min_slowness
        longest = np.maximum(longest, -(-between // max(1, own.stage - stage)))
        before[own.stage] = own._replace(longest_before=longest)
        time = (forward[own.high] - forward[own.low]) * space.slowness_of(space.hosts[own.stage])
        longest, stage, layers = np.maximum(longest, time), own.stage + 1, own.high
    return [[before[own.stage] for own in stages] for stages in hosted]


def device_bound(space: PartitionSpace, device: int, hosted: Sequence[Hosted]) -> DeviceBound:
    """The largest bound of a device by all arguments of this module."""
    own = _Device(space, device, tuple(hosted), space.batches)
    if space.span and not space.has_all_backwards:
        work = own.work
        return DeviceBound(work, work - FOREVER)
    bound = own.way_from(0)
    if space.batches_of_work > space.batches:
        bound = _larger(bound, own.waiting_and_work)
    for first in range(1, len(hosted)):
        bound = _larger(bound, own.way_from(first))
    if own.headroom is not None:
        for first in range(len(hosted)):
            bound = _larger(bound, own.recurrence(first))
        for stage in hosted if len(hosted) > 1 else ():
            bound = _larger(bound, _stage_alone(space, device, stage))
        short = own.min_memory() > own.headroom + own.static
        bound = DeviceBound(*(np.where(short, FOREVER, row) for row in bound))
    return bound


def _stage_alone(space: PartitionSpace, device: int, stage: Hosted) -> DeviceBound:
    """Bound of one stage alone on a device, computed once for equal layers if possible."""
    stage = stage._replace(longest_before=0)
    key = stage.low * (space.num_layers + 1) + stage.high
    _, first_indices, same = np.unique(key, return_index=True, return_inverse=True)
    different = stage.at(first_indices)
    recompute_time, saved = (
        np.broadcast_to(row, first_indices.shape)[same]
        for row in (different.recompute_time, different.saved)
    )
    if np.any(recompute_time != stage.recompute_time) or np.any(saved != stage.saved):
        return device_bound(space, device, [stage])
    bound = device_bound(space, device, [different])
    return DeviceBound(*(row[same] for row in bound))


def head_and_work(space: PartitionSpace, device: int, hosted: Sequence[Hosted]) -> Ints:
    """Minimum time before the first F of a device, of all its operations, and after them."""
    own = _Device(space, device, tuple(hosted), space.batches)
    return np.asarray(own.head(0) + own.work + own.min_tail)


def min_memory(space: PartitionSpace, device: int, hosted: Sequence[Hosted]) -> Ints:
    """Minimum memory limit below which no schedule exists, one entry per choice, in memory ticks.

    When F of stage k starts, the activations of its microbatch on the stages 1 .. k are live,
    because none of their backwards has started. A B with a duration above 0 adds its allocation. A
    whole backward adds nothing. One microbatch at a time needs no more than this, unless operations
    of duration 0 allocate memory.
    """
    return _Device(space, device, tuple(hosted), space.batches).min_memory()


def max_work(items: Sequence[KnapsackItems], headroom: Ints | None) -> Ints:
    """Upper bound on the work of items that fit into `headroom` together: exact for one item.

    For several items it is the linear relaxation of the knapsack problem: the minimum, over all
    prices per memory, of the price of the headroom plus the work of the items above their price.
    """
    everything = np.asarray(sum(item.copies * item.work for item in items))
    if headroom is None:
        return everything
    if len(items) == 1:
        return np.where(headroom < 0, 0, _fitting(items[0], headroom) * items[0].work)
    relaxed = everything.astype(float)
    for priced in items:
        price = priced.work / np.maximum(priced.memory, 1)
        worth = price * headroom + sum(
            item.copies * np.maximum(0, item.work - price * item.memory) for item in items
        )
        relaxed = np.where(priced.memory > 0, np.minimum(relaxed, worth), relaxed)
    rounded = np.ceil(relaxed * (1 + OUTWARD)).astype(np.int64)
    return np.where(headroom < 0, 0, np.minimum(everything, rounded))


def _fitting(item: KnapsackItems, headroom: Ints) -> Ints:
    """Number of copies of an item that fit."""
    counted = np.maximum(0, headroom) // np.maximum(item.memory, 1)
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
    ) -> None:
        """`later`: additional delay of the first of the `batches` microbatches."""
        sums = space.sums
        self.space, self.device, self.hosted, self.later = space, device, hosted, later
        self.batches: Ints = np.asarray(batches) + 0 * hosted[0].low
        ends = [(stage.low, stage.high) for stage in hosted]
        slow = space.slowness_of(device)
        self.forward = [(sums.forward[high] - sums.forward[low]) * slow for low, high in ends]
        times = [backward_times(space, low, high) for low, high in ends]
        more = list(zip(times, hosted, strict=True))
        self.gradient_time = [
            (time.gradient_time + stage.recompute_time) * slow for time, stage in more
        ]
        self.backward = [(time.minimum + stage.recompute_time) * slow for time, stage in more]
        self.longest_backward = [
            (time.maximum + stage.recompute_time) * slow for time, stage in more
        ]
        self.weight = [
            whole - gradient_time
            for whole, gradient_time in zip(self.backward, self.gradient_time, strict=True)
        ]
        """Minimum time of a backward after its gradient."""
        self.activation = [
            sums.activation_of(stage.low, stage.high) - stage.saved for stage in hosted
        ]
        changes = [
            sums.memory_b[stage.high] - sums.memory_b[stage.low] + stage.saved for stage in hosted
        ]
        self.memory_b = changes if space.split else [0 * change for change in changes]
        self.until_weight = [
            activation + change
            for activation, change in zip(self.activation, self.memory_b, strict=True)
        ]
        """Memory of a microbatch between its B and its W."""
        optimizer = sum(sums.optimizer[high] - sums.optimizer[low] for low, high in ends) * slow
        self.tails = [
            sums.gradient_sync[high] - sums.gradient_sync[low] + optimizer for low, high in ends
        ]
        """Time after the last operation of a stage."""
        self.min_tail = np.min(self.tails, axis=0)
        gathered = sums.unshard_memory[ends[0][1]] - sums.unshard_memory[ends[0][0]]
        self.static = np.asarray(gathered + sum(sums.static_of(low, high) for low, high in ends))
        """Static memory, and the gathered weights of the first stage, live during all F and B."""
        limits = space.limits
        self.headroom: Ints | None = None if limits is None else limits[device] - self.static
        self.live = np.asarray(sum(self.activation))
        """Live memory of a microbatch between its last F and its first backward on the device."""
        self.tight = (
            np.zeros(self.live.shape, bool)
            if self.headroom is None
            else self.batches * self.live > self.headroom
        )
        """Whether not all microbatches fit into memory at once."""

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
        """Argument 6: the least wait for the first input, then all operations."""
        end = self.head(0) + self.work
        bound = DeviceBound(end + self.min_tail, end - FOREVER)
        return bound if self.space.split else _larger(bound, self._ends(end - self.backward[0]))

    def head(self, first: int) -> Ints:
        """Minimum time before the first F of a hosted stage.

        For device span, from the first operation of the device: the unshard of its first stage.
        """
        sums, stage, lowest = self.space.sums, self.hosted[first], self.hosted[0]
        if self.space.span:
            unshard = sums.unshard[lowest.high] - sums.unshard[lowest.low]
            return np.asarray(self.later + unshard + self._down(0) - self._down(first))
        return np.asarray(self.later + sums.lead_in[stage.stage, stage.low])

    def _down(self, first: int) -> Ints:
        """From the start of F of a hosted stage to the end of F of the last one."""
        low, high = self.hosted[first], self.hosted[-1]
        links = int(self.space.min_delays[0, low.stage : high.stage].sum())
        own = np.asarray(sum(self.forward[first:]))
        return np.asarray(own + self._between_hosted(self.space.sums.forward, first) + links)

    def _up(self, last: int) -> Ints:
        """From the start of the backward of a hosted stage to that of the first one."""
        low, high = self.hosted[0], self.hosted[last]
        links = int(self.space.min_delays[1, low.stage : high.stage].sum())
        own = sum((self._min_gradient_time(k) for k in range(1, last + 1)), start=0 * low.low)
        return np.asarray(
            own + self._between_hosted(self.space.sums.gradient_time, 0, last) + links
        )

    def _min_gradient_time(self, k: int) -> Ints:
        """Gradient time of a hosted stage, as the sum of the minima of its layers."""
        gradient_time, stage = self.space.sums.gradient_time, self.hosted[k]
        slow = self.space.slowness_of(self.device)
        return np.asarray(
            (gradient_time[stage.high] - gradient_time[stage.low] + stage.recompute_time) * slow
        )

    def _between_hosted(self, sums: Ints, first: int, last: int | None = None) -> Ints:
        """Minimum time of the stages of other devices between hosted stages."""
        pairs = pairwise(self.hosted[first : None if last is None else last + 1])
        gaps = []
        for low, high in pairs:
            hosts = self.space.hosts[low.stage + 1 : high.stage]
            slowness = min(map(self.space.slowness_of, hosts), default=1)
            gaps.append((sums[high.low] - sums[low.high]) * slowness)
        return np.asarray(sum(gaps, start=0 * self.hosted[0].low))

    def _ends(self, start: Ints) -> DeviceBound:
        """Bound from the start of a backward of the first hosted stage."""
        sums, stage = self.space.sums, self.hosted[0]
        alone = start + self.backward[0] + self.tails[0]
        if self.space.span:
            return DeviceBound(alone, alone - FOREVER)
        out = self._min_gradient_time(0) + sums.way_out[stage.stage, stage.low]
        return DeviceBound(alone, start + out)

    def _allocated(self, k: int) -> Ints:
        """Memory that every backward of a hosted stage allocates at its start."""
        certain = self.space.split and not self.space.whole
        return np.where(self.gradient_time[k] > 0, np.maximum(0, self.memory_b[k]), 0) * certain

    @cached_property
    def _allocated_by_b(self) -> Ints:
        """Memory that B of the only hosted stage allocates; 0 if there are several stages."""
        return self._allocated(0) * (len(self.hosted) == 1)

    @cached_property
    def _waiting_headroom(self) -> Ints | None:
        """Headroom for microbatches before their backwards, so that a backward can run."""
        return None if self.headroom is None else self.headroom - self._allocated_by_b

    def _wait(self, first: int = 0) -> Ints:
        """Idle time between the first possible F of a hosted stage and the first backward.

        Windows end at that backward, at the last arrivals before it, and at first F.
        """
        stages = range(first, len(self.hosted))
        delays = [self._down(first) - self._down(k) for k in stages]
        turn = self._down(first) + self.round_trip
        ends = [turn]
        for k, delay in zip(stages, delays, strict=True):
            every = self.hosted[k].longest_before
            if not isinstance(every, int):
                ends += [delay, delay + (turn - delay) // every.clip(1) * every]
        idle: Ints = 0 * self.live
        for end in ends:
            forwards = [
                KnapsackItems(self.forward[k], self.activation[k], self._arriving(k, end - delay))
                for k, delay in zip(stages, delays, strict=True)
            ]
            idle = np.maximum(idle, end - max_work(forwards, self._waiting_headroom))
        return idle

    def _arriving(self, k: int, window: Ints) -> Ints:
        """Maximum number of F of a hosted stage that start in a window after its first one."""
        every = self.hosted[k].longest_before
        arriving = np.where(every > 0, -(-window // np.maximum(every, 1)), self.batches)
        return np.where(window > 0, np.minimum(arriving, self.batches), 0)

    def _unfinished(self, times: list[Ints]) -> Ints:
        """Maximum backward work of other microbatches that remains when the last F starts.

        A microbatch before its backward has its activation live and all of `times` to do. One
        before its W has `until_weight` live and the rest of `times` after B to do. An F of duration
        0 may share its instant with backwards.
        """
        num_others = self.batches - 1
        everything = np.asarray(num_others * sum(times))
        if self.headroom is None or self._waiting_headroom is None:
            return everything
        items = [
            KnapsackItems(time, activation, num_others)
            for time, activation in zip(times, self.activation, strict=True)
        ]
        max_work_left = max_work(items, self._waiting_headroom - self.live)
        frees = np.any([change < 0 for change in self.memory_b], axis=0)
        if self.space.split and frees.any():
            parts = zip(times, self.gradient_time, self.until_weight, strict=True)
            items += [KnapsackItems(time - own, memory, num_others) for time, own, memory in parts]
            max_work_left = np.where(
                frees, max_work(items, self.headroom - self.live), max_work_left
            )
        max_work_left = np.minimum(everything, max_work_left)
        return np.where(self.forward[-1] > 0, max_work_left, everything)

    @cached_property
    def _trailing_idle(self) -> Ints:
        """Idle time of argument 1 after the last F."""
        idle = np.maximum(0, self.round_trip - self._unfinished(self.longest_backward))
        return np.where(self.forward[-1] > 0, idle, 0)

    @cached_property
    def _pending(self) -> Ints:
        """Maximum work of W after the start of the last backward of the first hosted stage."""
        items = [
            KnapsackItems(time, memory, self.batches - (0 if k else 1))
            for k, (time, memory) in enumerate(zip(self.weight, self.until_weight, strict=True))
        ]
        headroom = self.headroom
        if headroom is not None:
            headroom = (
                headroom
                - np.where(self.gradient_time[0] > 0, self.activation[0], 0)
                - self._allocated_by_b
            )
        return max_work(items, headroom)

    def way_from(self, first: int) -> DeviceBound:
        """Arguments 1 to 4, for the operations from F of hosted stage `first` on."""
        wait, start = self._wait(first), self.head(first)
        forwards = np.asarray(self.batches * sum(self.forward[first:]))
        backwards = np.asarray(self.batches * sum(self.backward))
        idle = np.where(
            self.tight, wait + self._trailing_idle, np.maximum(wait, self._trailing_idle)
        )
        work = start + forwards + backwards + idle
        last = start + wait + forwards + backwards - self.backward[0] - self._pending
        other_backwards = np.asarray((self.batches - 1) * sum(self.backward)) - self._unfinished(
            self.backward
        )
        turn = start + np.where(self.tight, wait, 0) + forwards + other_backwards + self.round_trip
        bound = _larger(self._ends(last), self._ends(turn + self._up(len(self.hosted) - 1)))
        return _larger(bound, DeviceBound(work + self.min_tail, bound.through))

    def recurrence(self, first: int) -> DeviceBound:
        """Argument 5 from F of hosted stage `first`, for the maximum number of repetitions."""
        bound = DeviceBound(0 * self.live, 0 * self.live - FOREVER)
        work = np.asarray(sum(self.forward[first:]) + sum(self.backward))
        for fit, gap in self._repetitions(first):
            times: Ints = np.where(gap > fit * work, (self.batches - 1) // fit, 0)
            repeating = np.flatnonzero(times > 0)
            if repeating.size:
                rest = self._at(repeating, self.batches - times * fit, times * gap)
                for row, own in zip(bound, rest.way_from(first), strict=True):
                    row[repeating] = np.maximum(row[repeating], own)
        return bound

    def _repetitions(self, first: int) -> Iterator[tuple[Ints, Ints]]:
        """Values n and h of argument 5 with p = `first`, by stage q, for the ends of B and of W.

        If the F waits for memory that B frees, no B is running when it starts, and the next B adds
        its allocation. If it waits for memory that W frees, enough microbatches have ended B, and
        one of these has not ended W.
        """
        assert self.headroom is not None
        headroom, up = (
            self.headroom - sum(self.activation[: first + 1]),
            self._up(len(self.hosted) - 1),
        )
        way = self._down(first) + self.round_trip + up
        for k in range(first + 1):
            before, after = np.asarray(sum(self.activation[: k + 1])), self.until_weight[k]
            arrives = way - self._up(k)
            until_gradient = KnapsackItems(self.gradient_time[k], before, self.batches)
            fit = 1 + _fitting(until_gradient, headroom - self._allocated(k) * (k == first))
            yield fit, arrives + self.gradient_time[k]
            done = KnapsackItems(self.backward[k], np.minimum(before, after), self.batches)
            fit_until_w = np.where(headroom < after, 1, 2 + _fitting(done, headroom - after))
            yield np.maximum(fit, fit_until_w), arrives + self.backward[k]

    def _at(self, selected: Ints, batches: Ints, later: Ints) -> _Device:
        """Select choices, with other numbers of microbatches, all of which may arrive later."""
        hosted = tuple(stage.at(selected)._replace(longest_before=0) for stage in self.hosted)
        return _Device(self.space, self.device, hosted, batches[selected], later[selected])

    def min_memory(self) -> Ints:
        """See the function of this name."""
        need, before = 0 * self.live, 0 * self.live
        for k, activation in enumerate(self.activation):
            before = before + activation
            need = np.maximum(need, before)
            if self.space.split and not self.space.whole:
                at_b = before + np.maximum(0, self.memory_b[k])
                need = np.maximum(need, np.where(self.gradient_time[k] > 0, at_b, 0))
                need = np.maximum(need, np.where(self.weight[k] > 0, self.until_weight[k], 0))
        return np.asarray(self.static + need)
