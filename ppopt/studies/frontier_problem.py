"""The problem that a frontier solves under each memory limit: one pipeline, or its configurations.

A configuration is a partition, a placement, or a choice of recompute (`ppopt.solver.choices`). All
configurations share one curve: a schedule of any of them is feasible for every limit from its own
peak upwards, and a bound over all of them holds for every limit from its own downwards.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cached_property
from math import ceil, floor, inf, lcm

from ppopt.cancellation import over, part, scope, seconds_left
from ppopt.errors import InputError
from ppopt.problem.cost_table import ZERO
from ppopt.problem.costs import WORKSPACES
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
from ppopt.solver.choices.search import ANY_EFFORT, ConfigurationSearch, Effort
from ppopt.solver.choices.spaces import traits_of_any
from ppopt.solver.heuristics.first_schedules import USUAL, FirstSchedules
from ppopt.solver.options import SolveOptions
from ppopt.solver.result import Progress, Result, Status
from ppopt.solver.search import search_from
from ppopt.solver.warm_start import WarmStart
from ppopt.studies import limit_candidates
from ppopt.studies.baselines import comparable
from ppopt.studies.evaluate import objective_value, peak_memory
from ppopt.studies.first_schedules import in_best_configuration
from ppopt.studies.frontier_curve import Curve, Proved

NUM_FIRST_LIMITS = 12
"""Number of limits at which strategies are evaluated before the search."""


def is_settled(target: Fraction, value: Fraction | None, bound: Fraction | None) -> bool:
    """Whether a schedule reaches a target, or a bound excludes it; None: no bound is known."""
    return (value is not None and value <= target) or (bound is not None and bound > target)


def _until_settled(
    options: SolveOptions, target: Fraction | None, useless: Fraction | float
) -> SolveOptions:
    """Options of a search that ends once the target is reached or excluded.

    It also ends once the bound reaches a value that is useless.
    """
    if target is None and useless == inf:
        return options

    def settled(state: Progress) -> bool:
        if state.lower_bound >= useless:
            return True
        return target is not None and is_settled(target, state.value, state.lower_bound)

    return replace(options, stop=settled)


class FrontierProblem:
    """All configurations of a problem, to be searched under one memory limit for every device."""

    has_configurations = True
    """Whether there are several configurations: the search of the largest limit then gets more
    time than the others."""
    impossible: str | None = None
    """Why the pipeline's own limits allow no schedule, if that needs no search; else None."""
    backward_kinds = ""
    """Text on the kinds of backwards that are searched; empty if proofs contain it."""
    infeasible_below: tuple[Fraction, str] | None = None
    """A limit below which there is no schedule, and why; None: only a search can find it."""

    def __init__(self, problem: Problem) -> None:
        """Raises InputError if the configurations cannot be searched."""
        with scope(-inf):
            choice_of(problem)
        self.problem = problem
        self.memory_per_unit = problem.pipeline.grid.memory
        """Ticks of the limits in one unit of memory."""

    @property
    def limits(self) -> Sequence[int]:
        """All limits at which the optimum may change, in ticks, ascending; not empty.

        They are all ticks from static memory alone to the sum of all memory.
        """
        pipeline, column = self.problem.pipeline, self._column
        static = sum(column("static"))
        minimum = max(*column("static"), static / pipeline.num_devices)
        slices = pipeline.num_slices * sum(memory for _, memory in pipeline.factors)
        activations = zip(column("activation"), column("memory_b"), strict=True)
        maximum = static + slices * sum(own + max(at_b, ZERO) for own, at_b in activations)
        maximum += sum(sum(column(field)) for field in WORKSPACES.values())
        if pipeline.model is None:
            maximum += sum(column("recompute_memory"))
        maximum += pipeline.routes * sum(column("unshard_memory"))
        if pipeline.limits is not None:
            maximum = min(maximum, max(pipeline.limits))
        low, high = (floor(amount * self.memory_per_unit) for amount in (minimum, maximum))
        return range(min(low, high), high + 1)

    def _column(self, field: str) -> list[Fraction]:
        """A cost of every layer, or of every stage of a pipeline without layers."""
        pipeline = self.problem.pipeline
        if pipeline.model is None:
            return list(getattr(pipeline.costs, field))
        return [getattr(layer, field) for layer in pipeline.model.layers]

    def one_at_a_time(self) -> Iterator[Schedule]:
        """Schedules of one microbatch at a time on configurations chosen by rules.

        They may exceed the limits.
        """
        objective = self.problem.objective
        for pipeline in _by_rule(self.problem.pipeline):
            for restriction in replace(self.problem, pipeline=pipeline).reduced.restrictions:
                yield timing.schedule(pipeline, one_at_a_time(restriction.instance), objective)

    def starts(self, schedules: Iterable[Schedule]) -> Iterator[Schedule]:
        """Schedules that follow `schedules` of strategies, if comparable.

        They may exceed the limits.
        """
        objective = self.problem.objective
        for schedule in filter(self.comparable, schedules):
            pipeline = schedule.pipeline if self.has_configurations else self.problem.pipeline
            operations = schedule.orders if pipeline.overlap else [*map(codes, schedule.orders)]
            for restriction in replace(self.problem, pipeline=pipeline).reduced.restrictions:
                orders = convert_backwards(pipeline, operations, restriction.backward_kind)
                yield timing.schedule(pipeline, orders, objective)

    def first_schedules(self, known: Iterable[Schedule]) -> Iterator[Schedule]:
        """Schedules of the usual strategy within evenly spaced limits, in the time left.

        The limits are between the smallest peak with recompute and offload by rules, or the
        smallest limit, and the largest
        peak of `known`. Without a named placement, or without open decisions, there are none.
        """
        pipeline = self.problem.pipeline
        named = pipeline.placement is None or pipeline.placement in USUAL
        peaks = [self.point(schedule)[0] for schedule in filter(self.comparable, known)]
        if not (named and peaks and pipeline.open_decisions & Decisions.OF_STRATEGY):
            return
        low, high = self.limits[0], min(max(peaks), self.limits[-1])
        if pipeline.open_decisions & Decisions.OF_LAYERS:
            by_rule = (FirstSchedules(own, self.problem.objective) for own in by_rules(pipeline))
            usual = (self.point(schedule)[0] for first in by_rule for schedule in first.usual())
            low = min(usual, default=low)
        for step in range(NUM_FIRST_LIMITS, -1, -1):
            if over():
                return
            limit = self.memory(low + (high - low) * step // NUM_FIRST_LIMITS)
            limited = limit_candidates.with_limit(pipeline, limit)
            first = FirstSchedules(limited, self.problem.objective)
            yield from in_best_configuration(first)

    def search(
        self,
        limit: Fraction,
        starts: Sequence[Schedule],
        proved: Proved | None,
        options: SolveOptions,
        target: Fraction | None = None,
        level: int | None = None,
        useless: Fraction | float = inf,
    ) -> Result:
        """Search within a limit, from known schedules and the best bound proved for it.

        With a target, the search ends once this value is reached or excluded. With a level, a
        configuration has at most this number of rounds of all methods. Values from `useless` on
        are no better than a known one.
        """
        pipeline = limit_candidates.with_limit(self.problem.pipeline, limit)
        problem, params = replace(self.problem, pipeline=pipeline), options.params.frontier
        search_options = _until_settled(options, target, useless)
        if not self.has_configurations:
            start = WarmStart(schedules=tuple(starts), bound=proved and self._bound(proved))
            return search_from(start, problem, search_options.with_max_rounds(level))
        with options.scope():
            choice = choice_of(problem)
        assert choice is not None
        lower_bound = 0 if proved is None else int(proved.value * pipeline.grid.time)
        search = ConfigurationSearch(
            choice, problem, search_options, start_schedules=starts, lower_bound=lower_bound
        )
        if target is not None:
            ceiling = int(target * pipeline.grid.time)
            with options.scope():
                with part(params.bounding):
                    choice.bound(ceiling)
                search.enumerate_listed()
        return search.run(ANY_EFFORT if level is None else Effort(level, params.quick << level))

    def of_configuration(self, schedule: Schedule) -> FrontierProblem | None:
        """Problem of the configuration of a schedule; None if there is only one configuration."""
        pipeline = replace(schedule.pipeline, mem_limit=self.problem.pipeline.limits)
        return FixedPipelineProblem(replace(self.problem, pipeline=pipeline))

    def initial_bound(self) -> Proved:
        """Bound known before any search, for the largest limit."""
        text = "nothing is proved before the first search ends"
        return Proved(self.limits[-1], ZERO, text, Certificate(Argument.SEARCH))

    def proof_core(self, result: Result) -> str:
        """Proof of a search without the text on its space, which `scope` returns."""
        return result.proof

    def scope(self, proved: Proved) -> str:  # noqa: ARG002
        """Text on the space of a bound; empty if its proof contains it."""
        return ""

    def bound_at(self, curve: Curve, limit: int) -> Proved:
        """Best bound for a limit; its proof names the larger limit of its proof, if any."""
        proved = curve.bound(limit)
        if proved is None or proved.limit == limit:
            return proved or self.initial_bound()
        larger = with_unit(self.memory(proved.limit), self.problem.pipeline.memory_unit)
        text = f"{proved.proof} (proved for the larger limit {larger}, which covers this one)"
        return proved._replace(proof=text)

    def bound_of(self, schedule: Schedule, curve: Curve, limit: int) -> Proved:  # noqa: ARG002
        """Best bound for the limit of a schedule, with the scope of its proof."""
        proved = self.bound_at(curve, limit)
        return proved._replace(proof=proved.proof + self.scope(proved))

    def infeasible_text(self, where: str, why: str) -> str:
        """Text for limits that a search has proved infeasible."""
        return f"within {where}, {why}"

    def comparable(self, schedule: Schedule) -> bool:
        """Whether a schedule belongs to the configurations, apart from the limits.

        Stages, slices, routes and placement must be allowed by the problem.
        """
        pipeline, searched = schedule.pipeline, self.problem.pipeline
        if Decisions.PLACEMENT not in searched.open_decisions:
            return comparable(schedule, searched)
        sizes = (pipeline.num_stages, pipeline.num_devices, pipeline.routes, pipeline.num_slices)
        return sizes == (
            searched.num_stages,
            searched.num_devices,
            searched.routes,
            searched.num_slices,
        )

    def memory(self, ticks: int) -> Fraction:
        """A limit in the user's unit."""
        return Fraction(ticks, self.memory_per_unit)

    def point(self, schedule: Schedule) -> tuple[int, Fraction]:
        """Largest peak of a schedule in ticks of the limits, and its value."""
        peak = ceil(peak_memory(schedule) * self.memory_per_unit)
        return peak, objective_value(schedule, self.problem.objective)

    def _bound(self, proved: Proved) -> Bound:
        value = int(proved.value * self.problem.pipeline.ticks.per_unit)
        return Bound(value, proved.proof, proved.certificate)


class OrdersProblem(FrontierProblem):
    """A pipeline that leaves the order of its microbatches open; peaks hold in any order."""

    def __init__(self, problem: Problem) -> None:
        """Raises InputError if orders cannot be searched."""
        super().__init__(problem)
        self._listed_order = FixedPipelineProblem(in_listed_order(problem))
        self.impossible, self.backward_kinds = (
            self._listed_order.impossible,
            self._listed_order.backward_kinds,
        )
        self.infeasible_below = self._listed_order.infeasible_below

    @property
    def limits(self) -> Sequence[int]:
        """Limits from sums of amounts that can be live on a device."""
        return self._listed_order.limits


class FixedPipelineProblem(FrontierProblem):
    """A pipeline without open decisions: more is known before a search."""

    has_configurations = False

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        pipeline, instance = problem.pipeline, problem.reduced.instance
        self.memory_per_unit = pipeline.ticks.memory_per_unit
        self.backward_kinds = proof_scope.proof_scope(problem)
        self.impossible = device_bounds.infeasibility(instance)
        minima = device_bounds.minimum_memory(instance)
        device = minima.index(max(minima))
        text = f"device {device} needs {pipeline.memory_text(minima[device])}"
        self.infeasible_below = (
            self.memory(minima[device]),
            f"{text} even for one microbatch at a time",
        )

    @property
    def limits(self) -> Sequence[int]:
        """Limits from sums of amounts that can be live on a device."""
        return limit_candidates.candidates(self.problem.reduced)

    def of_configuration(self, schedule: Schedule) -> FrontierProblem | None:  # noqa: ARG002
        """None: there is only one configuration."""
        return None

    def initial_bound(self) -> Proved:
        """Bound of one device."""
        bound = device_bounds.known_bound(self.problem.reduced)
        value = self.problem.pipeline.ticks.time(bound.value)
        return Proved(self.limits[-1], value, bound.proof, bound.certificate)

    def proof_core(self, result: Result) -> str:
        """Proof without the kinds of backwards and the starts that it covers."""
        bound = self._bound(Proved(0, result.lower_bound or ZERO, result.proof, result.certificate))
        problem = replace(self.problem, pipeline=result.pipeline)
        return result.proof.removesuffix(proof_scope.bound_scope(problem, bound))

    def scope(self, proved: Proved) -> str:
        """Text on the kinds of backwards and the starts that a bound covers."""
        return proof_scope.bound_scope(self.problem, self._bound(proved))

    def infeasible_text(self, where: str, why: str) -> str:  # noqa: ARG002
        """Text that says that all orders were searched."""
        return f"all orders were searched, and none is within {where}"


class PlacementsProblem(FrontierProblem):
    """Pipelines that differ in placement and chunks: the best of any counts.

    Each is searched by itself, and its search ends at the best value of those before it. A bound
    over all placements is the minimum of their bounds.
    """

    def __init__(self, parts: Mapping[str, FrontierProblem]) -> None:
        """`parts` have the names of their placements."""
        first = next(iter(parts.values()))
        self.problem, self.backward_kinds = first.problem, first.backward_kinds
        self.has_configurations = first.has_configurations
        self.memory_per_unit = lcm(*(part.memory_per_unit for part in parts.values()))
        self._parts = {name: part for name, part in parts.items() if not part.impossible}
        if not self._parts:
            self.impossible = _named({name: str(part.impossible) for name, part in parts.items()})
        self._proved = {
            name: Curve(part.limits, bounds=[part.initial_bound()])
            for name, part in self._parts.items()
        }
        """Bounds of every placement, by limits in its own ticks."""
        minima = {name: part.infeasible_below for name, part in self._parts.items()}
        texts = {name: minimum[1] for name, minimum in minima.items() if minimum is not None}
        if minima and len(texts) == len(minima):
            lowest = min(minimum[0] for minimum in minima.values() if minimum is not None)
            self.infeasible_below = lowest, _named(texts)

    @cached_property
    def limits(self) -> Sequence[int]:
        """Limits of all placements."""
        own = [(each.limits, self.memory_per_unit // each.memory_per_unit) for each in self._all]
        if any(isinstance(limits, range) for limits, _ in own):
            low = min(limits[0] * factor for limits, factor in own)
            return range(low, max(limits[-1] * factor for limits, factor in own) + 1)
        return sorted({limit * factor for limits, factor in own for limit in limits})

    @property
    def _all(self) -> Collection[FrontierProblem]:
        return self._parts.values()

    def one_at_a_time(self) -> Iterator[Schedule]:
        """Schedules of one microbatch at a time, of all placements."""
        return (schedule for each in self._all for schedule in each.one_at_a_time())

    def starts(self, schedules: Iterable[Schedule]) -> Iterator[Schedule]:
        """Schedules of all placements that follow those of strategies."""
        known = list(schedules)
        return (start for each in self._all for start in each.starts(known))

    def first_schedules(self, known: Iterable[Schedule]) -> Iterator[Schedule]:
        """Schedules of the usual strategies of all placements."""
        schedules = list(known)
        return (first for each in self._all for first in each.first_schedules(schedules))

    def search(
        self,
        limit: Fraction,
        starts: Sequence[Schedule],
        proved: Proved | None,  # noqa: ARG002  every placement has its own
        options: SolveOptions,
        target: Fraction | None = None,
        level: int | None = None,
        useless: Fraction | float = inf,
    ) -> Result:
        """Search the placements within a limit, that of the first start first.

        Those that are still open have the time that others left, unless work limits the search.
        """
        results: list[Result] = []
        spent: dict[str, float] = {}
        names = sorted(
            self._parts, key=lambda name: not any(map(self._parts[name].comparable, starts[:1]))
        )
        turns = list(zip(reversed(range(len(names))), names, strict=True))
        if level is None:
            turns += [(0, name) for name in names]
        for waiting, name in turns:
            own, known, ticks = self._at(name, limit)
            settled = target is not None and useless <= target
            with options.scope(), part(1 / (waiting + 1)):
                left, turn = seconds_left(), options.in_scope(options.progress, options.stop)
            closed = settled or known.lower_bound(ticks) >= useless
            if results and (closed or left <= spent.get(name, 0)):
                continue
            result = own.search(
                limit,
                [start for start in starts if own.comparable(start)],
                known.bound(ticks),
                turn,
                target,
                level,
                useless,
            )
            known.learn(ticks, result, own.proof_core(result))
            results.append(result)
            spent[name] = result.solve_seconds
            useless = min(useless, inf if result.value is None else result.value)
        return self._merged(limit, results)

    def _merged(self, limit: Fraction, results: Sequence[Result]) -> Result:
        """The best result, with the bound over all placements."""
        best = min(results, key=lambda result: inf if result.value is None else result.value)
        each = (self._at(name, limit) for name in self._parts)
        bound = min(known.lower_bound(ticks) for _, known, ticks in each)
        return replace(
            best,
            status=Status.INFEASIBLE if bound == inf else Status.of(best.value, Fraction(bound)),
            bound_ticks=None if bound == inf else int(bound * best.pipeline.grid.time),
            solve_seconds=sum(result.solve_seconds for result in results),
        )

    def of_configuration(self, schedule: Schedule) -> FrontierProblem | None:
        """Problem of the configuration of a schedule in its placement."""
        return self._parts[self._name(schedule)].of_configuration(schedule)

    def _name(self, schedule: Schedule) -> str:
        return next(name for name, each in self._parts.items() if each.comparable(schedule))

    def initial_bound(self) -> Proved:
        """Minimum of the bounds known before any search."""
        bound = min((each.initial_bound() for each in self._all), key=lambda bound: bound.value)
        return bound._replace(limit=self.limits[-1])

    def bound_of(self, schedule: Schedule, curve: Curve, limit: int) -> Proved:
        """Bound over all placements; that of its own placement proves it for a schedule."""
        name = self._name(schedule)
        own, known, ticks = self._at(name, self.memory(limit))
        bound = own.bound_of(schedule, known, ticks)
        proof = (
            f"this is the minimum of the bounds of the placements {', '.join(self._parts)}; "
            f"that of {name}: {bound.proof}"
        )
        return bound._replace(value=self.bound_at(curve, limit).value, proof=proof)

    def infeasible_text(self, where: str, why: str) -> str:  # noqa: ARG002
        """Text for limits within which no placement has a schedule."""
        return _named(
            {
                name: each.infeasible_text(where, self._proved[name].why)
                for name, each in self._parts.items()
            }
        )

    def comparable(self, schedule: Schedule) -> bool:
        """Whether a schedule belongs to the configurations of a placement."""
        return any(each.comparable(schedule) for each in self._all)

    def _at(self, name: str, limit: Fraction) -> tuple[FrontierProblem, Curve, int]:
        """A placement, its bounds, and a limit in its ticks."""
        own = self._parts[name]
        known = self._proved[name]
        return own, known, min(floor(limit * own.memory_per_unit), known.limits[-1])


def _named(texts: Mapping[str, str]) -> str:
    """Texts with their names; one alone if all are equal."""
    if len(set(texts.values())) == 1:
        return next(iter(texts.values()))
    return "; ".join(f"{name}: {text}" for name, text in texts.items())


def placement_name(pipeline: Pipeline) -> str:
    """Placement and chunks: `linear`, `v/2`."""
    chunks = f"/{pipeline.num_chunks}" if pipeline.num_chunks > 1 else ""
    return f"{pipeline.resolved_placement}{chunks}"


def frontier_problem_of(*problems: Problem) -> FrontierProblem:
    """Problem that a frontier searches; raises InputError if it cannot be searched.

    Several problems differ in placement and chunks. Raises NotApplicableError if the limits at
    which an optimum can change are not known.
    """
    if len(problems) > 1:
        return PlacementsProblem(
            {placement_name(problem.pipeline): frontier_problem_of(problem) for problem in problems}
        )
    (problem,) = problems
    traits = traits_of_any(problem)
    refuse_unhandled("frontier: it", traits, PEAKS.handles, "solve within single limits")
    decisions = problem.pipeline.open_decisions
    if Decisions.RECOMPUTE_SET in decisions:
        raise InputError(
            "recompute: a frontier does not search sets of modules for all layers; use search, or "
            "--recompute-modules"
        )
    if decisions == Decisions.ORDER:
        return OrdersProblem(problem)
    return FrontierProblem(problem) if decisions else FixedPipelineProblem(problem)


def _by_rule(pipeline: Pipeline) -> Iterator[Pipeline]:
    """Pipelines whose open decisions are fixed by rules.

    The partition is `balanced`, stages are placed in turn, microbatches run as listed; for
    recompute and offload see `by_rules`.
    """
    if not pipeline.open_decisions:
        yield pipeline
        return
    yield from by_rules(pipeline.without(~Decisions.OF_LAYERS))
