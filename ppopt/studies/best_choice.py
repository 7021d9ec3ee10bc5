"""Finds the best partition and recompute for one hand strategy, with a lower bound.

Every partition has a lower bound that holds for all orders (`ppopt.solver.partitions`). Points (a
partition with its recompute) are tried in the order of these bounds. Once the next bound reaches
the best value, no other point is better.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.objective import Objective
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.problem import Problem
from ppopt.schedule.schedule import Schedule
from ppopt.solver import interrupts
from ppopt.solver.choices.choice import Choice
from ppopt.solver.choices.enumeration import Complete, Key
from ppopt.solver.choices.spaces import PARTITIONS, traits_of_any
from ppopt.solver.deadline import Deadline
from ppopt.solver.open_choices import Chosen, choice_of, open_choices
from ppopt.strategies import Options, resolve
from ppopt.studies.evaluate import evaluate, objective_value
from ppopt.studies.strategy_points import Points
from ppopt.studies.strategy_search import StrategySearch

TIME_LIMIT = 30.0
"""Default time limit, in seconds."""
SEARCHING = 0.5
"""Share of the time limit that the search may take; the proof has the rest."""
BOUNDING = 0.5
"""Share of the time left that bounds of all partitions may take."""


@dataclass(frozen=True)
class StrategyChoice:
    """The best partition and recompute found for a strategy."""

    schedule: Schedule
    """Schedule of the strategy with this partition (`schedule.pipeline.counts`) and recompute
    (`.recomputed`). It exceeds the memory limits only if nothing within them was found."""
    value: Fraction
    """Objective of the schedule, in the user's unit."""
    lower_bound: Fraction | None
    """Lower bound of the strategy within the memory limits, in the user's unit; None if nothing
    within them was found."""
    partitions: int
    """Number of partitions to choose from."""
    evaluations: int
    """Number of points that were evaluated; some perhaps twice."""
    proved: bool
    """Whether the schedule is proved to be the best within the memory limits or, if none was found,
    whether it is proved that there is none."""
    interrupted: bool = False
    """Whether Ctrl-C ended the search."""

    @property
    def gap(self) -> Fraction | None:
        """(value - lower_bound) / value; None without a bound."""
        if self.lower_bound is None:
            return None
        return (self.value - self.lower_bound) / self.value if self.value else Fraction(0)


def has_open_choices(pipeline: Pipeline) -> bool:
    """Whether a pipeline leaves its partition or its recompute open."""
    return bool(open_choices(pipeline) & ~Chosen.PLACEMENT)


@interrupts.recorded(inner=True)
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
    """Find the partition and the recompute that minimise the objective of a strategy.

    `partition="search"` leaves the partition of the pipeline open, `recompute="search"` the layers
    that recompute; what is given is kept. Results within the memory limits are preferred, then
    those whose largest excess of a device is least. Without limits, layers that need not
    recompute do not. `time_limit` is in seconds, from `began` (of `time.monotonic`) or else from
    now. Ctrl-C ends the search with the best so far. Raises InputError if the strategy is unknown,
    and NotApplicableError if it does not apply.
    """
    if not has_open_choices(pipeline):
        schedule = evaluate(pipeline, strategy, objective, options)
        value = objective_value(schedule, Objective(objective))
        return StrategyChoice(
            schedule, value, value if schedule.fits_limits else None, 1, 1, proved=True
        )
    deadline = Deadline.after(time_limit, began)
    search = StrategySearch(pipeline, strategy, Objective(objective), options)
    proof, interrupted = StrategyProof(search), False

    def tell() -> None:
        progress(f"strategy {strategy}, {search.evaluations} evaluations")

    search.begin()
    try:
        with interrupts.heard():
            search.run_until_stalled(deadline.share(SEARCHING), tell)
            if not proof.proved:
                proof = StrategyProof(search, bounded_points(search, deadline))
                ceiling = search.value if search.fits else None
                proof.bound(deadline.share(BOUNDING), ceiling)
                proof.run(deadline, tell)
    except KeyboardInterrupt:
        interrupted = True
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
    """Configuration space of the points of a search, with bounds; None if the bounds do not apply.

    The bounds hold for every schedule of a partition, also with whole backwards if the strategy
    splits them. Computing them ends at the deadline.
    """
    pipeline = search.placed
    fused = resolve(search.strategy).fused
    kind = BackwardKind.WHOLE if fused else BackwardKind.MIXED
    problem = Problem(pipeline, search.objective, kind)
    if not search.space.cut or not traits_of_any(problem) <= PARTITIONS.handles:
        return None
    return choice_of(problem, deadline)


