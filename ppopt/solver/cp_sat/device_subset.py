"""What a few devices alone must obey: every other device replaced by the delays it causes.

Keep some devices as resources and drop the others. All that follows holds in every schedule of
the whole pipeline whose microbatches are in order (see `ppopt.solver.cp_sat.model`), so the least
objective of the kept devices under these constraints is a lower bound of the whole. With every
device kept, the constraints are exactly the pipeline's own data flow.

Where an F may run as one with a backward, each takes as long as the pair, which is at least its own
time: delays hold, and sums of backwards and W, which never share time; sums with F do not.

Notation: a, b kept stages, k a dropped one; down(a, b) the delay from the end of F(a) to the
start of F(b) through the stages between; up(b, a) the same of B; K the most microbatches that
memory lets stage k hold between F and B, L the same between F and W.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ppopt.problem.arrays import Ints
from ppopt.problem.instance import Constraints
from ppopt.problem.objective import Objective
from ppopt.problem.operation import OpKind
from ppopt.solver.cp_sat.delays import Chain


class Floor(NamedTuple):
    """objective >= end of `last` - start of `first` (None: 0) + `rest` ticks."""

    first: int | None
    last: int
    rest: int


class View(NamedTuple):
    """A chain seen by some devices; stages ascending."""

    chain: Chain
    devices: frozenset[int]

    @property
    def kept(self) -> list[int]:
        """Stages on the devices kept."""
        return [stage for stage, host in enumerate(self.chain.host) if host in self.devices]

    @property
    def dropped(self) -> list[int]:
        """Stages on the other devices."""
        return [stage for stage, host in enumerate(self.chain.host) if host not in self.devices]

    def above(self, stage: int) -> int | None:
        """Nearest kept stage after a dropped one; None: there is none."""
        return min((kept for kept in self.kept if kept > stage), default=None)

    def below(self, stage: int) -> int | None:
        """Nearest kept stage before a dropped one; None: there is none."""
        return max((kept for kept in self.kept if kept < stage), default=None)

    def codes(self, kind: OpKind, stage: int) -> Ints:
        """Operations of a kind and stage, in microbatch order; BW stands for B where fused."""
        if kind is OpKind.B and self.chain.fused:
            kind = OpKind.BW
        pipeline = self.chain.pipeline
        first = self.chain.route * self.chain.batches
        return np.asarray(pipeline.code(kind, stage, first + np.arange(self.chain.batches)))

    @property
    def operations(self) -> Ints:
        """Numbers of the operations of the kept stages, all split or all fused."""
        kinds = (OpKind.F, OpKind.B) if self.chain.fused else (OpKind.F, OpKind.B, OpKind.W)
        slices = np.arange(self.chain.pipeline.num_slices)[:, None]
        parts = [self.codes(kind, stage) + slices for kind in kinds for stage in self.kept]
        return np.concatenate(parts, axis=None)


def implied(view: View) -> Constraints:
    """Precedence constraints among the operations of the kept stages."""
    parts = [*_order(view), *_flow(view), *_memory(view), *_windows(view)]
    if not view.chain.overlapped:
        parts += _throughput(view)
    if not parts:
        return Constraints(*(np.empty(0, dtype=np.int64) for _ in range(3)))
    before = np.concatenate([part[0] for part in parts])
    after = np.concatenate([part[1] for part in parts])
    lag = np.concatenate([np.full(len(part[0]), part[2]) for part in parts])
    return Constraints(before, after, lag)


Part = tuple[Ints, Ints, int]


def _order(view: View) -> Iterator[Part]:
    """Microbatches in order within each kind and stage."""
    kinds = (OpKind.F, OpKind.B) if view.chain.fused else (OpKind.F, OpKind.B, OpKind.W)
    for stage in view.kept:
        for kind in kinds:
            codes = view.codes(kind, stage)
            yield codes[:-1], codes[1:], 0


def _flow(view: View) -> Iterator[Part]:
    """The data flow, dropped stages as delays: down, turn and up."""
    chain, kept = view.chain, view.kept
    for a, b in pairwise(kept):
        yield view.codes(OpKind.F, a), view.codes(OpKind.F, b), chain.down(a, b)
        yield view.codes(OpKind.B, b), view.codes(OpKind.B, a), chain.up(b, a)
    if kept:
        last = kept[-1]
        yield view.codes(OpKind.F, last), view.codes(OpKind.B, last), chain.turn(last)
    for stage in kept:
        yield view.codes(OpKind.F, stage), view.codes(OpKind.B, stage), 0
        if not chain.fused:
            yield view.codes(OpKind.B, stage), view.codes(OpKind.W, stage), 0


def _memory(view: View) -> Iterator[Part]:
    """F(a, j) waits for memory at its own stage: after B(a, j - K), and after W(a, j - L)."""
    for stage in view.kept:
        until_b, until_w = view.chain.most_until_b(stage), view.chain.most_until_w(stage)
        if until_b is not None and until_b < view.chain.batches:
            yield view.codes(OpKind.B, stage)[:-until_b], view.codes(OpKind.F, stage)[until_b:], 0
        if until_w is not None and until_w < view.chain.batches and not view.chain.fused:
            yield view.codes(OpKind.W, stage)[:-until_w], view.codes(OpKind.F, stage)[until_w:], 0


def needs_cumulative(view: View, device: int) -> bool:
    """Whether a kept device's memory limit says more than the constraints of `_memory`.

    With one stage on one route and nothing freed or taken by B (or a whole BW), the limit is a
    number of microbatches between F and W (or BW), in order: F(a, j) after W(a, j - L) exactly.
    """
    pipeline = view.chain.pipeline
    stages = [stage for hosted in pipeline.hosted for stage in hosted[device]]
    if pipeline.num_slices > 1:
        return True
    return len(stages) > 1 or not (view.chain.fused or pipeline.ticks.memory_b[stages[0]] == 0)


def _windows(view: View) -> Iterator[Part]:
    """F(b, j) waits for memory at a dropped stage k below b.

    F(k, j) starts after B(k, j - K) ends, and after W(k, j - L) ends; B(k, i) starts up(b, k) after
    the end of B(b, i), and F(b, j) starts down(k, b) after the end of F(k, j).
    """
    chain, batches = view.chain, view.chain.batches
    longest: dict[tuple[int, int], int] = {}
    for k in view.dropped:
        b = view.above(k)
        if b is None:
            continue
        way = chain.up(b, k) + chain.backward[k] + chain.forward[k] + chain.down(k, b)
        for most, lag in (
            (chain.most_until_b(k), way),
            (chain.most_until_w(k), way + chain.weight[k]),
        ):
            if most is not None and 0 < most < batches:
                longest[b, most] = max(longest.get((b, most), 0), lag)
    for (b, most), lag in longest.items():
        yield view.codes(OpKind.B, b)[:-most], view.codes(OpKind.F, b)[most:], lag


def _throughput(view: View) -> Iterator[Part]:
    """B(a, j + n) after F(a, j): a dropped stage k above a has n + 1 microbatches to pass.

    Between the arrival of F(k, j) and the end of B(k, j + n), stage k runs F and B of j .. j + n,
    and W of j .. j + n - L, which memory needs done before F(k, j + n).
    """
    chain, batches = view.chain, view.chain.batches
    longest: dict[tuple[int, int], int] = {}
    for k in view.dropped:
        a = view.below(k)
        if a is None:
            continue
        most = chain.most_until_w(k)
        ends = chain.down(a, k) + chain.up(k, a)
        for n in _steps(batches):
            forced = 0 if most is None else max(0, n + 1 - most)
            work = (n + 1) * (chain.forward[k] + chain.backward[k]) + forced * chain.weight[k]
            longest[a, n] = max(longest.get((a, n), 0), ends + work)
    for (a, n), lag in longest.items():
        yield view.codes(OpKind.F, a)[: batches - n], view.codes(OpKind.B, a)[n:], lag


def _steps(batches: int) -> list[int]:
    """1, 2, 4, ... and the last: enough of the throughput constraints, few enough to state."""
    powers = [1 << exponent for exponent in range(batches.bit_length()) if 1 << exponent < batches]
    return sorted({*powers, batches - 1} - {0})


def releases(view: View) -> Iterator[tuple[int, int]]:
    """(operation, earliest start) for makespan: the way to the first kept stage.

    F(b, j) comes after j + 1 forwards of every dropped stage before it.
    """
    kept = view.kept
    if not kept:
        return
    first, chain = kept[0], view.chain
    slowest = max(chain.forward[:first], default=0)
    for microbatch, code in enumerate(view.codes(OpKind.F, first).tolist()):
        yield code, chain.head(first) + microbatch * slowest


def floors(view: View, objective: Objective) -> Iterator[Floor]:
    """What the objective cannot be below, in terms of the kept operations."""
    yield from _own_floors(view, objective)
    for device in sorted(set(view.chain.host) - view.devices):
        if objective is Objective.MAKESPAN:
            yield from _dropped_makespan(view, device)
        else:
            yield from _dropped_span(view, device)


def _own_floors(view: View, objective: Objective) -> Iterator[Floor]:
    """The end of every kept operation, or the span of every kept device."""
    closing = OpKind.B if view.chain.fused else OpKind.W
    for device in sorted(view.devices):
        stages = view.chain.pipeline.hosted[view.chain.route][device]
        if not stages:
            continue
        first = int(view.codes(OpKind.F, stages[0])[0])
        for stage in stages:
            last = int(view.codes(closing, stage)[-1])
            yield Floor(None if objective is Objective.MAKESPAN else first, last, 0)


def _dropped_makespan(view: View, device: int) -> Iterator[Floor]:
    """A dropped device still has work after B(b, j), or after F(a, j), of the kept stages."""
    stages = view.chain.pipeline.hosted[view.chain.route][device]
    for k in stages:
        a, b = view.below(k), view.above(k)
        for j in range(view.chain.batches):
            if b is not None:
                last = int(view.codes(OpKind.B, b)[j])
                yield Floor(None, last, view.chain.up(b, k) + _work_after_b(view, stages, k, j))
            if a is not None:
                last = int(view.codes(OpKind.F, a)[j])
                yield Floor(None, last, view.chain.down(a, k) + _work_after_f(view, stages, k, j))


def _work_after_b(view: View, stages: tuple[int, ...], k: int, j: int) -> int:
    """Least work of the device once B(k, j) may start.

    B and W of microbatches j and later at stages up to k; F of those that memory holds back:
    F(s, i) waits for B(s, i - K), and B(s, i) with s <= k, i >= j comes after B(k, j) starts.
    """
    chain, left = view.chain, view.chain.batches - j
    work = 0
    for stage in stages:
        if stage > k:
            continue
        work += left * (chain.backward[stage] + chain.weight[stage])
        most = chain.most_until_b(stage)
        if most is not None and not chain.overlapped:
            work += max(0, left - most) * chain.forward[stage]
    return work


def _work_after_f(view: View, stages: tuple[int, ...], k: int, j: int) -> int:
    """Least work of the device once F(k, j) may start: all of j and later, but F before k."""
    chain, left = view.chain, view.chain.batches - j
    return left * sum(
        chain.backward[stage]
        + chain.weight[stage]
        + (chain.forward[stage] if stage >= k and not chain.overlapped else 0)
        for stage in stages
    )


def _dropped_span(view: View, device: int) -> Iterator[Floor]:
    """A dropped device's span, where the way from its first operation leads past kept stages.

    Its first operation is F(k, 0) of its lowest stage k. With b the kept stage above k, F(b, 0)
    starts at least F(k) + down(k, b) later; with a the kept stage below k and none above, B(a, 0)
    starts at least the turn at k later. The rest is as for makespan.
    """
    chain = view.chain
    stages = chain.pipeline.hosted[chain.route][device]
    if not stages:
        return
    k = stages[0]
    a, b = view.below(k), view.above(k)
    if b is not None:
        first = int(view.codes(OpKind.F, b)[0])
        lead = chain.forward[k] + chain.down(k, b)
        for j in range(chain.batches):
            last = int(view.codes(OpKind.B, b)[j])
            rest = lead + chain.up(b, k) + _work_after_b(view, stages, k, j)
            yield Floor(first, last, rest)
    elif a is not None:
        first = int(view.codes(OpKind.B, a)[0])
        lead = chain.forward[k] + chain.turn(k) + chain.backward[k] + chain.up(k, a)
        for j in range(chain.batches):
            last = int(view.codes(OpKind.F, a)[j])
            rest = lead + chain.down(a, k) + _work_after_f(view, stages, k, j)
            yield Floor(first, last, rest)
