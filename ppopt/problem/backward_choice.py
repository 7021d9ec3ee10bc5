"""Split or whole: where one of them is never worse, and what both have in common.

BW of a stage, replaced by B and then W at once, fits into its time where BW >= B + W, and holds no
more memory where B takes none: splitting that stage loses nothing. B and its W, replaced by BW in
the place of B, fit into the time of B where BW <= B, and hold no more: splitting that stage gains
nothing. All other stages have a choice, per microbatch.

The relaxation of a choice is a pipeline of split backwards with

    B' = min(B, BW),   B' + W' = min(BW, B + W),   memory_b' = min(memory_b, 0).

Take any schedule of the pipeline. In the time of every BW run B' and then W', in the time of every
B run B', and in the time of every W run W' (W' <= W, and W' = 0 where BW < B). That is a schedule
of the relaxation: nothing starts earlier than before, and nothing ends later, so precedence and
devices are kept; B' and W' give back what BW gave back, or earlier. So a lower bound of the
relaxation is a lower bound of the pipeline, whatever proves it.

An F and a backward that run as one are kept as a pair: F with B' in the place of F with B, and F
with B', then W', in the place of F with BW. Both must fit into the time of the pair, so W', and
where that is not enough B' too, is 0 in pipelines where some pair does not hold them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Any

from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.operation import OpKind
from ppopt.problem.pipeline import Pipeline

Times = tuple[Fraction, ...]


@dataclass(frozen=True, eq=False)
class BackwardChoice:
    """The choice between split and whole backwards at every stage of a pipeline."""

    pipeline: Pipeline

    @cached_property
    def kinds(self) -> tuple[BackwardKind, ...]:
        """Per stage: split or whole, where that is never worse than the other; else mixed."""
        return tuple(map(self._kind, range(self.pipeline.num_stages)))

    @cached_property
    def uniform(self) -> BackwardKind | None:
        """The kind that is never worse, at all stages; None: there is none."""
        stages = range(self.pipeline.num_stages)
        if all(map(self._splitting_loses_nothing, stages)):
            return BackwardKind.SPLIT
        if all(map(self._splitting_gains_nothing, stages)):
            return BackwardKind.WHOLE
        return None

    def _kind(self, stage: int) -> BackwardKind:
        if self._splitting_loses_nothing(stage):
            return BackwardKind.SPLIT
        return BackwardKind.WHOLE if self._splitting_gains_nothing(stage) else BackwardKind.MIXED

    def _splitting_loses_nothing(self, stage: int) -> bool:
        ticks = self.pipeline.ticks
        _, partial, weight, full = (times[stage] for times in ticks.durations)
        return (
            full >= partial + weight
            and not ticks.takes[OpKind.B][stage]
            and all(
                ticks.pair_time(forward, OpKind.BW, stage)
                >= ticks.pair_time(forward, OpKind.B, stage) + weight
                for forward in self._beside(stage)
            )
        )

    def _splitting_gains_nothing(self, stage: int) -> bool:
        """Whether BW <= B; a pair of F and BW is then no longer than that of F and B."""
        _, partial, _, full = (times[stage] for times in self.pipeline.ticks.durations)
        return full <= partial

    def _beside(self, stage: int) -> set[int]:
        """Stages whose F may run as one with a backward of a stage; none without overlap."""
        if self.pipeline.overlap is None:
            return set()
        devices = {hosts[stage] for hosts in self.pipeline.hosts}
        return {
            other for hosts in self.pipeline.hosted for device in devices for other in hosts[device]
        }

    @cached_property
    def relaxed(self) -> Pipeline:
        """The pipeline of split backwards whose lower bounds hold for this one (see above).

        It has the same ticks of time.
        """
        tried = (self._relaxed(*times) for times in self._parts())
        return next(made for made in tried if self._pairs_fit(made))

    def _parts(self) -> Iterator[tuple[Times, Times]]:
        """B' and W' per entry of the pipeline, the longest first."""
        given = self.pipeline
        entries = list(zip(given.backward_input, given.weight, given.backward, strict=True))
        partial = tuple(min(b, bw) for b, _, bw in entries)
        both = tuple(min(bw, b + w) for b, w, bw in entries)
        weight = tuple(most - b for b, most in zip(partial, both, strict=True))
        none = (Fraction(0),) * len(entries)
        yield partial, weight
        yield partial, none
        yield none, none

    def _relaxed(self, partial: Times, weight: Times) -> Pipeline:
        given = self.pipeline
        full = tuple(b + w for b, w in zip(partial, weight, strict=True))
        fields: dict[str, Any] = {
            "backward_input": partial,
            "weight": weight,
            "backward": full,
            "memory_b": tuple(min(change, Fraction(0)) for change in given.memory_b),
            "overlap": None if given.overlap is None else self._overlap(full),
        }
        if given.model is not None:
            fields |= {"model": None, "partition": None, "chunks": None}
            fields |= {"stages": given.num_stages, "placement": given.hosts[0]}
            fields |= {"mem_limit": given.limits}
        made = replace(given, **fields, tick_divisor=1)
        finer = given.ticks.per_unit // made.ticks.per_unit
        return made if finer == 1 else replace(made, tick_divisor=finer)

    def _overlap(self, full: Times) -> Times:
        """Time of F and BW' as one, which saves what F and BW save, as far as it can."""
        given = self.pipeline
        entries = zip(given.forward, full, given.backward, given.overlap, strict=True)
        return tuple(max(f, new, new - bw + pair) for f, new, bw, pair in entries)

    def _pairs_fit(self, relaxed: Pipeline) -> bool:
        """Whether every pair holds F with B', and if it is whole, then W'."""
        ours, theirs = self.pipeline.ticks, relaxed.ticks
        return all(
            theirs.pair_time(forward, OpKind.B, stage)
            + (theirs.durations[OpKind.W][stage] if kind is OpKind.BW else 0)
            <= ours.pair_time(forward, kind, stage)
            for stage in range(relaxed.num_stages)
            for forward in self._beside(stage)
            for kind in (OpKind.B, OpKind.BW)
        )
