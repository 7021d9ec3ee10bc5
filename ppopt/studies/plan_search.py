"""The search of a plan over its configurations, each of which has a search of its own.

Every configuration has a bound over all of its partitions: at first one that takes no time, then
that of a program. The configurations that may be best are searched in rounds: at first the balanced
partition alone, by heuristics, then a few partitions, and then with more and more effort, the more
the better the best schedule found so far (successive halving: Jamieson and Talwalkar,
"Non-stochastic best arm identification and hyperparameter optimization", AISTATS 2016). The least
bound is often not that of the best configuration, but it keeps the gap open, so that configuration
has its turns, too. Every search continues from what it knows, and from the best schedule of other
choices of recompute. It ends where it cannot be better than the best schedule of any configuration.
The proof is complete when every bound reaches the best value. Where bounds leave a gap and no
partition is left that is known to be better, the plan ends, too.
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
    PlanRequest,
    ScheduleCandidate,
    StrategyCandidate,
)
from ppopt.studies.plan_result import MoreMemory, Plan, counted
from ppopt.studies.plan_space import (
    OPTIMAL,
    PlanConfiguration,
    PlanSpace,
    partitions_on,
)
from ppopt.studies.plan_within import within_share

FIRST = Effort(level=0, quick=1)
"""Of one configuration before any bound: the balanced partition, by heuristics and hand strategies.
"""


class PlanSearch:
    """One search for a plan."""

    def __init__(
        self,
        space: PlanSpace,
        objective: Objective,
        kind: BackwardKind,
        options: SolveOptions,
        share: float = 1.0,
    ) -> None:
        """Search for a share of the time limit. Raises InputError where nothing can be set up."""
        setting_up = Deadline.after()
        self._space, self._objective, self._kind, self._options = space, objective, kind, options
        self._params = options.params.plan
        self._limit = options.deadline.seconds
        """Seconds of the whole plan."""
        self._deadline = replace(options.deadline, seconds=share * self._limit)
        """That of this search."""
        self._hands = PlanBaselines(space, objective, kind)
        self._known: Fraction | None = None
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
        """What searches a configuration; raises NotApplicableError where nothing can."""
        request = self._request(configuration)
        if configuration.strategy == OPTIMAL:
            return ScheduleCandidate(configuration, problem, request)
        takes = partitions_on(self._space.runtime, problem.pipeline)
        options = self._space.options_of(configuration)
        return StrategyCandidate(configuration, problem, request, options, takes)

    def _kind_of(self, configuration: PlanConfiguration) -> BackwardKind:
        """The kind of backwards of its schedules.

        Raises NotApplicableError where that is not allowed.
        """
        if configuration.strategy == OPTIMAL:
            return self._kind
        fused = resolve(configuration.strategy).fused
        if self._kind is BackwardKind.WHOLE and not fused:
            raise NotApplicableError(f"{configuration.strategy} splits the backward")
        if self._kind is BackwardKind.SPLIT and fused:
            raise NotApplicableError(f"{configuration.strategy} does not split the backward")
        return BackwardKind.WHOLE if fused else BackwardKind.MIXED

    def know(self, value: Fraction | None, made: Schedule | None) -> None:
        """Take a time per microbatch for possible, and begin with a schedule of the space."""
        self._known = value
        for one in self._candidates:
            if made is not None and isinstance(one, ScheduleCandidate) and one.holds(made):
                one.begin(made)

    def begin(self) -> None:
        """Begin with hand strategies: the best of every configuration is its first schedule."""
        counts, params = self._space.batches, self._params
        most = min(params.beginning * self._limit, params.beginning_seconds)
        try:
            with interrupts.heard():
                for number, batches in enumerate(counts, start=1):
                    seconds = most * number / len(counts)
                    deadline = replace(self._told(self._deadline), seconds=seconds)
                    self._hands.search(batches, deadline)
        except KeyboardInterrupt:
            self._interrupted = True
        self._take_hands()

    def _take_hands(self) -> None:
        """Give every configuration the best of the hand strategies that it could have chosen."""
        for one in self._candidates:
            if isinstance(one, ScheduleCandidate):
                known = [hand for hand in self._hands.found if one.holds(hand.schedule)]
                best = min(known, key=lambda hand: hand.value, default=None)
                if best is not None and (one.value is None or best.value < one.value):
                    one.begin(best.schedule)

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
                    self._polish()
                if self._stuck and before == (self._least, self._ceiling):
                    break
        except KeyboardInterrupt:
            self._interrupted = True
        return self._plan()

    def _polish(self) -> None:
        """Search the best schedule's own partition and recompute for a share of the time left.

        Rounds divide their time between configurations and partitions. Methods that gain most on
        large pipelines, such as windows, have no long turn in them.
        """
        best = self._best
        if self._over or not isinstance(best, ScheduleCandidate) or not self._is_open(best):
            return
        with interrupts.heard():
            best.polish(self._deadline.share(self._params.polishing))
        self._interrupted |= best.interrupted
        self._tell("configurations")

    def refined(self) -> Plan:
        """The plan, after the hand strategies that its gain names have gone on.

        They take as long as the plan did, if so much is left of their share.
        """
        best = self._best
        assert best is not None
        turn = Deadline.after(min(self._params.refining * self._limit, self._deadline.spent))
        try:
            with interrupts.heard():
                self._hands.refine(best.configuration.batches, turn)
        except KeyboardInterrupt:
            self._interrupted = True
        self._take_hands()
        return self._plan()

    def with_less_memory(self) -> Plan:
        """The plan with the least memory for its value that a short search finds.

        It takes as long as the plan did, if so much is left of the time limit.
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

    def with_memory_within(self, found: Plan, share: Fraction | None) -> Plan:
        """The plan with the least memory of any configuration that is at most so much slower."""
        if share is None:
            return found
        assert found.best is not None and found.best.per_microbatch is not None
        most = found.best.per_microbatch * (1 + share)
        deadline = self._told(Deadline.after(self._params.within * self._limit))
        with interrupts.recorded() as pressed:
            within = within_share(self._candidates, most, deadline)
        self._interrupted |= bool(pressed)
        return replace(found, within=within, interrupted=self._interrupted)

    def _search_first(self) -> None:
        """Search one configuration after the other until one has a schedule.

        The first one at any time left, the others up to `GRACE` seconds beyond it.
        """
        latest = self._deadline.longer(GRACE)
        for one in filter(self._is_open, self._in_order()):
            self._search(one, FIRST, self._deadline.share(self._params.first))
            if self._best is not None or self._interrupted or latest.over:
                return

    def with_hands(self, found: Plan) -> Plan:
        """The plan beside hand strategies; those left have a little more than its time limit."""
        assert found.best is not None
        deadline = self._options.deadline
        with suppress(KeyboardInterrupt), interrupts.heard():
            later = deadline.longer((BEYOND - 1) * deadline.seconds + GRACE)
            self._hands.search(found.best.configuration.batches, replace(later, progress=None))
        return replace(
            self._hands.beside(found), interrupted=deadline.pressed, solve_seconds=deadline.spent
        )

    def with_more_memory(self, found: Plan) -> Plan:
        """The plan with what more memory brings, by a short search if that is set up in time."""
        limits = self._candidates[0].problem.pipeline.limits
        if limits is None or not self._is_set_up_within(self._options.deadline.left):
            return found
        more = [limit * self._params.more_memory for limit in limits]
        space = replace(self._space, fields={**self._space.fields, "mem_limit": more})
        spent = found.solve_seconds / self._limit
        share = max(self._params.more, min(1 - spent, spent / 2))
        later = self._options.by(Deadline.after(self._limit))
        search = PlanSearch(space, self._objective, self._kind, later, share)
        assert found.best is not None and found.value is not None
        value, least = search.bounded(found.best.per_microbatch, self._candidates)
        batches = found.best.configuration.batches
        return replace(found, more_memory=MoreMemory(tuple(more), value * batches, least * batches))

    def _is_set_up_within(self, seconds: float) -> bool:
        """Whether another search like this one is set up in at most half of so many seconds."""
        return 2 * self._set_up_seconds <= seconds

    def bounded(
        self, known: Fraction | None, before: Sequence[PlanCandidate]
    ) -> tuple[Fraction, Fraction]:
        """The best time per microbatch and the bound, after two rounds from a known time.

        `before`: configurations under lower limits, whose schedules are of this space, too.
        """
        self._known = known
        made = {one.configuration: one.schedule for one in before}
        for one in self._candidates:
            schedule = made.get(one.configuration)
            if schedule is not None:
                one.hint(schedule)
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
        """Bound by the same space without memory limits, whose bounds take less time."""
        fields = {key: value for key, value in self._space.fields.items() if key != "mem_limit"}
        free = PlanSearch(
            replace(self._space, fields=fields), self._objective, self._kind,
            self._options.by(self._deadline),
        )  # fmt: skip
        free._known = self._known
        with interrupts.heard():
            free._bound_all(self._params.more_bounding)
        bounded = {one.configuration: one for one in free._candidates}
        for one in self._candidates:
            if one.configuration in bounded:
                one.raise_to(bounded[one.configuration])

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

        So bounds of later ones are computed only up to the best schedule of earlier ones. They
        come in the order of their quick bounds, then with fewer stages first.
        """
        waiting = sorted(self._candidates, key=_first_place)
        short = Effort(level=0, quick=self._params.short)
        for place, one in enumerate(waiting):
            if self._over:
                return
            others = sum(map(self._is_open, waiting[place + 1 :]))
            with interrupts.heard():
                self._bound(one, self._deadline.turn(others).share(bounding))
            if self._is_open(one):
                self._search(one, short, self._deadline.turn(others))

    def _bound_all(self, share: float) -> None:
        """Bound the configurations that may be best for a share of the time left."""
        deadline = self._deadline.share(share)
        waiting = list(filter(self._is_open, sorted(self._candidates, key=_first_place)))
        for place, one in enumerate(waiting):
            self._bound(one, deadline.turn(len(waiting) - place - 1))

    def _bound(self, one: PlanCandidate, turn: Deadline) -> None:
        """Bound a configuration for a turn, if it may be best.

        Where recompute is chosen, bounds hold for any other recompute of the same placement.
        """
        for known in self._candidates:
            if known.configuration == one.configuration._replace(recompute=SEARCH):
                one.raise_to(known)
        if self._is_open(one):
            one.raise_bound(turn)
            self._tell("bounds")

    # Which configuration.

    @property
    def _best(self) -> PlanCandidate | None:
        """The configuration of the best schedule; of several, that of the least memory."""
        found = [one for one in self._candidates if one.value is not None]
        return min(found, key=lambda one: (_value(one), one.peak), default=None)

    @property
    def _least(self) -> Fraction | None:
        """No configuration has a lower time per microbatch; None: none has a schedule."""
        bounds = [one.per_microbatch(one.bound) for one in self._candidates if not one.impossible]
        if self._ceiling is not None:
            bounds.append(self._ceiling)
        return min(bounds, default=None)

    def _is_open(self, one: PlanCandidate) -> bool:
        """Whether a configuration may be better than the best one, or is it, unproved."""
        if one.impossible:
            return False
        ceiling = self._ceiling
        return ceiling is None or one.per_microbatch(one.bound) < ceiling

    @property
    def _ceiling(self) -> Fraction | None:
        """The least time per microbatch that is known to be possible."""
        found = [] if self._best is None else [_value(self._best)]
        return min(found if self._known is None else [*found, self._known], default=None)

    def _in_order(self) -> list[PlanCandidate]:
        """Configurations by value, then by bound.

        Those of bounds too high are left out when their turn comes.
        """

        def place(one: PlanCandidate) -> tuple[bool, Fraction, Fraction]:
            value = Fraction(0) if one.value is None else _value(one)
            return one.value is None, value, one.per_microbatch(one.bound)

        return sorted(self._candidates, key=place)

    @property
    def _over(self) -> bool:
        """Whether the search ends now.

        One configuration is searched at any time left, unless a value is known already.
        """
        late = self._deadline.over
        enough = self._known is not None or any(one.searches for one in self._candidates)
        if self._interrupted or (late and enough):
            return True
        if not any(map(self._is_open, self._candidates)):
            return True
        stop = self._deadline.stop
        return stop is not None and stop(self._state("configurations"))

    @property
    def _stuck(self) -> bool:
        """Whether no configuration that may be best has anything left to search."""
        return all(one.stuck for one in self._candidates if self._is_open(one))

    # One configuration.

    def _efforts_of(self, number: int) -> Callable[[PlanCandidate], Effort]:
        """The effort of every configuration in a round: less for those of higher values.

        That of least bound is at most one level behind the best.
        """
        contenders = list(filter(self._is_open, self._in_order()))
        levels = {
            id(one): max(0, number - rank.bit_length()) for rank, one in enumerate(contenders)
        }
        least = min(contenders, key=lambda one: one.per_microbatch(one.bound), default=None)
        levels[id(least)] = max(levels.get(id(least), 0), number - 1)

        def effort(one: PlanCandidate) -> Effort:
            level = levels.get(id(one), 0)
            return Effort(level, self._params.few * 2**level)

        return effort

    def _search_all(self, effort_of: Callable[[PlanCandidate], Effort]) -> None:
        """One round: search the configurations that may be best, each with its effort."""
        waiting = self._in_order()
        for place, one in enumerate(waiting):
            if self._over:
                return
            if self._is_open(one):
                others = sum(map(self._is_open, waiting[place + 1 :]))
                self._search(one, effort_of(one), self._deadline.turn(others))

    def _search(self, one: PlanCandidate, effort: Effort, turn: Deadline) -> None:
        """Search a configuration for a turn, at most."""
        for other in self._candidates:
            alike = _alike(other.configuration, one.configuration)
            if other is not one and alike and other.schedule is not None:
                one.hint(other.schedule)
        one.search(effort, turn)
        if one.result is not None:
            self._interrupted |= one.result.interrupted
        self._tell("configurations")

    def _request(self, configuration: PlanConfiguration) -> PlanRequest:
        def ceiling() -> Fraction | None:
            least = self._ceiling
            return None if least is None else least * configuration.batches

        def follow(state: Progress) -> None:
            self._tell(f"{configuration}, {state.phase}", configuration, state.value)

        def stop(state: Progress) -> bool:
            asked = self._deadline.stop
            return asked is not None and asked(self._state(state.phase, configuration, state.value))

        deadline = replace(self._deadline, progress=follow, stop=stop)
        return PlanRequest(self._options.by(deadline), ceiling)

    # What is reported.

    def _state(
        self, phase: str, one: PlanConfiguration | None = None, value: Fraction | None = None
    ) -> Progress:
        """The best value and the bound over all, for the microbatches of the best configuration."""
        best, found = self._best, []
        if best is not None:
            found.append((_value(best), best.configuration.batches))
        if one is not None and value is not None:
            found.append((value / one.batches, one.batches))
        each, batches = min(found, default=(None, self._space.batches[0]))
        least = self._least or Fraction(0)
        shown = None if each is None else each * batches
        return Progress(self._deadline.spent, phase, shown, least * batches)

    def _tell(
        self, phase: str, one: PlanConfiguration | None = None, value: Fraction | None = None
    ) -> None:
        if self._deadline.progress is not None:
            self._deadline.progress(self._state(phase, one, value))

    def _told(self, deadline: Deadline) -> Deadline:
        """A deadline of work whose phases the plan tells, with its own value and bound."""
        return replace(deadline, progress=lambda state: self._tell(state.phase))

    # The plan.

    def _take_over(self) -> None:
        """Give configurations of chosen recompute the better schedules of those they hold."""
        for one in self._candidates:
            if one.configuration.recompute != SEARCH:
                continue
            held = [
                other
                for other in self._candidates
                if _alike(other.configuration, one.configuration) and other.value is not None
            ]
            best = min(held, key=_value, default=one)
            if best is not one and (one.value is None or _value(best) < _value(one)):
                assert best.schedule is not None
                one.result = one.feasible(best.schedule)

    def _plan(self) -> Plan:
        self._take_over()
        best, least = self._best, self._least
        ceiling = None if best is None else _value(best)
        made = (one.row(ceiling) for one in self._candidates)
        rows = sorted(made, key=lambda row: row.place)
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
        """Whose bound leaves the gap open; empty where there is none."""
        least, best = self._least, self._best
        if least is None or best is None or least == _value(best):
            return ""
        one = min(
            (one for one in self._candidates if not one.impossible),
            key=lambda one: one.per_microbatch(one.bound),
        )
        return f"; the least bound is that of {one.configuration}"


def _first_place(one: PlanCandidate) -> tuple[Fraction, int, bool]:
    """When a configuration is bounded: one of chosen recompute before others like it."""
    stages = one.problem.pipeline.num_stages
    return one.per_microbatch(one.bound), stages, one.configuration.recompute != SEARCH


def _alike(one: PlanConfiguration, other: PlanConfiguration) -> bool:
    """Whether configurations differ in recompute alone."""
    return one._replace(recompute="") == other._replace(recompute="")


def _value(one: PlanCandidate) -> Fraction:
    """Time per microbatch of the best schedule of a configuration that has one."""
    assert one.value is not None
    return one.per_microbatch(one.value)
