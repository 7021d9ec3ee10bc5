"""A hand strategy on its own best choices: its partition, and which layers recompute.

Every partition has a bound that holds for any order of its schedules
(`ppopt.solver.partitions`). Points are tried in the order of their bounds. Once the next bound
reaches the best value, no point is better.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice

import numpy as np

from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.objective import Objective
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.problem import Problem
from ppopt.schedule.schedule import Schedule
from ppopt.solver import interrupts
from ppopt.solver.choices.choice import Choice, Key
from ppopt.solver.deadline import Deadline
from ppopt.solver.open_choices import Chosen, choice_of, open_choices
from ppopt.strategies import Options, resolve
from ppopt.studies.evaluate import evaluate, objective_value
from ppopt.studies.strategy_points import Points
from ppopt.studies.strategy_search import StrategySearch

TIME_LIMIT = 30.0
"""Default seconds of a choice."""
SEARCHING = 0.5
"""Share of the time limit that the search may take; the proof has the rest."""
BOUNDING = 0.5
"""Share of what is left that bounds of all partitions may take."""


@dataclass(frozen=True)
class StrategyChoice:
    """The best partition and recompute found for a strategy."""

    schedule: Schedule
    """The strategy on them: its pipeline has the layers per stage (`counts`) and says which
    recompute (`recomputed`). Over the memory limits only where nothing was found that keeps them.
    """
    value: Fraction
    """Objective of the schedule, in the user's unit."""
    lower_bound: Fraction | None
    """The strategy has no lower value within the memory limits, in the user's unit; None where
    nothing was found that keeps them."""
    partitions: int
    """Number of partitions to choose from."""
    evaluations: int
    """Partitions, with their recompute, that were evaluated; some perhaps twice."""
    proved: bool
    """Whether nothing is better that keeps the limits; where nothing was found that does: whether
    there is nothing."""
    interrupted: bool = False
    """Whether Ctrl-C ended the choice."""

    @property
    def gap(self) -> Fraction | None:
        """(value - lower_bound) / value; None without a bound."""
        if self.lower_bound is None:
            return None
        return (self.value - self.lower_bound) / self.value if self.value else Fraction(0)


def is_open(pipeline: Pipeline) -> bool:
    """Whether a pipeline leaves its partition or its recompute to be chosen."""
    return bool(open_choices(pipeline) & ~Chosen.PLACEMENT)


def best_choice(
    pipeline: Pipeline,
    strategy: str,
    objective: Objective | str = Objective.MAKESPAN,
    options: Options | None = None,
    *,
    time_limit: float = TIME_LIMIT,
    progress: Callable[[str], None] = lambda _: None,
    began: float | None = None,
) -> StrategyChoice:
    """Choose the partition and the recompute on which a strategy has the least value.

    With `partition="search"` the pipeline's partition is chosen, with `recompute="search"` the
    layers that recompute; what is given is kept. What keeps the memory limits comes first; where
    nothing does, what exceeds them least, all devices together. Without limits nothing recomputes
    that may. `time_limit` is in seconds, from `began` (of `time.monotonic`) or else from now.
    Ctrl-C ends the choice with the best so far. Raises InputError where the strategy is unknown,
    and NotApplicableError where it does not apply.
    """
    if not is_open(pipeline):
        made = evaluate(pipeline, strategy, objective, options)
        value = objective_value(made, Objective(objective))
        return StrategyChoice(made, value, value if made.fits_limits else None, 1, 1, proved=True)
    deadline = Deadline.after(time_limit, began)
    search = StrategySearch(pipeline, strategy, Objective(objective), options)
    proof, interrupted = StrategyProof(search), False

    def tell() -> None:
        progress(f"strategy {strategy}, {search.evaluations} evaluations")

    try:
        with interrupts.heard():
            search.settle(deadline.share(SEARCHING), tell)
            if not proof.proved:
                proof = StrategyProof(search, bounded_points(search, deadline))
                ceiling = search.value if search.fits else None
                proof.bound(deadline.share(BOUNDING), ceiling)
                proof.run(deadline, tell)
    except KeyboardInterrupt:
        interrupted = True
        search.run(0)
    return StrategyChoice(
        schedule=search.schedule(),
        value=search.value,
        lower_bound=proof.lower_bound if search.fits else None,
        partitions=search.space.partitions,
        evaluations=search.evaluations,
        proved=proof.proved,
        interrupted=interrupted,
    )


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
        return (search.exhausted and search.complete) or self._none_left or bounded

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
        if self._search.exhausted and self._search.complete:
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
        """The next points in the order of their bounds.

        A dominated choice of recompute has no lower bound than the point that dominates it. So
        where the search is not complete, nothing more is proved once a point is followed.
        """
        assert self._candidates is not None
        while True:
            unknown = self._candidates.unknown(self._followed, self._ceiling)
            proves = self._search.complete or not self._followed
            if unknown is None:
                self.ended = True
                self._none_left |= proves
                return
            if proves:
                self._bound = max(self._bound, unknown.bound)
            if unknown.key is None:
                self.ended = True
                return
            self._followed.add(unknown.key)
            yield unknown.key
