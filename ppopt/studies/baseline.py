"""What a search gains over hand strategies, within its memory limit.

The baseline is the best of the placement that was searched. A better one of another placement is
found beside it: a search keeps its placement, and the user may not have to.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

from ppopt.errors import NotApplicableError
from ppopt.problem.partition import SEARCH
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.recompute import SEARCH_RECOMPUTE
from ppopt.schedule.origin import Argument
from ppopt.schedule.schedule import Schedule
from ppopt.solver.deadline import Deadline
from ppopt.solver.heuristics.construction import stated
from ppopt.solver.open_choices import NONE_CHOSEN, Chosen, open_choices
from ppopt.solver.result import Result, Status
from ppopt.strategies import Options, Strategy, registry
from ppopt.studies.baselines import Wanted, baselines
from ppopt.studies.evaluate import objective_value

LONGEST = 2.0
"""Estimated seconds above which a strategy is left out."""
LONGEST_IN_OTHER_PLACEMENTS = 0.2
"""The same for strategies of other placements."""
BEYOND = 1.05
"""Share of its time limit up to which a search and the evaluation of strategies may take."""
GRACE = 0.3
"""Seconds on top of that, for short time limits."""


class Baseline(NamedTuple):
    """The best hand strategy of a placement that keeps the memory limit."""

    strategy: str
    value: Fraction
    """Its objective in the user's unit."""
    speedup: Fraction | None
    """Its value over that of the search: how many times the throughput the search gives; None
    where the search found nothing."""
    pipeline: Pipeline
    """With the partition and the recompute of the strategy's schedule."""
    skipped: tuple[str, ...] = ()
    """Strategies of the placement that were left out because they take long."""
    chosen: tuple[str, ...] = ()
    """What the search chose, partition or recompute: each strategy is compared with its own."""


class OtherPlacement(NamedTuple):
    """The best hand strategy of all other placements, where it is better than the baseline."""

    strategy: str
    value: Fraction
    speedup: Fraction | None
    """As of a baseline: below 1 where this strategy is better than the search."""
    pipeline: Pipeline
    """The pipeline in its placement."""


def baseline(
    result: Result, asked: Pipeline | None = None, deadline: Deadline | None = None
) -> Baseline | None:
    """Evaluate the hand strategies of the placement of a search, each with its default options.

    `asked` is the pipeline that the search was given; None: the search chose what its proof says.
    What was to be chosen, partition or recompute, every strategy chooses for itself
    (`ppopt.best_choice`), beginning with that of the schedule found. Strategies of fixed order come
    first. The first that reaches the lower bound ends the evaluation: none is better. Left out are
    strategies that take long on so many operations, or longer than what is left until a deadline,
    by default `end_of_evaluation`. Returns None where no strategy keeps the memory limit, and where
    the search was interrupted or proved that no schedule does.
    """
    if _is_without(result):
        return None
    chosen = _chosen(result) if asked is None else open_choices(asked)
    pipeline = _with_open(_own(result), chosen)
    wanted = [Wanted(strategy, pipeline, hints=(_own(result),)) for strategy in _strategies(result)]
    deadline = deadline or end_of_evaluation(result)
    found, skipped = None, []
    for evaluated in baselines(wanted, result.objective, deadline, longest=LONGEST):
        if evaluated.late:
            skipped.append(evaluated.name)
        made = [] if evaluated.schedule is None else [evaluated.schedule]
        hand = best(made, result)
        if hand is not None and (found is None or hand.value < found.value):
            found = hand
        if found is not None and found.value == result.lower_bound:
            break
    if found is None:
        return None
    return found._replace(skipped=tuple(skipped), chosen=(chosen & ~Chosen.PLACEMENT).names)


