"""The search of a plan: all of its configurations in one search, which starts from strategies.

Every configuration has a lower bound over all of its partitions: first a quick one, then one by
dynamic programming. One `ConfigurationSearch` serves the partitions and recompute of all
configurations (`ppopt.studies.plan_product`). The plan ends when no configuration can beat the best
schedule; the proof is complete when every bound reaches the best value. It also ends if no known
partition can be better.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing
from math import inf
from typing import Any

from ppopt.cancellation import (
    part,
    scope,
    shield,
    within,
)
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.decisions import SEARCH
from ppopt.problem.exact import min_known
from ppopt.problem.objective import Objective
from ppopt.schedule.schedule import Schedule
from ppopt.solver.bounds.proof_scope import delay_scope
from ppopt.solver.choices.search import ConfigurationSearch
from ppopt.solver.options import SolveOptions
from ppopt.solver.result import Status
from ppopt.studies.first_schedules import FURTHER, first_schedules
from ppopt.studies.plan_baselines import PlanBaselines
from ppopt.studies.plan_candidate import PlanCandidate
from ppopt.studies.plan_product import PlanProduct
from ppopt.studies.plan_result import Plan, counted
from ppopt.studies.plan_set_up import PlanSetUp
from ppopt.studies.plan_space import PlanSpace


class PlanSearch:
    """The search of one plan."""

    def __init__(
        self,
        space: PlanSpace,
        objective: Objective,
        backward_kind: BackwardKind,
        options: SolveOptions,
        starts: Sequence[Schedule] = (),
    ) -> None:
        """Set up the search in the time left, and start from known schedules, the best first.

        Raises InputError if nothing can be set up.
        """
        self.options, self._params = options, options.params.plan
        self.set_up = PlanSetUp(space, objective, backward_kind, options, starts)
        self.baselines = PlanBaselines(space, objective, backward_kind)
        """Strategies that the search starts from, and that the plan is compared with."""
        self.candidates = self.set_up.candidates
        self._included = [each for each in self.candidates if each.wider and not each.strategy]
        """Configurations of all orders whose schedules another one has. They are bounded, but not
        searched by themselves."""
        self._searched = [each for each in self.candidates if each not in self._included]
        """Configurations that are searched."""
        self._orders = [each for each in self._searched if each.strategy is None]
        """Those of all orders."""
        product = PlanProduct(self._searched, self._params.margin, self._included, self.set_up.late)
        self._search = ConfigurationSearch(
            product, self.set_up.largest, options, params=self._params.configurations
        )
        """Search of all configurations."""
        self.state, self.tell = product.state, self._search.tell
        """State of the search, per microbatch, and what reports it."""
        self.by_clock = self._search.by_clock
        """Whether results may depend on the speed of the machine."""
        with scope(inf):
            self._search.enumerate_listed()
        self.start_from(starts)

    def start_from_baselines(self) -> None:
        """Evaluate strategies, and start every configuration from its best one.

        The strategies that gains are reported over are continued. For small plans, no part is as
        long as the time spent before: a plan that ends by proof is then reproducible.
        """
        self.evaluate_first()
        params, max_seconds, max_descents = self._params, inf, inf
        if self.by_clock:
            left = params.baseline_seconds - self.options.spent
            max_seconds = max(left, params.min_baseline_seconds)
        else:
            max_descents = params.baseline_descents
        with part(params.baseline_share), within(max_seconds):
            self.start_from(self.baselines.search(max_descents=max_descents))

    def _refine_baselines(self) -> None:
        """Continue the strategies that gains are reported over, and follow their schedules."""
        if self._search.over:
            return
        share, max_seconds = self._params.refinement_share, self.options.spent
        with part(share), within(max_seconds if self.by_clock else inf), self._search.improving():
            refined = self.start_from(self.baselines.refine())
        if refined:
            with part(share):
                self._search.follow_hints()

    def start_from_late_baselines(self) -> None:
        """Evaluate the remaining strategies in the time left, after the search."""
        if self.best is not None:
            self.start_from(self.baselines.search(self.best.configuration.batches))

    def evaluate_first(self) -> None:
        """Start every configuration from further strategies with the balanced partition.

        They are evaluated on the configurations of all orders that are open. This ends after a
        share of the time.
        """
        set_up, candidates = self.set_up, {each.configuration: each for each in self._orders}
        with part(self._params.first_schedules):
            further = first_schedules(
                set_up.space,
                [(step, [*candidates]) for step in FURTHER],
                set_up.objective,
                set_up.backward_kind,
                is_open=lambda each: self.state.is_group_open(candidates[each]),
            )
            self.start_from(schedule for _, schedule in further)

    def start_from(self, schedules: Iterable[Schedule]) -> bool:
        """Start every configuration from each schedule that is better; return if there are any.

        Values are known as soon as a schedule is. The search follows all of these schedules: with
        the best alone, fewer partitions and choices of recompute would be improved.
        """
        any_known = False
        for schedule in schedules:
            any_known = True
            for candidate in self.candidates:
                better = candidate.contains(schedule) and candidate.take(schedule)
                if better and candidate in self._orders:
                    self._search.hint(schedule)
            self.tell("strategies")
        return any_known

    def run(self, max_level: float = inf) -> Plan:
        """Search until proof, until an enclosing scope ends, or to the end of a round.

        See `ConfigurationSearch.search`.
        """
        with closing(self._search), scope(inf):
            self._search.begin()
            self._refine_baselines()
            self._search.search(max_level)
        return self.plan()

    # Queries.

    @property
    def best(self) -> PlanCandidate | None:
        """Configuration of the best schedule, which is in the first row (`PlanRow.sort_key`)."""

        def rank(candidate: PlanCandidate) -> tuple[Any, ...]:
            configuration = candidate.configuration
            chosen = configuration.recompute == SEARCH
            return candidate.value, candidate.peak, chosen, configuration

        scheduled = [candidate for candidate in self.candidates if candidate.schedule is not None]
        return min(scheduled, key=rank, default=None)

    @property
    def per_unit(self) -> int:
        """Times of the search in one unit of time of the best configuration."""
        first = self.best or self.candidates[0]
        return first.weight * self.set_up.problem.pipeline.ticks.per_unit

    @property
    def lower_bound(self) -> int | None:
        """Lower bound of the times per microbatch of all configurations; None: none is feasible."""
        state = self.state
        return None if state.infeasible else min_known((state.open_bound, state.end))

    # The plan.

    def _update_candidates(self) -> None:
        """Give configurations the schedules of their strategies, or of what includes them."""
        for candidate in self._searched:
            candidate.update()
        self.state.raise_bound()
        for candidate in self._included:
            assert candidate.wider is not None
            schedules = filter(None, (each.schedule for each in candidate.wider.every))
            own = list(filter(candidate.contains, schedules))
            for schedule in own:
                candidate.take(schedule)
            candidate.raise_to_wider()
            candidate.shared_searches = len(own)

    @shield()
    def plan(self) -> Plan:
        """The current plan."""
        self._update_candidates()
        value, lower_bound, set_up = self.state.value, self.lower_bound, self.set_up
        rows = [candidate.row(value) for candidate in self.candidates]
        rows.sort(key=lambda row: row.sort_key)
        scope = delay_scope(set_up.problem)
        return Plan(
            space=set_up.space,
            objective=set_up.objective,
            status=Status.of(value, lower_bound),
            rows=tuple(rows),
            value_ticks=value,
            bound_ticks=lower_bound,
            per_unit=set_up.space.weight(rows[0].configuration.batches) * rows[0].per_unit,
            proof=f"{counted(rows, set_up.num_late)}{self._open_text}{scope}",
            skipped=set_up.skipped,
            provenance=self.options.provenance,
            solve_seconds=self.options.spent,
        )

    @property
    def _open_text(self) -> str:
        """Text that names the configuration whose bound leaves the gap open, if any."""
        status = Status.of(self.state.value, self.lower_bound)
        if status is not Status.FEASIBLE or self.set_up.num_late or self.lower_bound is None:
            return ""
        possible = [candidate for candidate in self.candidates if not candidate.infeasible]
        lowest = min(possible, key=lambda candidate: candidate.open_bound)
        return f"; the minimum bound is that of {lowest.configuration}"
