"""Evaluates strategies: the baselines of a search, a plan or a frontier.

A strategy is a published rule that fixes the order of operations (`ppopt.strategies`). If the
pipeline leaves its partition or recompute open, every strategy is evaluated with the best ones
found for it (`ppopt.studies.best_choice`).

The baseline of a search is the best strategy with the placement that was searched. A better
strategy with another placement is reported separately: the search does not change its placement,
but the user may.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product
from math import inf
from typing import Any, NamedTuple

from ppopt import interrupts
from ppopt.cancellation import Scope, equal_share, scope, seconds_left, shield, turns, within
from ppopt.errors import NotApplicableError
from ppopt.loggers import logger
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.decisions import SEARCH, Decisions
from ppopt.problem.objective import Objective
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.schedule import Schedule
from ppopt.solver.result import Result, Status
from ppopt.strategies import Options, Strategy, registry, resolve
from ppopt.strategies.schedules import with_explicit_placement
from ppopt.studies.evaluate import evaluate, objective_value
from ppopt.studies.strategy_search import StrategySearch

FIRST_SEARCH_SHARE = 0.5
"""Share of a strategy's time for its first search."""
MAX_SEARCH_SECONDS = 5.0
"""Maximum seconds of the search for the partition and recompute of one strategy."""
ORDERS_OF_FIRST_SEARCH = 3
"""Maximum number of orders that the first search of an adaptive strategy builds: one to rank
partitions, one of the first partition, and one with full recompute."""
MAX_SECONDS = 2.0
"""Maximum estimated seconds of a strategy with the placement of the search; slower ones are
skipped."""
MAX_SECONDS_OTHER_PLACEMENT = 0.2
"""Maximum estimated seconds of a strategy with another placement; slower ones are skipped."""
OVERRUN_FACTOR = 1.03
"""Maximum time of a search plus the evaluation of strategies, as a factor on the time limit."""
GRACE = 0.3
"""Seconds in addition to `OVERRUN_FACTOR`, for short time limits."""
OUT_OF_TIME = "time limit reached"
"""Reason for a strategy that is skipped for lack of time."""
STOPPED = "not evaluated: stopped early"
"""Reason for a strategy that is skipped after Ctrl-C."""
_LOG = logger(__name__)


class Baseline(NamedTuple):
    """The best strategy with the placement of a search, within the memory limits."""

    strategy: str
    value: Fraction
    """Objective of the strategy's schedule, in the user's unit."""
    speedup: Fraction | None
    """`value` divided by the value of the search: the factor by which the search raises the
    throughput; None if the search found nothing."""
    pipeline: Pipeline
    """Pipeline with the partition and the recompute of the strategy's schedule."""
    skipped: tuple[str, ...] = ()
    """Strategies with this placement that were skipped because their evaluation is slow."""
    chosen: tuple[str, ...] = ()
    """Decisions of the search (partition, recompute) that were also searched for each strategy."""