def best_other_placement(
    asked: Pipeline, result: Result, hand: Baseline | None, deadline: Deadline | None = None
) -> OtherPlacement | None:
    """The best hand strategy of another placement, within the memory limits of a search.

    `asked` is the pipeline that the search was given; `deadline` is as for `baseline`. Every
    strategy has its default options and the placement and chunks that it asks for; the chunks of
    the search, where it takes any number. Where partition or recompute was searched, each chooses
    its own. Left out are strategies that a given partition contradicts, and those that would cut
    unequal stages into chunks, or microbatches into other slices. So are those that hold the
    weights twice where the pipeline does not say how large these are, and those that take long.
    Returns None where none of the others is better than the baseline `hand`.
    """
    if _is_without(result):
        return None
    deadline = deadline or end_of_evaluation(result)
    wanted = list(_wanted_in_other_placements(_unplaced(asked, result), result))
    found: Baseline | OtherPlacement | None = hand
    for one in baselines(wanted, result.objective, deadline, longest=LONGEST_IN_OTHER_PLACEMENTS):
        if one.schedule is None or not one.schedule.fits_limits:
            continue
        value = objective_value(one.schedule, result.objective)
        if found is None or value < found.value:
            found = OtherPlacement(one.name, value, _speedup(value, result), one.schedule.pipeline)
    return found if isinstance(found, OtherPlacement) else None


def _wanted_in_other_placements(unplaced: Pipeline, result: Result) -> Iterator[Wanted]:
    """Every strategy in a placement of its own that `best_other_placement` does not leave out."""
    own = _own(result)
    for strategy in registry().values():
        if result.fused and not strategy.fused:
            continue
        with suppress(NotApplicableError):
            pipeline = strategy.unplaced(unplaced)
            if _is_other_placement(strategy.apply(pipeline, Options()), own):
                yield Wanted(strategy, pipeline)


def _unplaced(asked: Pipeline, result: Result) -> Pipeline:
    """The pipeline of a search for strategies that choose their own placement."""
    own = _own(result)
    searched = asked.recompute == SEARCH_RECOMPUTE
    return replace(
        asked,
        model=asked.model if searched else own.model,
        recompute=asked.recompute if searched else None,
        mem_limit=own.limits,
    )


def _is_other_placement(placed: Pipeline, own: Pipeline) -> bool:
    """Whether a pipeline is of another placement that `best_other_placement` looks at."""
    if placed.layout == own.layout or placed.num_slices != own.num_slices:
        return False
    if placed.routes > own.routes and not any(own.costs.static):
        return False
    return placed.num_chunks == own.num_chunks or not own.has_unequal_shares


def _is_without(result: Result) -> bool:
    """Whether a search is not compared: it was interrupted, or no schedule keeps the limit."""
    return result.interrupted or result.status is Status.INFEASIBLE


def end_of_evaluation(result: Result) -> Deadline:
    """When the evaluation of strategies is to end, of a search that ends now.

    A little beyond the time limit of the search.
    """
    limit = BEYOND * result.provenance.time_limit + GRACE
    return Deadline.after(limit - result.solve_seconds)


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
        str(schedule.origin.strategy),
        value,
        _speedup(value, result),
        schedule.pipeline,
        chosen=_chosen(result).names,
    )


def _chosen(result: Result) -> Chosen:
    """What a search of a model in layers chose beside the order, as its proof says."""
    chosen = {
        Argument.PARTITIONS: Chosen.PARTITION,
        Argument.RECOMPUTE: Chosen.RECOMPUTE,
        Argument.PARTITIONS_RECOMPUTE: Chosen.PARTITION | Chosen.RECOMPUTE,
    }
    return chosen.get(result.certificate.argument, NONE_CHOSEN)


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


def _strategies(result: Result) -> list[Strategy]:
    """The strategies of exactly the placement of a search, those of fixed order first."""
    pipeline = _own(result)
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


def _with_open(own: Pipeline, chosen: Chosen) -> Pipeline:
    """The pipeline of a search, with what it chose left to every strategy.

    Where it chose nothing: as the search states it, so that orders are cached.
    """
    if not chosen & ~Chosen.PLACEMENT:
        return stated(own)
    given = replace(stated(own), mem_limit=own.limits)
    if Chosen.RECOMPUTE in chosen:
        given = replace(given, recompute=SEARCH_RECOMPUTE)
    return replace(given, partition=SEARCH) if Chosen.PARTITION in chosen else given


def _keeps(schedule: Schedule, pipeline: Pipeline) -> bool:
    """Whether the peaks of a schedule are within the limits of the pipeline."""
    if pipeline.limits is None:
        return True
    memory = schedule.pipeline.ticks.memory
    peaks = map(memory, schedule.metrics.peak_memory)
    return all(peak <= limit for peak, limit in zip(peaks, pipeline.limits, strict=True))
