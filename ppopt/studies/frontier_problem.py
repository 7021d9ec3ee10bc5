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

from ppopt.cancellation import checkpoint, scope, shield
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
from ppopt.solver.choices.choice import Choice
from ppopt.solver.choices.process_pool import ProcessPool
from ppopt.solver.choices.search import ConfigurationSearch
from ppopt.solver.choices.spaces import traits_of_any
from ppopt.solver.heuristics.first_schedules import USUAL, FirstSchedules
from ppopt.solver.options import SolveOptions
from ppopt.solver.result import Progress
from ppopt.solver.search import search_from
from ppopt.solver.solve import earlier_bound
from ppopt.solver.warm_start import WarmStart
from ppopt.studies import limit_candidates
from ppopt.studies.baselines import comparable
from ppopt.studies.evaluate import objective_value, peak_memory
from ppopt.studies.first_schedules import in_best_configuration
from ppopt.studies.frontier_curve import LimitBounds, Proved, Value
from ppopt.studies.strategy_search import StrategySearch

NUM_FIRST_LIMITS = 12
"""Number of limits at which strategies are evaluated before the search."""
MAX_RESUMED = 32
"""Maximum number of limits whose searches can be resumed; the latest ones are kept."""


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
    _target: int | None = None
    """Value at which the current search ends."""
    _cutoff: Value = inf
    """Value from which on schedules are useless to the current search."""

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
        self.improves = bool(self.decisions) and strategy is None
        """Whether a search can improve known schedules without bounds."""
        self.name = placement_name(pipeline)
        self._searches: dict[int, tuple[ConfigurationSearch, tuple[Schedule, ...]]] = {}
        """Searches that can be resumed, by limit, each with the schedules it started from last."""
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
        best: list[Schedule] = []
        for schedule in sorted(schedules, key=self.point):
            if not best or self.point(schedule)[1] < self.point(best[-1])[1]:
                best.append(schedule)
        return best

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
        schedules: Iterable[Schedule],
        options: SolveOptions,
        pool: ProcessPool,
        level: float,
        *,
        target: int | None = None,
        cutoff: Value = inf,
    ) -> Schedule | None:
        """Search within a limit in the time left, also from known schedules; return the best.

        If decisions are open, a further call resumes. The search ends at the target, in ticks, or
        once values below the cutoff are excluded. `level` is the maximum number of rounds of all
        methods; -1: known schedules are improved. `pool`: see `ConfigurationSearch`.
        """
        pipeline = limit_candidates.with_limit(self.problem.pipeline, limit)
        problem, known = replace(self.problem, pipeline=pipeline), self.bounds.bound(limit).bound
        starts = tuple(filter(self.comparable, schedules))
        self._target, self._cutoff = target, cutoff
        stop = self._is_settled if self.decisions or cutoff < inf else None
        options = replace(options, stop=stop)
        if not self.decisions:
            rounds = None if level == inf else int(level)
            own = options.with_max_rounds(rounds).in_scope(options.progress, options.stop)
            with shield():
                result = search_from(WarmStart(schedules=starts, bound=known), problem, own)
        else:
            search, followed = self._searches.pop(limit, (None, ()))
            if search is None:
                choice = self._choice(problem, starts)
                params = options.params.frontier.configurations
                search = ConfigurationSearch(choice, problem, options, pool=pool, params=params)
            search.state.cutoff = None if cutoff == inf else int(cutoff)
            search.state.raise_open_bound(known.value)
            for schedule in starts:
                if not any(schedule is each for each in followed):
                    search.hint(schedule)
            if target is not None and level >= 0:
                search.bound(options.params.frontier.bounding)
            search.search(level)
            if search.state.infeasible:
                search.state.cutoff = None
                search.bound(1.0)  # the proof names the minimum limit
            if not search.state.finished:
                self._searches[limit] = search, starts
            for oldest in list(self._searches)[:-MAX_RESUMED]:
                del self._searches[oldest]
            with shield():
                result = search.result()
                if isinstance(search.choice, StrategySearch) and search.choice.fits:
                    result = replace(result, schedule=search.choice.schedule())
        self.bounds.learn(limit, earlier_bound(problem, result), result.proof)
        return result.schedule

    def _choice(self, problem: Problem, starts: Sequence[Schedule]) -> Choice:
        """The configurations within a limit."""
        if self._strategy is not None:
            return self._strategy.on(problem.pipeline, [start.pipeline for start in starts])
        choice = choice_of(problem)
        assert choice is not None
        return choice

    def _is_settled(self, state: Progress) -> bool:
        """Whether the target is reached, or values below the cutoff are excluded."""
        value, target = state.value_ticks, self._target
        is_reached = target is not None and value is not None and value <= target
        return is_reached or state.bound_ticks >= self._cutoff

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