class StrategyProof:
    """Incremental proof that a point is best; `run` can be called again to continue."""

    def __init__(self, search: StrategySearch, candidates: Choice | None = None) -> None:
        """`candidates` bounds the points of the search; None: no bounds are known."""
        self._search, self._candidates = search, candidates
        self._followed: set[Key] = set()
        """Points that were tried in the order of their bounds."""
        self._bound = Fraction(0)
        """Lower bound of all other points within the limits."""
        self._none_left = False
        """Whether no other point within the limits may have a lower value than the best."""
        self._was_cut = False
        """Whether Ctrl-C ended a try of points: the next ones in order are not known any more."""
        self.ended = candidates is None
        """Whether further runs cannot help before there are new bounds."""

    @property
    def proved(self) -> bool:
        """Whether no point within the limits has a lower value than the best point.

        If the best point exceeds the limits: whether no point is within them.
        """
        search = self._search
        bounded = search.fits and self._bound >= search.value
        return search.conclusive or self._none_left or bounded

    @property
    def lower_bound(self) -> Fraction:
        """Lower bound of all points within the limits."""
        search = self._search
        if not search.fits:
            return self._bound
        return search.value if self.proved else min(self._bound, search.value)

    @property
    def proof_text(self) -> str:
        """Text of the proof."""
        if self._search.conclusive:
            return "every partition was tried, with every choice of recompute that may be best"
        if not self.proved:
            return "not every partition was tried or ruled out"
        return (
            f"in every partition but {len(self._followed)} that were tried, one device alone takes "
            "as long, or its memory is over the limit"
        )

    def bound(self, deadline: Deadline, ceiling: Fraction | None = None) -> None:
        """Compute bounds of all points until the deadline.

        Bounds above the ceiling need not be exact.
        """
        if self._candidates is None or self._was_cut:
            return
        self._candidates.bound(deadline, ceiling)
        self._bound = max(self._bound, self._candidates.lower_bound)
        self.ended = isinstance(self._candidates.rest(self._followed, None), Complete)
        self._none_left |= self.ended and self._proves

    @property
    def _ceiling(self) -> Fraction | None:
        return self._search.value if self._search.fits else None

    def run(self, deadline: Deadline, tell: Callable[[], None] = lambda: None) -> None:
        """Try points in the order of their bounds until the deadline."""
        while not (self.ended or self._was_cut or self.proved) and not deadline.over:
            tell()
            self._follow(self._search.together)

    def _follow(self, number: int) -> None:
        """Try the next points in the order of their bounds.

        What follows from them is kept once all of them are tried: Ctrl-C may come before that.
        """
        assert self._candidates is not None
        self._was_cut = True
        bound, ended, none_left = self._bound, False, False
        keys: list[Key] = []
        while len(keys) < number and not ended:
            rest, proves = self._candidates.rest(self._followed, self._ceiling), self._proves
            if isinstance(rest, Complete):
                ended, none_left = True, proves
                break
            if proves:
                bound = max(bound, rest.bound)
            if rest.key is None:
                ended = True
            else:
                keys.append(rest.key)
                self._followed.add(rest.key)
        if keys:
            self._search.try_points(self._points(keys))
        self._bound, self.ended = bound, ended
        self._none_left |= none_left
        self._was_cut = False

    @property
    def _proves(self) -> bool:
        """Whether bounds of listed points hold for all points but those that were followed.

        A dominated choice of recompute has no lower bound than the point that dominates it. So
        if the search is not complete, nothing more is proved once a point is followed.
        """
        return self._search.complete or not self._followed

    def _points(self, keys: list[Key]) -> Points:
        rows, stages = np.array(keys), len(self._search.space.hosts)
        counts, recompute = rows[:, :stages], rows[:, stages:]
        return Points(counts, recompute if recompute.shape[1] else np.zeros_like(counts))
