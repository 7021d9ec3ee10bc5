"""The search of a plan: successive halving over its configurations.

Every configuration has a lower bound over all of its partitions: first a quick one, then one by
dynamic programming. The configurations that may be best are searched in rounds: first the balanced
partition alone, by heuristics, then a few partitions, then more and more, with more effort for
configurations with better schedules (successive halving: Jamieson and Talwalkar, "Non-stochastic
best arm identification and hyperparameter optimization", AISTATS 2016). The configuration with the
least bound is searched in every round, too, because its bound determines the gap, even if it is not
the best one. Every search continues from its earlier results, and from the best schedule of
configurations that differ in recompute only. It ends when it cannot beat the best schedule of any
configuration. The proof is complete when every bound reaches the best value. The plan also ends if
no known partition may be better.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from itertools import count

from ppopt.errors import InputError, NotApplicableError
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.objective import Objective
from ppopt.problem.partition import SEARCH
from ppopt.problem.problem import Problem
from ppopt.schedule.schedule import Schedule
from ppopt.solver import interrupts
from ppopt.solver.bounds import device_bounds
from ppopt.solver.choices.search import Effort
from ppopt.solver.deadline import Deadline
from ppopt.solver.options import SolveOptions
from ppopt.solver.result import Progress, Status
from ppopt.solver.search import problem_of
from ppopt.strategies import resolve
from ppopt.studies.baselines import BEYOND, GRACE
from ppopt.studies.plan_baselines import PlanBaselines
from ppopt.studies.plan_candidate import (
    PlanCandidate,
    ScheduleCandidate,
    SearchContext,
    StrategyCandidate,
)
from ppopt.studies.plan_least_memory import within_share
from ppopt.studies.plan_result import MoreMemory, Plan, counted
from ppopt.studies.plan_space import (
    OPTIMAL,
    PlanConfiguration,
    PlanSpace,
    partitions_on,
)

FIRST = Effort(level=0, quick=1)
"""Effort for one configuration before any bound: the balanced partition, by heuristics and hand
strategies."""


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
        self._interrupted = False
        self._candidates: list[PlanCandidate] = []
        self._candidates += self._set_up()
        if not self._candidates:
            raise InputError(self._skipped[0][1])
        self._set_up_seconds = setting_up.spent

    def _set_up(self) -> Iterator[PlanCandidate]:
        for configuration in self._space:
            try:
                pipeline = self._space.pipeline(configuration)
                problem = problem_of(pipeline, self._objective, self._kind_of(configuration))
                yield self._candidate(configuration, problem)
            except NotApplicableError as error:
                self._skipped.append((str(configuration), str(error)))

    def _candidate(self, configuration: PlanConfiguration, problem: Problem) -> PlanCandidate:
        """Candidate of a configuration; raises NotApplicableError if it cannot be searched."""
        context = self._context(configuration)
        if configuration.strategy == OPTIMAL:
            return ScheduleCandidate(configuration, problem, context)
        accepts_partition = partitions_on(self._space.runtime, problem.pipeline)
        options = self._space.options_of(configuration)
        return StrategyCandidate(configuration, problem, context, options, accepts_partition)

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

    def set_known_value(self, value: Fraction | None, schedule: Schedule | None) -> None:
        """Use a known achievable time per microbatch, and start from a schedule of the space."""
        self._known_value = value
        for candidate in self._candidates:
            if (
                schedule is not None
                and isinstance(candidate, ScheduleCandidate)
                and candidate.contains(schedule)
            ):
                candidate.start_from(schedule)

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
        for candidate in self._candidates:
            if isinstance(candidate, ScheduleCandidate):
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
            for number in count():
                if self._over:
                    break
                before = self._least, self._ceiling
                self._round(number, self._params.bounding)
                if number == 0:
                    self._search_best_assignment()
                if self._exhausted and before == (self._least, self._ceiling):
                    break
        except KeyboardInterrupt:
            self._interrupted = True
        return self._plan()

    def _search_best_assignment(self) -> None:
        """Search only the partition and recompute of the best schedule, for a share of the time.

        Rounds divide their time between configurations and partitions. Methods that improve large
        pipelines most, such as windows, have no long turn in them.
        """
        best = self._best
        if self._over or not isinstance(best, ScheduleCandidate) or not self._is_open(best):
            return
        with interrupts.heard():
            best.search_best_assignment(self._deadline.share(self._params.polishing))
        self._interrupted |= best.interrupted
        self._tell("configurations")

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

        This takes about as long as the plan so far, if so much of the time limit is left.
        """
        best = self._best
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
        if share is None:
            return plan
        assert plan.best is not None and plan.best.per_microbatch is not None
        max_time = plan.best.per_microbatch * (1 + share)
        deadline = self._told(Deadline.after(self._params.within * self._limit))
        with interrupts.recorded() as pressed:
            within = within_share(self._candidates, max_time, deadline)
        self._interrupted |= bool(pressed)
        return replace(plan, within=within, interrupted=self._interrupted)

    def _search_first(self) -> None:
        """Search one configuration after the other until one has a schedule.

        The first is searched even if time is up, the others up to `GRACE` seconds later.
        """
        latest = self._deadline.longer(GRACE)
        for candidate in filter(self._is_open, self._in_order()):
            self._search(candidate, FIRST, self._deadline.share(self._params.first))
            if self._best is not None or self._interrupted or latest.over:
                return

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
            free._bound_all(self._params.more_bounding)
        bounded = {candidate.configuration: candidate for candidate in free._candidates}
        for candidate in self._candidates:
            if candidate.configuration in bounded:
                candidate.raise_to(bounded[candidate.configuration])

    def _round(self, number: int, bounding: float) -> None:
        """Bound the configurations that may be best, and search them."""
        if number == 0:
            self._first_round(bounding)
            return
        with interrupts.heard():
            self._bound_all(bounding)
        self._search_all(self._efforts_of(number - 1))

    def _first_round(self, bounding: float) -> None:
        """Bound every configuration and search it shortly, one after the other.

        So bounds of later ones are computed only up to the best schedule of earlier ones. The order
        is by quick bounds, then fewer stages first.
        """
        waiting = sorted(self._candidates, key=_bounding_order)
        short = Effort(level=0, quick=self._params.short)
        for index, candidate in enumerate(waiting):
            if self._over:
                return
            others = sum(map(self._is_open, waiting[index + 1 :]))
            with interrupts.heard():
                self._bound(candidate, self._deadline.turn(others).share(bounding))
            if self._is_open(candidate):
                self._search(candidate, short, self._deadline.turn(others))

    def _bound_all(self, share: float) -> None:
        """Bound the configurations that may be best for a share of the time left."""
        deadline = self._deadline.share(share)
        waiting = list(filter(self._is_open, sorted(self._candidates, key=_bounding_order)))
        for index, candidate in enumerate(waiting):
            self._bound(candidate, deadline.turn(len(waiting) - index - 1))

    def _bound(self, candidate: PlanCandidate, turn: Deadline) -> None:
        """Bound a configuration for a turn, if it may be best.

        Bounds with chosen recompute also hold for every other recompute mode of the same placement.
        """
        for relaxed in self._candidates:
            if relaxed.configuration == candidate.configuration._replace(recompute=SEARCH):
                candidate.raise_to(relaxed)
        if self._is_open(candidate):
            candidate.raise_bound(turn)
            self._tell("bounds")

    # Which configuration.

    @property
    def _best(self) -> PlanCandidate | None:
        """Configuration of the best schedule; of several, that of the least memory."""
        scheduled = [candidate for candidate in self._candidates if candidate.value is not None]
        return min(
            scheduled, key=lambda candidate: (_value(candidate), candidate.peak), default=None
        )

    @property
    def _least(self) -> Fraction | None:
        """Lower bound of the times per microbatch of all configurations; None: none is feasible."""
        bounds = [
            candidate.per_microbatch(candidate.bound)
            for candidate in self._candidates
            if not candidate.impossible
        ]
        if self._ceiling is not None:
            bounds.append(self._ceiling)
        return min(bounds, default=None)

    def _is_open(self, candidate: PlanCandidate) -> bool:
        """Whether a configuration may be better than the best one, or is the best one, unproved."""
        if candidate.impossible:
            return False
        ceiling = self._ceiling
        return ceiling is None or candidate.per_microbatch(candidate.bound) < ceiling

    @property
    def _ceiling(self) -> Fraction | None:
        """Least time per microbatch that is known to be possible."""
        times = [] if self._best is None else [_value(self._best)]
        return min(
            times if self._known_value is None else [*times, self._known_value], default=None
        )

    def _in_order(self) -> list[PlanCandidate]:
        """Configurations by value, then by bound.

        Those with bounds too high are skipped when their turn comes.
        """

        def sort_key(candidate: PlanCandidate) -> tuple[bool, Fraction, Fraction]:
            value = Fraction(0) if candidate.value is None else _value(candidate)
            return candidate.value is None, value, candidate.per_microbatch(candidate.bound)

        return sorted(self._candidates, key=sort_key)

    @property
    def _over(self) -> bool:
        """Whether the search ends now.

        One configuration is searched even if time is up, unless a value is known already.
        """
        late = self._deadline.over
        enough = self._known_value is not None or any(
            candidate.searches for candidate in self._candidates
        )
        if self._interrupted or (late and enough):
            return True
        if not any(map(self._is_open, self._candidates)):
            return True
        stop = self._deadline.stop
        return stop is not None and stop(self._state("configurations"))

    @property
    def _exhausted(self) -> bool:
        """Whether no configuration that may be best has anything left to search."""
        return all(
            candidate.exhausted for candidate in self._candidates if self._is_open(candidate)
        )

    # One configuration.

    def _efforts_of(self, number: int) -> Callable[[PlanCandidate], Effort]:
        """Effort of every configuration in a round: less for those of higher values.

        The one of least bound is at most one level behind the best.
        """
        contenders = list(filter(self._is_open, self._in_order()))
        levels = {
            id(candidate): max(0, number - rank.bit_length())
            for rank, candidate in enumerate(contenders)
        }
        least = min(
            contenders,
            key=lambda candidate: candidate.per_microbatch(candidate.bound),
            default=None,
        )
        levels[id(least)] = max(levels.get(id(least), 0), number - 1)

        def effort(candidate: PlanCandidate) -> Effort:
            level = levels.get(id(candidate), 0)
            return Effort(level, self._params.few * 2**level)

        return effort

    def _search_all(self, effort_of: Callable[[PlanCandidate], Effort]) -> None:
        """Run one round: search the configurations that may be best, each with its effort."""
        waiting = self._in_order()
        for index, candidate in enumerate(waiting):
            if self._over:
                return
            if self._is_open(candidate):
                others = sum(map(self._is_open, waiting[index + 1 :]))
                self._search(candidate, effort_of(candidate), self._deadline.turn(others))

    def _search(self, candidate: PlanCandidate, effort: Effort, turn: Deadline) -> None:
        """Search a configuration for at most a turn."""
        for other in self._candidates:
            alike = _differ_in_recompute_only(other.configuration, candidate.configuration)
            if other is not candidate and alike and other.schedule is not None:
                candidate.hint(other.schedule)
        candidate.search(effort, turn)
        if candidate.result is not None:
            self._interrupted |= candidate.result.interrupted
        self._tell("configurations")

    def _context(self, configuration: PlanConfiguration) -> SearchContext:
        def ceiling() -> Fraction | None:
            least = self._ceiling
            return None if least is None else least * configuration.batches

        def follow(state: Progress) -> None:
            self._tell(f"{configuration}, {state.phase}", configuration, state.value)

        def stop(state: Progress) -> bool:
            user_stop = self._deadline.stop
            return user_stop is not None and user_stop(
                self._state(state.phase, configuration, state.value)
            )

        deadline = replace(self._deadline, progress=follow, stop=stop)
        return SearchContext(self._options.by(deadline), ceiling)

    # What is reported.

    def _state(
        self,
        phase: str,
        configuration: PlanConfiguration | None = None,
        value: Fraction | None = None,
    ) -> Progress:
        """Best value and bound over all, for the microbatches of the best configuration."""
        best, known = self._best, []
        if best is not None:
            known.append((_value(best), best.configuration.batches))
        if configuration is not None and value is not None:
            known.append((value / configuration.batches, configuration.batches))
        each, batches = min(known, default=(None, self._space.batches[0]))
        least = self._least or Fraction(0)
        shown = None if each is None else each * batches
        return Progress(self._deadline.spent, phase, shown, least * batches)

    def _tell(
        self,
        phase: str,
        configuration: PlanConfiguration | None = None,
        value: Fraction | None = None,
    ) -> None:
        if self._deadline.progress is not None:
            self._deadline.progress(self._state(phase, configuration, value))

    def _told(self, deadline: Deadline) -> Deadline:
        """Deadline of work whose progress the plan reports, with its own value and bound."""
        return replace(deadline, progress=lambda state: self._tell(state.phase))

    # The plan.

    def _take_over(self) -> None:
        """Copy better schedules to configurations of chosen recompute from those they include."""
        for candidate in self._candidates:
            if candidate.configuration.recompute != SEARCH:
                continue
            included = [
                other
                for other in self._candidates
                if _differ_in_recompute_only(other.configuration, candidate.configuration)
                and other.value is not None
            ]
            best = min(included, key=_value, default=candidate)
            if best is not candidate and (
                candidate.value is None or _value(best) < _value(candidate)
            ):
                assert best.schedule is not None
                candidate.result = candidate.feasible(best.schedule)

    def _plan(self) -> Plan:
        self._take_over()
        best, least = self._best, self._least
        ceiling = None if best is None else _value(best)
        rows = [candidate.row(ceiling) for candidate in self._candidates]
        rows.sort(key=lambda row: row.sort_key)
        batches = self._space.batches[0] if best is None else best.configuration.batches
        if best is None:
            status = Status.UNKNOWN if least is not None else Status.INFEASIBLE
        else:
            status = Status.OPTIMAL if least == _value(best) else Status.FEASIBLE
        scope = device_bounds.links_scope(self._candidates[0].problem)
        return Plan(
            space=self._space,
            objective=self._objective,
            status=status,
            rows=tuple(rows),
            lower_bound=None if least is None else least * batches,
            proof=f"{counted(rows)}{self._least_words}{scope}",
            skipped=tuple(self._skipped),
            provenance=self._options.provenance,
            solve_seconds=self._deadline.spent,
            interrupted=self._interrupted,
        )

    @property
    def _least_words(self) -> str:
        """Text that names the configuration whose bound leaves the gap open, if any."""
        least, best = self._least, self._best
        if least is None or best is None or least == _value(best):
            return ""
        candidate = min(
            (candidate for candidate in self._candidates if not candidate.impossible),
            key=lambda candidate: candidate.per_microbatch(candidate.bound),
        )
        return f"; the least bound is that of {candidate.configuration}"


def _bounding_order(candidate: PlanCandidate) -> tuple[Fraction, int, bool]:
    """Sort key for bounding: chosen recompute comes before the other modes of a placement."""
    stages = candidate.problem.pipeline.num_stages
    return (
        candidate.per_microbatch(candidate.bound),
        stages,
        candidate.configuration.recompute != SEARCH,
    )


def _differ_in_recompute_only(first: PlanConfiguration, second: PlanConfiguration) -> bool:
    """Whether two configurations differ in recompute alone."""
    return first._replace(recompute="") == second._replace(recompute="")


def _value(candidate: PlanCandidate) -> Fraction:
    """Time per microbatch of the best schedule of a configuration that has one."""
    assert candidate.value is not None
    return candidate.per_microbatch(candidate.value)
