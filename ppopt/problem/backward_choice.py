"""Split or whole: where one of them is never worse, and what both have in common.

BW of a stage, replaced by B and then W at once, fits into its time where BW >= B + W. If B and W
then hold no more memory than it, splitting that stage loses nothing. B and its W, replaced by BW in
the place of B, fit into the time of B where BW <= B. If BW then holds no more than B, splitting
that stage gains nothing. All other stages have a choice, per microbatch.

The relaxation of a choice is a pipeline of split backwards with

    B' = min(B, BW),   B' + W' = min(BW, B + W)

in which B' and W' allocate no more than B and W, and no more than BW (`memory_of_either`).

Take any schedule of the pipeline. In the time of every BW run B' and then W', in the time of every
B run B', and in the time of every W run W' (W' <= W, and W' = 0 if BW < B). That is a schedule
of the relaxation: nothing starts earlier than before, and nothing ends later, so precedence and
devices are kept; B' and W' hold no more than BW and free no later. So a lower bound of the
relaxation is a lower bound of the pipeline, whatever proves it.

An F and a backward that run as one are kept as a pair: F with B' in the place of F with B, and F
with B', then W', in the place of F with BW. Both must fit into the time of the pair, so W' is 0
and, if that is not enough, B' and then its recompute, too, in pipelines where some pair does not
hold them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from operator import add, sub
from typing import Any

from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.costs import StageCosts, Ticks
from ppopt.problem.link_mode import LinkMode
from ppopt.problem.operation import OpKind
from ppopt.problem.pipeline import Pipeline

Times = tuple[Fraction, ...]


def memory_of_either(costs: StageCosts[Fraction]) -> dict[str, Times]:
    """Memory of split backwards, B' and W', in whose place B and W may run, or BW, by field.

    While B' or W' runs, and between them, a microbatch holds no more than in B, in W or between
    them, and no more than in BW.
    """
    zero, found = Fraction(0), []
    for stage, kept in enumerate(costs.kept):
        most = costs.recompute_memory[stage] + costs.backward_workspace[stage]
        missing = min(costs.activation[stage] - kept, most)
        workspaces = (costs.input_workspace[stage], costs.weight_workspace[stage])
        change = max(min(costs.memory_b[stage], zero), -(kept + missing))
        found.append((kept + missing, change, *(min(own, most - missing) for own in workspaces)))
    fields = ("activation", "memory_b", "input_workspace", "weight_workspace")
    return dict(zip(fields, zip(*found, strict=True), strict=True)) | {"recompute_memory": ()}


@dataclass(frozen=True, eq=False)
class BackwardChoice:
    """The choice between split and whole backwards at every stage of a pipeline.

    `relaxed` is for pipelines whose pairs have one time per stage, that of F and BW, and are no
    shorter than one of their operations; for the others there is `ppopt.problem.short_pairs`.
    """

    pipeline: Pipeline

    @cached_property
    def kinds(self) -> tuple[BackwardKind, ...]:
        """Per stage: split or whole, if that is never worse than the other; else mixed."""
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

    @cached_property
    def _tables(self) -> list[Ticks]:
        """Costs of the microbatches that differ. Of a pair the larger factor saves no more."""
        return [self.pipeline.ticks_at(*factors) for factors in set(self.pipeline.factors)]

    def _splitting_loses_nothing(self, stage: int) -> bool:
        """Whether BW takes no less time than B and W, and holds no less.

        Where microbatches differ, splitting may lose: the W of an earlier one may run later than
        BW of this one, but no later than its W, and they change places only if they are alike.
        """
        alike = len(self._tables) == 1
        return alike and self._loses_nothing(self._tables[0], stage)

    def _splitting_gains_nothing(self, stage: int) -> bool:
        """Whether BW takes no longer than B, alone and in every pair, and holds no more."""
        return all(self._gains_nothing(ticks, stage) for ticks in self._tables)

    def _loses_nothing(self, ticks: Ticks, stage: int) -> bool:
        _, partial, weight, full = (times[stage] for times in ticks.durations)
        return (
            full >= partial + weight
            and self._split_holds_no_more(ticks, stage)
            and all(
                ticks.pair_time(forward, OpKind.BW, stage)
                >= ticks.pair_time(forward, OpKind.B, stage) + weight
                for forward in self._beside(stage)
            )
        )

    def _gains_nothing(self, ticks: Ticks, stage: int) -> bool:
        _, partial, _, full = (times[stage] for times in ticks.durations)
        taken, _ = ticks.held_alone(OpKind.B, stage)
        return (
            full <= partial
            and ticks.takes[OpKind.BW][stage] <= taken
            and all(
                ticks.pair_time(forward, OpKind.BW, stage)
                <= ticks.pair_time(forward, OpKind.B, stage)
                for forward in self._beside(stage)
            )
        )

    def _split_holds_no_more(self, ticks: Ticks, stage: int) -> bool:
        """Whether B, and then W, hold no more than BW."""
        whole, _ = ticks.held_alone(OpKind.BW, stage)
        after_b = ticks.memory_change(OpKind.B, stage)
        b, w = (ticks.takes[kind][stage] for kind in (OpKind.B, OpKind.W))
        return max(b, after_b + w) <= whole

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

    def _parts(self) -> Iterator[tuple[Times, Times, Times]]:
        """B', W' and the recompute of B' per stage, the longest first."""
        costs = self.pipeline.costs
        stages = list(zip(costs.backward_input, costs.weight, costs.backward, strict=True))
        partial = tuple(min(b, bw) for b, _, bw in stages)
        both = tuple(min(bw, b + w) for b, w, bw in stages)
        none = (Fraction(0),) * len(stages)
        again = costs.recompute_time
        yield partial, tuple(map(sub, both, partial)), again
        yield partial, none, again
        yield none, none, again
        yield none, none, none

    def _relaxed(self, partial: Times, weight: Times, again: Times) -> Pipeline:
        """The pipeline with these times per stage, whose placement is spelled out."""
        costs = self.pipeline.costs
        full = tuple(map(add, partial, weight))
        relaxed = {
            "backward_input": partial,
            "weight": weight,
            "backward": full,
            "recompute_time": again,
            **memory_of_either(costs),
            "overlap": () if self.pipeline.overlap is None else self._overlap(full),
            "overlap_input": (),
        }
        return self.pipeline.with_stage_costs(relaxed, link_mode=LinkMode.DELAY)

    def _overlap(self, full: Times) -> Times:
        """Time of F and BW' as one, which saves what F and BW save, as far as it can."""
        costs = self.pipeline.costs
        given: Any = costs.overlap
        stages = zip(costs.forward, full, costs.backward, given, strict=True)
        return tuple(max(f, new, new - bw + pair) for f, new, bw, pair in stages)

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
