"""What a search gains over hand strategies, within its memory limit.

The baseline is the best of the placement that was searched. A better one of another placement is
found beside it: a search keeps its placement, and the user may not have to.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

from ppopt.errors import NotApplicableError
from ppopt.problem.objective import Objective
from ppopt.problem.partition import BALANCED, SEARCH
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.recompute import SEARCH_RECOMPUTE
from ppopt.schedule.origin import Argument
from ppopt.schedule.schedule import Schedule
from ppopt.solver.heuristics.construction import stated
from ppopt.solver.result import Result, Status
from ppopt.strategies import Options, Strategy, registry
from ppopt.studies.evaluate import evaluate, objective_value
from ppopt.studies.recompute_choice import choose_recompute

LONGEST = 2.0
"""Estimated seconds above which a strategy is left out."""
LONGEST_ELSEWHERE = 0.2
"""The same for strategies of other placements."""
BEYOND = 1.05
"""Share of its time limit up to which a search and the evaluation of strategies may take."""
GRACE = 0.5
"""Seconds on top of that, for short time limits."""


class Baseline(NamedTuple):
    """The best hand strategy of a placement that keeps the memory limit."""

    strategy: str
    value: Fraction
    """Its objective in the user's unit."""
    speedup: Fraction | None
    """Its value over that of the search: how many times the throughput the search gives; None
    where the search found nothing."""
    skipped: tuple[str, ...] = ()
    """Strategies of the placement that were left out because they take long."""
    chosen: tuple[str, ...] = ()
    """What the search chose, partition or recompute: each strategy is compared with its own."""


class Elsewhere(NamedTuple):
    """The best hand strategy of all other placements, where it is better than the baseline."""

    strategy: str
    value: Fraction
    speedup: Fraction | None
    """As of a baseline: below 1 where this strategy is better than the search."""
    pipeline: Pipeline
    """The pipeline in its placement."""


def baseline(result: Result, until: float | None = None) -> Baseline | None:
    """Evaluate the hand strategies of the placement of a search, each with its default options.

    Strategies of fixed order come first. The first that reaches the lower bound ends the
    evaluation: none is better. Left out are strategies that take long on so many operations, or
    longer than what is left until an instant of `time.monotonic`, by default `end_of_evaluation`.
    Returns None where no strategy keeps the memory limit, and where the search was interrupted or
    proved that no schedule does.

    A partition that was searched suits the schedule found, not every strategy: each is evaluated on
    the balanced one too, and the better counts. Where recompute was searched, each has as little of
    it as keeps the limit.
    """
    if _is_without(result):
        return None
    deadline = end_of_evaluation(result) if until is None else until
    pipeline, found, skipped = _own(result), [], []
    for strategy in _strategies(result, pipeline):
        seconds = strategy.seconds(pipeline)
        if seconds > min(LONGEST, deadline - time.monotonic()):
            skipped.append(strategy.name)
            continue
        hand = best(_made(strategy, result), result)
        if hand is not None:
            found.append(hand)
            if hand.value == result.lower_bound:
                return hand
    if not found:
        return None
    return min(found, key=lambda hand: hand.value)._replace(skipped=tuple(skipped))


def elsewhere(
    asked: Pipeline, result: Result, hand: Baseline | None, until: float | None = None
) -> Elsewhere | None:
    """The best hand strategy of another placement, within the memory limits of a search.

    `asked` is the pipeline that the search was given; `until` is as for `baseline`. Every strategy
    has its default options and the placement and chunks that it asks for; the chunks of the search,
    where it takes any number. A partition that was searched is balanced here; where recompute was
    searched, each has as little of it as keeps the limits.
    Left out are strategies that a given partition contradicts, and those that would cut unequal
    stages into chunks, or microbatches into other slices. So are those that hold the weights twice
    where the pipeline does not say how large these are, and those that take long. Returns None
    where none of the others is better than the baseline `hand`.
    """
    if _is_without(result):
        return None
    deadline = end_of_evaluation(result) if until is None else until
    own, unplaced = _own(result), _unchosen(asked, result)
    found: Baseline | Elsewhere | None = hand
    for strategy in registry().values():
        left = min(LONGEST_ELSEWHERE, deadline - time.monotonic())
        if strategy.seconds(own) > left or (result.fused and not strategy.fused):
            continue
        for schedule in _made_elsewhere(strategy, unplaced, own, result.objective):
            value = objective_value(schedule, result.objective)
            if found is None or value < found.value:
                speedup = _speedup(value, result)
                found = Elsewhere(strategy.name, value, speedup, schedule.pipeline)
    return found if isinstance(found, Elsewhere) else None


def _made_elsewhere(
    strategy: Strategy, unplaced: Pipeline, own: Pipeline, objective: Objective
) -> list[Schedule]:
    """The schedule of a strategy in a placement of its own, within the limit; else none."""
    with suppress(NotApplicableError):
        plain = replace(unplaced, recompute=None)
        if _is_elsewhere(strategy.apply(strategy.unplaced(plain), Options()), own):
            made = _evaluated(strategy.unplaced(unplaced), strategy, objective)
            return [made] if made.fits_limits else []
    return []


