"""One route of a pipeline: the rules between its operations that choose no order on a device."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from ppopt.problem.operation import Op, OpKind
from ppopt.rechecker.claim import Claim
from ppopt.rechecker.quantities import live_after_forward, live_before_weight
from ppopt.rechecker.route_delays import RouteDelays

Apart = tuple[Op, Op, int]
"""(before, after, lag): `after` starts `lag` or more after the end of `before`."""


class Route:
    """The operations of one route on some devices."""

    def __init__(self, claim: Claim, route: range, devices: frozenset[int]) -> None:
        """`route` holds its microbatches."""
        self._claim = claim
        self._route = route
        self._hosts = claim.pipeline.hosts[claim.pipeline.route(route[0])]
        self._times = RouteDelays(claim, self._hosts)
        self._stages = [stage for stage, host in enumerate(self._hosts) if host in devices]
        self._slices = range(claim.pipeline.num_slices)

    def operations(self) -> Iterator[Op]:
        """The operations stated."""
        for kind in self._claim.kinds:
            for stage in self._stages:
                for slice_index in self._slices:
                    yield from self._row(kind, stage, slice_index)

    def _row(self, kind: OpKind, stage: int, slice_index: int) -> list[Op]:
        """Operations of a kind, a stage and a slice, in the order of microbatches; maybe none."""
        if not self._claim.has(kind, stage):
            return []
        return [Op(kind, stage, microbatch, slice_index) for microbatch in self._route]

    def _each(
        self, before: tuple[OpKind, int], after: tuple[OpKind, int], lag: int, ahead: int = 0
    ) -> Iterator[Apart]:
        """One rule for all microbatches and slices; `ahead` is the offset of the second slice.

        It applies if both operations exist.
        """
        for slice_index in self._slices:
            if slice_index + ahead in self._slices:
                rows = self._row(*before, slice_index), self._row(*after, slice_index + ahead)
                for first, then in zip(*rows, strict=False):
                    yield first, then, lag

    def apart(self) -> Iterator[Apart]:
        """Precedence: the data flow, the order of microbatches, and memory by counting."""
        yield from self._flow()
        yield from self._in_order()
        yield from self._memory()

    def _flow(self) -> Iterator[Apart]:
        """Activations go down, gradients go up; within a stage the kinds follow each other.

        The slices of a microbatch go forward one after the other, and backward the last first.
        """
        forward, backward = self._claim.kinds[:2]
        for stage in self._stages:
            for first, then in pairwise(self._claim.kinds):
                yield from self._each((first, stage), (then, stage), 0)
            yield from self._each((forward, stage), (forward, stage), 0, ahead=1)
            yield from self._each((backward, stage), (backward, stage), 0, ahead=-1)
        for low, high in pairwise(self._stages):
            down, up = (self._times.between(kind, low, high) for kind in (forward, backward))
            yield from self._each((forward, low), (forward, high), down)
            yield from self._each((backward, high), (backward, low), up)
        for stage in self._stages[-1:]:
            trip = self._times.round_trip(stage)
            yield from self._each((forward, stage), (backward, stage), trip)

    def _in_order(self) -> Iterator[Apart]:
        """The k-th operation of its kind, stage, slice and route is that of the k-th microbatch."""
        for kind in self._claim.kinds:
            for stage in self._stages:
                for slice_index in self._slices:
                    for before, after in pairwise(self._row(kind, stage, slice_index)):
                        yield before, after, 0

    def _memory(self) -> Iterator[Apart]:
        """The headroom of a stage limits the live microbatches; one ends before another starts.

        From the start of F to the end of B (BW), what F keeps of a slice is live; to the end of W,
        the smaller of that and what B leaves. Microbatches are in order: if `many` fit and F(j)
        starts, one of 0 .. j-1 has ended, hence j - many has.
        """
        ticks = self._claim.pipeline.ticks
        if ticks.limits is None:
            return
        for stage in self._stages:
            headroom = ticks.limits[self._hosts[stage]] - ticks.static[self._hosts[stage]]
            live = live_after_forward(self._claim, stage)
            for kind in self._claim.kinds[1:]:
                if kind is OpKind.W:
                    live = min(live, live_before_weight(self._claim, stage))
                if live and (many := headroom // live) > 0:
                    for slice_index in self._slices:
                        later = self._row(OpKind.F, stage, slice_index)[many:]
                        for over, op in zip(
                            self._row(kind, stage, slice_index), later, strict=False
                        ):
                            yield over, op, 0

    def pairs(self) -> Iterator[tuple[Op, Op]]:
        """Pairs between which the device may have more work than the rules imply.

        F(j) and the backward of j + n at one stage, n = 1, 2, 4, ... and the last of the route.
        """
        forward, backward = self._claim.kinds[:2]
        last = len(self._route) - 1
        steps = {min(1 << power, last) for power in range(last.bit_length() + 1)}
        for stage in self._stages:
            begin = self._row(forward, stage, self._slices[0])
            end = self._row(backward, stage, self._slices[0])
            for step in sorted(steps - {0}):
                yield from zip(begin, end[step:], strict=False)

    def heads(self) -> dict[Op, int]:
        """Time before the first stage stated can start."""
        return {
            op: self._times.way(OpKind.F, stage)
            for stage in self._stages[:1]
            for op in self._row(OpKind.F, stage, self._slices[0])
        }

    def tails(self) -> dict[Op, int]:
        """Time after the backward of the first stage stated: the way up, and one W on it."""
        if not self._stages or not self._stages[0]:
            return {}
        backward, stage = self._claim.kinds[1], self._stages[0]
        weights = self._claim.pipeline.ticks.durations[OpKind.W]
        ways = [self._times.way(backward, low) for low in range(stage + 1)]
        remaining = max(
            ways[stage] - ways[low] + (0 if self._claim.fused else weights[low])
            for low in range(stage)
        )
        return dict.fromkeys(self._row(backward, stage, self._slices[0]), remaining)
