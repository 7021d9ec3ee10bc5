"""Least delays between the operations of one microbatch, along the stages of its route."""

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
class Delays:
    """Durations and delays of one route in ticks, and how many microbatches its stages can hold.

    Stages without backward count as stages of a backward of no length in the delays along the
    backwards. Nothing goes back over their links, so that adds nothing.

    `backward` is B, or BW where backwards are whole (then `weight` is 0).
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
        """Numbers of the classes of every stage (of its first slice), as they can run."""
        return [self.instance.numbers(stage, self.route) for stage in range(len(self.host))]

    @cached_property
    def operations(self) -> list[list[OperationClass]]:
        """Classes of every stage (of its first slice), in the order in which they can run."""
        return [[self.instance.classes[number] for number in mine] for mine in self.numbers]

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
        """Least delay from the end of B to the end of W per stage."""
        return [
            sum(
                self._lag(before, after) + self.instance.classes[after].duration
                for before, after in pairwise(mine)
            )
            for _, *mine in self.numbers
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
        numbers = [self.instance.number(kind, stage, self.route) for stage in stages]
        steps = [
            self.instance.classes[before].duration + self._lag(before, after)
            for before, after in pairwise(numbers)
        ]
        return list(accumulate(steps, initial=0))

    def _lag(self, before: int, after: int) -> int:
        """Lag between two classes of which the second waits for the first.

        0 if it does not: one of the two has no operations.
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
        """Least delay from the end of F(stage) to the start of B(stage): the longest path."""
        return self._round_trips[stage]

    @cached_property
    def _round_trips(self) -> list[int]:
        graph, found = self.graph(), []
        for forward, backward, *weight in reversed(self.numbers):
            found.append(graph.lag(forward, backward) or 0)
            for number in (forward, backward, *weight):
                graph.remove(number)
        return found[::-1]

    @cached_property
    def most_until_b(self) -> list[int | None]:
        """Per stage: most microbatches between the start of F and the end of B; None: any number.

        From F(stage) to B(stage) a microbatch holds what the F of this stage and of all lower
        stages of the device keep, because their backwards come later. The first B of the stage to
        start does so while all of them are held, and there must be room for what it takes. A B of
        no length may share its instant with what gives memory back: what it takes is not counted.
        """
        kept = [forward.change for forward, *_ in self.operations]
        found = []
        for stage, (device, (_, backward, *_)) in enumerate(
            zip(self.host, self.operations, strict=True)
        ):
            each = sum(kept[other] for other in self.hosted[device] if other <= stage)
            found.append(self._most(device, each, backward.allocates if backward.duration else 0))
        return found

    @cached_property
    def most_until_w(self) -> list[int | None]:
        """Per stage: most microbatches between the start of F and the end of W; None: any number.

        A microbatch holds at least the smaller of two amounts: what F keeps, and what F and B keep
        together.
        """
        held = [
            accumulate(op_class.change for op_class in before) for *before, _ in self.operations
        ]
        return [
            self._most(device, min(amounts))
            for device, amounts in zip(self.host, held, strict=True)
        ]

    def _most(self, device: int, each: int, beside: int = 0) -> int | None:
        """Number of times that `each` fits in addition to an amount; None: any number."""
        room = self.instance.headroom(device)
        return None if room is None or not each else max(0, room - beside) // each