def _evaluated(pipeline: Pipeline, strategy: Strategy, objective: Objective) -> Schedule:
    """A strategy; with as little recompute as its limits ask for, where that is searched."""
    make = choose_recompute if pipeline.recompute == SEARCH_RECOMPUTE else evaluate
    return make(pipeline, strategy.name, objective)


def _unchosen(asked: Pipeline, result: Result) -> Pipeline:
    """The pipeline of a search for strategies that choose their own placement."""
    own = _own(result)
    searched = asked.recompute == SEARCH_RECOMPUTE
    return replace(
        asked,
        model=asked.model if searched else own.model,
        recompute=asked.recompute if searched else None,
        partition=BALANCED if asked.partition == SEARCH else asked.partition,
        mem_limit=own.limits,
    )


def _is_elsewhere(placed: Pipeline, own: Pipeline) -> bool:
    """Whether a pipeline is of another placement, and `elsewhere` does not leave it out."""
    if placed.layout == own.layout or placed.num_slices != own.num_slices:
        return False
    if placed.routes > own.routes and not any(own.costs.static):
        return False
    return placed.num_chunks == own.num_chunks or not own.has_unequal_shares


def _is_without(result: Result) -> bool:
    """Whether a search is not compared: it was interrupted, or no schedule keeps the limit."""
    return result.interrupted or result.status is Status.INFEASIBLE


def end_of_evaluation(result: Result) -> float:
    """When the evaluation of strategies is to end, of a search that ends now.

    An instant of `time.monotonic`, a little beyond the time limit of the search.
    """
    limit = BEYOND * result.provenance.time_limit + GRACE
    return time.monotonic() + limit - result.solve_seconds


def best(schedules: Iterable[Schedule], result: Result) -> Baseline | None:
    """The best of hand-made schedules of the placement and within the limit of a search."""
    pipeline = _own(result)
    found = [
        (objective_value(schedule, result.objective), schedule)
        for schedule in schedules
        if comparable(schedule, pipeline) and _keeps(schedule, pipeline)
    ]
    if not found:
        return None
    value, schedule = min(found, key=lambda one: one[0])
    return Baseline(
        str(schedule.origin.strategy), value, _speedup(value, result), chosen=_chosen(result)
    )


def _chosen(result: Result) -> tuple[str, ...]:
    """What a search of a model in layers chose beside the order, as its proof says."""
    chosen = {
        Argument.PARTITIONS: ("partition",),
        Argument.RECOMPUTE: ("recompute",),
        Argument.PARTITIONS_RECOMPUTE: ("partition", "recompute"),
    }
    return chosen.get(result.certificate.argument, ())


def _speedup(value: Fraction, result: Result) -> Fraction | None:
    return value / result.value if result.value else None


def _own(result: Result) -> Pipeline:
    """The pipeline of a search; with the partition that it found, where it chose one."""
    return result.pipeline if result.schedule is None else result.schedule.pipeline


def comparable(schedule: Schedule, pipeline: Pipeline) -> bool:
    """Whether the best schedule of the pipeline's search space is no worse than a schedule.

    So it is for every schedule of the same placement over links that only delay. A search without
    overlap times runs no F and backward as one operation. In a schedule that does, one after the
    other takes the same time and no more memory, and its results are there no later.
    """
    return schedule.pipeline.layout == pipeline.layout


def _strategies(result: Result, pipeline: Pipeline) -> list[Strategy]:
    """The strategies of exactly this placement, those of fixed order first."""
    every = sorted(registry().values(), key=lambda strategy: strategy.adaptive)
    return [
        strategy
        for strategy in every
        if (strategy.fused or not result.fused) and _is_of(strategy, pipeline)
    ]


def _is_of(strategy: Strategy, pipeline: Pipeline) -> bool:
    with suppress(NotApplicableError):
        return strategy.apply(stated(pipeline), Options()).layout == pipeline.layout
    return False


def _made(strategy: Strategy, result: Result) -> list[Schedule]:
    """The schedules of a strategy: one for each of its pipelines on which it can run."""
    made = []
    for pipeline in _pipelines(result):
        with suppress(NotApplicableError):
            made.append(_evaluated(pipeline, strategy, result.objective))
    return made


def _pipelines(result: Result) -> list[Pipeline]:
    """The pipelines on which strategies are compared with a search.

    That of the schedule found, as the search states it, whose orders are cached; of a partition
    that was searched also the balanced one; of recompute that was searched those of its own choice.
    """
    own, chosen = _own(result), _chosen(result)
    found = [stated(own)]
    if "partition" in chosen:
        found.append(replace(stated(own), partition=BALANCED))
    if "recompute" in chosen:
        found += [replace(one, recompute=SEARCH_RECOMPUTE, mem_limit=own.limits) for one in found]
    return found


def _keeps(schedule: Schedule, pipeline: Pipeline) -> bool:
    """Whether the peaks of a schedule are within the limits of the pipeline."""
    if pipeline.limits is None:
        return True
    memory = schedule.pipeline.ticks.memory
    peaks = map(memory, schedule.metrics.peak_memory)
    return all(peak <= limit for peak, limit in zip(peaks, pipeline.limits, strict=True))
