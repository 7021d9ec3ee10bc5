"""Unrolls the steady state of a good schedule of fewer microbatches to a very long run.

Warm-up and cool-down are those of the short schedule. Between them its microbatches first to first
+ size - 1 are repeated, each time a period later. So every microbatch runs like one of the short
schedule, shifted in time as a whole. Precedence relates only operations of the same microbatch, so
the order of all operations by these times has no cycle, whatever section is repeated. Only memory
must be checked, and the makespan after timing. Repeating steady states of pipelines are those of
cyclic scheduling (Hanen and Munier, "A study of the cyclic scheduling problem on
parallel processors", 1995) and of the repeating building blocks of arXiv 2405.15362, section 2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import floor
from typing import NamedTuple

import numpy as np

from ppopt.problem.arrays import Ints
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.problem import Problem
from ppopt.problem.traits import ArgumentClass, Trait, handled
from ppopt.schedule import timing
from ppopt.schedule.list_scheduling import PriorityRule, one_at_a_time
from ppopt.schedule.orders import Orders
from ppopt.schedule.schedule import Schedule
from ppopt.solver.budget import Budget
from ppopt.solver.heuristics.pool import Pool
from ppopt.solver.heuristics.repair import repair
from ppopt.solver.incumbent import Incumbent
from ppopt.solver.method import Outcome
from ppopt.solver.parameters import SteadyStateParams
from ppopt.solver.result import Result, Status

UNROLLED = handled(ArgumentClass.EQUAL_COMPUTE, (Trait.SPAN,))
"""Traits of the runs whose steady states are unrolled."""


class Section(NamedTuple):
    """Microbatches of the short run that are repeated, possibly as the mean of several periods."""

    first: int
    size: int
    """Number of microbatches of one period."""
    repeats: int
    """Number of periods of the short run that are averaged; the mean satisfies precedence."""
    period: float
    """Ticks from one period to the next."""

    @property
    def after(self) -> int:
        """First microbatch of the short run after the section."""
        return self.first + self.size * self.repeats


class ShortRun(NamedTuple):
    """The result of the short run, and the rule of its best list schedule."""

    result: Result
    rule: PriorityRule | None = None


class RatedSection(NamedTuple):
    """A section and its rating; sorted, the best section comes first."""

    over: bool
    """Whether the section exceeds the memory limits, so that its order must be repaired."""
    rate: float
    """Ticks per additional microbatch."""
    section: Section


def short_problem(
    problem: Problem, params: SteadyStateParams = SteadyStateParams()
) -> Problem | None:
    """Return the pipeline with fewer microbatches; None if the run is not long."""
    pipeline = problem.pipeline
    min_batches, max_batches = (times * pipeline.num_devices for times in params.per_device)
    each = problem.num_operations // pipeline.batches
    short = min(max(params.operations // each, min_batches), max_batches)
    if params.longer * short > pipeline.batches:
        return None
    return problem.of_batches(short)


class ShortRunUnrolling:
    """For a long run, the best rule and the unrolled steady states of a solved shorter run."""

    name = "steady state"
    handles = UNROLLED

    def __init__(
        self,
        pool: Pool,
        solve: Callable[[Problem, float], ShortRun],
        params: SteadyStateParams = SteadyStateParams(),
    ) -> None:
        """`solve` searches the short problem for a number of seconds."""
        self._pool, self._solve = pool, solve
        self._params = params

    def supports(self, problem: Problem) -> bool:
        """Whether a problem is a long run."""
        return short_problem(problem, self._params) is not None

    def run(self, incumbent: Incumbent, budget: Budget) -> Outcome:
        """Solve the short run, follow its best rule and unroll its steady state, once.

        If there is no schedule yet, one microbatch at a time is submitted first, as a result in any
        case.
        """
        problem = short_problem(incumbent.problem, self._params)
        assert problem is not None
        if incumbent.value is None:
            incumbent.submit_orders(one_at_a_time(incumbent.problem.instance))
        share = self._params.share
        result, rule = self._solve(problem, share * budget.search_left)
        closed = result.status is Status.OPTIMAL
        if result.schedule is not None and (closed or result.provenance.workers > 1):
            if rule is not None and not budget.search_over:
                self._pool.build(rule, incumbent)
            portion = budget.portion(share * budget.search_left, workers=2, seed=0)
            _unroll(incumbent, SteadyStatePattern(result.schedule, problem, self._params), portion)
        return Outcome(exhausted=True)


def _unroll(incumbent: Incumbent, steady: SteadyStatePattern, budget: Budget) -> None:
    """Submit the unrolled schedules of the best sections, until the time limit.

    Sections whose rate leads to a value above the incumbent are skipped.
    """
    problem, short_value = incumbent.problem, steady.value
    more = problem.pipeline.batches - steady.short.pipeline.batches
    for rated in steady.ranked(lambda: budget.over)[: steady.params.unrolled]:
        if budget.search_over:
            return
        if not incumbent.may_improve(floor(short_value + rated.rate * more)):
            continue
        schedule = steady.unroll(problem.pipeline, rated.section)
        if schedule.fits_limits:
            incumbent.submit(schedule)
        else:
            incumbent.submit_orders(repair(schedule, problem.instance))


@dataclass(frozen=True)
class SteadyStatePattern:
    """A schedule of few microbatches as a pattern for longer runs."""

    short: Schedule
    problem: Problem
    """Problem of the short schedule."""
    params: SteadyStateParams = SteadyStateParams()

    @cached_property
    def starts(self) -> Ints:
        """Starts in ticks, [class, microbatch], microbatches in order within each class.

        The k-th operation of a kind and stage goes to microbatch k. This violates no constraint:
        see the docstring of `ppopt.solver.cp_sat.model`.
        """
        schedule = self.short
        order = np.lexsort((schedule.start, schedule.stage, schedule.kind))
        return schedule.start[order].reshape(-1, schedule.pipeline.batches)

    @property
    def value(self) -> int:
        """Objective of the short schedule, in ticks."""
        return self.short.metrics.value_ticks(self.problem.objective)

    def ranked(self, stop: Callable[[], bool]) -> list[RatedSection]:
        """Sections by rate, those within the memory limits first."""
        batches, value, rated = self.short.pipeline.batches, self.value, []
        for section in self._sections():
            if stop():
                break
            extra = max(3, self.params.trial // section.size) * section.size
            trial = self.unroll(self.problem.of_batches(batches + extra).pipeline, section)
            rate = (trial.metrics.value_ticks(self.problem.objective) - value) / extra
            rated.append(RatedSection(not trial.fits_limits, rate, section))
        return sorted(rated)

    def _sections(self) -> Iterator[Section]:
        """The most regular single periods, then the mean of the whole middle for every size."""
        quarter = self.short.pipeline.batches // 4
        sizes = range(1, min(self.params.max_size, quarter) + 1)
        means = [self._section(quarter, size, 2 * quarter // size) for size in sizes]
        for section in (*self._regular(quarter, sizes), *means):
            for looser in self.params.looser:
                yield section._replace(period=section.period * looser)

    def _section(self, first: int, size: int, repeats: int) -> Section:
        apart = self.starts[:, first + size * repeats] - self.starts[:, first]
        return Section(first, size, repeats, float(apart.mean()) / repeats)

    def _regular(self, quarter: int, sizes: Sequence[int]) -> list[Section]:
        """Single periods whose operations repeat at the most equal distances."""
        candidates = []
        for size in sizes:
            first = np.arange(quarter, 3 * quarter - size)
            apart = self.starts[:, first + size] - self.starts[:, first]
            spread = np.ptp(apart, axis=0)
            candidates += [(far / size, size, at) for far, at in zip(spread, first, strict=True)]
        count = self.params.regular
        return [self._section(int(at), size, 1) for _, size, at in sorted(candidates)[:count]]

    def unroll(self, longer: Pipeline, section: Section) -> Schedule:
        """Schedule of `orders` on a pipeline of more microbatches; it may exceed the limits."""
        return timing.schedule(longer, self.orders(longer, section), self.problem.objective)

    def orders(self, longer: Pipeline, section: Section) -> Orders:
        """Orders by the unrolled times, ties in the order of the data flow."""
        start = self._unrolled(longer.batches, section)
        classes = [op_class for op_class in self.problem.instance.classes if op_class.size]
        fields = ("kind", "stage", "resource", "duration")
        kind, stage, device, duration = (
            np.repeat([getattr(op_class, field) for op_class in classes], longer.batches)
            for field in fields
        )
        microbatch = np.tile(np.arange(longer.batches), len(classes))
        begin = start.ravel()
        columns = (kind, stage, microbatch, device, begin, begin + duration)
        return Schedule.from_columns(longer, *columns).orders

    def _unrolled(self, batches: int, section: Section) -> Ints:
        """Starts of a run of `batches` microbatches: warm-up, repeated section, cool-down."""
        starts, (first, size, repeats, period) = self.starts, section
        classes, short = starts.shape
        parts = starts[:, first : section.after].reshape(classes, repeats, size)
        mean = (parts - period * np.arange(repeats)[:, None]).mean(axis=1)
        middle = np.arange(batches - short + size * repeats)
        body = mean[:, middle % size] + middle // size * period
        later = (batches - short) / size * period
        whole = [starts[:, :first], body, starts[:, section.after :] + later]
        run: Ints = np.floor(np.concatenate(whole, axis=1)).astype(np.int64)
        return run
