"""Time of an F and a backward that run as one, from their phases on compute and on a link.

F is a chain of phases and the backward is a chain; compute and link each run one phase at a time.
Phases run in one piece. W of a phase runs on compute any time after it, in pieces: it is made of
many matrix products, and fills the time that the chains leave. The time of the pair is the minimum
time in which all of it ends.

Without W these are two jobs on two machines, and the minimum time is a shortest path in the plane
(S. B. Akers, A graphical approach to production scheduling problems, Operations Research 4, 1956).
A point (x, y) says that F has run for x and the backward for y. Both advance along a diagonal, one
alone along an axis. Two phases of one machine make a rectangle that no path may enter. The path
follows the diagonal until it meets a rectangle, and passes by its upper left or its lower right
corner; no path by that side is at the corner sooner (P. Brucker, An efficient algorithm for the
job-shop problem with two jobs, Computing 40, 1988). The corners are points of the grid of phases,
so that n and m phases have at most (n + 1)(m + 1) of them, each followed by two.

With W, let phase k of the backward end at r(k), F having run for x(k). Compute ends when, for some
k, the time after r(k) is just what is left: so all ends at the largest of the end of the path and,
over all k,

    r(k) + compute that F has left at x(k) + compute of the backward after k + W of k and later.

That is the makespan of preemptible jobs with release dates on the time that the chains leave, as
some W is always ready where compute idles after the last idle time of the largest k. The paths
above do not only reach each corner the soonest: on their way they advance y, or x, without a stop.
If they advance y, every r(k) is minimal. If another path has come to x later, by d
at least, it has at most d less compute left, so no term is smaller. Hence the same corners suffice.
From a corner on, what is left costs the larger of what the way to the next corner costs and its
length + what is left from there: one number per corner, found from the end backwards.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

from ppopt.errors import ConflictError
from ppopt.problem import exact
from ppopt.problem.layer import Layer
from ppopt.problem.phases import Machine, Phase

MAX_CORNERS = 2**20
"""Maximum number of points of the grid of two chains: some seconds of work."""
Matrix = tuple[tuple[Fraction, ...], ...]
Corner = tuple[int, int]
"""Number of phases of F and of the backward that have ended."""


class Chain(NamedTuple):
    """Phases one after the other, in ticks; none is without length."""

    on: tuple[Machine, ...]
    times: tuple[int, ...]
    weights: tuple[int, ...] = ()
    """W that becomes ready before the first phase, after the first, and so on; empty: none."""


class PairTimes(NamedTuple):
    """Times of pairs, in the user's unit: [stage of F][stage of the backward]."""

    with_bw: Matrix
    with_b: Matrix


def pair_times(stages: Sequence[Sequence[Layer]]) -> PairTimes | None:
    """Times of the pairs of all stages, given by their layers; None: no layer has phases.

    A layer without phases is one phase on compute: its F, its B, or its whole BW. Recompute is left
    out. Raises ConflictError if stages have too many phases.
    """
    if not any(layer.phases for stage in stages for layer in stage):
        return None
    rows = [[phase for layer in stage for phase in _forward(layer)] for stage in stages]
    partial, whole = (
        [
            [part for layer in reversed(stage) for part in _backward(layer, whole)]
            for stage in stages
        ]
        for whole in (False, True)
    )
    per_unit = exact.common_denominator(
        number
        for row in (*rows, *partial, *whole)
        for phase in row
        for number in (phase.time, phase.weight)
    )
    forwards, with_b, with_bw = (
        [_chain(row, per_unit) for row in part] for part in (rows, partial, whole)
    )
    return PairTimes(
        *(
            tuple(
                tuple(Fraction(min_time(forward, backward), per_unit) for backward in backwards)
                for forward in forwards
            )
            for backwards in (with_bw, with_b)
        )
    )


def _forward(layer: Layer) -> Iterable[Phase]:
    return layer.phases.forward if layer.phases else (Phase(Machine.COMPUTE, layer.forward),)


def _backward(layer: Layer, whole: bool) -> Iterator[Phase]:
    """Phases of BW (`whole`) or B."""
    if not layer.phases:
        time = layer.backward if whole else layer.backward_input
        yield Phase(Machine.COMPUTE, time, Fraction(0))
        return
    for phase in layer.phases.backward:
        yield phase if whole else phase._replace(weight=Fraction(0))