@dataclass(eq=False)
class Evaluation:
    """A strategy on a pipeline, then its schedule, or why there is none."""

    strategy: Strategy
    pipeline: Pipeline
    """Pipeline as requested; its open decisions are searched for the strategy."""
    objective: Objective
    options: Options
    hints: Sequence[Pipeline] = ()
    """Pipelines whose partitions are tried first."""
    schedule: Schedule | None = None
    """Schedule with the best partition and recompute found; None: there is none yet."""
    seconds: float = 0.0
    """Time to build the schedule."""
    reason: str = ""
    """Why the strategy does not apply; empty if it may."""
    search: StrategySearch | None = None
    """Search for its partition and recompute, which can be continued; None: nothing is open."""

    @property
    def name(self) -> str:
        """Name of the strategy."""
        return self.strategy.name

    @property
    def out_of_time(self) -> bool:
        """Whether there is no schedule for lack of time."""
        return self.schedule is None and not self.reason

    @property
    def estimate(self) -> float:
        """Estimated seconds to evaluate the strategy or, if something is open, to start its search.

        A search of an adaptive strategy starts with several orders.
        """
        several = self.pipeline.open_decisions & Decisions.OF_STRATEGY and self.strategy.adaptive
        return self.strategy.seconds(self.pipeline) * (ORDERS_OF_FIRST_SEARCH if several else 1)

    @shield()
    def place(self, kind: BackwardKind) -> None:
        """Use the placement and chunks that the strategy prescribes, unless it has none."""
        try:
            self.pipeline = self.strategy.unplaced(self.pipeline)
        except NotApplicableError as error:
            self.reason = str(error)
        if kind is BackwardKind.WHOLE and not self.strategy.fused:
            self.reason = "it splits the backward, which --backward whole rules out"

    def begin(self) -> None:
        """Evaluate the strategy or, if something is open, set up the search for it."""
        _LOG.info("strategy %s", self.name)
        began, own = time.monotonic(), (self.name, self.objective, self.options)
        try:
            if self.pipeline.open_decisions & Decisions.OF_STRATEGY:
                self.search = StrategySearch(self.pipeline, *own, starts=self.hints)
            else:
                self.schedule = evaluate(self.pipeline, *own)
        except NotApplicableError as error:
            self.reason = str(error)
        self.seconds = time.monotonic() - began

    def descend(self, times: float = inf) -> None:
        """Continue the search for the partition and recompute."""
        assert self.search is not None
        began, before = time.monotonic(), self.search.best
        self.search.descend(times)
        if self.search.best != before:
            with shield():
                self.schedule = self.search.schedule()
        self.seconds += time.monotonic() - began


def evaluated(
    evaluations: Iterable[Evaluation],
    *,
    max_seconds: float = inf,
    search_seconds: float = inf,
    max_descents: float = inf,
    at_least_one: bool = False,
) -> Iterator[tuple[Evaluation, Schedule]]:
    """Evaluate those without a schedule, each with the best partition and recompute found.

    Yields a schedule as soon as a strategy has one, and after its search. If partition or recompute
    is open, every strategy first gets a short search; then each search continues for up to twice an
    equal share of the remaining time. Skipped are strategies that do not apply, and those whose
    estimated time exceeds the remaining time; so are those of more than `max_seconds` per schedule.
    The searches end after `search_seconds`, if that is earlier, but each strategy that is started
    has a first search. `max_descents` limits the descents of a search that continues. With
    `at_least_one`, strategies are started until one applies, even if no time is left. After Ctrl-C,
    strategies that were not started are skipped.
    """
    end = time.monotonic() + search_seconds
    needs_one = at_least_one
    late = [each for each in evaluations if each.out_of_time]
    for each, turn in turns(late, lambda waiting: FIRST_SEARCH_SHARE * equal_share(waiting)):
        if each.strategy.seconds(each.pipeline) <= max_seconds and (
            needs_one or each.estimate <= seconds_left()
        ):
            with shield() if needs_one else scope(inf):
                each.begin()
            if each.search is not None:
                with scope(end), turn:
                    each.descend(1)
            if each.schedule is not None:
                needs_one = False
                yield each, each.schedule
    started = [each for each in late if each.search is not None]
    for each, turn in turns(started):
        with scope(end), turn, within(MAX_SEARCH_SECONDS):
            each.descend(max_descents)
        if each.schedule is not None:
            yield each, each.schedule


