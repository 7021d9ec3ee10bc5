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

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np

from ppopt.problem.arrays import Ints
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
NEVER = 2**62
"""Time of two operations that never run as one."""


def memory_of_either(costs: StageCosts[int]) -> dict[str, Ints]:
    """Memory of split backwards B' and W' that can replace B and W, and BW, by field.

    While B' or W' runs, and between them, a microbatch needs no more memory than in B, in W and
    between them, and no more than in BW.
    """
    retained, whole = np.array(costs.kept), np.add(costs.recompute_memory, costs.backward_workspace)
    missing = np.minimum(costs.activation - retained, whole)
    return {
        "activation": retained + missing,
        "recompute_memory": missing,
        "memory_b": np.maximum(np.minimum(costs.memory_b, 0), -(retained + missing)),
        "input_workspace": np.minimum(costs.input_workspace, whole - missing),
        "weight_workspace": np.minimum(costs.weight_workspace, whole - missing),
    }


@dataclass(frozen=True, eq=False)
class ShortPairs:
    """The pairs of an instance with backwards of some kind."""

    costs: InstanceCosts
    backward_kind: BackwardKind

    @cached_property
    def save_time(self) -> bool:
        """Whether some pair takes less time than its operations one after the other."""
        return self._any_below(np.add)

    @cached_property
    def exist(self) -> bool:
        """Whether some pair takes less time than one of its operations alone."""
        return self._any_below(np.maximum)

    def _any_below(self, time: Callable[[Ints, Ints], Ints]) -> bool:
        return bool(self.stage_pairs) and bool((self._pairs < time(*self._alone)).any())

    @cached_property
    def stage_pairs(self) -> list[tuple[int, int]]:
        """Stages of an F and a backward that may run as one: on any route on one device."""
        pipeline = self.costs.pipeline
        if pipeline.overlap is None:
            return []
        hosted = (sum(rows, ()) for rows in zip(*pipeline.hosted, strict=True))
        return sorted({pair for stages in hosted for pair in product(stages, stages)})

    @property
    def _alone(self) -> tuple[Ints, Ints]:
        """Times of every F, and of every backward by kind, in the axes of `_pairs`."""
        times = np.array(self.costs.ticks.durations)
        return times[OpKind.F][:, None], times[[*KINDS[self.backward_kind]]][:, None]

    @cached_property
    def _pairs(self) -> Ints:
        """Time of every pair, [kind of backward, stage of F, stage of backward]; else `NEVER`."""
        stages = self.costs.pipeline.num_stages
        kinds = KINDS[self.backward_kind]
        times = np.full((len(kinds), stages, stages), NEVER)
        for row, kind in enumerate(kinds):
            for forward, backward in self.stage_pairs:
                times[row, forward, backward] = self.costs.ticks.pair_time(forward, kind, backward)
        return times

    @cached_property
    def relaxed(self) -> InstanceCosts:
        """The costs of the relaxation; with whole backwards if these are whole."""
        costs, pairs = self.costs.ticks.costs, self._pairs.min(axis=0)
        forward_alone, backward_alone = self._alone
        forward = np.minimum(forward_alone[:, 0], pairs.min(axis=1))
        backward = np.minimum(backward_alone.min(axis=(0, 1)), pairs.min(axis=0))
        rows = {
            "forward": forward,
            "backward": backward,
            "backward_input": backward,
            "weight": self._weight(backward, pairs),
            "recompute_time": np.zeros_like(forward),
            "overlap": np.where(pairs == NEVER, np.add.outer(forward, backward), pairs),
            **(memory_of_either(costs) if self.backward_kind is BackwardKind.MIXED else {}),
        }
        numbers = {field: _as_row(row.tolist()) for field, row in rows.items()}
        relaxed = replace(costs, overlap_input=(), **numbers)
        return self.costs.without(
            Trait.LINKS, Trait.BLOCKING, ticks=self.costs.ticks.with_costs(relaxed)
        )

    def _weight(self, partial: Ints, pairs: Ints) -> Ints:
        """Time of W' per stage, if B' takes `partial`, and F with B' what `pairs` has."""
        b, w, bw = map(np.array, self.costs.ticks.durations[1:])
        if self.backward_kind is BackwardKind.WHOLE:
            return np.zeros_like(w)
        if self.backward_kind is BackwardKind.SPLIT:
            return w
        remaining = np.where(pairs == NEVER, NEVER, self._pairs[-1] - pairs).min(axis=0)
        times: Ints = np.minimum.reduce([w, np.minimum(bw, b + w) - partial, remaining])
        return times


def _as_row(values: Any) -> Any:
    """Numbers, in lists of any depth, as tuples."""
    return tuple(map(_as_row, values)) if isinstance(values, list) else values
