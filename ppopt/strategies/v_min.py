"""V-Min: two chunks in a V within a third of the memory of 1F1B.

A building block of equal slots stalls in every microbatch if F, B and W differ (arXiv 2405.15362,
section 3, on V-Min). Memory is small because activations are live for a short time: microbatches
enter no faster than devices can work and then go through without waiting; `paced_sequences` does
the same with the real times of every stage.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from itertools import accumulate

from ppopt.problem.instance import Instance
from ppopt.problem.operation import OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.generation import NEVER, EventSimulation
from ppopt.schedule.orders import Orders
from ppopt.strategies.base import Options, equal_times, register
from ppopt.strategies.building_block import Block, split_orders

PACES = (100, 105, 110, 115, 120, 125)
"""Percent of the busiest device's time at which microbatches enter if passes differ."""


@register(
    name="v-min",
    summary="building block in a V, about a third of the memory of 1F1B",
    source="Controllable Memory, arXiv 2405.15362, section 3",
    placement="v",
    chunks=2,
    adaptive=True,
)
def build(pipeline: Pipeline, _: Options) -> Orders:
    """Every pass of a microbatch follows its input at once: the shortest life of an activation.

    At most 2 floor((p + 4) / 3) chunks on a device (arXiv 2405.15362, section 3). With F, B and W
    of one length it idles about 2p/3 of a microbatch's time, at its ends alone. With other lengths
    the block stalls in every microbatch (same section): then orders by the same idea from the real
    times (`paced_sequences`) compete with it.
    """
    max_in_flight = 2 * ((pipeline.num_devices + 4) // 3)
    paces = () if equal_times(pipeline) else PACES
    alternatives = [
        partial(paced_sequences, max_in_flight=max_in_flight, percent=pace) for pace in paces
    ]
    return split_orders(pipeline, v_min_block(pipeline.num_devices), max_in_flight, alternatives)


def v_min_block(devices: int) -> Block:
    """All offsets between neighbours are 1 slot (arXiv 2405.15362, appendix).

    Two more before the backward where 3 divides p: else two passes would share a slot.
    """
    pause = 2 if devices % 3 == 0 else 0
    return Block(
        slots=tuple(
            (i, 2 * devices - 1 - i, 2 * devices + pause + i, 4 * devices + pause - 1 - i)
            for i in range(devices)
        ),
        back=1,
    )


PATIENCE = 50
"""Percent of W that must fit before the next known arrival."""


def paced_sequences(instance: Instance, max_in_flight: int, percent: int) -> list[list[int]]:
    """Classes of the operations per device, W included; `instance` has two chunks in a V.

    Microbatches enter every `percent` of the time that the busiest device works on one. A device
    with `max_in_flight` activations starts no further microbatch. It may exceed that for a
    microbatch that it has started, so that nothing waits in a circle.
    """
    return _Paced(instance, max_in_flight, percent).result()


class _Paced:
    """One simulation, with the activations in flight on every device."""

    def __init__(self, instance: Instance, max_in_flight: int, percent: int) -> None:
        self.run, self.instance, self.max_in_flight = (
            EventSimulation(instance),
            instance,
            max_in_flight,
        )
        self.classes, self.times = instance.classes, instance.amounts("duration")
        hosted = [
            filter(None, map(self.times.__getitem__, class_ids)) for class_ids in instance.hosted
        ]
        work = [zip(*times, strict=True) for times in hosted]
        busiest = map(max, zip(*(map(sum, rows) for rows in work), strict=True))
        paces = [-(-time * percent // 100) for time in busiest]
        self.entries = list(accumulate(paces[:-1], initial=0))
        self.entry = instance.class_id(OpKind.F, 0)
        self.coming: list[int | None] = [None for _ in self.classes]
        """When the next operation of a class may start, if that is known."""
        self.coming[self.entry] = 0
        self.passes = [
            [
                (class_id, kind)
                for class_id in class_ids
                if isinstance(kind := self.classes[class_id].kind, OpKind) and kind is not OpKind.W
            ]
            for class_ids in instance.hosted
        ]
        """Class and kind of the F and B of every device, the F of its first chunk in front."""
        self.in_flight = [0 for _ in instance.hosted]
        self.pending: list[deque[int]] = [deque() for _ in instance.hosted]
        """Classes of the W that may run, oldest first."""

    def result(self) -> list[list[int]]:
        """Run all microbatches from the instants at which they enter device 0."""
        self.run.run(self._choose, [(entry, 0) for entry in self.entries])
        return self.run.sequence

    def _choose(self, device: int, now: int) -> int | None:
        """The oldest ready microbatch, the backward if equal; otherwise a W, if any fits."""
        ready: list[tuple[int, int, int]] = []
        following, blocked = NEVER, False
        for class_id, kind in self.passes[device]:
            arrival = self.coming[class_id]
            if arrival is None:
                arrival = self.coming[class_id] = self.run.arrival(class_id)
                if arrival is None:
                    continue
            if arrival > now:
                following = min(following, arrival)
            elif kind is OpKind.F and not self._may_begin(device, class_id):
                blocked = True
            else:
                ready.append((self.run.done[class_id], -kind, class_id))
        if ready:
            _, back, class_id = min(ready)
            self._begin(device, class_id, OpKind(-back))
            return class_id
        if self.pending[device]:
            class_id = self.pending[device][0]
            time = self.times[class_id][self.run.done[class_id]]
            if blocked or 100 * (following - now) >= PATIENCE * time:
                self.in_flight[device] -= 1
                return self.pending[device].popleft()
        return None

    def _may_begin(self, device: int, class_id: int) -> bool:
        """Whether memory allows an F; on the second chunk it may be exceeded if no W is left."""
        first = class_id == self.passes[device][0][0]
        return self.in_flight[device] < self.max_in_flight or not (first or self.pending[device])

    def _begin(self, device: int, class_id: int, kind: OpKind) -> None:
        """Record the start of an F or B."""
        self.coming[class_id] = None
        *_, backward, weight = self.instance.class_ids(self.classes[class_id].stage)
        closing = weight if kind is OpKind.B else backward
        if kind is OpKind.F:
            self.in_flight[device] += 1
        if not self.classes[closing].size:
            self.in_flight[device] -= 1
        elif kind is OpKind.B:
            self.pending[device].append(weight)
        if class_id == self.entry:
            entered = self.run.done[class_id] + 1
            self.coming[class_id] = self.entries[entered] if entered < len(self.entries) else NEVER
