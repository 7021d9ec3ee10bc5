"""Plans over the parallelism: one plan per combination, one bound over all of them.

All combinations train the same batch on the same GPUs, so they are compared by step time. At first
each has a quick bound, by its work and its memory, and the step of the best usual strategy with the
balanced partition (`ppopt.studies.first_schedules`). An engine searches as many combinations at the
same time as it has slots. The next turn is that of the largest expected improvement of the best
step per second. Every turn of a combination is twice as long as the last one, and continues from
its best schedules. A combination is closed when its bound is at least the best step time found; a
search ends as soon as its own bound reaches it. A combination that was not searched to its end
keeps its bound, and the bound over all combinations is the minimum.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import replace
from fractions import Fraction
from functools import partial
from math import exp

from ppopt import interrupts
from ppopt.cancellation import driven, over, part, scope, seconds_left, shield
from ppopt.errors import InputError, NotApplicableError, RunError
from ppopt.formats.fields import within
from ppopt.problem import exact
from ppopt.problem.cost_table import ZERO
from ppopt.problem.exact import min_known
from ppopt.solver.child_process import interpreter
from ppopt.solver.choices.process_pool import MAX_PROCESSES
from ppopt.solver.engines.engine import DirectEngine, Ended, Engine, Link, run_tasks
from ppopt.solver.engines.local import LocalEngine
from ppopt.solver.options import TIME_LIMIT, SolveOptions, checked_options
from ppopt.solver.parameters import SolveParams
from ppopt.solver.result import Callback, Progress, Status
from ppopt.studies.current_schedule import parse_strategy
from ppopt.studies.first_schedules import FirstRow, least_memory_row
from ppopt.studies.parallel_result import ParallelPlan, ParallelRow
from ppopt.studies.parallel_set_up import PlanArguments, SetUp
from ppopt.studies.parallel_space import Parallelism, ParallelSpace
from ppopt.studies.parallel_task import (
    CombinationDone,
    CombinationState,
    CombinationStorage,
    CombinationTask,
    FirstTask,
    StudyOptions,
)
from ppopt.studies.plan_space import PlanSpace
from ppopt.studies.storage import Storage

CLOSING_SHARE = Fraction(1, 10**4)
"""Share of the best step time: a combination whose bound is lower by at most this is closed,
because derived times are whole microseconds, and combinations differ by their rounding."""
FIRST_GAIN = 0.025
"""Share of its step by which the first turn of a combination is expected to shorten it. First turns
of Qwen3-30B-A3B shorten it by 0 to 6 %, on average by 2.2 % (record 2026-12-01-combinations)."""
DERIVING_SHARE = 0.5
"""Share of the time limit in which combinations are derived."""
QUICK_SHARE, FURTHER_SHARE = 0.8, 0.2
"""Shares of the remaining time in which strategies are evaluated on all combinations: first those
that most trainers run, then further ones on the combinations of the smallest steps."""
NUM_LEAST_MEMORY = 8
"""Number of combinations in which a schedule of little memory is looked for, if none fits."""
MIN_SECONDS = 0.5
"""Minimum seconds to start a plan."""
MIN_PROCESS_SECONDS = 10.0
"""Minimum seconds left to start processes: each takes about a second of a processor to start."""
MIN_PROCESS_SIZE = 100
"""Minimum number of combinations that processes set up: this process takes about 10 ms for each."""
RETRIES = 1
"""Retries of a search whose process dies."""
FIRST_TURN_SHARE = 0.035
"""Share of the time limit for the first turn of a combination, which needs time to set up."""
LAST_IMPROVEMENT = 0.75
"""Share of a last turn for improving known schedules, before bounds and further partitions. In
earlier turns it is all of the time: the shortest steps decide who continues."""
LATE_SHARE, GRACE = 0.05, 0.5
"""Share of the time limit, and seconds, after which searches that have not ended are stopped."""


@driven
def plan_parallelism(
    space: ParallelSpace,
    choices: PlanArguments = PlanArguments(),
    *,
    time_limit: float = TIME_LIMIT,
    workers: int | None = None,
    seed: int = 0,
    progress: Callback | None = None,
    params: SolveParams = SolveParams(),
    began: float | None = None,
    engine: Engine | None = None,
    study: StudyOptions | None = None,
) -> ParallelPlan:
    """Find the parallelism of the shortest step, with a bound over all combinations.

    Each combination is planned as by `ppopt.plan`, on its derived model: in this process one after
    the other, or by the tasks of an `engine`. With a `study`, every state of a combination is
    stored, and a later plan of the same space continues from it: the seconds of the stored searches
    count in the time limit. Without a study, combinations that are not derived in half of the time
    are skipped, and there is no bound. Raises InputError if there is no valid combination, and if
    the storage cannot be used; "infeasible" is a result.
    """
    if choices.current is not None:
        within("given", parse_strategy, choices.current)
    options = checked_options(
        time_limit, workers, seed, progress=progress, params=params, began=began
    )
    with ExitStack() as stack:
        own, is_small = engine is None, space.size < MIN_PROCESS_SIZE
        if engine is None:
            engine = stack.enter_context(closing(_own_engine(options)))
        with shield() if study is not None else options.scope(), part(DERIVING_SHARE):
            known = SetUp(space, choices, DirectEngine() if own and is_small else engine)
        if not known.combinations:
            raise InputError(f"no parallelism is left: {next(iter(known.skipped.values()))}")
        stored = None
        if study is not None:
            storage = stack.enter_context(Storage(study.storage))
            stored = CombinationStorage(storage, study, space, known.spaces, options)
        if own:
            slots = min(engine.slots, len(known.combinations))
            engine = engine if slots > 1 else DirectEngine(options.progress)
            options = replace(options, workers=options.workers // slots)
        search = _ParallelSearch(known, options, engine, stored)
        search.run()
    best, lower_bound = search.best, search.lower_bound
    rows = sorted(search.rows, key=lambda row: row.sort_key)
    least_memory = None if best is not None else _least_memory(known.spaces)
    best_planned = next(index for index, row in enumerate(rows) if row.plan is not None)
    rows[best_planned] = _with_current(rows[best_planned], choices.current)
    return ParallelPlan(
        space, Status.of(best, lower_bound), tuple(rows), lower_bound, known.skipped,
        options.provenance, options.spent, storage=None if stored is None else stored.report,
        least_memory=least_memory,
    )  # fmt: skip


def _own_engine(options: SolveOptions) -> Engine:
    """Engine of a plan: processes if there are several workers, and time to start them."""
    slots, seconds_to_go = min(options.workers, MAX_PROCESSES), options.time_limit - options.spent
    if slots < 2 or seconds_to_go < MIN_PROCESS_SECONDS or interpreter() is None:
        return DirectEngine()
    return LocalEngine(slots, RETRIES)


def _least_memory(spaces: Mapping[Parallelism, PlanSpace]) -> tuple[Parallelism, FirstRow] | None:
    """A schedule that needs little memory, of the combinations of the least static memory.

    None if it is within the limits, and only the time did not suffice.
    """

    def static(combination: Parallelism) -> Fraction:
        space = spaces[combination]
        return sum((layer.static for layer in space.model.layers), ZERO) / space.devices

    smallest = sorted(spaces, key=static)[:NUM_LEAST_MEMORY]
    rows = [(combination, least_memory_row(spaces[combination])) for combination in smallest]
    combination, row = min(rows, key=lambda each: each[1].peak)
    return None if row.schedule.fits_limits else (combination, row)


def _with_current(row: ParallelRow, current: str | None) -> ParallelRow:
    """A row whose plan has the current schedule; unchanged if the strategy does not apply there."""
    plan = row.plan
    assert plan is not None
    try:
        schedule = plan.space.current_schedule(current, plan.objective)
    except NotApplicableError:
        return row
    return replace(row, state=row.state._replace(plan=replace(plan, current=schedule)))


class _ParallelSearch:
    """Search over combinations."""

    def __init__(
        self,
        known: SetUp,
        options: SolveOptions,
        engine: Engine,
        stored: CombinationStorage | None,
    ) -> None:
        self.rows = [
            ParallelRow(each, combination.model, CombinationState(combination.lower_bound))
            for each, combination in known.combinations.items()
        ]
        self._spaces, self._engine, self._stored = known.spaces, engine, stored
        self._is_bounded = known.is_complete
        self._request, self._options = options, options.detached
        self._end = options.end
        """Instant of `time.monotonic` at which time is up."""
        self._limit = options.time_limit
        self._running: set[int] = set()
        """Combinations that are searched now."""
        self._gains: dict[int, float] = {}
        """Share of its step by which the next turn of a combination is expected to shorten it."""
        self._stopped = False
        """Whether the engine was asked to stop."""
        if stored is not None:
            self._continue_from(stored.load())

    def _continue_from(self, states: Mapping[Parallelism, CombinationState]) -> None:
        """Continue from stored states, whose searches count in the time limit.

        A search that ended early had to beat the step of another combination. If that step was
        shorter than the best one known now, the search is not exhausted.
        """
        at_once = min(self._engine.slots, len(self.rows))
        self._end -= sum(state.seconds for state in states.values()) / at_once
        for index, row in enumerate(self.rows):
            state = states.get(row.parallelism)
            if state is not None:
                if state.lower_bound is not None and row.lower_bound is not None:
                    state = state._replace(lower_bound=max(row.lower_bound, state.lower_bound))
                self.rows[index] = replace(row, state=state)
        best = self.best
        for index, row in enumerate(self.rows):
            known = row.state.known_value
            if known is not None and (best is None or best > known):
                self.rows[index] = replace(row, state=row.state._replace(exhausted=False))

    @property
    def best(self) -> Fraction | None:
        """Shortest step found."""
        return min_known(row.value for row in self.rows)

    @property
    def lower_bound(self) -> Fraction | None:
        """Lower bound of all steps; None: no combination fits the memory limit."""
        if not self._is_bounded:
            return ZERO
        minimum = min_known(row.lower_bound for row in self.rows)
        return None if minimum is None else min_known((minimum, self.best))

    def run(self) -> None:
        """Evaluate strategies, then search; one combination is planned even if time is up."""
        with scope(self._end):
            self._evaluate_first()
            self._search()
        self._plan_best()

    def _search(self) -> None:
        """Search the most promising combinations until none is open, or time is up."""

        def ends() -> bool:
            if self._engine.states:
                self._announce()
            self._stopped = interrupts.pressed() or self._is_late
            return self._stopped

        run_tasks(self._engine, self._next_turn, self._take, ends, at_once=len(self.rows))

    def _evaluate_first(self) -> None:
        """Evaluate strategies on every open combination, the most promising first.

        After a share of the time this ends once a combination has a step. Those of the smallest
        steps are evaluated further. Further ones have a time limit, so none of these waits in a
        process for another one to end.
        """
        for share, further in ((QUICK_SHARE, False), (FURTHER_SHARE, True)):
            following = partial(next, self._first_tasks(further=further), None)
            with part(share):
                at_once = len(self.rows) if further else None
                run_tasks(self._engine, following, self._take, at_once=at_once)

    def _first_tasks(self, *, further: bool) -> Iterator[tuple[int, FirstTask]]:
        for index in self._open():
            if interrupts.pressed() or (over() and self.best is not None):
                return
            row = self.rows[index]
            if row.plan is None and self._open((index,)):
                seconds = seconds_left() if further else None
                yield index, FirstTask(self._spaces[row.parallelism], row.state, seconds)

    def _plan_best(self) -> None:
        """Plan in this process until one of the combinations of the shortest step is planned.

        After Ctrl-C this ends at once, with the first schedule of the combination. The first
        schedule of a combination whose search failed is left out, if another one is planned.
        """
        while not self._best_planned:
            possible = [index for index, row in enumerate(self.rows) if row.lower_bound is not None]
            index = min(possible, key=self._estimate, default=0)
            row = self.rows[index]
            if row.failed is not None and self._planned:
                self.rows[index] = replace(row, state=row.state._replace(first=()))
                continue
            task = self._task(index, MIN_SECONDS, LAST_IMPROVEMENT)
            done = task.perform(Link(self._request.progress))
            if done.state is None and not self._planned:
                raise RunError(f"{row.parallelism}: {done.failed}")
            self._take([(index, done)])

    @property
    def _ended(self) -> bool:
        """Whether no further search is started."""
        return interrupts.pressed() or (self._planned and seconds_left() <= MIN_SECONDS)

    @property
    def _planned(self) -> bool:
        """Whether a combination is planned."""
        return any(row.plan is not None for row in self.rows)

    @property
    def _best_planned(self) -> bool:
        """Whether a combination is planned; if any has a step, one of the shortest step."""
        best = self.best
        return any(row.plan is not None and row.value == best for row in self.rows)

    def _open(self, indices: Iterable[int] | None = None) -> list[int]:
        """Indices of the combinations that may have a shorter step than the best.

        The most promising come first; `indices` are those to choose from, by default all.
        """
        best = self.best
        end = None if best is None else best * (1 - CLOSING_SHARE)

        def is_open(index: int) -> bool:
            row = self.rows[index]
            if row.lower_bound is None or row.state.exhausted or row.failed:
                return False
            return end is None or row.lower_bound < end

        every = range(len(self.rows)) if indices is None else indices
        return sorted(filter(is_open, every), key=self._estimate)

    def _priority(self, index: int) -> tuple[bool, float]:
        """Sort key of the next turn of a combination: its expected improvement per second.

        The share by which it shortens the step is taken as exponentially distributed. So a step
        that needs a share x to be the best improves it by exp(-x / mean) * mean on average. (Snoek,
        Larochelle, Adams, "Practical Bayesian optimization of machine learning algorithms", 2012,
        section 3.2.) Combinations without a step come last, by their estimates.
        """
        step, best = self.rows[index].value, self.best
        if step is None or best is None:
            return True, float(self._estimate(index)[1])
        mean, needed = self._gains.get(index, FIRST_GAIN), float(1 - best / step)
        return False, -exp(-needed / mean) * mean * float(step) / self._turn(index)

    def _turn(self, index: int) -> float:
        """Seconds of the next turn of a combination."""
        return FIRST_TURN_SHARE * self._limit + self.rows[index].state.seconds

    def _estimate(self, index: int) -> tuple[bool, Fraction]:
        """Sort key of a combination: the shortest step known; then, without a step, an estimate.

        The estimate is the bound plus the bubble of 1F1B, (devices - 1) / microbatches of the bound
        (Megatron-LM, arXiv 2104.04473, section 2.2.1).
        """
        row = self.rows[index]
        if row.value is not None:
            return False, row.value
        assert row.lower_bound is not None
        training = row.model.training
        return True, row.lower_bound * (1 + Fraction(training.devices - 1, training.batches))

    @property
    def _is_late(self) -> bool:
        """Whether searches should have ended, and a combination is planned."""
        latest = self._end + LATE_SHARE * self._limit + GRACE
        return self._planned and time.monotonic() > latest

    def _next_turn(self) -> tuple[int, CombinationTask] | None:
        """The most promising turn; None: no further combination is open, or time is up.

        It has all of the time left if no other combination waits for it, or if too little would
        remain for another turn as long.
        """
        waiting = [index for index in self._open() if index not in self._running]
        if self._ended or not waiting:
            return None
        index = min(waiting, key=self._priority)
        left, turn = seconds_left(), self._turn(index)
        is_last = left < 2 * turn or len(waiting) + self._engine.busy <= self._engine.slots
        seconds, improvement = (left, LAST_IMPROVEMENT) if is_last else (turn, 1.0)
        return index, self._task(index, max(MIN_SECONDS, seconds), improvement)

    def _task(self, index: int, seconds: float, first_improvement: float) -> CombinationTask:
        """Search of a combination, which runs from now on."""
        self._running.add(index)
        row = self.rows[index]
        key = None if self._stored is None else self._stored.keys[row.parallelism]
        return CombinationTask(
            self._spaces[row.parallelism], row.state, seconds, self.best,
            first_improvement, self._options, key,
        )  # fmt: skip

    def _announce(self) -> None:
        """Report the best value, also of running searches, and the bound so far."""
        running = (state.value for state in self._engine.states.values())
        bound, best = self.lower_bound or ZERO, min_known((self.best, *running))
        per_unit = exact.common_denominator((bound, best or ZERO))
        value = None if best is None else int(best * per_unit)
        self._request.announce(
            Progress(self._request.spent, "combinations", value, int(bound * per_unit), per_unit)
        )

    def _take(self, ended: Ended) -> None:
        """Process the outcomes of evaluations and searches.

        A combination whose evaluation failed stays open.
        """
        for index, done in ended:
            row, searched = self.rows[index], index in self._running
            self._running.discard(index)
            if isinstance(done, CombinationDone) and done.state is not None:
                self.rows[index] = replace(row, state=done.state, failed=None)
                if searched:
                    self._note_turn(index, row.value, done)
            elif searched and (done.failed or not self._stopped):
                failed = done.failed or "its search was cancelled"
                self.rows[index] = replace(row, failed=failed)
            self._announce()

    def _note_turn(self, index: int, before: Fraction | None, done: CombinationDone) -> None:
        """Store the state of a combination after a turn, and estimate the gain of the next."""
        row = self.rows[index]
        if before is not None and row.value is not None:
            gain = float(1 - row.value / before)
            self._gains[index] = (self._gains.get(index, FIRST_GAIN) + gain) / 4
        if self._stored is not None:
            self._stored.save(row.parallelism, done)
