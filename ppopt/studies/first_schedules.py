"""First schedules of a plan space, also with few recomputed layers.

`ppopt.solver.heuristics.first_schedules` has those of one configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from fractions import Fraction
from operator import methodcaller
from typing import NamedTuple

from ppopt.cancellation import checkpoint, part, shield
from ppopt.errors import NotApplicableError
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.decisions import SEARCH, Decisions
from ppopt.problem.layer_choices import by_rules
from ppopt.problem.objective import Objective
from ppopt.problem.problem import Problem
from ppopt.schedule import timing
from ppopt.schedule.list_scheduling import one_at_a_time
from ppopt.schedule.origin import SEARCHED
from ppopt.schedule.schedule import Schedule
from ppopt.solver.heuristics.first_schedules import QUICK, FirstSchedules
from ppopt.solver.options import SolveOptions
from ppopt.strategies import resolve
from ppopt.studies.baselines import GRACE
from ppopt.studies.evaluate import objective_value, peak_memory
from ppopt.studies.plan_space import PlanConfiguration, PlanSpace, partitions_on
from ppopt.studies.strategy_search import StrategySearch
from ppopt.verifier import checked

Step = Callable[[FirstSchedules], Iterator[Schedule]]
"""Some of the first schedules of a configuration."""
Steps = Iterable[tuple[Step, Sequence[PlanConfiguration]]]
"""Steps, each with the configurations that it is for, the most promising ones first."""


def with_few_layers(first: FirstSchedules) -> Iterator[Schedule]:
    """Schedule of the usual strategy in which as few layers recompute or offload as fit.

    Nothing if neither is searched.
    """
    if first.pipeline.open_decisions & Decisions.OF_LAYERS:
        yield from _after(StrategySearch.evaluate_first, first, balanced=True)


def in_best_configuration(first: FirstSchedules) -> Iterator[Schedule]:
    """Schedule of the usual strategy, with the partition and recompute of one descent.

    Nothing if neither is searched, or if no descent ends within the limits in the time left.
    """
    if first.pipeline.open_decisions & Decisions.OF_STRATEGY:
        yield from _after(methodcaller("descend", 1), first)


def _after(
    run: Callable[[StrategySearch], None], first: FirstSchedules, *, balanced: bool = False
) -> Iterator[Schedule]:
    """Best schedule of the usual strategy after a search, if it fits the limits."""
    strategy, options = first.usual_strategy, first.usual_strategy.own_options(first.options)
    with suppress(NotApplicableError):
        pipeline = next(first.partitioned()) if balanced else first.pipeline
        search = StrategySearch(
            pipeline, strategy.name, first.objective, options,
            accepts_partition=first.accepts_partition,
        )  # fmt: skip
        run(search)
        if search.fits:
            yield search.schedule()


FURTHER: Sequence[Step] = (
    with_few_layers,
    FirstSchedules.zero_bubble,
    FirstSchedules.by_other_strategies,
)
"""Steps after the usual strategies, in configurations of all orders."""


def steps_of(space: PlanSpace, *, further: bool) -> Steps:
    """First schedules of a space: those that most trainers run, or `further` ones.

    First come 1F1B and interleaved 1F1B, where there are any; then the other placements, as few
    recomputed layers as fit, and zero bubble. If recompute is searched, other modes are not
    evaluated on their own.
    """
    modes = (SEARCH,) if SEARCH in space.recompute else space.recompute
    own = [each for each in space if each.recompute in modes]
    own.sort(key=lambda each: each.placement not in QUICK)
    num_quick = sum(each.placement in QUICK for each in own) or len(own)
    if not further:
        return [(FirstSchedules.usual, own[:num_quick])]
    return [(FirstSchedules.usual, own[num_quick:]), *((step, own) for step in FURTHER[:2])]


def first_schedules(
    space: PlanSpace,
    steps: Steps,
    objective: Objective = Objective.MAKESPAN,
    kind: BackwardKind = BackwardKind.MIXED,
    *,
    is_open: Callable[[PlanConfiguration], bool] = lambda _: True,
    needed: float = 0,
) -> Iterator[tuple[PlanConfiguration, Schedule]]:
    """First schedules of a space in the order of steps, with their configurations.

    Configurations that are not open when their turn comes are left out. Those that take `needed`
    seconds, by an estimate that does not depend on the clock, are evaluated in any case, unless
    their strategy is adaptive; later, the end of a scope raises TimeoutError.
    """
    for step, configurations in steps:
        for configuration in filter(is_open, configurations):
            if needed <= 0:
                checkpoint()
            with suppress(NotApplicableError):
                first = _first_schedules_of(space, configuration, objective, kind)
                schedules: Iterable[Schedule] = step(first)
                if needed > 0 and not first.usual_strategy.adaptive:
                    with shield():
                        schedules = [*schedules]
                needed -= first.usual_strategy.seconds(first.pipeline)
                for schedule in schedules:
                    yield configuration, schedule


def usual_schedules(
    space: PlanSpace, objective: Objective, kind: BackwardKind, options: SolveOptions
) -> list[Schedule]:
    """Schedules of the usual strategies of all configurations, the best per microbatch first.

    They are evaluated in a share of the time left, and those that take `GRACE` seconds in any case.
    """
    schedules: list[Schedule] = []
    with part(options.params.plan.first_schedules):
        usual = [(FirstSchedules.usual, [*space])]
        first = first_schedules(space, usual, objective, kind, needed=GRACE)
        schedules.extend(schedule for _, schedule in first)
    return sorted(
        schedules, key=lambda each: each.metrics.value_ticks(objective) / each.pipeline.batches
    )


@shield()
def _first_schedules_of(
    space: PlanSpace, configuration: PlanConfiguration, objective: Objective, kind: BackwardKind
) -> FirstSchedules:
    """First schedules of a configuration; raises NotApplicableError if there are none."""
    pipeline, name = space.pipeline(configuration), configuration.strategy
    accepts = partitions_on(space.runtime, pipeline)
    own = None if name == SEARCHED else resolve(name)
    return FirstSchedules(pipeline, objective, kind, accepts, space.options, own)


class FirstRow(NamedTuple):
    """A first schedule of a plan space."""

    configuration: PlanConfiguration
    """Configuration of the schedule, with its strategy unless the order was repaired."""
    schedule: Schedule

    @property
    def step(self) -> Fraction:
        """Makespan, in the user's unit."""
        return objective_value(self.schedule, Objective.MAKESPAN)

    @property
    def peak(self) -> Fraction:
        """Largest device peak, in the user's unit."""
        return peak_memory(self.schedule)


