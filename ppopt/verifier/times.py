"""How long operations of compute take, alone and as one of a pair."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import repeat

import numpy as np

from ppopt.problem.arrays import Ints
from ppopt.problem.costs import PairTimes
from ppopt.problem.operation import OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.verifier.modules import amounts


class ComputeTimes:
    """Times of compute in ticks, at factors of 1.

    An operation takes its time / the speed of its device. Recompute makes B and BW longer, and
    saves nothing if they run in a pair.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        costs = self.costs = pipeline.costs
        self.per_unit = [
            pipeline.ticks.per_unit / pipeline.device_speed[device] for device in pipeline.hosts[0]
        ]
        times = {OpKind.F: costs.forward, OpKind.B: costs.backward_input}
        times |= {OpKind.W: costs.weight, OpKind.BW: costs.backward}
        self.plain: Ints = np.array([self._ticks(times[kind]) for kind in OpKind], dtype=np.int64)
        """Without recompute, shape [kind, stage]."""
        self.recompute: Ints = np.array(
            self._ticks(amounts(pipeline).recompute_time), dtype=np.int64
        )
        """Shape [stage]."""
        self.alone: Ints = self.plain.copy()
        """With recompute, shape [kind, stage]."""
        self.alone[[OpKind.B, OpKind.BW]] += self.recompute

    def together(self, kind: Ints, forward: Ints, backward: Ints) -> Ints:
        """Times of F and B or BW (`kind`) that run as one.

        F with BW takes its stated time (see `_stated`). So does F with B, if stated. Otherwise F
        with B takes the time of F with BW plus B minus BW, but no less than the longer of F and B,
        unless F with BW takes less than that.
        """
        recompute = self.recompute[backward]
        with_bw = self._stated(self.costs.overlap, OpKind.BW, forward, backward) + recompute
        longer = np.maximum(self.alone[OpKind.F, forward], self.alone[kind, backward])
        difference = self.plain[kind, backward] - self.plain[OpKind.BW, backward]
        times = np.maximum(with_bw + difference, np.minimum(longer, with_bw))
        if self.costs.overlap_input:
            with_b = self._stated(self.costs.overlap_input, OpKind.B, forward, backward)
            times = np.where(kind == OpKind.B, with_b + recompute, times)
        return np.asarray(times)

    def _stated(self, stated: PairTimes, kind: OpKind, forward: Ints, backward: Ints) -> Ints:
        """Times of F and a backward that run as one, without recompute.

        `stated` are the times of F with this kind of backward. A matrix has a time per pair of
        stages. A time per stage is that of F and the backward of the same stage. For two different
        stages: the sum of both times minus the smaller of the two stages' savings, but no less than
        the minimum of three times: the two stated, and the longer of this F and this backward.
        """
        if isinstance(stated[0], tuple):
            rows = zip(stated, self.per_unit, strict=True)
            matrix = [[whole(time * unit) for time in row] for row, unit in rows]
            return np.asarray(np.array(matrix, dtype=np.int64)[forward, backward])
        f, own = self.plain[OpKind.F], self.plain[kind]
        time = np.array(self._ticks(stated), dtype=np.int64)
        saved = np.minimum((f + own - time)[forward], (f + own - time)[backward])
        longer = np.maximum(f[forward], own[backward])
        minimum = np.minimum(np.minimum(time[forward], time[backward]), longer)
        return np.asarray(np.maximum(f[forward] + own[backward] - saved, minimum))

    def _ticks(self, times: Sequence[Fraction]) -> list[int]:
        return [whole(time * unit) for time, unit in zip(times, self.per_unit, strict=True)]


def scaled(ticks: Ints, factors: Fraction | Sequence[Fraction]) -> Ints:
    """Ticks times one factor, or each times its own; the products are whole numbers."""
    each = repeat(factors) if isinstance(factors, Fraction) else factors
    products = [whole(tick * factor) for tick, factor in zip(ticks.tolist(), each, strict=False)]
    return np.array(products, dtype=np.int64)


def whole(ticks: Fraction | int) -> int:
    """The ticks as an integer; asserts that they are whole."""
    assert ticks.denominator == 1, f"{ticks} ticks are not whole"
    return ticks.numerator