def _chain(phases: Sequence[Phase], per_unit: int) -> Chain:
    """Leave out phases of zero duration; their W is ready when the phase before has ended."""
    weights = [0]
    for phase in phases:
        if phase.time:
            weights.append(0)
        weights[-1] += int(phase.weight * per_unit)
    timed = [phase for phase in phases if phase.time]
    times = tuple(int(phase.time * per_unit) for phase in timed)
    return Chain(tuple(phase.on for phase in timed), times, tuple(weights) if any(weights) else ())


@lru_cache(maxsize=4096)
def min_time(forward: Chain, backward: Chain) -> int:
    """Minimum time of two chains, and the W of the second, on compute and a link, in ticks.

    Exact; see the module. Time and memory grow with the number of corners that are reached. Raises
    ConflictError if there may be more than `MAX_CORNERS`.
    """
    if (len(forward.on) + 1) * (len(backward.on) + 1) > MAX_CORNERS:
        raise ConflictError(
            f"phases: a pair of stages has {len(forward.on)} and {len(backward.on)} phases, too "
            "many; join those of several layers, or give overlap_times per stage without layers"
        )
    plane = _Plane(forward, backward)
    nexts: dict[Corner, list[Corner]] = {}
    open_corners: list[Corner] = [(0, 0)]
    while open_corners:
        corner = open_corners.pop()
        if corner not in nexts:
            nexts[corner] = plane.following(corner)
            open_corners += nexts[corner]
    cost = {plane.end: 0}
    for corner in sorted(nexts, key=sum, reverse=True):
        if corner != plane.end:
            cost[corner] = min(
                max(
                    plane.cost(corner, following), plane.length(corner, following) + cost[following]
                )
                for following in nexts[corner]
            )
    return max(cost[0, 0], plane.compute)


class _Plane:
    """Progress of F (x) and of the backward (y), and the rectangles that no path may enter."""

    def __init__(self, forward: Chain, backward: Chain) -> None:
        self._forward, self._backward = forward, backward
        self.end = len(forward.on), len(backward.on)
        self._x, self._y = (
            list(accumulate(chain.times, initial=0)) for chain in (forward, backward)
        )
        self._compute = _suffix_sums(_on_compute(forward))
        weights = backward.weights or (0,) * (self.end[1] + 1)
        waiting = _suffix_sums(weights)
        """W of a phase and later: `[phases that have ended]`."""
        own = _suffix_sums(_on_compute(backward))
        self._after = [
            compute + weight_work for compute, weight_work in zip(own, waiting[:-1], strict=True)
        ]
        self._ready = [level for level, weight in enumerate(weights) if weight]

    def following(self, corner: Corner) -> list[Corner]:
        """The corners on both sides of the rectangle that the diagonal meets; else the end."""
        (across, up), (right, top) = corner, self.end
        if corner == self.end:
            return []
        x, y = self._x[across], self._y[up]
        while across < right and up < top:
            if self._forward.on[across] == self._backward.on[up]:
                return [(across, up + 1), (across + 1, up)]
            ahead = self._x[across + 1] - x - (self._y[up + 1] - y)
            across, up = across + (ahead <= 0), up + (ahead >= 0)
        return [self.end]

    def length(self, corner: Corner, following: Corner) -> int:
        """Time from a corner to one that follows it."""
        return max(
            self._x[following[0]] - self._x[corner[0]], self._y[following[1]] - self._y[corner[1]]
        )

    def cost(self, corner: Corner, following: Corner) -> int:
        """Time from a corner until all ends, if only the phases up to the next corner count.

        The path is the diagonal as far as both phases of the next corner allow.
        """
        (across, up), (right, top) = corner, following
        x, y, longest = self._x[across], self._y[up], 0
        first = bisect_right(self._ready, up)
        for level in self._ready[first:]:
            if level > top:
                break
            time = self._y[level] - y
            longest = max(
                longest, time + self._compute_left_at(min(self._x[right], x + time), level)
            )
        return longest

    def _compute_left_at(self, x: int, level: int) -> int:
        """Compute left after F has run for `x` and `level` phases of the backward have ended."""
        across = bisect_right(self._x, x) - 1
        begun = x - self._x[across]
        runs = begun and self._forward.on[across] is Machine.COMPUTE
        return self._compute[across] - (begun if runs else 0) + self._after[level]

    @property
    def compute(self) -> int:
        """The same at the begin."""
        return self._compute[0] + self._after[0]


def _on_compute(chain: Chain) -> list[int]:
    pairs = zip(chain.on, chain.times, strict=True)
    return [time if on is Machine.COMPUTE else 0 for on, time in pairs]


def _suffix_sums(amounts: Sequence[int]) -> list[int]:
    """Sum of an amount and all later ones, for each of them and after the last."""
    return [*accumulate(reversed(amounts), initial=0)][::-1]
