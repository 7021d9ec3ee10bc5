"""A candidate: one configuration of a plan, which is a group of the search over all of them.

One search serves all configurations (`ppopt.studies.plan_product`); a strategy evaluates its
partitions and recompute in place of searches.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace
from fractions import Fraction

from ppopt.cancellation import shield
from ppopt.problem.decisions import Decisions
from ppopt.problem.exact import min_known
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.problem import Problem
from ppopt.schedule.orders import is_of_kind
from ppopt.schedule.origin import SEARCHED
from ppopt.schedule.schedule import Schedule
from ppopt.solver.choices.choice import Choice
from ppopt.solver.choices.configuration import Configuration, SearchedConfigurations
from ppopt.solver.choices.enumeration import (
    NONE_LEFT,
    Complete,
    Key,
    Rest,
    Unlisted,
    bounds_of_all,
)
from ppopt.solver.choices.result import known_result, result_of
from ppopt.solver.choices.single import ONLY
from ppopt.solver.options import SolveOptions
from ppopt.solver.result import Result, Status
from ppopt.studies.evaluate import peak_memory
from ppopt.studies.plan_result import PlanRow, RowStatus
from ppopt.studies.plan_space import PlanConfiguration
from ppopt.studies.strategy_search import Ranked, StrategySearch
from ppopt.verifier import checked


class PlanCandidate(SearchedConfigurations):
    """State of one configuration of a plan; times per microbatch are in ticks of the grid."""

    shared_searches = 0
    """Number of searches of another configuration whose schedules belong to this one, too."""
    wider: PlanCandidate | None = None
    """The configuration of the plan that has all of its schedules; None: there is none."""

    def __init__(
        self,
        configuration: PlanConfiguration,
        problem: Problem,
        choice: Choice,
        options: SolveOptions,
        weight: int,
    ) -> None:
        """`choice` has the partitions and recompute of the configuration."""
        self.configuration, self.problem, self.choice = configuration, problem, choice
        self.weight = weight
        """Factor on the times of its schedules; see `Configuration.weight`."""
        self.options = options
        self.strategy = choice if isinstance(choice, StrategySearch) else None
        """The choice of a strategy; None: orders are open."""
        self._ranked: Ranked | None = None
        """Best configuration of the strategy at the last update."""
        super().__init__(self.bound_without_search, self._rest)
        self.raise_bound()

    @property
    def searches(self) -> int:
        """Number of searches of single partitions."""
        return self.searched + self.shared_searches

    @property
    def bound_without_search(self) -> int:
        """Lower bound per microbatch, by bounds alone."""
        own, wider = self.choice.lower_bound * self.weight, self.wider
        return own if wider is None else max(own, wider.bound_without_search)

    @property
    def schedule(self) -> Schedule | None:
        """Best schedule."""
        return None if self.best is None else self.best.schedule

    @property
    def schedules(self) -> list[Schedule]:
        """All known schedules."""
        known = (*self.every, self.best)
        return [each.schedule for each in known if each is not None and each.schedule is not None]

    def min_peak(self, max_value: int) -> Fraction:
        """Smallest peak of a known schedule whose value per microbatch is at most a maximum."""
        objective, max_ticks = self.problem.objective, max_value // self.weight
        return min(
            peak_memory(each)
            for each in self.schedules
            if each.metrics.value_ticks(objective) <= max_ticks
        )

    @property
    def peak(self) -> Fraction | None:
        """Largest device peak of the best schedule."""
        schedule = self.schedule
        return None if schedule is None else peak_memory(schedule)

    def ticks(self, time: int) -> int:
        """The smallest number of ticks of all microbatches if each takes at least a time."""
        return -(-time // self.weight)

    def may_be_below(self, ceiling: int | None) -> bool:
        """Whether bounds alone leave open that a schedule is below a ceiling, per microbatch."""
        return ceiling is None or self.bound_without_search < ceiling

    # Bounds.

    def bound_partitions(self, ceiling: int | None, margin: float) -> None:
        """Bound all partitions exactly up to `margin` times a ceiling per microbatch."""
        useful = None if ceiling is None else -(-int(ceiling * margin) // self.weight)
        self.choice.bound(useful)
        self.raise_open_bound(self.bound_without_search)

    def raise_bound(self, ceiling: int | None = None) -> None:
        """Raise the bound to the minimum over the partitions, and to that of the wider one."""
        super().raise_bound(ceiling)
        self.raise_to_wider()

    def raise_to_wider(self) -> None:
        """Raise the bound to that of the configuration that has all schedules of this one."""
        if self.wider is not None:
            bounds = () if self.wider.infeasible else (self.wider.open_bound,)
            self.raise_to(bounds_of_all(bounds, NONE_LEFT))

    def _rest(self, known: Container[Key], ceiling: int | None) -> Rest:
        """Partitions and recompute not in `known` whose bounds are below the ceiling.

        A strategy whose partitions have no order of bounds does not end the order of all.
        """
        rest = self.choice.rest(known, None if ceiling is None else self.ticks(ceiling))
        if isinstance(rest, Complete):
            return rest
        return Unlisted(rest.bound * self.weight, rest.key, optional=self.strategy is not None)

    # Schedules.

    def allows(self, pipeline: Pipeline) -> bool:
        """Whether a pipeline has the layout, microbatches and recompute of the configuration."""
        own = self.problem.pipeline
        return (own.layout, own.batches) == (pipeline.layout, pipeline.batches) and (
            Decisions.RECOMPUTE in own.open_decisions or pipeline.model.layers == own.model.layers
        )

    def contains(self, schedule: Schedule) -> bool:
        """Whether a schedule belongs to the configuration, with its own partition and recompute."""
        own, pipeline = self.problem.pipeline, schedule.pipeline
        if self.configuration.strategy not in (SEARCHED, schedule.origin.strategy):
            return False
        if not is_of_kind(schedule.kind, self.problem.backward_kind):
            return False
        return self.allows(pipeline) and (
            Decisions.PARTITION in own.open_decisions or pipeline.counts == own.counts
        )

    @shield()
    def update(self) -> None:
        """Use the best schedule of a strategy."""
        strategy = self.strategy
        if strategy is not None and strategy.fits and strategy.best != self._ranked:
            self._ranked = strategy.best
            self.take(strategy.schedule())

    @shield()
    def take(self, schedule: Schedule) -> bool:
        """Use a schedule that belongs to the configuration; return whether it is better.

        The name of its placement becomes that of the configuration: interleaved stages, one per
        device, have the layout of linear ones.
        """
        own = self.problem.pipeline
        named = schedule.pipeline
        if (named.placement, named.chunks) != (own.placement, own.chunks):
            named = named.having(placement=own.placement, chunks=own.chunks)
            schedule = replace(schedule, pipeline=named)
        result = known_result(self.problem, schedule, self.options)
        assert named.grid.time == own.grid.time, "configurations share ticks"
        value = schedule.metrics.value_ticks(self.problem.objective) * self.weight
        taken = Configuration((), 0, weight=self.weight, result=result, value=value)
        self.offer(taken)
        return self.best is taken

    # Reports.

    @property
    def result(self) -> Result:
        """Result of the best schedule, or why there is none.

        A bound of a strategy does not hold for other orders, so its result states none.
        """
        own = None if self.best is None else self.best.result
        if self.strategy is None:
            bound = self.ticks(self.lower_bound)
            if own and own.bound_ticks == bound and self.best is self.known.get(ONLY):
                return own
        elif own is not None and own.schedule is not None:
            proof = f"of {self.configuration.strategy} alone: {self.choice.proof(self)}"
            return replace(own, schedule=checked(own.schedule), proof=proof)
        result = result_of(self.choice, self.problem, self, self.options)
        if self.strategy is None:
            return result
        if self.infeasible:
            proof = "no partition is within the memory limits"
            return replace(result, status=Status.INFEASIBLE, bound_ticks=None, proof=proof)
        return replace(result, bound_ticks=None)

    def row(self, best: int | None) -> PlanRow:
        """Row of the plan; `best` is the minimum time per microbatch of all configurations."""
        result, bound = self.result, None
        if not self.infeasible:
            bound = min_known((self.ticks(self.open_bound), result.value_ticks))
            if self.configuration.strategy == SEARCHED:
                result = replace(result, bound_ticks=bound)
        longest = None if best is None else self.ticks(best)
        status = RowStatus.of(result.value_ticks, bound, longest, searched=bool(self.searches))
        ruled_out = status is RowStatus.PRUNED and not self.may_be_below(best)
        return PlanRow(self.configuration, status, result, bound, self.searches, ruled_out)
