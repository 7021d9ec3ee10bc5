"""Finds the best partition and recompute for one strategy, with a lower bound.

Local search comes first (`ppopt.studies.strategy_search`). Every partition has a lower bound that
holds for all orders (`ppopt.solver.partitions`); partitions with their recompute are then evaluated
in the order of these bounds. Once the next bound reaches the best value, the best is optimal.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from ppopt.cancellation import DrivenResult, driven, part, scope
from ppopt.errors import check_type
from ppopt.problem.decisions import Decisions
from ppopt.problem.objective import Objective
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.schedule import Schedule
from ppopt.solver.choices.search import ConfigurationSearch
from ppopt.solver.options import SolveOptions
from ppopt.solver.result import BoundedValue
from ppopt.strategies import Options
from ppopt.studies.evaluate import evaluate
from ppopt.studies.strategy_search import StrategySearch

TIME_LIMIT = 30.0
"""Default time limit, in seconds."""
SEARCH_SHARE = 0.5
"""Share of the time limit for the search; the rest is for the proof."""
BOUNDING_SHARE = 0.5
"""Share of the remaining time for bounds of all partitions."""


@dataclass(frozen=True)
class StrategyChoice(BoundedValue, DrivenResult):
    """The best partition and recompute found for a strategy."""

    schedule: Schedule
    """Schedule of the strategy with this partition (`schedule.pipeline.counts`) and recompute
    (`.recomputed`). It exceeds the memory limits only if nothing within them was found."""
    value_ticks: int
    """Objective of the schedule, in ticks."""
    bound_ticks: int | None
    """Lower bound of the strategy within the memory limits, in ticks; None if no schedule within
    them was found."""
    partitions: int
    """Number of partitions to choose from."""
    evaluations: int
    """Number of evaluations of configurations; a configuration may be evaluated twice."""
    proved: bool
    """Whether the schedule is proved to be the best within the memory limits or, if none was found,
    whether it is proved that there is none."""

    @property
    def per_unit(self) -> int:
        """Ticks in one unit of time."""
        return self.schedule.pipeline.ticks.per_unit


@driven
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
    that recompute; other decisions are fixed. Results within the memory limits are preferred, then
    those with the smallest maximum excess of a device. Without limits, only layers that must
    recompute do. `time_limit` is in seconds, from `began` (of `time.monotonic`) or else from now.
    Ctrl-C ends the search with the best so far. Raises InputError if the strategy is unknown, and
    NotApplicableError if it does not apply.
    """
    check_type("pipeline", pipeline, Pipeline)
    if not pipeline.open_decisions & Decisions.OF_STRATEGY:
        schedule = evaluate(pipeline, strategy, objective, options)
        value = schedule.metrics.value_ticks(Objective(objective))
        return StrategyChoice(
            schedule, value, value if schedule.fits_limits else None, 1, 1, proved=True
        )
    choice = StrategySearch(pipeline, strategy, Objective(objective), options)
    own_options = SolveOptions(progress=lambda state: progress(state.phase))
    search = ConfigurationSearch(choice, choice.problem, own_options)
    with scope((time.monotonic() if began is None else began) + time_limit):
        choice.descend(0)
        search.enumerate_listed()
        with part(SEARCH_SHARE):
            search.schedule_first()
        if not search.state.closed:
            search.bound(BOUNDING_SHARE)
            search.search()
    schedule = choice.schedule()
    return StrategyChoice(
        schedule=schedule,
        value_ticks=schedule.metrics.value_ticks(choice.problem.objective),
        bound_ticks=search.state.lower_bound if choice.fits else None,
        partitions=choice.space.partitions,
        evaluations=choice.evaluations,
        proved=search.state.closed,
    )
