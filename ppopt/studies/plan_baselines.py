"""The baselines of a plan: strategies that it starts from and is compared with.

Each strategy has the best partition and recompute found for it (`ppopt.studies.baselines`). The
strategies are evaluated first, and the plan starts from their schedules, so that it is never slower
than the best of those in its space. Strategies with placements and chunks of the plan come first;
the others show where a better schedule may exist.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from ppopt.cancellation import over, turns
from ppopt.errors import NotApplicableError, not_applicable
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.decisions import SEARCH
from ppopt.problem.objective import Objective
from ppopt.schedule.origin import SEARCHED
from ppopt.schedule.schedule import Schedule
from ppopt.strategies import registry, resolve
from ppopt.studies.baselines import Evaluation, evaluated
from ppopt.studies.evaluate import objective_value
from ppopt.studies.first_schedules import configuration_of
from ppopt.studies.plan_result import Plan, PlanBaseline
from ppopt.studies.plan_space import PlanConfiguration, PlanSpace

MAX_SECONDS = 0.5
"""Maximum estimated seconds of one schedule; slower strategies are skipped."""
KNOWN = ("1f1b", "interleaved")
"""Strategies that come first: most trainers run them."""


@dataclass(eq=False, kw_only=True)
class PlanEvaluation(Evaluation):
    """The evaluation of a strategy for a plan."""

    configuration: PlanConfiguration
    in_space: bool
    """Whether the plan could choose its schedule."""


class PlanBaselines:
    """Evaluates strategies for a plan until the time is up."""

    def __init__(self, space: PlanSpace, objective: Objective, backward_kind: BackwardKind) -> None:
        """Use the strategies of the space's runtime whose backwards are of this kind."""
        self._space, self._objective, self._backward_kind = space, objective, backward_kind
        self._waiting = [*self._strategies()]
        """Strategies without a pipeline yet."""
        self._evaluations: list[PlanEvaluation] = []
        """Strategies with their pipelines."""

    def search(self, batches: int | None = None, **limits: Any) -> Iterator[Schedule]:
        """Evaluate the remaining strategies in the time left, within `limits` of `evaluated`.

        Those of a number of microbatches come first, then those that most trainers run, then those
        that the plan could choose.
        """
        while self._waiting and not over():
            self._evaluations += self._placed(self._waiting.pop(0))
        self._evaluations.sort(
            key=lambda each: (
                each.configuration.batches != batches, each.name not in KNOWN, not each.in_space
            )
        )  # fmt: skip
        for _, schedule in evaluated(self._evaluations, max_seconds=MAX_SECONDS, **limits):
            if schedule.fits_limits:
                yield schedule

    def refine(self) -> Iterator[Schedule]:
        """Continue the searches of the strategies that gains are reported over.

        These are the best strategy of every number of microbatches, and those that most trainers
        run.
        """
        chosen: dict[PlanEvaluation, None] = {}
        for batches in self._space.batches:
            known = self._known(batches)
            own = [each for each in known if each.in_space and each.search is not None]
            own.sort(key=lambda each: known[each].value)
            named = {each.name: each for each in reversed(own) if each.name in KNOWN}
            chosen |= dict.fromkeys((*own[:1], *named.values()))
        for evaluation, turn in turns([*chosen]):
            with turn:
                evaluation.descend()
            if evaluation.schedule is not None and evaluation.schedule.fits_limits:
                yield evaluation.schedule

    def _known(self, batches: int) -> dict[PlanEvaluation, PlanBaseline]:
        """Strategies within the memory limits."""
        return {
            each: self._baseline(each.configuration, each.schedule, in_space=each.in_space)
            for each in self._evaluations
            if each.configuration.batches == batches
            and each.schedule is not None
            and each.schedule.fits_limits
        }

    def add_to(self, plan: Plan) -> Plan:
        """Add the baselines to a plan: same number of microbatches, best first, one per name.

        They include the strategies that are configurations of the plan, with their best schedules.
        """
        assert plan.best is not None
        batches = plan.best.configuration.batches
        baselines = [*self._known(batches).values()]
        baselines += (
            self._baseline(row.configuration, row.schedule, in_space=True)
            for row in plan.rows
            if row.configuration.strategy != SEARCHED
            and row.configuration.batches == batches
            and row.schedule is not None
        )
        best: dict[str, PlanBaseline] = {}
        for baseline in sorted(baselines, key=lambda baseline: (baseline.value, baseline.strategy)):
            best.setdefault(baseline.strategy, baseline)
        late = [each.configuration for each in self._evaluations if each.out_of_time]
        named = dict.fromkeys(
            each.strategy
            for each in (*late, *self._waiting)
            if each.batches == batches and each.strategy not in best
        )
        return replace(plan, baselines=tuple(best.values()), late_baselines=tuple(named))

    def _baseline(
        self, configuration: PlanConfiguration, schedule: Schedule, *, in_space: bool
    ) -> PlanBaseline:
        """Schedule of a strategy, as a baseline; if recompute was chosen, perhaps none does."""
        recompute = configuration_of(schedule, configuration).recompute
        value = objective_value(schedule, self._objective)
        return PlanBaseline(configuration.strategy, schedule, value, recompute, in_space)

    def _strategies(self) -> Iterator[PlanConfiguration]:
        """All strategies with the microbatches, chunks and recompute modes of the plan.

        Those that most trainers run come first. With chosen recompute, possibly none or all layers
        recompute. Strategies with other kinds of backwards are skipped.
        """
        space = self._space
        recompute = (SEARCH,) if SEARCH in space.recompute else space.recompute
        for strategy in sorted(registry().values(), key=lambda rule: rule.name not in KNOWN):
            kind = BackwardKind.WHOLE if strategy.fused else BackwardKind.SPLIT
            if space.runtime == "megatron" or self._backward_kind not in (BackwardKind.MIXED, kind):
                continue
            own = strategy.chunks_of(space.options)
            chunks = space.chunks if own is None else (own,)
            for batches, number, mode in product(space.batches, chunks, recompute):
                yield PlanConfiguration(batches, strategy.placement, number, mode, strategy.name)

    def _placed(self, configuration: PlanConfiguration) -> Iterator[PlanEvaluation]:
        """Yield a strategy with its pipeline, unless it is skipped.

        Skipped are configurations of the plan, and strategies of two routes if the model does not
        state the weight memory, of which devices then need two copies.
        """
        space, strategy = self._space, resolve(configuration.strategy)
        searched = configuration._replace(strategy=SEARCHED)
        options = strategy.own_options(space.options)
        with suppress(NotApplicableError), not_applicable():
            pipeline = space.pipeline(searched)
            placed = strategy.apply(pipeline, options)
            twice = placed.routes > pipeline.routes
            known = space.runtime == "any" and any(pipeline.costs.static)
            is_row = configuration in space
            if placed.num_slices == pipeline.num_slices and (known or not twice) and not is_row:
                yield PlanEvaluation(
                    strategy, placed, self._objective, options, configuration=configuration,
                    in_space=not twice and searched in space,
                )  # fmt: skip
