"""The problem that a frontier solves under each memory limit: one pipeline, or its configurations.

A configuration is a partition, a placement, or a choice of recompute (`ppopt.solver.choices`). All
configurations share one curve: a schedule of any of them is feasible for every limit from its own
peak upwards, and a bound over all of them holds for every limit from its own downwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cached_property
from math import ceil, inf
from operator import attrgetter

from ppopt.cancellation import checkpoint, scope
from ppopt.errors import InputError
from ppopt.problem.decisions import Decisions
from ppopt.problem.layer_choices import by_rules
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.problem import Problem
from ppopt.problem.traits import refuse_unhandled
from ppopt.problem.units import with_unit
from ppopt.schedule import timing
from ppopt.schedule.list_scheduling import one_at_a_time
from ppopt.schedule.orders import codes, convert_backwards
from ppopt.schedule.origin import Argument, Certificate
from ppopt.schedule.schedule import Schedule
from ppopt.solver.arguments import PEAKS
from ppopt.solver.bound import Bound
from ppopt.solver.bounds import device_bounds, proof_scope
from ppopt.solver.choice_of_decisions import choice_of, in_listed_order
from ppopt.solver.choices.search import ANY_EFFORT, Effort
from ppopt.solver.choices.search_processes import ProcessPool
from ppopt.solver.choices.search_tasks import SearchTask
from ppopt.solver.choices.spaces import traits_of_any
from ppopt.solver.heuristics.first_schedules import USUAL, FirstSchedules
from ppopt.solver.options import SolveOptions
from ppopt.solver.result import Progress, Result
from ppopt.solver.solve import earlier_bound, search_decisions
from ppopt.solver.warm_start import WarmStart
from ppopt.studies import limit_candidates
from ppopt.studies.baselines import comparable
from ppopt.studies.evaluate import objective_value, peak_memory
from ppopt.studies.first_schedules import in_best_configuration
from ppopt.studies.frontier_curve import LimitBounds, Proved, Value
from ppopt.studies.strategy_search import StrategySearch

NUM_FIRST_LIMITS = 12
"""Number of limits at which strategies are evaluated before the search."""


def _until_settled(options: SolveOptions, target: int | None, useless: Value) -> SolveOptions:
    """Options of a search that ends once the target is reached or excluded.

    It also ends once the bound reaches a value that is useless.
    """
    if target is None and useless == inf:
        return options

    def settled(state: Progress) -> bool:
        value, bound = state.value_ticks, state.bound_ticks
        if target is None or bound >= useless:
            return bound >= useless
        return bound > target or (value is not None and value <= target)

    return replace(options, stop=settled)


class FrontierProblem:
    """A problem to be searched under one memory limit for every device, with what is proved."""

    impossible: str | None = None
    """Why the pipeline's own limits allow no schedule, if that needs no search; else None."""
    backward_kinds = ""
    """Text on the kinds of backwards that are searched; empty if proofs contain it."""
    infeasible_below: int | None = None
    """A limit in ticks below which there is no schedule; None: only a search can find it."""
    minimum_text = ""
    """Why there is none below."""

    def __init__(self, problem: Problem, strategy: StrategySearch | None = None) -> None:
        """With a strategy, the schedules are those of its configurations.

        Raises InputError if a frontier cannot be searched, and NotApplicableError if the limits at
        which an optimum can change are not known.
        """
        traits, pipeline = traits_of_any(problem), problem.pipeline
        refuse_unhandled("frontier: it", traits, PEAKS.handles, "solve within single limits")
        if Decisions.RECOMPUTE_SET in pipeline.open_decisions:
            raise InputError(
                "recompute: a frontier does not search sets of modules for all layers; use search, "
                "or --recompute-modules"
            )
        with scope(-inf):
            choice_of(problem)
        self.problem, self.decisions = problem, pipeline.open_decisions
        self._strategy = strategy
        self.name = placement_name(pipeline)
        self._listed: Problem | None = None
        """Problem without open decisions, whose peaks are those in any order; None: partition,
        placement or layers are open."""
        if not self.decisions & ~Decisions.ORDER:
            self._listed = in_listed_order(problem) if self.decisions else problem
            self._read_minimum(self._listed)
        self.bounds = LimitBounds([] if self.impossible else [self._initial_bound()])
        """Bounds per limit."""

    def _read_minimum(self, listed: Problem) -> None:
        """Set what is known before a search of a pipeline without open decisions."""
        self.backward_kinds = proof_scope.proof_scope(listed)
        self.impossible = device_bounds.infeasibility(listed.reduced.instance)
        minima = device_bounds.minimum_memory(listed.reduced.instance)
        device = minima.index(max(minima))
        self.infeasible_below = minima[device]
        needed = listed.pipeline.memory_text(minima[device])
        self.minimum_text = f"device {device} needs {needed} even for one microbatch at a time"

    def _initial_bound(self) -> Proved:
        """Bound known before any search, for the largest limit."""
        if self.decisions:
            text = "nothing is proved before the first search ends"
            return Proved(self.limits[-1], Bound(0, text, Certificate(Argument.SEARCH)))
        return Proved(self.limits[-1], device_bounds.known_bound(self.problem.reduced))

    @cached_property
    def limits(self) -> Sequence[int]:
        """All limits at which the optimum may change, in ticks, ascending; not empty."""
        if self._listed is not None:
            return limit_candidates.candidates(self._listed.reduced)
        return limit_candidates.all_ticks(self.problem.pipeline)

    def one_at_a_time(self) -> Iterator[Schedule]:
        """Schedules of one microbatch at a time on configurations chosen by rules.

        The partition is `balanced`, stages are placed in turn, microbatches run as listed; for
        recompute and offload see `by_rules`. They may exceed the limits.
        """
        objective = self.problem.objective
        for pipeline in by_rules(self.problem.pipeline.without(~Decisions.OF_LAYERS)):
            for restriction in replace(self.problem, pipeline=pipeline).reduced.restrictions:
                yield timing.schedule(pipeline, one_at_a_time(restriction.instance), objective)

    def starts(self, schedules: Iterable[Schedule]) -> Iterator[Schedule]:
        """Schedules that follow `schedules` of strategies, if comparable.

        They may exceed the limits.
        """
        objective = self.problem.objective
        for schedule in filter(self.comparable, schedules):
            pipeline = schedule.pipeline if self.decisions else self.problem.pipeline
            operations = schedule.orders if pipeline.overlap else [*map(codes, schedule.orders)]
            for restriction in replace(self.problem, pipeline=pipeline).reduced.restrictions:
                orders = convert_backwards(pipeline, operations, restriction.backward_kind)
                yield timing.schedule(pipeline, orders, objective)

    def first_schedules(self, known: Iterable[Schedule]) -> list[Schedule]:
        """The best schedules of strategies within evenly spaced limits, in the time left.

        The limits are between the smallest peak of one microbatch at a time, with recompute and
        offload by rules, and the largest peak of `known`. Without a named placement, or without
        open decisions, there are none. Where a strategy does not fit, its order is repaired.
        """
        pipeline = self.problem.pipeline
        named = pipeline.placement is None or pipeline.placement in USUAL
        peaks = [self.point(schedule)[0] for schedule in filter(self.comparable, known)]
        if not (named and peaks and pipeline.open_decisions & Decisions.OF_STRATEGY):
            return []
        high = min(max(peaks), self.limits[-1])
        low = min(self.point(schedule)[0] for schedule in self.one_at_a_time())
        schedules: list[Schedule] = []
        with scope(inf):
            for step in range(NUM_FIRST_LIMITS, -1, -1):
                checkpoint()
                limit = low + (high - low) * step // NUM_FIRST_LIMITS
                schedules += self._of_strategies(limit_candidates.with_limit(pipeline, limit))
        best: dict[int, Schedule] = {}
        for schedule in sorted(schedules, key=self.point):
            value = self.point(schedule)[1]
            if value < min(best, default=inf):
                best[value] = schedule
        return list(best.values())

    def _of_strategies(self, limited: Pipeline) -> Iterator[Schedule]:
        """Schedules of strategies, by rules and in the best configuration of the usual strategy."""
        first = FirstSchedules(limited, self.problem.objective)
        best = list(in_best_configuration(first))
        yield from best or first.usual()
        for pipeline in (limited, *(schedule.pipeline for schedule in best)):
            own = first._replace(pipeline=pipeline)
            yield from own.zero_bubble()
            yield from own.by_other_strategies()

    def search(
        self,
        limit: int,
        schedules: Sequence[Schedule],
        options: SolveOptions,
        pool: ProcessPool | None = None,
        target: int | None = None,
        effort: Effort = ANY_EFFORT,
        useless: Value = inf,
    ) -> Result:
        """Search within a limit, from those of the known schedules that are comparable.

        With a target, the search ends once this value is reached or excluded. Values from `useless`
        on are no better than a known one. `pool`: see `ConfigurationSearch`.
        """
        limited = limit_candidates.with_limit(self.problem.pipeline, limit)
        problem = replace(self.problem, pipeline=limited)
        starts = tuple(filter(self.comparable, schedules))
        choice = None
        if self._strategy is not None:
            choice = self._strategy.on(limited, (start.pipeline for start in starts))
        result = search_decisions(
            WarmStart(schedules=starts, bound=self.bounds.bound(limit).bound),
            problem,
            _until_settled(options, target, useless),
            effort=effort,
            target=target,
            choice=choice,
            pool=pool,
        )
        self.bounds.learn(limit, earlier_bound(problem, result), result.proof)
        if choice is not None and choice.fits:
            schedule = choice.schedule()
            value = schedule.metrics.value_ticks(problem.objective)
            result = replace(result, schedule=schedule, value_ticks=value)
        return result

    def improvement(self, schedule: Schedule, options: SolveOptions, seconds: float) -> SearchTask:
        """Search for a better schedule within the peak of a schedule, in its configuration."""
        limit, _ = self.point(schedule)
        pipeline = limit_candidates.with_limit(schedule.pipeline, limit, self.problem.pipeline)
        problem = replace(self.problem, pipeline=pipeline)
        start = WarmStart(schedules=(schedule,), bound=self.bounds.bound(limit).bound)
        return SearchTask.improving(problem, start, options, seconds)

    def of_configuration(self, schedule: Schedule) -> FrontierProblem | None:
        """Problem of the configuration of a schedule; None if it has no others to choose from.

        A configuration of a strategy has one schedule.
        """
        if not self.decisions or self._strategy is not None:
            return None
        pipeline = schedule.pipeline.having(mem_limit=self.problem.pipeline.limits)
        return FrontierProblem(replace(self.problem, pipeline=pipeline))

    def bound_at(self, limit: int) -> Bound:
        """Best bound for a limit; its proof names what it covers, and its larger limit, if any."""
        largest, bound = self.bounds.bound(limit)
        text = bound.proof
        if limit < largest:
            larger = with_unit(self.memory(largest), self.problem.pipeline.memory_unit)
            text += f" (proved for the larger limit {larger}, which covers this one)"
        if not self.decisions:
            text += proof_scope.bound_scope(self.problem, bound)
        return bound._replace(proof=text)

    def infeasible_text(self, where: str) -> str:
        """Text for limits that a search has proved infeasible."""
        if self.decisions:
            return f"within {where}, {self.bounds.why}"
        return f"all orders were searched, and none is within {where}"

    def impossible_text(self) -> str:
        """Why the pipeline's own limits allow no schedule."""
        own = "the pipeline's own limits"
        return self.impossible or self.infeasible_text(own) + self.backward_kinds

    def comparable(self, schedule: Schedule) -> bool:
        """Whether a schedule belongs to the configurations, apart from the limits.

        Stages, slices, routes and placement must be allowed by the problem.
        """
        pipeline, searched = schedule.pipeline, self.problem.pipeline
        if Decisions.PLACEMENT not in searched.open_decisions:
            return comparable(schedule, searched)
        sizes = attrgetter("num_stages", "num_devices", "routes", "num_slices")
        return bool(sizes(pipeline) == sizes(searched))

    def memory(self, ticks: int) -> Fraction:
        """A limit in the user's unit."""
        return self.problem.pipeline.ticks.memory(ticks)

    def time(self, ticks: int) -> Fraction:
        """A value in the user's unit."""
        return self.problem.pipeline.ticks.time(ticks)

    def point(self, schedule: Schedule) -> tuple[int, int]:
        """Largest peak and value of a schedule, in ticks; they are rounded up to the grid."""
        grid = self.problem.pipeline.grid
        value = objective_value(schedule, self.problem.objective)
        return ceil(peak_memory(schedule) * grid.memory), ceil(value * grid.time)


def placement_name(pipeline: Pipeline) -> str:
    """Placement and chunks: `linear`, `v/2`."""
    chunks = f"/{pipeline.num_chunks}" if pipeline.num_chunks > 1 else ""
    return f"{pipeline.resolved_placement}{chunks}"
