"""What a frontier searches under each memory limit: one pipeline, or every configuration of one.

A configuration is a partition, a placement, or a choice of recompute (`ppopt.solver.choices`). All
configurations share one curve: a schedule counts for every limit from its own peak upwards,
whatever its configuration, and a bound over all configurations for every limit from its own
downwards.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from math import floor

from ppopt.problem import exact, placement
from ppopt.problem.layers import COSTS
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.problem import Problem
from ppopt.problem.recompute import SEARCH_RECOMPUTE
from ppopt.problem.settings import Unit
from ppopt.schedule import timing
from ppopt.schedule.list_scheduling import one_at_a_time
from ppopt.schedule.orders import Orders, codes, of_kind
from ppopt.schedule.origin import Argument, Certificate
from ppopt.schedule.schedule import Schedule
from ppopt.solver import interrupts
from ppopt.solver.bound import Bound
from ppopt.solver.bounds import device_bounds
from ppopt.solver.choices.search import ANY_EFFORT, ConfigurationSearch, Effort
from ppopt.solver.deadline import Deadline
from ppopt.solver.open_choices import choice_of, open_choices
from ppopt.solver.options import SolveOptions
from ppopt.solver.result import Progress, Result
from ppopt.solver.search import search_from
from ppopt.solver.warm_start import WarmStart
from ppopt.studies import memory_limits
from ppopt.studies.baselines import comparable
from ppopt.studies.frontier_curve import Proved

WORKSPACES = ("forward_workspace", "input_workspace", "weight_workspace", "backward_workspace")


def is_settled(target: Fraction, value: Fraction | None, bound: Fraction | None) -> bool:
    """Whether a schedule reaches a target, or a bound rules it out; no bound: nothing is known."""
    return (value is not None and value <= target) or (bound is not None and bound > target)


def _until_settled(options: SolveOptions, target: Fraction | None) -> SolveOptions:
    """The options of a search that ends once it is known whether the target can be reached."""
    if target is None:
        return options

    def settled(state: Progress) -> bool:
        return is_settled(target, state.value, state.lower_bound)

    return options.by(replace(options.deadline, stop=settled))


class Space(ABC):
    """Schedules of a problem under one memory limit for every device, and their least value."""

    problem: Problem
    memory_per_unit: int
    """Ticks of the limits in one unit of memory."""
    every = False
    """Whether configurations are searched: the largest limit then takes longer than the others."""

    @property
    @abstractmethod
    def limits(self) -> Sequence[int]:
        """Every limit at which the optimum may change, in ticks, ascending; not empty."""

    @property
    def impossible(self) -> str | None:
        """Why the pipeline's own limits allow no schedule, where that needs no search."""
        return None

    @abstractmethod
    def starts(self, hands: Iterable[Schedule]) -> Iterator[Schedule]:
        """Schedules that need no search; they may exceed the limits."""

    @abstractmethod
    def search(
        self,
        limit: Fraction,
        known: Sequence[Schedule],
        proved: Proved | None,
        options: SolveOptions,
        target: Fraction | None = None,
        level: int | None = None,
    ) -> Result:
        """Search within a limit, from known schedules and the best bound proved for it.

        Where there is a target, only until it is known whether the limit allows this value. Where
        there is a level, a configuration has at most so many rounds of all methods.
        """

    @abstractmethod
    def known(self) -> Proved:
        """The bound known before any search; it is of the largest limit."""

    @abstractmethod
    def proof_core(self, result: Result) -> str:
        """The proof of a search without the words on its space, which `scope` adds."""

    @abstractmethod
    def scope(self, proved: Proved) -> str:
        """The words on the space of a bound."""

    @abstractmethod
    def nothing(self, where: str, why: str) -> str:
        """That there is no schedule within the limits named, as a search has proved."""

    @property
    def backwards(self) -> str:
        """The kinds of backwards that are searched, in words."""
        return ""

    @abstractmethod
    def comparable(self, hand: Schedule) -> bool:
        """Whether a hand-made schedule is one of these, but for the limits."""

    @property
    def least_words(self) -> tuple[Fraction, str] | None:
        """A limit below which no schedule runs, and why; None: a search finds it."""
        return None

    def alone(self, made: Schedule) -> Space | None:  # noqa: ARG002
        """The schedules of the configuration of one; None: there is one configuration only."""
        return None

    def memory(self, ticks: int) -> Fraction:
        """A limit in the user's unit."""
        return Fraction(ticks, self.memory_per_unit)

    def point(self, made: Schedule) -> tuple[int, Fraction]:
        """The largest peak of a schedule in ticks of the limits, and its value."""
        ticks, figures = made.pipeline.ticks, made.metrics
        peak = ticks.memory(max(figures.peak_memory)) * self.memory_per_unit
        return int(peak), ticks.time(figures.value(self.problem.objective))

    def within(self, made: Schedule, limit: Fraction) -> Pipeline:
        """The pipeline of a schedule under a limit, and the own limits where they are lower."""
        limits = memory_limits.within(self.problem.pipeline, limit).mem_limit
        return replace(made.pipeline, mem_limit=limits)


