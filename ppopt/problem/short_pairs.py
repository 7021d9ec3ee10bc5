"""Overlapped pairs that take less time than one of their operations alone, and their relaxation.

A measured BW may wait for a link that F hides: as a pair they take less time than BW alone. Then an
operation does not always take the time that it takes alone, and bounds by durations do not hold.
The relaxation has operations for which they hold:

- F', B' and BW' have the minimum duration of F, B and BW, alone or in any pair that saves time;
- every pair keeps its time, in one matrix; recompute is part of the times.

Take any schedule of the pipeline, and keep all starts. Every operation that runs alone ends no
later than before, and every pair has its own time. So precedence and devices are respected, and
memory is freed no later. That is a schedule of the relaxation, and its value is no larger: a lower
bound of the relaxation is a lower bound of the pipeline, whatever proves it. No pair of the
relaxation is shorter than one of its operations.

If backwards are split, the matrix has the times of F with B, and BW' is B', so that F with B' takes
just that. If they may be either, the relaxation has split ones. Run B', and then W', in the place
of every BW; B' in the place of B, and W' in the place of W. It fits:

- B' is no longer than B, BW, or any pair of them;
- F with B' takes the smaller time of F with B and F with BW;
- W' is no longer than W, than the smaller of BW and B + W minus B', and than any F with BW minus F
  with B'.

B' and W' allocate no more than B, W and BW (`memory_of_either`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any

from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.costs import StageCosts
from ppopt.problem.instance_costs import InstanceCosts
from ppopt.problem.operation import OpKind
from ppopt.problem.traits import Trait

KINDS = {
    BackwardKind.SPLIT: (OpKind.B,),
    BackwardKind.WHOLE: (OpKind.BW,),
    BackwardKind.MIXED: (OpKind.B, OpKind.BW),
}
"""Kinds of backwards that pairs may have."""
Row = list[int]


def memory_of_either(costs: StageCosts[int]) -> dict[str, tuple[int, ...]]:
    """Memory of split backwards B' and W' that can replace B and W, and BW, by field.

    While B' or W' runs, and between them, a microbatch needs no more memory than in B, in W and
    between them, and no more than in BW.
    """
    rows = []
    for stage, retained in enumerate(costs.kept):
        whole = costs.recompute_memory[stage] + costs.backward_workspace[stage]
        missing = min(costs.activation[stage] - retained, whole)
        workspaces = (costs.input_workspace[stage], costs.weight_workspace[stage])
        change = max(min(costs.memory_b[stage], 0), -(retained + missing))
        beside = (min(own, whole - missing) for own in workspaces)
        rows.append((retained + missing, missing, change, *beside))
    fields = ("activation", "recompute_memory", "memory_b", "input_workspace", "weight_workspace")
    return dict(zip(fields, zip(*rows, strict=True), strict=True))


@dataclass(frozen=True, eq=False)
class ShortPairs:
    """The pairs of an instance with backwards of some kind."""

    costs: InstanceCosts
    backward_kind: BackwardKind

    @cached_property
    def save_time(self) -> bool:
        """Whether some pair takes less time than its operations one after the other."""
        return any(together < f + backward for together, f, backward in self._times)

    @cached_property
    def exist(self) -> bool:
        """Whether some pair takes less time than one of its operations alone."""
        return any(together < max(f, backward) for together, f, backward in self._times)

    @cached_property
    def _times(self) -> list[tuple[int, int, int]]:
        """Time of every pair, and of its F and its backward alone."""
        times = self.costs.ticks.durations
        return [
            (self._time(forward, kind, backward), times[OpKind.F][forward], times[kind][backward])
            for forward, backward in self.stage_pairs
            for kind in KINDS[self.backward_kind]
        ]

    @cached_property
    def stage_pairs(self) -> list[tuple[int, int]]:
        """Stages of an F and a backward that may run as one: on any route on one device."""
        pipeline = self.costs.pipeline
        if pipeline.overlap is None:
            return []
        pairs: set[tuple[int, int]] = set()
        for device in range(pipeline.num_devices):
            stages = [stage for hosted in pipeline.hosted for stage in hosted[device]]
            pairs.update(product(stages, stages))
        return sorted(pairs)

    def _time(self, forward: int, kind: OpKind, backward: int) -> int:
        return self.costs.ticks.pair_time(forward, kind, backward)

    @cached_property
    def relaxed(self) -> InstanceCosts:
        """The costs of the relaxation; with whole backwards if these are whole."""
        costs, stages = self.costs.ticks.costs, self.costs.pipeline.num_stages
        forward = self._min_times(OpKind.F)
        if self.backward_kind is BackwardKind.WHOLE:
            backward, weight = self._min_times(OpKind.BW), [0] * stages
        else:
            rows = [self._min_times(kind) for kind in KINDS[self.backward_kind]]
            backward = [min(times) for times in zip(*rows, strict=True)]
            weight = self._weight(backward)
        matrix = [[f + b for b in backward] for f in forward]
        for f_stage, b_stage in self.stage_pairs:
            matrix[f_stage][b_stage] = self._pair_time(f_stage, b_stage)
        times: Any = tuple(tuple(row) for row in matrix)
        relaxed = replace(
            costs,
            forward=tuple(forward),
            backward=tuple(backward),
            backward_input=tuple(backward),
            weight=tuple(weight),
            recompute_time=(0,) * stages,
            overlap=times,
            overlap_input=(),
            **(memory_of_either(costs) if self.backward_kind is BackwardKind.MIXED else {}),
        )
        return self.costs.without(Trait.LINKS, ticks=self.costs.ticks.with_costs(relaxed))

    def _min_times(self, kind: OpKind) -> Row:
        """Minimum time of F, B or BW per stage: alone, or in any pair."""
        times = list(self.costs.ticks.durations[kind])
        for f_stage, b_stage in self.stage_pairs:
            if kind is not OpKind.F:
                times[b_stage] = min(times[b_stage], self._time(f_stage, kind, b_stage))
                continue
            for backward in KINDS[self.backward_kind]:
                times[f_stage] = min(times[f_stage], self._time(f_stage, backward, b_stage))
        return times

    def _pair_time(self, forward: int, backward: int) -> int:
        """Time of F with B', or BW'."""
        return min(self._time(forward, kind, backward) for kind in KINDS[self.backward_kind])

    def _weight(self, partial: Row) -> Row:
        """Time of W' per stage, if B' takes `partial`."""
        _, b, w, bw = self.costs.ticks.durations
        times = list(w)
        if self.backward_kind is BackwardKind.MIXED:
            times = [
                min(w[stage], min(bw[stage], b[stage] + w[stage]) - partial[stage])
                for stage in range(len(times))
            ]
            for forward, backward in self.stage_pairs:
                remaining = self._time(forward, OpKind.BW, backward) - self._pair_time(
                    forward, backward
                )
                times[backward] = min(times[backward], remaining)
        return times
