"""Delays along the chain of stages: what a microbatch must spend between two of its operations."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise

from ppopt.problem.operation import OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.solver.cp_sat import pairs


@dataclass(frozen=True)
class Chain:
    """One route of a pipeline as a chain of stages, in ticks.

    `backward` is B, or BW where the backward is fused (then `weight` is 0).
    """

    pipeline: Pipeline
    fused: bool
    route: int = 0

    @property
    def host(self) -> tuple[int, ...]:
        """Device of every stage."""
        return self.pipeline.hosts[self.route]

    @property
    def batches(self) -> int:
        """Microbatches of the route."""
        return self.pipeline.batches // self.pipeline.routes

    @cached_property
    def overlapped(self) -> bool:
        """Whether an F may share its time with a backward."""
        return pairs.useful(self.pipeline, fused=self.fused)

    @cached_property
    def forward(self) -> tuple[int, ...]:
        """Time of F per stage."""
        return self.pipeline.ticks.durations[OpKind.F]

    @cached_property
    def backward(self) -> tuple[int, ...]:
        """Time of B (or BW) per stage."""
        return self.pipeline.ticks.durations[OpKind.BW if self.fused else OpKind.B]

    @cached_property
    def weight(self) -> tuple[int, ...]:
        """Time of W per stage."""
        if self.fused:
            return (0,) * self.pipeline.num_stages
        return self.pipeline.ticks.durations[OpKind.W]

    @cached_property
    def _forth(self) -> list[int]:
        """Earliest start of F of every stage for one microbatch alone."""
        p2p = self.pipeline.ticks.p2p
        steps = [
            time + p2p[here][there]
            for time, (here, there) in zip(self.forward, pairwise(self.host), strict=False)
        ]
        return list(accumulate(steps, initial=0))

    @cached_property
    def _back(self) -> list[int]:
        """Time from the start of B of every stage to the start of B of stage 0."""
        p2p = self.pipeline.ticks.p2p
        steps = [
            time + p2p[there][here]
            for time, (here, there) in zip(self.backward[1:], pairwise(self.host), strict=True)
        ]
        return list(accumulate(steps, initial=0))

    def down(self, first: int, last: int) -> int:
        """Delay from the end of F(first) to the start of F(last), first < last."""
        return self._forth[last] - self._forth[first] - self.forward[first]

    def up(self, first: int, last: int) -> int:
        """Delay from the end of B(first) to the start of B(last), first > last."""
        return self._back[first] - self._back[last] - self.backward[first]

    def head(self, stage: int) -> int:
        """Delay from the start of F(0) to the start of F(stage)."""
        return self._forth[stage]

    def turn(self, stage: int) -> int:
        """Delay from the end of F(stage) to the start of B(stage)."""
        last = self.pipeline.num_stages - 1
        if stage == last:
            return 0
        end = self.down(stage, last) + self.forward[last]
        return end + self.backward[last] + self.up(last, stage)

    def most_until_b(self, stage: int) -> int | None:
        """Most microbatches between start of F and end of B of a stage; None: any number.

        From F(stage) to B(stage) the activations of all stages on the device up to this one are
        held, since their backwards come after.
        """
        ticks = self.pipeline.ticks
        device = self.host[stage]
        room = ticks.room(device)
        below = [other for other in self.pipeline.hosted[self.route][device] if other <= stage]
        each = sum(ticks.activation[other] for other in below)
        return None if room is None or not each else room // each

    def most_until_w(self, stage: int) -> int | None:
        """Most microbatches between start of F and end of W of a stage; None: any number."""
        ticks = self.pipeline.ticks
        room = ticks.room(self.host[stage])
        each = ticks.activation[stage]
        if not self.fused:
            each += min(0, ticks.memory_b[stage])
        return None if room is None or not each else room // each
