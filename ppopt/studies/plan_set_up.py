"""Sets up the configurations of a plan: the pipeline of each, and its open decisions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from ppopt.cancellation import over, shield
from ppopt.errors import InputError, NotApplicableError
from ppopt.problem import exact
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.decisions import SEARCH
from ppopt.problem.objective import Objective
from ppopt.problem.problem import Problem
from ppopt.schedule.origin import SEARCHED
from ppopt.schedule.schedule import Schedule
from ppopt.solver.arguments import LAYER_WORK
from ppopt.solver.choice_of_decisions import choice_of
from ppopt.solver.choices.enumeration import NONE_LEFT, Rest, Unlisted
from ppopt.solver.choices.single import SinglePipeline
from ppopt.solver.choices.spaces import traits_of_any
from ppopt.solver.microbatch_orders.order_choice import OrderChoice
from ppopt.solver.options import SolveOptions
from ppopt.solver.search import problem_of
from ppopt.strategies import resolve
from ppopt.studies.baselines import OUT_OF_TIME
from ppopt.studies.plan_candidate import PlanCandidate
from ppopt.studies.plan_space import (
    PlanConfiguration,
    PlanSpace,
    partitions_on,
)
from ppopt.studies.quick_bound import minimum_work
from ppopt.studies.strategy_search import StrategySearch


class PlanSetUp:
    """The candidates of a plan: those set up in time, and that of the first schedule."""

    def __init__(
        self,
        space: PlanSpace,
        objective: Objective,
        backward_kind: BackwardKind,
        options: SolveOptions,
        starts: Sequence[Schedule] = (),
    ) -> None:
        """Set up at least one configuration, and that of the first known schedule.

        Raises InputError if no configuration can be set up.
        """

        def may_contain(configuration: PlanConfiguration, schedule: Schedule) -> bool:
            own, strategies = schedule.pipeline, (SEARCHED, schedule.origin.strategy)
            named = own.batches, own.resolved_placement, own.num_chunks
            return configuration[:3] == named and configuration.strategy in strategies

        before = options.spent
        self.space, self.objective, self.backward_kind = space, objective, backward_kind
        self._options = options
        invalid: list[tuple[str, str]] = []
        late: list[PlanConfiguration] = []
        known: dict[PlanConfiguration, PlanCandidate] = {}
        needed = [each for each in space for first in starts[:1] if may_contain(each, first)]
        for configuration in dict.fromkeys((*needed, *space)):
            if known and over() and configuration not in needed:
                late.append(configuration)
                continue
            try:
                known[configuration] = self._candidate(configuration)
            except NotApplicableError as error:
                invalid.append((str(configuration), str(error)))
        if not known:
            raise InputError(invalid[0][1])
        in_order = filter(None, map(known.get, space))
        self.candidates = sorted(in_order, key=lambda each: each.strategy is not None)
        """All candidates, those of strategies last."""
        for own, candidate in known.items():
            any_order, any_layers = own._replace(strategy=SEARCHED), own._replace(recompute=SEARCH)
            wider = known.get(any_layers if candidate.strategy is None else any_order)
            candidate.wider = None if wider is candidate else wider
        self.skipped = (*invalid, *((str(each), OUT_OF_TIME) for each in late))
        """Configurations that are not set up, each with the reason."""
        self.num_late = len(late)
        """Number of configurations for which no time was left."""
        self.seconds = options.spent - before
        """Seconds of the set-up."""

    def _candidate(self, configuration: PlanConfiguration) -> PlanCandidate:
        """Set up a configuration.

        Raises NotApplicableError if it cannot be searched.
        """
        space = self.space
        kind = backward_kind_of(configuration.strategy, self.backward_kind)
        with shield():
            problem = problem_of(space.pipeline(configuration), self.objective, kind)
        choice = choice_of(problem) or SinglePipeline(problem)
        with shield():
            if configuration.strategy != SEARCHED:
                choice = StrategySearch(
                    problem.pipeline,
                    configuration.strategy,
                    self.objective,
                    space.options_of(configuration),
                    bounds=choice.inner if isinstance(choice, OrderChoice) else choice,
                    accepts_partition=partitions_on(space.runtime, problem.pipeline),
                    seed=self._options.seed,
                )
            weight = space.weight(configuration.batches)
            return PlanCandidate(configuration, problem, choice, self._options, weight)

    @property
    def problem(self) -> Problem:
        """Problem of the first candidate."""
        return self.candidates[0].problem

    @property
    def largest(self) -> Problem:
        """Problem of a candidate with the maximum number of operations."""
        problems = (candidate.problem for candidate in self.candidates)
        return max(problems, key=lambda problem: problem.num_operations)

    @cached_property
    def late(self) -> Rest:
        """Configurations for which no time was left, with a bound on their time per microbatch.

        The devices run the work of all layers. With phases, a pair may take less than its parts.
        """
        if not self.num_late:
            return NONE_LEFT
        pipeline = self.problem.pipeline
        if not LAYER_WORK.applies(traits_of_any(self.problem)):
            return Unlisted(0)
        work = exact.total(map(minimum_work, pipeline.model.costed))
        work *= exact.total(times for times, _ in pipeline.factors)
        work *= pipeline.grid.time * self.space.weight(pipeline.batches)
        return Unlisted(int(work / sum(pipeline.device_speed)))


def backward_kind_of(strategy: str, kind: BackwardKind) -> BackwardKind:
    """Kind of the backwards of a strategy, or of any schedule, within the kind that was requested.

    Raises NotApplicableError if the strategy has another kind.
    """
    if strategy == SEARCHED:
        return kind
    fused = resolve(strategy).fused
    if kind is BackwardKind.WHOLE and not fused:
        raise NotApplicableError(f"{strategy} splits the backward")
    if kind is BackwardKind.SPLIT and fused:
        raise NotApplicableError(f"{strategy} does not split the backward")
    return BackwardKind.WHOLE if fused else BackwardKind.MIXED
