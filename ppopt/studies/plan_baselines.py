"""The baselines of a plan: strategies that it starts from and is compared with.

Each strategy has the best partition and recompute found for it (`ppopt.studies.baselines`). The
strategies are evaluated first, and the plan starts from their schedules, so that it is never slower
than the best of those in its space. Strategies with placements and chunks of the plan come first;
the others show where a better schedule may exist.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

from ppopt.cancellation import equal_share, over, part
from ppopt.errors import NotApplicableError, not_applicable
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.decisions import SEARCH
from ppopt.problem.objective import Objective
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.origin import SEARCHED
from ppopt.schedule.schedule import Schedule
from ppopt.strategies import Strategy, registry
from ppopt.studies.baselines import EvaluationRequest, evaluate_strategies
from ppopt.studies.evaluate import objective_value
from ppopt.studies.plan_result import Plan, PlanBaseline
from ppopt.studies.plan_space import AS_GIVEN, PlanConfiguration, PlanSpace
from ppopt.studies.strategy_search import StrategySearch

MAX_SECONDS = 0.5
"""Maximum estimated seconds of one schedule; slower strategies are skipped."""
KNOWN = ("1f1b", "interleaved")
"""Strategies that come first: most trainers run them."""


class _Variant(NamedTuple):
    """A strategy with its chunks and recompute."""

    strategy: Strategy
    chunks: int | None
    """Stages per device; None: the strategy prescribes them."""
    recompute: str


class _Setting(NamedTuple):
    """A strategy with its pipeline."""

    request: EvaluationRequest
    variant: _Variant
    in_space: bool

    def sort_key(self) -> tuple[bool, bool]:
        """Sort key: strategies that most trainers run, then those that the plan could choose."""
        return self.request.strategy.name not in KNOWN, not self.in_space

    def baseline(self, schedule: Schedule, objective: Objective) -> PlanBaseline:
        """Schedule of the strategy, as a baseline of the plan."""
        recompute = _recompute(self.variant.recompute, schedule)
        value = objective_value(schedule, objective)
        return PlanBaseline(self.request.strategy.name, schedule, value, recompute, self.in_space)


class PlanBaselines:
    """Evaluates strategies for a plan until the time is up."""

    def __init__(self, space: PlanSpace, objective: Objective, backward_kind: BackwardKind) -> None:
        """Use the strategies of the space's runtime whose backwards are of this kind."""
        self._space, self._objective, self._backward_kind = space, objective, backward_kind
        self.results: list[PlanBaseline] = []
        """Baselines within the memory limits."""
        self._open: dict[int, tuple[_Setting, StrategySearch]] = {}
        """Searches that can be continued, by index of `results`."""
        self._waiting: dict[int, list[_Variant]] = {}
        """Strategies that are not evaluated yet, by number of microbatches."""

    def search(self, batches: int, **limits: Any) -> None:
        """Evaluate the remaining strategies in the time left, within `limits`.

        See `evaluate_strategies`.
        """
        waiting = self._waiting.setdefault(batches, list(self._variants()))
        settings: list[_Setting] = []
        while waiting and not over():
            settings += self._placed(waiting.pop(0), batches)
        settings.sort(key=_Setting.sort_key)
        requests = [setting.request for setting in settings]
        for evaluation in evaluate_strategies(
            requests, self._objective, max_seconds=MAX_SECONDS, **limits
        ):
            setting = settings[evaluation.position]
            if evaluation.out_of_time:
                waiting.append(setting.variant)
            elif evaluation.schedule is not None and evaluation.schedule.fits_limits:
                if evaluation.search is not None:
                    self._open[len(self.results)] = setting, evaluation.search
                self.results.append(setting.baseline(evaluation.schedule, self._objective))

    def refine(self, batches: int) -> None:
        """Continue the searches of the strategies that gains are reported over.

        These are the best strategy, and those that most trainers run.
        """
        named = [
            position for position in self._open if self._is_named(self.results[position], batches)
        ]
        ranked = sorted(named, key=lambda position: self.results[position].value)
        positions = ranked[:1]
        for name in KNOWN:
            known = [position for position in ranked if self.results[position].strategy == name]
            positions += [position for position in known[:1] if position not in positions]
        for index, position in enumerate(positions):
            setting, search = self._open[position]
            with part(equal_share(len(positions) - index - 1)):
                search.descend_until_stalled()
            self.results[position] = setting.baseline(search.schedule(), self._objective)

    @staticmethod
    def _is_named(baseline: PlanBaseline, batches: int) -> bool:
        """Whether a gain over a strategy may be reported."""
        return baseline.in_space and baseline.schedule.pipeline.batches == batches

    def add_to(self, plan: Plan) -> Plan:
        """Add the baselines to a plan: same number of microbatches, best first, one per name.

        They include the strategies that are configurations of the plan, with their best schedules.
        """
        assert plan.best is not None
        batches = plan.best.configuration.batches
        baselines = [
            baseline for baseline in self.results if baseline.schedule.pipeline.batches == batches
        ]
        for row in plan.rows:
            configuration, schedule = row.configuration, row.schedule
            if (
                configuration.strategy != SEARCHED
                and configuration.batches == batches
                and schedule is not None
            ):
                value = objective_value(schedule, self._objective)
                recompute = _recompute(configuration.recompute, schedule)
                name = configuration.strategy
                baselines.append(PlanBaseline(name, schedule, value, recompute, True))
        best: dict[str, PlanBaseline] = {}
        for baseline in sorted(baselines, key=lambda baseline: (baseline.value, baseline.strategy)):
            best.setdefault(baseline.strategy, baseline)
        names = (variant.strategy.name for variant in self._waiting.get(batches, ()))
        late = dict.fromkeys(name for name in names if name not in best)
        return replace(plan, baselines=tuple(best.values()), late_baselines=tuple(late))

    def _variants(self) -> Iterator[_Variant]:
        """All strategies with every number of chunks and every recompute mode of the plan.

        Those that most trainers run come first. With chosen recompute, possibly none or all layers
        recompute. Strategies with other kinds of backwards are skipped.
        """
        space = self._space
        recompute = (SEARCH,) if SEARCH in space.recompute else space.recompute
        for strategy in sorted(registry().values(), key=lambda rule: rule.name not in KNOWN):
            fits_kind = BackwardKind.WHOLE if strategy.fused else BackwardKind.SPLIT
            if space.runtime == "megatron" or self._backward_kind not in (
                BackwardKind.MIXED,
                fits_kind,
            ):
                continue
            for chunks in space.chunks if strategy.chunks is None else (None,):
                yield from (_Variant(strategy, chunks, choice) for choice in recompute)

    def _placed(self, variant: _Variant, batches: int) -> Iterator[_Setting]:
        """Yield a strategy with its pipeline, unless it is skipped.

        Skipped are configurations of the plan, and strategies of two routes if the model does not
        state the weight memory, of which devices then need two copies.
        """
        space, (strategy, chunks, recompute) = self._space, variant
        with suppress(NotApplicableError), not_applicable():
            pipeline = space.model.pipeline(
                devices=space.devices,
                batches=batches,
                chunks=chunks,
                partition=space.partition,
                recompute=None if recompute == AS_GIVEN else recompute,
                **space.on_one_grid,
            )
            options = strategy.own_options(space.options)
            placed = strategy.apply(pipeline, options)
            twice = placed.routes > pipeline.routes
            known = space.runtime == "any" and any(pipeline.costs.static)
            is_row = self._configuration(strategy, placed, recompute, strategy.name) in space
            if placed.num_slices == pipeline.num_slices and (known or not twice) and not is_row:
                request = EvaluationRequest(strategy, placed, options)
                yield _Setting(request, variant, self._is_within(strategy, placed, recompute))

    def _is_within(self, strategy: Strategy, placed: Pipeline, recompute: str) -> bool:
        """Whether the plan could have chosen the schedule of a strategy."""
        same = placed.routes == self._space.fields.get("routes", 1)
        return same and self._configuration(strategy, placed, recompute, SEARCHED) in self._space

    @staticmethod
    def _configuration(
        strategy: Strategy, placed: Pipeline, recompute: str, chosen: str
    ) -> PlanConfiguration:
        """Configuration of a plan whose schedules are those of a strategy, or any."""
        return PlanConfiguration(
            placed.batches, strategy.placement, placed.num_chunks, recompute, chosen
        )


def _recompute(choice: str, schedule: Schedule) -> str:
    """Recompute mode of a schedule: if it was chosen, perhaps no layer recomputes."""
    return "none" if choice == SEARCH and not any(schedule.pipeline.recomputed) else choice