class StrategyBatch:
    """Strategies with the chunks and placements that they prescribe, and their schedules."""

    def __init__(
        self,
        pipelines: Sequence[Pipeline],
        objective: Objective,
        options: Options,
        kind: BackwardKind = BackwardKind.MIXED,
        names: Collection[str] | None = None,
    ) -> None:
        """A strategy that works with any number of chunks has those of each of the pipelines.

        `names` are those of the strategies; None: all.
        """
        every: dict[tuple[str, Any], Evaluation] = {}
        strategies = registry().values() if names is None else map(resolve, names)
        for strategy, pipeline in product(dict.fromkeys(strategies), pipelines):
            own = Evaluation(strategy, pipeline, objective, strategy.own_options(options))
            own.place(kind)
            every.setdefault((own.name, own.reason or own.pipeline.layout), own)
        self._every = [*every.values()]

    def evaluate(
        self, tell: Callable[[str], None] = lambda _: None, **limits: Any
    ) -> list[Schedule]:
        """Evaluate those without a schedule in the time left; returns their schedules.

        `tell` receives the names of strategies, `limits` are arguments of `evaluated`.
        """
        schedules: dict[Evaluation, Schedule] = {}
        for each, schedule in evaluated(self._every, **limits):
            tell(f"strategy {each.name}")
            schedules[each] = schedule
        return [*schedules.values()]

    @property
    def schedules(self) -> list[tuple[Schedule, float]]:
        """Schedules with the seconds that each took."""
        schedules: dict[tuple[str, Any], tuple[Schedule, float]] = {}
        for own in self._every:
            if own.schedule is not None:
                placed = own.name, own.schedule.pipeline.layout
                schedules.setdefault(placed, (own.schedule, own.seconds))
        return [*schedules.values()]

    @property
    def skipped(self) -> tuple[tuple[str, str], ...]:
        """Strategies without a schedule, each with the reason."""
        late = STOPPED if interrupts.pressed() else OUT_OF_TIME
        reasons = {own.name: own.reason or late for own in reversed(self._every)}
        done = {own.name for own in self._every if own.schedule is not None}
        return tuple(sorted((name, reasons[name]) for name in reasons.keys() - done))


def baseline(result: Result, asked: Pipeline | None = None) -> Baseline | None:
    """Find the best strategy with the placement of a search, with default options.

    `asked` is the pipeline that was requested; None: the open decisions are read from the proof. If
    the search chose partition or recompute, they are also searched for every strategy
    (`ppopt.best_choice`), starting from those of the best schedule. Strategies of fixed order come
    first. The evaluation ends with the first strategy that reaches the lower bound. Strategies that
    are slow on so many operations, or slower than the time left, are skipped. Returns None if no
    strategy is within the memory limits, or if the search was interrupted or proved that no
    schedule is.
    """
    if _is_without(result):
        return None
    chosen = _chosen(result) if asked is None else asked.open_decisions
    chosen &= ~Decisions.RECOMPUTE_SET
    searched = _pipeline_of(result)
    pipeline = _with_open(searched, chosen)
    evaluations = _evaluations(
        result, lambda _: pipeline, lambda placed: placed.layout == searched.layout, (searched,)
    )
    evaluations.sort(key=lambda evaluation: evaluation.strategy.adaptive)
    best_found, late, known = None, evaluations, dict[Evaluation, Schedule]()
    for each, schedule in evaluated(evaluations, max_seconds=MAX_SECONDS):
        known[each] = schedule
        best_found = best(known.values(), result)
        if best_found is not None and best_found.value == result.lower_bound:
            late = []
            break
    if best_found is None:
        return None
    skipped = tuple(each.name for each in late if each.out_of_time)
    return best_found._replace(skipped=skipped, chosen=(chosen & ~Decisions.PLACEMENT).names)


def best_other_placement(
    requested: Pipeline, result: Result, reference: Baseline | None
) -> Baseline | None:
    """Find the best strategy with another placement, within the memory limits of a search.

    `requested` is the pipeline of the search. Every strategy has default options and the placement
    and chunks that it prescribes, or the search's chunks if it works with any number. If partition
    or recompute was searched, they are searched for every strategy. Skips strategies that:
    contradict a fixed partition; divide unequal stages into chunks; change the number of slices;
    need two copies of the weights, if the pipeline does not state the weight memory; are slow to
    evaluate. Returns None if none is better than `reference`, the baseline of the search.
    """
    if _is_without(result):
        return None
    searched = _pipeline_of(result)
    unplaced = replace(requested, mem_limit=searched.limits)
    if Decisions.RECOMPUTE_SET in unplaced.open_decisions:
        unplaced = replace(unplaced, model=searched.model, recompute=None)
    evaluations = _evaluations(
        result,
        lambda strategy: strategy.unplaced(unplaced),
        lambda placed: _is_other_placement(placed, searched),
    )
    schedules = dict(evaluated(evaluations, max_seconds=MAX_SECONDS_OTHER_PLACEMENT)).values()
    best_found = _minimum(_baseline_of(each, result) for each in schedules if each.fits_limits)
    if best_found is None or (reference is not None and best_found.value >= reference.value):
        return None
    return best_found