def first_rows(space: PlanSpace, *, further: bool) -> Iterator[FirstRow]:
    """First schedules of a space by makespan; see `steps_of`."""
    for configuration, schedule in first_schedules(space, steps_of(space, further=further)):
        yield FirstRow(configuration_of(schedule, configuration), schedule)


def best_of_each(rows: Iterable[FirstRow]) -> tuple[FirstRow, ...]:
    """The row of minimum time per microbatch of every configuration, the fastest first."""
    best: dict[PlanConfiguration, FirstRow] = {}
    for row in sorted(rows, key=lambda row: row.step / row.configuration.batches):
        best.setdefault(row.configuration._replace(strategy=""), row)
    return tuple(best.values())


def least_memory_row(space: PlanSpace) -> FirstRow:
    """The schedule of least memory by rule, which may exceed the limits.

    One microbatch at a time, on the balanced partition, with full recompute if the space allows it.
    """
    full = {SEARCH, "full"} & {*space.recompute}
    configurations = {each._replace(recompute="full") if full else each for each in space}
    rows = []
    for configuration in sorted(configurations):
        with suppress(NotApplicableError):
            for pipeline in by_rules(space.pipeline(configuration)):
                problem = Problem(pipeline, Objective.MAKESPAN, BackwardKind.WHOLE)
                orders = one_at_a_time(problem.instance)
                schedule = checked(timing.schedule(pipeline, orders), enforce_limit=False)
                rows.append(FirstRow(configuration._replace(strategy=SEARCHED), schedule))
    return min(rows, key=lambda row: (row.peak, row.configuration))


def configuration_of(schedule: Schedule, searched: PlanConfiguration) -> PlanConfiguration:
    """Configuration of a schedule, within one whose recompute may be searched."""
    recompute, model = searched.recompute, schedule.pipeline.model
    if recompute == SEARCH:
        fixed = (mode for mode in ("none", "full") if model == model.with_recompute(mode))
        recompute = next(fixed, SEARCH)
    return searched._replace(recompute=recompute, strategy=schedule.origin.strategy or SEARCHED)