class OnePipeline(Space):
    """The schedules of one pipeline."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.memory_per_unit = problem.pipeline.ticks.memory_per_unit

    @property
    def impossible(self) -> str | None:
        """Why a device has no memory for one microbatch."""
        return device_bounds.infeasibility(self.problem.reduced.instance)

    @property
    def limits(self) -> Sequence[int]:
        """Sums of what devices can hold."""
        return memory_limits.candidates(self.problem.reduced)

    def starts(self, hands: Iterable[Schedule]) -> Iterator[Schedule]:
        """One microbatch at a time, and hand strategies of the placement."""
        pipeline, restrictions = self.problem.pipeline, self.problem.reduced.restrictions
        orders: list[Orders] = [one_at_a_time(restriction.instance) for restriction in restrictions]
        for hand in hands:
            if hand.pipeline.layout == pipeline.layout:
                made = hand.orders if pipeline.overlap else [*map(codes, hand.orders)]
                orders += [
                    of_kind(pipeline, made, restriction.backward_kind)
                    for restriction in restrictions
                ]
        for order in orders:
            yield timing.schedule(pipeline, order, self.problem.objective)

    def search(
        self,
        limit: Fraction,
        known: Sequence[Schedule],
        proved: Proved | None,
        options: SolveOptions,
        target: Fraction | None = None,
        level: int | None = None,
    ) -> Result:
        """Search the pipeline within a limit."""
        pipeline = memory_limits.within(self.problem.pipeline, limit)
        start = WarmStart(schedules=tuple(known), bound=proved and self._bound(proved))
        problem = replace(self.problem, pipeline=pipeline)
        return search_from(start, problem, _until_settled(options, target).rounds(level))

    def known(self) -> Proved:
        """The bound of a device."""
        bound = device_bounds.known_bound(self.problem.reduced)
        value = self.problem.pipeline.ticks.time(bound.value)
        return Proved(self.limits[-1], value, bound.proof, bound.certificate)

    def proof_core(self, result: Result) -> str:
        """The proof without the kinds of backwards and the starts that it covers."""
        bound = self._bound(
            Proved(0, result.lower_bound or Fraction(0), result.proof, result.certificate)
        )
        asked = replace(self.problem, pipeline=result.pipeline)
        return result.proof.removesuffix(device_bounds.bound_scope(asked, bound))

    def scope(self, proved: Proved) -> str:
        """The kinds of backwards and the starts that a bound covers."""
        return device_bounds.bound_scope(self.problem, self._bound(proved))

    def nothing(self, where: str, why: str) -> str:  # noqa: ARG002
        """That all orders were searched."""
        return f"all orders within {where} were searched and none found"

    @property
    def backwards(self) -> str:
        """The kinds of backwards that are searched, in words."""
        return device_bounds.proof_scope(self.problem)

    def comparable(self, hand: Schedule) -> bool:
        """Whether a schedule is of this placement."""
        return comparable(hand, self.problem.pipeline)

    @property
    def least_words(self) -> tuple[Fraction, str]:
        """The memory for one microbatch at a time on the device that needs most."""
        pipeline = self.problem.pipeline
        least = device_bounds.minimum_memory(self.problem.reduced.instance)
        device = least.index(max(least))
        shown = pipeline.memory_text(least[device])
        words = f"device {device} needs {shown} even for one microbatch at a time"
        return self.memory(least[device]), words

    def _bound(self, proved: Proved) -> Bound:
        value = int(proved.value * self.problem.pipeline.ticks.per_unit)
        return Bound(value, proved.proof, proved.certificate)


class EveryConfiguration(Space):
    """The schedules of every partition, placement or choice of recompute that is searched."""

    every = True

    def __init__(self, problem: Problem) -> None:
        """Raises InputError where these cannot be searched."""
        choice_of(problem, Deadline.after(0.0))
        self.problem = problem
        model = problem.pipeline.model
        self.memory_per_unit = problem.pipeline.ticks.memory_per_unit
        if model is not None:
            amounts = [cost.field for cost in COSTS if cost.unit is Unit.MEMORY]
            self.memory_per_unit = exact.common_denominator(
                getattr(layer, field) for layer in model.layers for field in amounts
            )

    @property
    def limits(self) -> range:
        """Every tick, from what static memory alone takes to what all parts together take."""
        pipeline, column = self.problem.pipeline, self._column
        least = max(*column("static"), sum(column("static"), Fraction(0)) / pipeline.num_devices)
        many = pipeline.batches * pipeline.num_slices
        taken = zip(column("activation"), column("memory_b"), strict=True)
        most = sum(column("static"), Fraction(0))
        most += many * sum((own + max(at_b, Fraction(0)) for own, at_b in taken), Fraction(0))
        most += sum((sum(column(field), Fraction(0)) for field in WORKSPACES), Fraction(0))
        most += pipeline.routes * sum(column("unshard_memory"), Fraction(0))
        if pipeline.limits is not None:
            most = min(most, max(pipeline.limits))
        low, high = (floor(amount * self.memory_per_unit) for amount in (least, most))
        return range(min(low, high), high + 1)

    def _column(self, field: str) -> list[Fraction]:
        """A cost of every layer, or of every stage given by hand."""
        pipeline = self.problem.pipeline
        if pipeline.model is None:
            return list(getattr(pipeline.costs, field))
        return [getattr(layer, field) for layer in pipeline.model.layers]

    def starts(self, hands: Iterable[Schedule]) -> Iterator[Schedule]:
        """One microbatch at a time as rules choose, and hand strategies among these."""
        objective = self.problem.objective
        for pipeline in _by_rule(self.problem.pipeline):
            for one in replace(self.problem, pipeline=pipeline).reduced.restrictions:
                yield timing.schedule(pipeline, one_at_a_time(one.instance), objective)
        for hand in filter(self.comparable, hands):
            problem = replace(self.problem, pipeline=hand.pipeline)
            for one in problem.reduced.restrictions:
                orders = of_kind(hand.pipeline, hand.orders, one.backward_kind)
                yield timing.schedule(hand.pipeline, orders, objective)

    def search(
        self,
        limit: Fraction,
        known: Sequence[Schedule],
        proved: Proved | None,
        options: SolveOptions,
        target: Fraction | None = None,
        level: int | None = None,
    ) -> Result:
        """Search all configurations within a limit."""
        pipeline = memory_limits.within(self.problem.pipeline, limit)
        problem = replace(self.problem, pipeline=pipeline)
        with interrupts.heard():
            choice = choice_of(problem, options.deadline)
        assert choice is not None
        params = options.params.frontier
        search = ConfigurationSearch(
            choice,
            problem,
            _until_settled(options, target),
            known=known,
            least=Fraction(0) if proved is None else proved.value,
        )
        if target is not None:
            with interrupts.heard():
                search.bound(options.deadline.share(params.bounding), target)
        return search.run(ANY_EFFORT if level is None else Effort(level, params.quick << level))

    def alone(self, made: Schedule) -> Space:
        """The schedules of the configuration of one."""
        pipeline = replace(made.pipeline, mem_limit=self.problem.pipeline.limits)
        return OnePipeline(replace(self.problem, pipeline=pipeline))

    def known(self) -> Proved:
        """Nothing."""
        words = "nothing is proved before the first search ends"
        return Proved(self.limits[-1], Fraction(0), words, Certificate(Argument.SEARCH))

    def proof_core(self, result: Result) -> str:
        """The proof, which says itself what it covers."""
        return result.proof

    def scope(self, proved: Proved) -> str:  # noqa: ARG002
        """Nothing."""
        return ""

    def nothing(self, where: str, why: str) -> str:
        """What the search says."""
        return f"within {where}, {why}"

    def comparable(self, hand: Schedule) -> bool:
        """Whether a schedule has stages, slices and routes of these, on a placement of these."""
        given, asked = hand.pipeline, self.problem.pipeline
        if asked.placement != placement.SEARCH:
            return comparable(hand, asked)
        sizes = (given.num_stages, given.num_devices, given.routes, given.num_slices)
        return sizes == (asked.num_stages, asked.num_devices, asked.routes, asked.num_slices)


def space_of(problem: Problem) -> Space:
    """What a frontier of the problem searches; raises InputError where it cannot."""
    chosen = open_choices(problem.pipeline)
    return EveryConfiguration(problem) if chosen else OnePipeline(problem)


def _by_rule(pipeline: Pipeline) -> Iterator[Pipeline]:
    """The pipeline where rules choose what is to be searched.

    Its layers are cut by `balanced`, its stages placed in turn; no layer recomputes, then all do.
    """
    counts = None if pipeline.model is None else pipeline.counts
    chosen = replace(pipeline, partition=counts, mem_limit=pipeline.limits)
    if pipeline.placement == placement.SEARCH:
        chosen = chosen.placed(pipeline.hosts[0])
    searched = pipeline.recompute == SEARCH_RECOMPUTE
    for recompute in ("none", "full") if searched else (pipeline.recompute,):
        yield replace(chosen, recompute=recompute)
