"""The search of a plan: all of its configurations in one search, in rounds of growing effort.

Every configuration has a lower bound over all of its partitions: first a quick one, then one by
dynamic programming. One search serves the partitions and recompute of all configurations
(`ppopt.studies.plan_product`). It searches a few partitions of each by heuristics, then more, and
with all methods those with the best values and the smallest bounds. After the first round the best
schedules are improved in their own partitions. The plan ends when no configuration can beat the
best schedule; the proof is complete when every bound reaches the best value. It also ends if no
known partition can be better.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from functools import partial
from itertools import count
from math import inf
from typing import Any

from ppopt.cancellation import (
    checkpoint,
    part,
    scope,
    seconds_left,
    shield,
    within,
)
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.decisions import SEARCH
from ppopt.problem.exact import min_known
from ppopt.problem.objective import Objective
from ppopt.schedule.schedule import Schedule
from ppopt.solver.bounds.proof_scope import delay_scope
from ppopt.solver.choices.search import ConfigurationSearch, Effort
from ppopt.solver.options import SolveOptions
from ppopt.solver.result import Status
from ppopt.studies.baselines import GRACE
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
        self.first_improvement: float | None = None
        """Share of the time left for improving known schedules before anything else, in a turn of a
        plan over the parallelism; None: that of the parameters, after first partitions."""
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
        product = PlanProduct(self._searched, self._params.margin, self.set_up.late)
        self._search = ConfigurationSearch(product, self.set_up.problem, options)
        """Search of all configurations."""
        self.state, self.tell = product.state, self._search.tell
        """State of the search, per microbatch, and what reports it."""
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
            max_seconds = params.baseline_seconds - self.options.spent
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
            self._turn(share, self._search.follow_hints)

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

    def run(self) -> Plan:
        """Search until proof, or until an enclosing scope ends."""
        with closing(self._search), scope(inf):
            self._search_first()
            self._follow_hints()
            self._refine_baselines()
            if self.by_clock:
                share = max(self._params.first_polishing, self._min_polishing)
                self._improve(self.first_improvement or share)
            for round_index in count():
                before = self.lower_bound, self.state.end
                with part(1 if round_index or self.by_clock else 1 - self._min_polishing):
                    self._round(round_index)
                if round_index == 0 or not self.by_clock:
                    shortest = self._params.min_polishing_seconds
                    with within(inf if self.by_clock else max(shortest, self.options.spent)):
                        self._improve(self._params.polishing)
                ended = self._search.exhausted and before == (self.lower_bound, self.state.end)
                if ended or self._search.over:
                    break
        return self.plan()

    def run_rounds(self, number: int) -> None:
        """Search for at most some rounds; a value must be known."""
        with closing(self._search), scope(inf):
            for effort in range(number):
                self._round(effort)

    # The rounds.

    def _follow_hints(self) -> None:
        """Search quickly from the best first schedule of every placement, before all bounds.

        Without a clock, from all first schedules, and after quick bounds.
        """
        if not self.by_clock:
            self._bound(self._params.quick_bounding)
            self._turn(1.0, self._search.follow_hints)
            return

        def first() -> None:
            self._search.follow_hints(each=1)
            if self.first_improvement is None:
                self._search.schedule_first(self._params.first_quick * len(self._orders))

        self._turn(self._params.first_hints, first)

    @property
    def by_clock(self) -> bool:
        """Whether results may depend on the speed of the machine.

        They do with several workers, and if a pipeline is too large for a proof.
        """
        largest = max(candidate.problem.num_operations for candidate in self.candidates)
        return self.options.workers > 1 or largest > self._params.max_reproducible

    @property
    def _min_polishing(self) -> float:
        """Minimum share of the time left for the first improvement.

        It is small unless the time limit is short.
        """
        seconds, left = self._params.min_polishing_seconds, seconds_left()
        return min(self._params.polishing, seconds / left if left > 0 else inf)

    def _search_first(self) -> None:
        """Search the configurations one after the other until one has a schedule.

        The first is searched even if time is up, the others up to `GRACE` seconds later.
        """
        left = seconds_left()
        with shield(), within(left + GRACE):
            for _ in self._searched:
                if self.state.value is None:
                    self._turn(1.0, partial(self._search.search, Effort(0, 1)))
                    checkpoint()

    def _round(self, round_index: int) -> None:
        """Bound the configurations that may be best, and search them."""
        params = self._params
        self._bound(params.bounding)
        each, share = params.first_round_partitions, params.first_round
        if round_index:
            each, share = params.partitions_per_round * 2 ** (round_index - 1), 1.0
        effort = Effort(
            max(0, round_index - 1), each * sum(map(self.state.is_group_open, self._searched))
        )
        self._turn(share, partial(self._search.search, effort))

    def _bound(self, share: float) -> None:
        """Bound the configurations that may be best, in a share of the time left."""
        if self._search.over:
            return
        self._search.bound(share)
        self.tell("bounds")
        for candidate in self._included:
            candidate.raise_to_wider()
            if self.state.is_group_open(candidate):
                with part(share * self._params.included_bounding):
                    candidate.bound_partitions(self.state.end, self._params.margin)
                candidate.raise_bound(self.state.end)

    def _improve(self, share: float) -> None:
        """Improve the best schedules in their partitions and recompute.

        Rounds divide their time between configurations and partitions. Methods that improve large
        pipelines most, such as windows, have no long turn in them. In a small plan, which a later
        round may prove, this takes at most as long as the plan so far, or a few seconds.
        """
        self._turn(share, self._search.improve)

    def _turn(self, share: float, step: Callable[[], None]) -> None:
        """Do a step of the search in a share of the time left, unless the search is over."""
        if not self._search.over:
            with part(share):
                step()
            self.tell("configurations")

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
