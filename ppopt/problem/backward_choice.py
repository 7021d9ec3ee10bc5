"""Stages at which split backwards, or whole backwards, are never worse.

- BW >= B + W: B and then W fit into the time of BW. If they also need no more memory, splitting the
  backwards of the stage loses nothing.
- BW <= B: BW fits into the time of B. If it also needs no more memory than B, splitting gains
  nothing.

At all other stages the kind of backward is a decision per microbatch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.costs import Ticks
from ppopt.problem.instance import Instance
from ppopt.problem.operation import OpKind


@dataclass(frozen=True, eq=False)
class BackwardChoice:
    """The choice between split and whole backwards at every stage of an instance."""

    instance: Instance

    @cached_property
    def kinds(self) -> tuple[BackwardKind, ...]:
        """Per stage: split or whole, if that is never worse than the other; else mixed."""
        return tuple(map(self._kind, range(self.instance.pipeline.num_stages)))

    @cached_property
    def uniform(self) -> BackwardKind | None:
        """The kind that is never worse, at all stages; None: there is no such kind."""
        stages = range(self.instance.pipeline.num_stages)
        if all(map(self._splitting_loses_nothing, stages)):
            return BackwardKind.SPLIT
        if all(map(self._splitting_gains_nothing, stages)):
            return BackwardKind.WHOLE
        return None

    def _kind(self, stage: int) -> BackwardKind:
        if self._splitting_loses_nothing(stage):
            return BackwardKind.SPLIT
        return BackwardKind.WHOLE if self._splitting_gains_nothing(stage) else BackwardKind.MIXED

    @cached_property
    def _tables(self) -> list[tuple[Ticks, dict[OpKind, list[int]]]]:
        """Costs of the different microbatches, and memory that B and BW allocate on each stage.

        A pair saves no more time with the larger factor.
        """
        costs = self.instance.costs
        each = [costs.ticks_at(*factors) for factors in set(costs.factors)]
        kinds = (OpKind.B, OpKind.BW)
        return [
            (ticks, {kind: [row[1] for row in ticks.amounts(kind)] for kind in kinds})
            for ticks in each
        ]

    def _splitting_loses_nothing(self, stage: int) -> bool:
        """Whether BW is at least as long as B and W together, and needs at least as much memory.

        If microbatches differ, splitting may lose: the W of an earlier microbatch may run after BW
        of this one, but not after its W, and two W can be exchanged only if they are equal.
        """
        (ticks, allocated), *differing = self._tables
        _, partial, weight, full = (times[stage] for times in ticks.durations)
        b, w = (ticks.allocates[kind][stage] for kind in (OpKind.B, OpKind.W))
        allocated_by_split = max(b, ticks.memory_change(OpKind.B, stage) + w)
        return (
            not differing
            and full >= partial + weight
            and allocated_by_split <= allocated[OpKind.BW][stage]
            and all(
                ticks.pair_time(forward, OpKind.BW, stage)
                >= ticks.pair_time(forward, OpKind.B, stage) + weight
                for forward in self._beside(stage)
            )
        )

    def _splitting_gains_nothing(self, stage: int) -> bool:
        """Whether BW is no longer than B, alone and in every pair, and needs no more memory."""
        return all(self._gains_nothing(*table, stage) for table in self._tables)

    def _gains_nothing(self, ticks: Ticks, allocated: dict[OpKind, list[int]], stage: int) -> bool:
        _, partial, _, full = (times[stage] for times in ticks.durations)
        return (
            full <= partial
            and ticks.allocates[OpKind.BW][stage] <= allocated[OpKind.B][stage]
            and all(
                ticks.pair_time(forward, OpKind.BW, stage)
                <= ticks.pair_time(forward, OpKind.B, stage)
                for forward in self._beside(stage)
            )
        )

    def _beside(self, stage: int) -> list[int]:
        """Stages whose F may run as one with a backward of a stage; none without overlap."""
        pairs = self.instance.short_pairs.stage_pairs
        return [forward for forward, backward in pairs if backward == stage]
