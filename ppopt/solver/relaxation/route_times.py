"""Times of one microbatch along the stages of its route: durations, and minimum delays between."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain, pairwise

from ppopt.problem.class_graph import ClassGraph
from ppopt.problem.instance import Instance
from ppopt.problem.operation import OpKind
from ppopt.problem.operation_classes import OperationClass
from ppopt.problem.traits import Trait


@dataclass(frozen=True)
class RouteTimes:
    """Durations and delays of one route in ticks, and the microbatches that fit on its stages.

    In the delays along the backwards, stages without backward have a backward of duration 0. No
    gradient passes their links, so they add no delay.

    `backward` is B, or BW if backwards are whole (then `weight` is 0).
    """

    instance: Instance
    route: int = 0

    @property
    def host(self) -> tuple[int, ...]:
        """Device of every stage."""
        return self.instance.pipeline.hosts[self.route]

    @property
    def hosted(self) -> tuple[tuple[int, ...], ...]:
        """Stages of every device, ascending."""
        return self.instance.pipeline.hosted[self.route]

    @property
    def batches(self) -> int:
        """Number of microbatches of the route."""
        return self.instance.batches

    @cached_property
    def numbers(self) -> list[list[int]]:
        """Class ids of every stage (of its first slice), in feasible order."""
        return [self.instance.class_ids(stage, self.route) for stage in range(len(self.host))]

    @cached_property
    def operations(self) -> list[list[OperationClass]]:
        """Classes of every stage (of its first slice), in feasible order."""
        return [
            [self.instance.classes[class_id] for class_id in class_ids]
            for class_ids in self.numbers
        ]

    def graph(self) -> ClassGraph:
        """Precedence between these classes."""
        return ClassGraph(self.instance, chain.from_iterable(self.numbers))

    @cached_property
    def overlapped(self) -> bool:
        """Whether an F may run as an overlapped pair with a backward."""
        return Trait.PAIRS in self.instance.traits

    @cached_property
    def forward(self) -> list[int]:
        """Duration of F per stage."""
        return [forward.duration for forward, *_ in self.operations]

    @cached_property
    def backward(self) -> list[int]:
        """Duration of B (or BW) per stage."""
        return [backward.duration for _, backward, *_ in self.operations]

    @cached_property
    def weight(self) -> list[int]:
        """Duration of W per stage."""
        return [sum(op_class.duration for op_class in rest) for _, _, *rest in self.operations]

    @cached_property
    def closing(self) -> list[int]:
        """Minimum delay from the end of B to the end of W per stage."""
        return [
            sum(
                self._lag(before, after) + self.instance.classes[after].duration
                for before, after in pairwise(class_ids)
            )
            for _, *class_ids in self.numbers
        ]

    @cached_property
    def _forward_offset(self) -> list[int]:
        """Earliest start of F of every stage for one microbatch alone."""
        return self._offset(OpKind.F, range(len(self.host)))

    @cached_property
    def _backward_offset(self) -> list[int]:
        """Time from the start of B of every stage to the start of B of stage 0."""
        last = len(self.host) - 1
        offset = self._offset(self.instance.backward, range(last, -1, -1))
        return [offset[-1] - each for each in reversed(offset)]

    def _offset(self, kind: OpKind, stages: range) -> list[int]:
        """Earliest starts of the operations of a kind along consecutive stages."""
        numbers = [self.instance.class_id(kind, stage, self.route) for stage in stages]
        steps = [
            self.instance.classes[before].duration + self._lag(before, after)
            for before, after in pairwise(numbers)
        ]
        return list(accumulate(steps, initial=0))

    def _lag(self, before: int, after: int) -> int:
        """Lag from one class to another that waits for it.

        0 if it does not wait, because one of the two has no operations.
        """
        return dict(self.instance.predecessors[after]).get(before, 0)

    def down(self, first: int, last: int) -> int:
        """Delay from the end of F(first) to the start of F(last), first < last."""
        return self._forward_offset[last] - self._forward_offset[first] - self.forward[first]

    def up(self, first: int, last: int) -> int:
        """Delay from the end of B(first) to the start of B(last), first > last."""
        return self._backward_offset[first] - self._backward_offset[last] - self.backward[first]

    def head(self, stage: int) -> int:
        """Delay from the start of F(0) to the start of F(stage)."""
        return self._forward_offset[stage]

    def tail(self, stage: int) -> int:
        """Delay from the end of B(stage) to the end of B(0)."""
        return self.up(stage, 0) + self.backward[0] if stage else 0

    def round_trip(self, stage: int) -> int:
        """Minimum delay from the end of F(stage) to the start of B(stage): the longest path."""
        return self._round_trips[stage]

    @cached_property
    def _round_trips(self) -> list[int]:
        graph, trips = self.graph(), []
        for forward, backward, *weight in reversed(self.numbers):
            trips.append(graph.lag(forward, backward) or 0)
            for class_id in (forward, backward, *weight):
                graph.remove(class_id)
        return trips[::-1]

    @cached_property
    def max_until_b(self) -> list[int | None]:
        """Per stage: maximum microbatches between the start of F and the end of B; None: no limit.

        From F(stage) to B(stage) the activations of a microbatch on this stage and on all lower
        stages of the device are live, because their backwards run later. The first B of the stage
        starts while all of them are live, so its allocation must fit as well. The allocation of a B
        of duration 0 does not count: it may start when other operations free memory.
        """
        stashed = [forward.change for forward, *_ in self.operations]
        limits = []
        for stage, (device, (_, backward, *_)) in enumerate(
            zip(self.host, self.operations, strict=True)
        ):
            each = sum(stashed[lower] for lower in self.hosted[device] if lower <= stage)
            limits.append(
                self._max_microbatches(device, each, backward.allocates if backward.duration else 0)
            )
        return limits

    @cached_property
    def max_until_w(self) -> list[int | None]:
        """Per stage: maximum microbatches between the start of F and the end of W; None: no limit.

        The live memory of such a microbatch is at least the smaller of two amounts: the net change
        by F, and the net change by F and B.
        """
        live = [
            accumulate(op_class.change for op_class in before) for *before, _ in self.operations
        ]
        return [
            self._max_microbatches(device, min(amounts))
            for device, amounts in zip(self.host, live, strict=True)
        ]

    def _max_microbatches(self, device: int, each: int, beside: int = 0) -> int | None:
        """Number of times that `each` fits in addition to `beside`; None: no limit."""
        headroom = self.instance.headroom(device)
        return None if headroom is None or not each else max(0, headroom - beside) // each