def _evaluations(
    result: Result,
    pipeline_of: Callable[[Strategy], Pipeline],
    is_considered: Callable[[Pipeline], bool],
    hints: Sequence[Pipeline] = (),
) -> list[Evaluation]:
    """Strategies with the backwards of a search whose placed pipelines are considered."""
    evaluations = []
    for strategy in registry().values():
        if strategy.fused or not result.fused:
            with suppress(NotApplicableError):
                pipeline = pipeline_of(strategy)
                if is_considered(strategy.apply(pipeline, Options())):
                    evaluations.append(
                        Evaluation(strategy, pipeline, result.objective, Options(), hints)
                    )
    return evaluations


def _is_other_placement(placed: Pipeline, searched: Pipeline) -> bool:
    """Whether a pipeline has another placement that `best_other_placement` considers."""
    if placed.layout == searched.layout or placed.num_slices != searched.num_slices:
        return False
    if placed.routes > searched.routes and not any(searched.costs.static):
        return False
    return placed.num_chunks == searched.num_chunks or not searched.has_unequal_shares


def _is_without(result: Result) -> bool:
    """Whether a search has no baseline: it was interrupted, or it is infeasible."""
    return result.interrupted or result.status is Status.INFEASIBLE


def after_search(time_limit: float, spent: float) -> AbstractContextManager[Scope]:
    """Scope for evaluating strategies after a search: it ends slightly after the time limit."""
    return within(OVERRUN_FACTOR * time_limit + GRACE - spent)


def best(schedules: Iterable[Schedule], result: Result) -> Baseline | None:
    """Best of the schedules that have the placement of a search and are within its limits."""
    pipeline = _pipeline_of(result)
    return _minimum(
        _baseline_of(schedule, result)
        for schedule in schedules
        if comparable(schedule, pipeline) and _keeps(schedule, pipeline)
    )


def _minimum(baselines: Iterable[Baseline]) -> Baseline | None:
    return min(baselines, key=lambda baseline: baseline.value, default=None)


def _baseline_of(schedule: Schedule, result: Result) -> Baseline:
    """Baseline from the schedule of a strategy and the result of a search."""
    value = objective_value(schedule, result.objective)
    speedup = value / result.value if result.value else None
    name, chosen = str(schedule.origin.strategy), _chosen(result).names
    return Baseline(name, value, speedup, schedule.pipeline, chosen=chosen)


def _chosen(result: Result) -> Decisions:
    """Decisions of a search of a model in layers besides the order, from its proof."""
    return result.certificate.decisions & Decisions.OF_STRATEGY


def _pipeline_of(result: Result) -> Pipeline:
    """Pipeline of a search, with the partition that the search chose, if any."""
    return result.pipeline if result.schedule is None else result.schedule.pipeline


def comparable(schedule: Schedule, pipeline: Pipeline) -> bool:
    """Whether the optimum of a pipeline is at most the value of a schedule.

    This holds for every schedule of the same placement, if links are delays. A search without
    overlap times has no overlapped pairs. If a schedule has a pair, its two operations one after
    the other take the same time and no more memory, and produce results no later.
    """
    return schedule.pipeline.layout == pipeline.layout


def _with_open(searched: Pipeline, chosen: Decisions) -> Pipeline:
    """Pipeline of a search, with the decisions of the search left open for every strategy.

    If the search chose nothing, it is the search's pipeline itself, so that orders are cached.
    """
    placed = with_explicit_placement(searched)
    if not chosen & ~Decisions.PLACEMENT:
        return placed
    left_open: dict[str, Any] = dict.fromkeys((chosen & Decisions.OF_STRATEGY).fields, SEARCH)
    return placed.with_layers(**left_open, mem_limit=searched.limits)


def _keeps(schedule: Schedule, pipeline: Pipeline) -> bool:
    """Whether the peaks of a schedule are within the limits of the pipeline."""
    if pipeline.limits is None:
        return True
    memory = schedule.pipeline.ticks.memory
    peaks = map(memory, schedule.metrics.peak_memory_ticks)
    return all(peak <= limit for peak, limit in zip(peaks, pipeline.limits, strict=True))
