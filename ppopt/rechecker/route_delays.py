"""Delays of one microbatch along the stages of a route: down to the last one and up again."""

from __future__ import annotations

from itertools import accumulate

from ppopt.problem.operation import OpKind
from ppopt.rechecker.claim import Claim
from ppopt.rechecker.cut_delays import Boundary
from ppopt.rechecker.quantities import shortest_durations


class RouteDelays:
    """Minimum times between the F and the backwards of one microbatch, in ticks."""

    def __init__(self, claim: Claim, hosts: tuple[int, ...]) -> None:
        """`hosts` has the device of every stage."""
        ticks, (forward, backward, *_) = claim.pipeline.ticks, claim.kinds
        self._has_backward = [claim.has(backward, stage) for stage in range(len(hosts))]
        self._duration = {kind: shortest_durations(claim)[kind] for kind in claim.kinds}
        pipeline = claim.pipeline
        boundary, per_unit = Boundary(pipeline, hosts), ticks.per_unit
        ends = list(accumulate(pipeline.counts)) if pipeline.counts else [0] * len(hosts)
        ways = list(enumerate(ends[:-1]))
        self.down = [int(boundary.down(*where) * per_unit) for where in ways]
        """Delay from every stage to the next one; `up`: the way back."""
        self.up = [int(boundary.up(*where) * per_unit) for where in ways]
        self._way = {
            kind: list(
                accumulate(map(sum, zip(self._duration[kind], links, strict=False)), initial=0)
            )
            for kind, links in ((forward, self.down), (backward, self.up))
        }
        self._round_trip = self._round_trips(forward, backward)

    def _round_trips(self, forward: OpKind, backward: OpKind) -> list[int]:
        trips = [0]
        for link in reversed(range(len(self.down))):
            above = (
                self._duration[forward][link + 1] + trips[-1] + self._duration[backward][link + 1]
            )
            trips.append(self.down[link] + above + self.up[link])
        trips.reverse()
        return [time * has for time, has in zip(trips, self._has_backward, strict=True)]

    def way(self, kind: OpKind, stage: int) -> int:
        """Time through the stages below one, and over the links between: down or up."""
        return self._way[kind][stage]

    def between(self, kind: OpKind, low: int, high: int) -> int:
        """Time from the end of an operation on one of two stages to its start on the other."""
        return self._way[kind][high] - self._way[kind][low] - self._duration[kind][low]

    def round_trip(self, stage: int) -> int:
        """Time from the end of F on a stage to the start of its backward; 0 if it has none."""
        return self._round_trip[stage]
