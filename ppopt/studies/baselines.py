"""Hand strategies, each on its own best choices: what a search, a plan or a frontier is held to.

`baselines` evaluates them. What a pipeline leaves to be searched, partition or recompute, every
strategy has as is best for it (`ppopt.studies.best_choice`).

The baseline of a search is the best strategy of the placement that was searched. A better one of
another placement is found beside it: a search keeps its placement, and the user may not have to.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from math import inf
from typing import NamedTuple

from ppopt.errors import NotApplicableError
from ppopt.loggers import logger
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.objective import Objective
from ppopt.problem.offload import SEARCH_OFFLOAD
from ppopt.problem.partition import SEARCH
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.recompute import SEARCH_RECOMPUTE
from ppopt.schedule.origin import Argument
from ppopt.schedule.schedule import Schedule
from ppopt.solver import interrupts
from ppopt.solver.deadline import NO_DEADLINE, Deadline
from ppopt.solver.heuristics.construction import stated
from ppopt.solver.open_choices import NONE_CHOSEN, Chosen, open_choices
from ppopt.solver.result import Result, Status
from ppopt.strategies import Options, Strategy, registry, resolve
from ppopt.studies.best_choice import is_open
from ppopt.studies.evaluate import evaluate, objective_value
from ppopt.studies.strategy_search import StrategySearch

BEGINNING = 0.5
"""Share of its time that a strategy takes at first."""
MOST_SECONDS = 5.0
"""Most seconds of one strategy for its choices."""
EVALUATING = 5e-6
"""Estimated seconds to time and verify a schedule, per operation number."""
LONGEST = 2.0
"""Estimated seconds above which a strategy of the placement of a search is left out."""
LONGEST_IN_OTHER_PLACEMENTS = 0.2
"""The same for strategies of other placements."""
BEYOND = 1.05
"""Share of its time limit up to which a search and the evaluation of strategies may take."""
GRACE = 0.3
"""Seconds on top of that, for short time limits."""
STOPPED = "not evaluated: stopped early"
"""Why a strategy is left out after Ctrl-C."""
_LOG = logger(__name__)


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


class Wanted(NamedTuple):
    """A strategy to be evaluated."""

    strategy: Strategy
    pipeline: Pipeline
    """As it is asked for; what it leaves to be searched is chosen for the strategy."""
    options: Options = Options()
    hints: tuple[Pipeline, ...] = ()
    """Pipelines whose partitions are tried first."""


class Evaluated(NamedTuple):
    """What became of it."""

    place: int
    """Number of the strategy among those wanted."""
    name: str
    """Name of the strategy."""
    schedule: Schedule | None = None
    """On its best choices; None: it was left out."""
    seconds: float = 0.0
    """Time it took to make."""
    reason: str = ""
    """Why it was left out."""
    late: bool = False
    """Whether that was for lack of time."""
    search: StrategySearch | None = None
    """The search for its choices, which can go on; None: there is nothing to choose."""


def baselines(
    wanted: Sequence[Wanted],
    objective: Objective,
    deadline: Deadline,
    *,
    longest: float = inf,
    choosing: float = inf,
) -> Iterator[Evaluated]:
    """Evaluate strategies, each on its own best choices, by a deadline, which reports their names.

    Where there is something to choose, every strategy is begun before any goes on: then each has up
    to twice an equal share of the time left. Left out are those that do not apply, and those whose
    schedule takes longer to make than is left, or than `longest` seconds. Choices end after
    `choosing` seconds, if that is earlier; each strategy has a first one at any time. Ctrl-C leaves
    out those that are not begun.
    """
    choices = deadline.within(choosing)
    begun: list[Evaluated] = []
    interrupted = False
    for place, one in enumerate(wanted):
        turn = choices.turn(len(wanted) - place - 1).share(BEGINNING)
        if deadline.pressed:
            break
        try:
            found = _begin(one, objective, deadline, turn, longest)._replace(place=place)
        except KeyboardInterrupt:
            interrupted = True
            break
        if found.search is None:
            yield found
        else:
            begun.append(found)
    for number, found in enumerate(begun):
        search, turn = found.search, choices.turn(len(begun) - number - 1)
        assert search is not None
        if not (interrupted or deadline.pressed):
            try:
                deadline.tell(f"strategy {found.name}")
                search.settle(turn.within(MOST_SECONDS))
            except KeyboardInterrupt:
                interrupted = True
        yield found._replace(schedule=search.schedule(), seconds=found.seconds + turn.spent)
    if interrupted and not deadline.pressed:
        raise KeyboardInterrupt


def _begin(
    one: Wanted, objective: Objective, deadline: Deadline, turn: Deadline, longest: float
) -> Evaluated:
    """Evaluate a strategy, or begin the search for its choices, for a turn."""
    found = Evaluated(0, one.strategy.name)
    needed = one.strategy.seconds(one.pipeline) + EVALUATING * one.pipeline.num_codes
    if needed > min(longest, deadline.left):
        words = f"it takes about {max(needed, 0.1):.1f} s, more than is left for it"
        return found._replace(reason=f"{words}; raise --time-limit", late=True)
    deadline.tell(f"strategy {found.name}")
    _LOG.info("strategy %s", found.name)
    try:
        if not is_open(one.pipeline):
            made = evaluate(one.pipeline, found.name, objective, one.options)
            return found._replace(schedule=made, seconds=turn.spent)
        search = StrategySearch(one.pipeline, found.name, objective, one.options)
    except NotApplicableError as error:
        return found._replace(reason=str(error))
    for hint in one.hints:
        search.hint(hint)
    search.run(1, turn)
    return found._replace(search=search, seconds=turn.spent)


def evaluate_all(
    pipeline: Pipeline,
    objective: Objective,
    options: Options,
    kind: BackwardKind = BackwardKind.MIXED,
    deadline: Deadline = NO_DEADLINE,
    *,
    only: Collection[str] | None = None,
    choosing: float = inf,
) -> tuple[list[tuple[Schedule, float]], tuple[tuple[str, str], ...]]:
    """Evaluate every strategy in its own chunks and placement, by a deadline.

    The schedules, with the seconds that each took; and the strategies left out, with the reason.
    `only`: the names of those to evaluate; all for None. `choosing`: most seconds in which they
    choose partition and recompute, after a first one of each. Ctrl-C leaves out those not done.
    """
    skipped, wanted = [], []
    chosen = registry() if only is None else {name: resolve(name) for name in only}
    for name, strategy in chosen.items():
        if kind is BackwardKind.WHOLE and not strategy.fused:
            skipped.append((name, "it splits the backward, which --backward whole rules out"))
            continue
        try:
            wanted.append(Wanted(strategy, strategy.unplaced(pipeline), strategy.taken(options)))
        except NotApplicableError as error:
            skipped.append((name, str(error)))
    found: list[Evaluated] = []
    with suppress(KeyboardInterrupt), interrupts.heard():
        for baseline in baselines(wanted, objective, deadline, choosing=choosing):
            found.append(baseline)
    made = [(one.schedule, one.seconds) for one in found if one.schedule is not None]
    skipped += [(one.name, one.reason) for one in found if one.schedule is None]
    done = {one.name for one in found}
    skipped += [(one.strategy.name, STOPPED) for one in wanted if one.strategy.name not in done]
    return made, tuple(sorted(skipped))


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
    own, deadline = _own(result), deadline or end_of_evaluation(result)
    pipeline = _with_open(own, chosen)
    of_placement = [
        wanted._replace(hints=(own,))
        for wanted, placed in _applied(result, lambda _: pipeline)
        if placed.layout == own.layout
    ]
    of_placement.sort(key=lambda wanted: wanted.strategy.adaptive)
    found, skipped = None, []
    for evaluated in baselines(of_placement, result.objective, deadline, longest=LONGEST):
        if evaluated.late:
            skipped.append(evaluated.name)
        hand = best([] if evaluated.schedule is None else [evaluated.schedule], result)
        if hand is not None and (found is None or hand.value < found.value):
            found = hand
        if found is not None and found.value == result.lower_bound:
            break
    if found is None:
        return None
    return found._replace(skipped=tuple(skipped), chosen=(chosen & ~Chosen.PLACEMENT).names)


def best_other_placement(
    asked: Pipeline, result: Result, hand: Baseline | None, deadline: Deadline | None = None
) -> Baseline | None:
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
    own, deadline = _own(result), deadline or end_of_evaluation(result)
    unplaced, longest = _unplaced(asked, own), LONGEST_IN_OTHER_PLACEMENTS
    others = [
        wanted
        for wanted, placed in _applied(result, lambda strategy: strategy.unplaced(unplaced))
        if _is_other_placement(placed, own)
    ]
    found = hand
    for evaluated in baselines(others, result.objective, deadline, longest=longest):
        made = evaluated.schedule
        if made is not None and made.fits_limits:
            other = _hand(made, result)
            found = other if found is None or other.value < found.value else found
    return None if found is hand else found


def _applied(
    result: Result, pipeline_of: Callable[[Strategy], Pipeline]
) -> Iterator[tuple[Wanted, Pipeline]]:
    """Every strategy of the backwards of a search on a pipeline for it, and its own pipeline."""
    for strategy in registry().values():
        if strategy.fused or not result.fused:
            with suppress(NotApplicableError):
                pipeline = pipeline_of(strategy)
                yield Wanted(strategy, pipeline), strategy.apply(pipeline, Options())


def _unplaced(asked: Pipeline, own: Pipeline) -> Pipeline:
    """The pipeline of a search for strategies that choose their own placement."""
    return replace(asked, mem_limit=own.limits)


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
    hands = (
        _hand(schedule, result)
        for schedule in schedules
        if comparable(schedule, pipeline) and _keeps(schedule, pipeline)
    )
    return min(hands, key=lambda hand: hand.value, default=None)


def _hand(schedule: Schedule, result: Result) -> Baseline:
    """A hand-made schedule beside a search."""
    value = objective_value(schedule, result.objective)
    speedup = value / result.value if result.value else None
    name, chosen = str(schedule.origin.strategy), _chosen(result).names
    return Baseline(name, value, speedup, schedule.pipeline, chosen=chosen)


def _chosen(result: Result) -> Chosen:
    """What a search of a model in layers chose beside the order, as its proof says."""
    chosen = {
        Argument.PARTITIONS: Chosen.PARTITION,
        Argument.RECOMPUTE: Chosen.RECOMPUTE,
        Argument.PARTITIONS_RECOMPUTE: Chosen.PARTITION | Chosen.RECOMPUTE,
        Argument.OFFLOAD: Chosen.OFFLOAD,
        Argument.RECOMPUTE_OFFLOAD: Chosen.RECOMPUTE | Chosen.OFFLOAD,
    }
    return chosen.get(result.certificate.argument, NONE_CHOSEN)


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


def _with_open(own: Pipeline, chosen: Chosen) -> Pipeline:
    """The pipeline of a search, with what it chose left to every strategy.

    Where it chose nothing: as the search states it, so that orders are cached.
    """
    if not chosen & ~Chosen.PLACEMENT:
        return stated(own)
    given = replace(stated(own), mem_limit=own.limits)
    if Chosen.RECOMPUTE in chosen:
        given = replace(given, recompute=SEARCH_RECOMPUTE)
    if Chosen.OFFLOAD in chosen:
        given = replace(given, offload=SEARCH_OFFLOAD)
    return replace(given, partition=SEARCH) if Chosen.PARTITION in chosen else given


def _keeps(schedule: Schedule, pipeline: Pipeline) -> bool:
    """Whether the peaks of a schedule are within the limits of the pipeline."""
    if pipeline.limits is None:
        return True
    memory = schedule.pipeline.ticks.memory
    peaks = map(memory, schedule.metrics.peak_memory)
    return all(peak <= limit for peak, limit in zip(peaks, pipeline.limits, strict=True))
