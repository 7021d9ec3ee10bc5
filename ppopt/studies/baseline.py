"""What a search gains over the best hand strategy of its placement, within its memory limit."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from fractions import Fraction
from typing import NamedTuple

from ppopt.errors import InputError
from ppopt.problem.objective import Objective
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.schedule import Schedule
from ppopt.schedule.timetable import ALONE
from ppopt.solver.heuristics.construction import stated
from ppopt.solver.result import Result, Status
from ppopt.strategies import Options, Strategy, registry
from ppopt.studies.evaluate import evaluate

LONGEST = 2.0
"""Estimated seconds above which a strategy is left out."""
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


def baseline(result: Result) -> Baseline | None:
    """Evaluate the hand strategies of the placement of a search, each with its default options.

    Strategies of fixed order come first. The first that reaches the lower bound ends the
    evaluation: none is better. Left out are strategies that take long on so many operations, or
    longer than what is left of the search's time limit. Returns None where no strategy keeps the
    memory limit, and where the search was interrupted or proved that no schedule does.
    """
    if result.interrupted or result.status is Status.INFEASIBLE:
        return None
    limit = BEYOND * result.provenance.time_limit + GRACE
    deadline = time.monotonic() + limit - result.solve_seconds
    pipeline, found, skipped = _own(result), [], []
    for strategy in _strategies(result, pipeline):
        seconds = strategy.seconds(pipeline)
        if seconds > min(LONGEST, deadline - time.monotonic()):
            skipped.append(strategy.name)
            continue
        hand = best(_made(strategy, pipeline, result.objective), result)
        if hand is not None:
            found.append(hand)
            if hand.value == result.lower_bound:
                return hand
    if not found:
        return None
    return min(found, key=lambda hand: hand.value)._replace(skipped=tuple(skipped))


def best(schedules: Iterable[Schedule], result: Result) -> Baseline | None:
    """The best of hand-made schedules of the placement and within the limit of a search."""
    pipeline = _own(result)
    found = [
        (schedule.pipeline.ticks.time(schedule.metrics.value(result.objective)), schedule)
        for schedule in schedules
        if comparable(schedule, pipeline) and _keeps(schedule, pipeline)
    ]
    if not found:
        return None
    value, schedule = min(found, key=lambda one: one[0])
    speedup = value / result.value if result.value else None
    return Baseline(str(schedule.origin.strategy), value, speedup)


def _own(result: Result) -> Pipeline:
    """The pipeline of a search; with the partition that it found, where it chose one."""
    return result.pipeline if result.schedule is None else result.schedule.pipeline


def comparable(schedule: Schedule, pipeline: Pipeline) -> bool:
    """Whether a schedule lies in the search space of the pipeline."""
    paired = bool((schedule.pair != ALONE).any())
    alike = schedule.pipeline.layout == pipeline.layout
    return alike and (not paired or pipeline.overlap is not None)


def _strategies(result: Result, pipeline: Pipeline) -> list[Strategy]:
    """The strategies of exactly this placement, those of fixed order first."""
    every = sorted(registry().values(), key=lambda strategy: strategy.adaptive)
    return [
        strategy
        for strategy in every
        if (strategy.fused or not result.fused) and _is_of(strategy, pipeline)
    ]


def _is_of(strategy: Strategy, pipeline: Pipeline) -> bool:
    with suppress(InputError):
        return strategy.apply(stated(pipeline), Options()).layout == pipeline.layout
    return False


def _made(strategy: Strategy, pipeline: Pipeline, objective: Objective) -> list[Schedule]:
    """The schedule of a strategy; none where it cannot run.

    On the pipeline as the search states it, whose orders are cached.
    """
    with suppress(InputError):
        return [evaluate(stated(pipeline), strategy.name, objective)]
    return []


def _keeps(schedule: Schedule, pipeline: Pipeline) -> bool:
    """Whether the peaks of a schedule are within the limits of the pipeline."""
    if pipeline.limits is None:
        return True
    memory = schedule.pipeline.ticks.memory
    peaks = map(memory, schedule.metrics.peak_memory)
    return all(peak <= limit for peak, limit in zip(peaks, pipeline.limits, strict=True))
