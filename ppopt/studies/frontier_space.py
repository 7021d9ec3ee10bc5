"""What a frontier searches under each memory limit: one pipeline, or every configuration of one.

A configuration is a partition, a placement, or a choice of recompute (`ppopt.solver.choices`). All
configurations share one curve: a schedule counts for every limit from its own peak upwards,
whatever its configuration, and a bound over all configurations for every limit from its own
downwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from math import floor

from ppopt.problem import exact, placement
from ppopt.problem.layers import COSTS
from ppopt.problem.offload import SEARCH_OFFLOAD
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.problem import Problem
from ppopt.problem.recompute import SEARCH_RECOMPUTE
from ppopt.problem.settings import Unit
from ppopt.schedule import timing
from ppopt.schedule.list_scheduling import one_at_a_time
from ppopt.schedule.orders import codes, of_kind
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


class Space:
    """The schedules of all configurations of a problem under one memory limit for every device."""

    every = True
    """Whether configurations are searched: the largest limit then takes longer than the others."""
    impossible: str | None = None
    """Why the pipeline's own limits allow no schedule, where that needs no search."""
    backwards = ""
    """The kinds of backwards that are searched, in words, unless a proof says so itself."""
    least_words: tuple[Fraction, str] | None = None
    """A limit below which no schedule runs, and why; None: a search finds it."""

    def __init__(self, problem: Problem) -> None:
        """Raises InputError where these cannot be searched."""
        choice_of(problem, Deadline.after(0.0))
        self.problem = problem
        model = problem.pipeline.model
        self.memory_per_unit = problem.pipeline.ticks.memory_per_unit
        """Ticks of the limits in one unit of memory."""
        if model is not None:
            amounts = [cost.field for cost in COSTS if cost.unit is Unit.MEMORY]
            self.memory_per_unit = exact.common_denominator(
                getattr(layer, field) for layer in model.layers for field in amounts
            )

    @property
    def limits(self) -> Sequence[int]:
        """Every limit at which the optimum may change, in ticks, ascending; not empty.

        Every tick, from what static memory alone takes to what all parts together take.
        """
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
        """Schedules that need no search; they may exceed the limits.

        One microbatch at a time as rules choose, and hand strategies of these configurations.
        """
        objective = self.problem.objective
        for pipeline in _by_rule(self.problem.pipeline):
            for one in replace(self.problem, pipeline=pipeline).reduced.restrictions:
                yield timing.schedule(pipeline, one_at_a_time(one.instance), objective)
        for hand in filter(self.comparable, hands):
            pipeline = hand.pipeline if self.every else self.problem.pipeline
            made = hand.orders if pipeline.overlap else [*map(codes, hand.orders)]
            for one in replace(self.problem, pipeline=pipeline).reduced.restrictions:
                orders = of_kind(pipeline, made, one.backward_kind)
                yield timing.schedule(pipeline, orders, objective)

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
        pipeline = memory_limits.within(self.problem.pipeline, limit)
        problem, params = replace(self.problem, pipeline=pipeline), options.params.frontier
        asked = _until_settled(options, target)
        if not self.every:
            start = WarmStart(schedules=tuple(known), bound=proved and self._bound(proved))
            return search_from(start, problem, asked.rounds(level))
        with interrupts.heard():
            choice = choice_of(problem, options.deadline)
        assert choice is not None
        least = Fraction(0) if proved is None else proved.value
        search = ConfigurationSearch(choice, problem, asked, known=known, least=least)
        if target is not None:
            with interrupts.heard():
                search.bound(options.deadline.share(params.bounding), target)
        return search.run(ANY_EFFORT if level is None else Effort(level, params.quick << level))

    def alone(self, made: Schedule) -> Space | None:
        """The schedules of the configuration of one; None: there is one configuration only."""
        pipeline = replace(made.pipeline, mem_limit=self.problem.pipeline.limits)
        return OnePipeline(replace(self.problem, pipeline=pipeline))

    def known(self) -> Proved:
        """The bound known before any search; it is of the largest limit."""
        words = "nothing is proved before the first search ends"
        return Proved(self.limits[-1], Fraction(0), words, Certificate(Argument.SEARCH))

    def proof_core(self, result: Result) -> str:
        """The proof of a search without the words on its space, which `scope` adds."""
        return result.proof

    def scope(self, proved: Proved) -> str:  # noqa: ARG002
        """The words on the space of a bound, unless its proof has them."""
        return ""

    def nothing(self, where: str, why: str) -> str:
        """That there is no schedule within the limits named, as a search has proved."""
        return f"within {where}, {why}"

    def comparable(self, hand: Schedule) -> bool:
        """Whether a hand-made schedule is one of these, but for the limits.

        It has stages, slices and routes of these, on a placement of these.
        """
        given, asked = hand.pipeline, self.problem.pipeline
        if asked.placement != placement.SEARCH:
            return comparable(hand, asked)
        sizes = (given.num_stages, given.num_devices, given.routes, given.num_slices)
        return sizes == (asked.num_stages, asked.num_devices, asked.routes, asked.num_slices)

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

    def _bound(self, proved: Proved) -> Bound:
        value = int(proved.value * self.problem.pipeline.ticks.per_unit)
        return Bound(value, proved.proof, proved.certificate)


class OnePipeline(Space):
    """The schedules of a pipeline that leaves nothing to be chosen: more is known at first."""

    every = False

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        pipeline, instance = problem.pipeline, problem.reduced.instance
        self.memory_per_unit = pipeline.ticks.memory_per_unit
        self.backwards = device_bounds.proof_scope(problem)
        self.impossible = device_bounds.infeasibility(instance)
        least = device_bounds.minimum_memory(instance)
        device = least.index(max(least))
        words = f"device {device} needs {pipeline.memory_text(least[device])}"
        self.least_words = (
            self.memory(least[device]),
            f"{words} even for one microbatch at a time",
        )

    @property
    def limits(self) -> Sequence[int]:
        """Sums of what devices can hold."""
        return memory_limits.candidates(self.problem.reduced)

    def alone(self, made: Schedule) -> Space | None:  # noqa: ARG002
        """There is one configuration only."""
        return None

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


def space_of(problem: Problem) -> Space:
    """What a frontier of the problem searches; raises InputError where it cannot."""
    return Space(problem) if open_choices(problem.pipeline) else OnePipeline(problem)


def _by_rule(pipeline: Pipeline) -> Iterator[Pipeline]:
    """The pipeline where rules choose what is to be searched.

    Its layers are cut by `balanced`, its stages placed in turn; no layer recomputes or
    offloads, then all do one of both.
    """
    if not open_choices(pipeline):
        yield pipeline
        return
    counts = None if pipeline.model is None else pipeline.counts
    chosen = replace(pipeline, partition=counts, mem_limit=pipeline.limits)
    if pipeline.placement == placement.SEARCH:
        chosen = chosen.placed(pipeline.hosts[0])
    again, moved = pipeline.recompute == SEARCH_RECOMPUTE, pipeline.offload == SEARCH_OFFLOAD
    given = replace(chosen, recompute="none" if again else None, offload="none" if moved else None)
    yield given
    if again:
        yield replace(given, recompute="full")
    if moved:
        yield replace(given, offload="all")
