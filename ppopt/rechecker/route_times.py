"""Times of one microbatch along the stages of a route: down to the last one and up again."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Any

from ppopt.problem.operation import OpKind
from ppopt.rechecker.claim import Claim


class RouteTimes:
    """Least times between the F and the backwards of one microbatch, in ticks."""

    def __init__(self, claim: Claim, hosts: tuple[int, ...]) -> None:
        """`hosts` has the device of every stage."""
        ticks, (forward, backward, *_) = claim.pipeline.ticks, claim.kinds
        self._duration = {kind: ticks.durations[kind] for kind in claim.kinds}
        self.down = _delays(claim, claim.pipeline.p2p, list(pairwise(hosts)))
        """Delay from every stage to the next one; `up`: the way back."""
        given = claim.pipeline.backward_p2p
        back = claim.pipeline.p2p if given is None else given
        self.up = _delays(claim, back, [pair[::-1] for pair in pairwise(hosts)])
        self._way = {
            kind: list(
                accumulate(map(sum, zip(self._duration[kind], links, strict=False)), initial=0)
            )
            for kind, links in ((forward, self.down), (backward, self.up))
        }
        self._round_trip = self._round_trips(forward, backward)

    def _round_trips(self, forward: OpKind, backward: OpKind) -> list[int]:
        found = [0]
        for link in reversed(range(len(self.down))):
            above = (
                self._duration[forward][link + 1] + found[-1] + self._duration[backward][link + 1]
            )
            found.append(self.down[link] + above + self.up[link])
        return found[::-1]

    def way(self, kind: OpKind, stage: int) -> int:
        """Time through the stages below one, and over the links between: down or up."""
        return self._way[kind][stage]

    def between(self, kind: OpKind, low: int, high: int) -> int:
        """Time from the end of an operation on one of two stages to its start on the other."""
        return self._way[kind][high] - self._way[kind][low] - self._duration[kind][low]

    def round_trip(self, stage: int) -> int:
        """Time from the end of F on a stage to the start of its backward."""
        return self._round_trip[stage]


def _delays(claim: Claim, given: Any, ways: list[tuple[int, int]]) -> list[int]:
    """Delays in ticks over the boundaries after stages 0, 1, ...: (from device, to device) each.

    One number for all, one per boundary, or a matrix of devices; none where the device is one.
    """
    found = []
    for boundary, (source, target) in enumerate(ways):
        time = given
        if isinstance(given, tuple):
            entry = given[source if isinstance(given[0], tuple) else boundary]
            time = entry[target] if isinstance(entry, tuple) else entry
        found.append(0 if source == target else int(time * claim.pipeline.ticks.per_unit))
    return found
