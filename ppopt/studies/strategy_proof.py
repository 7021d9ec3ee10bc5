"""The bound that no point of a hand strategy is below, and the proof that none is better.

Every partition has a bound that holds for any order of its schedules
(`ppopt.solver.partitions`). Points are tried in the order of their bounds. Once the next bound
reaches the best value, no point is better.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import islice

import numpy as np

from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.problem import Problem
from ppopt.solver.choices.choice import Choice, Key
from ppopt.solver.deadline import Deadline
from ppopt.solver.open_choices import choice_of
from ppopt.strategies import resolve
from ppopt.studies.strategy_points import Points
from ppopt.studies.strategy_search import StrategySearch


def bounded_points(search: StrategySearch, deadline: Deadline) -> Choice | None:
    """The points of a search with bounds; None where the bounds do not apply.

    They are bounds of any schedule of a partition. Where a strategy splits backwards, some of them
    may be whole. Bounds end at the deadline.
    """
    pipeline = search.placed
    if not search.space.cut or pipeline.routes > 1 or pipeline.num_slices > 1:
        return None
    fused = resolve(search.strategy).fused
    kind = BackwardKind.WHOLE if fused else BackwardKind.MIXED
    return choice_of(Problem(pipeline, search.objective, kind), deadline)


class StrategyProof:
    """The proof under way; a further run continues it."""

    def __init__(self, search: StrategySearch, candidates: Choice | None = None) -> None:
        """`candidates` bound the points of the search; None: nothing is known of them."""
        self._search, self._candidates = search, candidates
        self._followed: set[Key] = set()
        """Points that were tried in the order of their bounds."""
        self._bound = Fraction(0)
        """No other point that keeps the limits has a lower value."""
        self._none_left = False
        """Whether no other point that keeps the limits may have a lower value than the best."""
        self.ended = candidates is None
        """Whether further runs bring nothing before there are new bounds."""

    @property
    def proved(self) -> bool:
        """Whether no point that keeps the limits has a lower value than the best point.

        Where the best point is over them: whether none keeps them.
        """
        search = self._search
        bounded = search.fits and self._bound >= search.value
        return search.exhausted or self._none_left or bounded

    @property
    def lower_bound(self) -> Fraction:
        """No point that keeps the limits has a lower value."""
        search = self._search
        if not search.fits:
            return self._bound
        return search.value if self.proved else min(self._bound, search.value)

    @property
    def words(self) -> str:
        """What the proof rests on, in words."""
        if self._search.exhausted:
            return "every partition was tried, with every choice of recompute that may be best"
        if not self.proved:
            return "not every partition was tried or ruled out"
        return (
            f"every partition but {len(self._followed)} that were tried has a device that alone "
            "needs as long, or too much memory"
        )

    def bound(self, deadline: Deadline, ceiling: Fraction | None = None) -> None:
        """Bound all points by the deadline, as well as may be.

        Values above the ceiling need not be exact.
        """
        if self._candidates is None:
            return
        self._candidates.bound(deadline, ceiling)
        self._bound = max(self._bound, self._candidates.least)
        none = self._candidates.unknown((), None) is None
        self._none_left |= none
        self.ended = none

    @property
    def _ceiling(self) -> Fraction | None:
        return self._search.value if self._search.fits else None

    def run(self, deadline: Deadline, tell: Callable[[], None] = lambda: None) -> None:
        """Try points in the order of their bounds by the deadline."""
        while not (self.ended or self.proved) and not deadline.over:
            tell()
            keys = list(islice(self._following(), self._search.together))
            if keys:
                rows = np.array(keys)
                stages = len(self._search.space.hosts)
                counts, recompute = rows[:, :stages], rows[:, stages:]
                if not recompute.shape[1]:
                    recompute = np.zeros_like(counts)
                self._search.try_points(Points(counts, recompute))

    def _following(self) -> Iterator[Key]:
        """The next points in the order of their bounds."""
        assert self._candidates is not None
        while True:
            unknown = self._candidates.unknown(self._followed, self._ceiling)
            if unknown is None:
                self._none_left = self.ended = True
                return
            self._bound = max(self._bound, unknown.bound)
            if unknown.key is None:
                self.ended = True
                return
            self._followed.add(unknown.key)
            yield unknown.key
