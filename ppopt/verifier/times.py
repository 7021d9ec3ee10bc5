"""How long operations of compute take, alone and as one of a pair."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from itertools import repeat

import numpy as np

from ppopt.problem.arrays import Ints
from ppopt.problem.costs import PairTimes
from ppopt.problem.operation import OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.verifier.modules import amounts


def compute_times(pipeline: Pipeline) -> tuple[Ints, Ints]:
    """Times of compute in ticks, and what pairs save, at factors of 1.

    Times of operations that run alone have shape [kind, stage]. An operation takes its time / the
    speed of its device; recompute makes B and BW longer, and saves nothing if they run in a pair.
    A pair saves the time of an F and a backward alone minus their time as one, shape [B or BW,
    stage of F, stage of the backward]; 0 if no device runs both.
    """
    costs, hosts = pipeline.costs, np.array(pipeline.hosts)
    per_unit = [pipeline.ticks.per_unit / pipeline.device_speed[device] for device in hosts[0]]
    rows = (costs.forward, costs.backward_input, costs.weight, costs.backward)
    f, *backwards, full = plain = _ticks(rows, per_unit)
    recompute, split = _ticks([amounts(pipeline).recompute_time], per_unit)[0], backwards[0]
    alone = plain.copy()
    alone[[OpKind.B, OpKind.BW]] += recompute
    savings = np.zeros((2, len(f), len(f)), dtype=np.int64)
    if pipeline.overlap is not None:
        with_bw = _together(costs.overlap, per_unit, f, full)
        with_b = with_bw + split - full
        longer = np.maximum(f[:, None], split + recompute) - recompute
        with_b = np.maximum(with_b, np.minimum(longer, with_bw))
        if costs.overlap_input:
            with_b = _together(costs.overlap_input, per_unit, f, split)
        both = f[:, None] + np.stack([split, full])[:, None]
        meet = (hosts[:, None, :, None] == hosts[:, None]).any(axis=(0, 1))
        savings = (both - np.stack([with_b, with_bw])) * meet
    return alone, savings


def _together(stated: PairTimes, per_unit: Sequence[Fraction], f: Ints, own: Ints) -> Ints:
    """Times of F and a backward that run as one, without recompute: [stage of F][of the backward].

    `stated` are the times of F with this kind of backward. A matrix has a time per pair of stages.
    A time per stage is that of F and the backward of the same stage. For two different stages: the
    sum of both times minus the smaller of the two stages' savings, but no less than the minimum of
    three times: the two stated, and the longer of this F and this backward.
    """
    if isinstance(stated[0], tuple):
        return _ticks(zip(*stated, strict=True), per_unit).T
    time = _ticks([stated], per_unit)[0]
    saved = np.minimum.outer(f + own - time, f + own - time)
    minimum = np.minimum(np.minimum.outer(time, time), np.maximum.outer(f, own))
    return np.asarray(np.maximum(np.add.outer(f, own) - saved, minimum))


def _ticks(rows: Iterable[Sequence[Fraction]], per_unit: Sequence[Fraction]) -> Ints:
    """Whole ticks of times of stages, row by row."""
    ticks = [[whole(time * unit) for time, unit in zip(row, per_unit, strict=True)] for row in rows]
    return np.array(ticks, dtype=np.int64)


def scaled(ticks: Ints, factors: Fraction | Sequence[Fraction]) -> Ints:
    """Ticks times one factor, or each times its own; the products are whole numbers."""
    if factors == 1 or not ticks.any():
        return ticks
    each = repeat(factors) if isinstance(factors, Fraction) else factors
    pairs = zip(ticks.ravel().tolist(), each, strict=False)
    products = [whole(tick * factor) for tick, factor in pairs]
    return np.array(products, dtype=np.int64).reshape(ticks.shape)


def whole(ticks: Fraction | int) -> int:
    """The ticks as an integer; asserts that they are whole."""
    assert ticks.denominator == 1, f"{ticks} ticks are not whole"
    return ticks.numerator
