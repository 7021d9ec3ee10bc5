"""The search of a plan: all of its configurations in one search, in rounds of growing effort.

Every configuration has a lower bound over all of its partitions: first a quick one, then one by
dynamic programming. One search serves the partitions and recompute of all configurations
(`ppopt.studies.plan_product`): first a few partitions of each by heuristics, then more and more,
and with all methods those of the best values and of the least bounds. After the first round the
best schedule's own partition is searched alone. Configurations of hand strategies have a search of
their own, which has its turn in every round. The plan ends when no configuration can beat the best
schedule; the proof is complete when every bound reaches the best value. It also ends if no known
partition may be better.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from functools import cached_property
from itertools import count
from typing import Any

from ppopt.errors import InputError, NotApplicableError
from ppopt.problem import exact
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.objective import Objective
from ppopt.problem.partition import SEARCH
from ppopt.schedule.schedule import Schedule
from ppopt.solver import interrupts
from ppopt.solver.arguments import LAYER_WORK
from ppopt.solver.bounds.proof_scope import delay_scope
from ppopt.solver.choices.enumeration import (
    NONE_LEFT,
    Rest,
    Unlisted,
    bounds_of_all,
    lower_bound_of,
)
from ppopt.solver.choices.given import GivenPipeline
from ppopt.solver.choices.search import Effort
from ppopt.solver.choices.spaces import traits_of_any
from ppopt.solver.deadline import Deadline
from ppopt.solver.open_choices import choice_of
from ppopt.solver.options import SolveOptions
from ppopt.solver.result import Progress, Status
from ppopt.solver.search import problem_of
from ppopt.strategies import resolve
from ppopt.studies.baselines import BEYOND, GRACE, OUT_OF_TIME
from ppopt.studies.evaluate import objective_value
from ppopt.studies.plan_baselines import PlanBaselines
from ppopt.studies.plan_candidate import PlanCandidate
from ppopt.studies.plan_least_memory import within_share
from ppopt.studies.plan_orders import OrdersSearch
from ppopt.studies.plan_product import PlanChoice
from ppopt.studies.plan_result import MoreMemory, Plan, counted
from ppopt.studies.plan_space import OPTIMAL, PlanConfiguration, PlanSpace, partitions_on
from ppopt.studies.plan_strategy import StrategyCandidate
from ppopt.studies.quick_bound import minimum_work


class PlanSearch:
    """The search of one plan."""

    def __init__(
        self,
        space: PlanSpace,
        objective: Objective,
        backward_kind: BackwardKind,
        options: SolveOptions,
        share: float = 1.0,
    ) -> None:
        """Search for a share of the time limit. Raises InputError if nothing can be set up."""
        setting_up = Deadline.after()
        self._space, self._objective, self._backward_kind, self._options = (
            space,
            objective,
            backward_kind,
            options,
        )
        self._params = options.params.plan
        self._limit = options.deadline.seconds
        """Seconds of the whole plan."""
        self._deadline = replace(options.deadline, seconds=share * self._limit)
        """Deadline of this search."""
        self._baselines = PlanBaselines(space, objective, backward_kind)
        self._known_value: Fraction | None = None
        """Time per microbatch that is known to be possible."""
        self._skipped: list[tuple[str, str]] = []
        self._num_late = 0
        """Number of configurations that were not set up in time."""
        self._interrupted = False
        self._begun = False
        """Whether the deadline counts: a first search was tried, with or without success."""
        self._strategies: list[StrategyCandidate] = []
        """Configurations of hand strategies."""
        told = self._options.by(
            replace(
                self._deadline,
                progress=lambda state: self._tell(state.phase, state),
                stop=self._stopped,
            )
        )
        choices = list(self._set_up())
        problems = [choice.problem for choice in choices]
        problems += [candidate.problem for candidate in self._strategies]
        if not problems:
            raise InputError(self._skipped[0][1])
        self._orders = OrdersSearch(choices, problems[0], told, lambda: self._ceiling)
        """Configurations of all orders."""
        self._candidates: list[PlanCandidate] = [*self._orders.candidates, *self._strategies]
        self._set_up_seconds = setting_up.spent

    def _set_up(self) -> Iterator[PlanChoice]:
        """Set up every configuration: yields those of all orders, and keeps those of strategies.

        Those for which no time is left are skipped, but for the first that can be set up.
        """
        is_set_up = False
        for configuration in self._space:
            if is_set_up and self._deadline.over:
                self._num_late += 1
                self._skipped.append((str(configuration), OUT_OF_TIME))
                continue
            try:
                pipeline = self._space.pipeline(configuration)
                problem = problem_of(pipeline, self._objective, self._kind_of(configuration))
                choice = choice_of(problem, self._deadline) or GivenPipeline(problem)
                made = PlanChoice(configuration, problem, choice)
                if configuration.strategy == OPTIMAL:
                    yield made
                else:
                    self._strategies.append(self._strategy_candidate(made))
                is_set_up = True
            except NotApplicableError as error:
                self._skipped.append((str(configuration), str(error)))

    def _strategy_candidate(self, made: PlanChoice) -> StrategyCandidate:
        """Candidate of a hand strategy; raises NotApplicableError if it cannot be searched."""
        accepts_partition = partitions_on(self._space.runtime, made.problem.pipeline)
        options = self._space.options_of(made.configuration)
        return StrategyCandidate(made, self._options, options, accepts_partition)

    def _kind_of(self, configuration: PlanConfiguration) -> BackwardKind:
        """Kind of backwards of the schedules of a configuration.

        Raises NotApplicableError if the kind that was requested does not allow it.
        """
        if configuration.strategy == OPTIMAL:
            return self._backward_kind
        fused = resolve(configuration.strategy).fused
        if self._backward_kind is BackwardKind.WHOLE and not fused:
            raise NotApplicableError(f"{configuration.strategy} splits the backward")
        if self._backward_kind is BackwardKind.SPLIT and fused:
            raise NotApplicableError(f"{configuration.strategy} does not split the backward")
        return BackwardKind.WHOLE if fused else BackwardKind.MIXED

    def set_known_value(self, value: Fraction | None, starts: Sequence[Schedule] = ()) -> None:
        """Use a known achievable time per microbatch, and start from schedules of the space."""
        self._known_value = value
        for candidate in self._orders.candidates:
            own = [schedule for schedule in starts if candidate.contains(schedule)]
            best = min(own, key=lambda start: objective_value(start, self._objective), default=None)
            if best is not None:
                candidate.start_from(best)

    def start_from_baselines(self) -> None:
        """Evaluate hand strategies, and start every configuration from its best one."""
        counts, params = self._space.batches, self._params
        max_seconds = min(params.beginning * self._limit, params.beginning_seconds)
        try:
            with interrupts.heard():
                for number, batches in enumerate(counts, start=1):
                    seconds = max_seconds * number / len(counts)
                    deadline = replace(self._told(self._deadline), seconds=seconds)
                    self._baselines.search(batches, deadline)
        except KeyboardInterrupt:
            self._interrupted = True
        self._start_from_best_baselines()

    def _start_from_best_baselines(self) -> None:
        """Start every configuration from the best hand strategy that it could have chosen."""
        for candidate in self._orders.candidates:
            baselines = [
                baseline
                for baseline in self._baselines.results
                if candidate.contains(baseline.schedule)
            ]
            best = min(baselines, key=lambda baseline: baseline.value, default=None)
            if best is not None and (candidate.value is None or best.value < candidate.value):
                candidate.start_from(best.schedule)

    def run(self) -> Plan:
        """Search until proof, until the time is up, or until Ctrl-C."""
        try:
            self._search_first()
            self._begun = True
            for number in count():
                if self._over:
                    break
                before = self._least, self._ceiling
                self._round(number, self._params.bounding)
                if number == 0 and not self._over:
                    self._orders.search_best_partition(self._deadline.share(self._params.polishing))
                    self._note("configurations")
                if self._exhausted and before == (self._least, self._ceiling):
                    break
        except KeyboardInterrupt:
            self._interrupted = True
        return self._plan()

    def refine(self) -> Plan:
        """Continue the hand strategies that the gain names; returns the updated plan.

        This takes at most as long as the plan so far, and at most its share of the time limit.
        """
        best = self._best
        assert best is not None
        turn = Deadline.after(min(self._params.refining * self._limit, self._deadline.spent))
        try:
            with interrupts.heard():
                self._baselines.refine(best.configuration.batches, turn)
        except KeyboardInterrupt:
            self._interrupted = True
        self._start_from_best_baselines()
        return self._plan()

    def with_less_memory(self) -> Plan:
        """Add the least memory for the value of the plan that a short search finds.

        This takes about as long as the plan so far, if so much of the time limit is left; nothing
        is added if none is left.
        """
        best = self._best
        if self._options.deadline.over:
            return self._plan()
        assert best is not None
        spent, least_seconds = self._deadline.spent, self._params.less * self._limit
        useful = max(self._params.less_left * self._limit, spent)
        seconds = max(least_seconds, min(self._deadline.left + least_seconds, useful))
        with interrupts.recorded() as pressed:
            least = best.minimize_memory(self._told(Deadline.after(seconds)))
        self._interrupted |= best.interrupted or bool(pressed)
        return replace(self._plan(), least_memory=least)

    def with_memory_within(self, plan: Plan, share: Fraction | None) -> Plan:
        """Add the least memory of any configuration at most `share` slower than the best."""
        if share is None or self._options.deadline.over:
            return plan
        assert plan.best is not None and plan.best.per_microbatch is not None
        max_time = plan.best.per_microbatch * (1 + share)
        deadline = self._told(Deadline.after(self._params.within * self._limit))
        with interrupts.recorded() as pressed:
            within = within_share(self._candidates, max_time, deadline)
        self._interrupted |= bool(pressed)
        return replace(plan, within=within, interrupted=self._interrupted)

    def with_baselines(self, plan: Plan) -> Plan:
        """Add the hand strategies; the remaining ones may slightly exceed the time limit."""
        assert plan.best is not None
        deadline = self._options.deadline
        with suppress(KeyboardInterrupt), interrupts.heard():
            later = deadline.longer((BEYOND - 1) * deadline.seconds + GRACE)
            self._baselines.search(plan.best.configuration.batches, replace(later, progress=None))
        return replace(
            self._baselines.add_to(plan), interrupted=deadline.pressed, solve_seconds=deadline.spent
        )

    def with_more_memory(self, plan: Plan) -> Plan:
        """Add the effect of more memory, by a short search if that can be set up in time."""
        limits = self._candidates[0].problem.pipeline.limits
        if limits is None or not self._is_set_up_within(self._options.deadline.left):
            return plan
        more = [limit * self._params.more_memory for limit in limits]
        space = replace(self._space, fields={**self._space.fields, "mem_limit": more})
        spent = plan.solve_seconds / self._limit
        share = max(self._params.more, min(1 - spent, spent / 2))
        later = self._options.by(Deadline.after(self._limit))
        search = PlanSearch(space, self._objective, self._backward_kind, later, share)
        assert plan.best is not None and plan.value is not None
        value, least = search.bounded(plan.best.per_microbatch, self._candidates)
        batches = plan.best.configuration.batches
        return replace(plan, more_memory=MoreMemory(tuple(more), value * batches, least * batches))

    def _is_set_up_within(self, seconds: float) -> bool:
        """Whether another search like this one is set up in at most half of `seconds`."""
        return 2 * self._set_up_seconds <= seconds

    def bounded(
        self, known_value: Fraction | None, earlier: Sequence[PlanCandidate]
    ) -> tuple[Fraction, Fraction]:
        """Run two rounds from a known time; return the best time per microbatch and the bound.

        `earlier` are configurations under lower limits, whose schedules are feasible here, too.
        """
        self._known_value = known_value
        schedules = {candidate.configuration: candidate.schedule for candidate in earlier}
        for candidate in self._candidates:
            schedule = schedules.get(candidate.configuration)
            if schedule is not None:
                candidate.hint(schedule)
        with suppress(KeyboardInterrupt):
            if self._is_set_up_within(self._deadline.left):
                self._raise_to_unlimited()
            for number in range(2):
                if not self._over:
                    self._round(number, self._params.more_bounding)
        ceiling, least = self._ceiling, self._least
        assert ceiling is not None and least is not None
        return ceiling, least

    def _raise_to_unlimited(self) -> None:
        """Raise bounds by the same space without memory limits, whose bounds take less time."""
        fields = {key: value for key, value in self._space.fields.items() if key != "mem_limit"}
        free = PlanSearch(
            replace(self._space, fields=fields), self._objective, self._backward_kind,
            self._options.by(self._deadline),
        )  # fmt: skip
        free._known_value = self._known_value
        with interrupts.heard():
            free._bound(free._deadline.share(self._params.more_bounding))
        bounded = {candidate.configuration: candidate for candidate in free._candidates}
        for candidate in self._candidates:
            if candidate.configuration in bounded:
                candidate.raise_to(bounded[candidate.configuration])

    # The rounds.

    def _search_first(self) -> None:
        """Search one configuration after the other until one has a schedule.

        The first is searched even if time is up, the others up to `GRACE` seconds later.
        """
        for number in range(1, len(self._orders.candidates) + 1):
            if self._best is None and not self._over:
                self._orders.search(Effort(0, number), self._deadline)
                self._note("configurations")
        latest = self._deadline.longer(GRACE)
        for candidate in sorted(filter(self._is_open, self._strategies), key=_by_bound):
            if self._best is not None or self._interrupted:
                return
            candidate.search(0, self._deadline.share(self._params.first))
            self._note("configurations")
            if latest.over:
                return

    def _round(self, number: int, bounding: float) -> None:
        """Bound the configurations that may be best, and search them.

        The search of all orders has the turns of all of its open configurations.
        """
        with interrupts.heard():
            self._bound(self._deadline.share(bounding))
        waiting, opened = sum(map(self._is_open, self._strategies)), self._orders.num_open
        if opened:
            part = opened / (opened + waiting)
            self._orders.search_round(number, self._deadline.share(part))
            self._note("configurations")
        for candidate in sorted(self._strategies, key=_by_bound):
            if self._over:
                return
            if self._is_open(candidate):
                waiting -= 1
                candidate.search(max(0, number - 1), self._deadline.turn(waiting))
                self._note("configurations")

    def _bound(self, deadline: Deadline) -> None:
        """Bound the configurations that may be best, until the deadline."""
        waiting = list(filter(self._is_open, self._strategies))
        if self._orders.candidates:
            opened = self._orders.num_open
            self._orders.bound(deadline.share(opened / ((opened + len(waiting)) or 1)))
            self._note("bounds")
        for place, candidate in enumerate(waiting):
            ceiling = self._ceiling
            if ceiling is not None:
                ceiling *= candidate.configuration.batches * self._params.margin
            candidate.raise_bound(deadline.turn(len(waiting) - place - 1), ceiling)
            self._note("bounds")

    def _raise_strategies(self) -> None:
        """Raise the bounds of hand strategies to those of all orders of the same configuration."""
        orders = {candidate.configuration: candidate for candidate in self._orders.candidates}
        for candidate in self._strategies:
            wider = orders.get(candidate.configuration._replace(strategy=OPTIMAL))
            if wider is not None:
                candidate.raise_to(wider)

    def _note(self, phase: str) -> None:
        """Report the state after a search or a bound, and note whether Ctrl-C ended it."""
        self._interrupted |= self._orders.interrupted
        self._raise_strategies()
        self._tell(phase)

    def _stopped(self, state: Progress) -> bool:
        """Whether the user ends the search of all orders."""
        stop = self._deadline.stop
        return stop is not None and stop(self._state(state.phase, state))

    # Which configuration.

    @property
    def _best(self) -> PlanCandidate | None:
        """Configuration of the best schedule, which is in the first row (`PlanRow.sort_key`)."""

        def rank(candidate: PlanCandidate) -> tuple[Any, ...]:
            configuration = candidate.configuration
            chosen = configuration.recompute == SEARCH
            return _value(candidate), candidate.peak, chosen, configuration

        scheduled = [candidate for candidate in self._candidates if candidate.value is not None]
        return min(scheduled, key=rank, default=None)

    @property
    def _least(self) -> Fraction | None:
        """Lower bound of the times per microbatch of all configurations; None: none is feasible."""
        least = lower_bound_of(bounds_of_all(map(_by_bound, self._possible), self._late))
        return least if least is None or self._ceiling is None else min(least, self._ceiling)

    @property
    def _possible(self) -> list[PlanCandidate]:
        """Configurations that may be feasible."""
        return [candidate for candidate in self._candidates if not candidate.impossible]

    @cached_property
    def _late(self) -> Rest:
        """Configurations that were not set up, with a lower bound of the times per microbatch.

        The devices run the work of all layers. With phases, a pair may take less than its parts.
        """
        problem = self._candidates[0].problem
        if not self._num_late:
            return NONE_LEFT
        if not LAYER_WORK.applies(traits_of_any(problem)):
            return Unlisted(Fraction(0))
        pipeline = problem.pipeline
        work = exact.total(map(minimum_work, pipeline.model.costed))
        return Unlisted(work / sum(pipeline.device_speed))

    def _is_open(self, candidate: PlanCandidate) -> bool:
        """Whether a configuration may be better than the best one, or is the best one, unproved."""
        return candidate.is_open(self._ceiling)

    @property
    def _ceiling(self) -> Fraction | None:
        """Least time per microbatch that is known to be possible."""
        times = [] if self._best is None else [_value(self._best)]
        return min(
            times if self._known_value is None else [*times, self._known_value], default=None
        )

    @property
    def _over(self) -> bool:
        """Whether the search ends now.

        A first search is tried even if time is up, unless a value is known already.
        """
        tried = self._begun or self._known_value is not None
        if self._interrupted or (tried and self._deadline.over):
            return True
        if not any(map(self._is_open, self._candidates)):
            return True
        stop = self._deadline.stop
        return stop is not None and stop(self._state("configurations"))

    @property
    def _exhausted(self) -> bool:
        """Whether no configuration that may be best has anything left to search."""
        return self._orders.exhausted and all(
            candidate.exhausted for candidate in self._strategies if self._is_open(candidate)
        )

    # What is reported.

    def _state(self, phase: str, orders: Progress | None = None) -> Progress:
        """Best value and bound over all, for the microbatches of the best configuration.

        `orders` is the state of the running search of all orders, per microbatch.
        """
        best, bound = self._best, self._least or Fraction(0)
        known = [None if best is None else _value(best)]
        if orders is not None:
            others = [_by_bound(other) for other in self._strategies if not other.impossible]
            running = bounds_of_all([orders.lower_bound, *others], self._late)
            bound = max(bound, lower_bound_of(running) or Fraction(0))
            known.append(orders.value)
        batches = self._space.batches[0] if best is None else best.configuration.batches
        value = min((time for time in known if time is not None), default=None)
        shown = None if value is None else value * batches
        return Progress(self._deadline.spent, phase, shown, bound * batches)

    def _tell(self, phase: str, orders: Progress | None = None) -> None:
        if self._deadline.progress is not None:
            self._deadline.progress(self._state(phase, orders))

    def _told(self, deadline: Deadline) -> Deadline:
        """Deadline of work whose progress the plan reports, with its own value and bound."""
        return replace(deadline, progress=lambda state: self._tell(state.phase))

    # The plan.

    def _take_included(self) -> None:
        """Give configurations of chosen recompute the better schedules of those they include."""
        scheduled = [candidate for candidate in self._candidates if candidate.schedule is not None]
        for candidate in self._candidates:
            for other in scheduled:
                chosen = other.configuration._replace(recompute=SEARCH)
                if other is not candidate and chosen == candidate.configuration:
                    assert other.schedule is not None
                    candidate.take(other.schedule)

    def _plan(self) -> Plan:
        self._take_included()
        best, least = self._best, self._least
        ceiling = None if best is None else _value(best)
        rows = [candidate.row(ceiling) for candidate in self._candidates]
        rows.sort(key=lambda row: row.sort_key)
        batches = self._space.batches[0] if best is None else best.configuration.batches
        if best is None:
            status = Status.UNKNOWN if least is not None else Status.INFEASIBLE
        else:
            status = Status.OPTIMAL if least == _value(best) else Status.FEASIBLE
        scope = delay_scope(self._candidates[0].problem)
        return Plan(
            space=self._space,
            objective=self._objective,
            status=status,
            rows=tuple(rows),
            lower_bound=None if least is None else least * batches,
            proof=f"{counted(rows, self._num_late)}{self._least_words}{scope}",
            skipped=tuple(self._skipped),
            provenance=self._options.provenance,
            solve_seconds=self._deadline.spent,
            interrupted=self._interrupted,
        )

    @property
    def _least_words(self) -> str:
        """Text that names the configuration whose bound leaves the gap open, if any."""
        least, best = self._least, self._best
        if least is None or best is None or least == _value(best) or self._num_late:
            return ""
        return f"; the least bound is that of {min(self._possible, key=_by_bound).configuration}"


def _value(candidate: PlanCandidate) -> Fraction:
    """Time per microbatch of the best schedule of a configuration that has one."""
    assert candidate.value is not None
    return candidate.per_microbatch(candidate.value)


def _by_bound(candidate: PlanCandidate) -> Fraction:
    return candidate.bound_per_microbatch
