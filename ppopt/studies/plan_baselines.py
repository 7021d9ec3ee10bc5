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

from ppopt.cancellation import over, turns
from ppopt.errors import NotApplicableError, not_applicable
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.decisions import SEARCH
from ppopt.problem.objective import Objective
from ppopt.schedule.origin import SEARCHED
from ppopt.schedule.schedule import Schedule
from ppopt.strategies import Strategy, registry
from ppopt.studies.baselines import Evaluation, EvaluationRequest, evaluate_strategies
from ppopt.studies.evaluate import objective_value
from ppopt.studies.plan_result import Plan, PlanBaseline
from ppopt.studies.plan_space import PlanConfiguration, PlanSpace

MAX_SECONDS = 0.5
"""Maximum estimated seconds of one schedule; slower strategies are skipped."""
KNOWN = ("1f1b", "interleaved")
"""Strategies that come first: most trainers run them."""


class _Variant(NamedTuple):
    """A strategy with its chunks and recompute."""

    strategy: Strategy
    chunks: int
    """Stages per device."""
    recompute: str


class _Setting(NamedTuple):
    """A strategy with its pipeline."""

    request: EvaluationRequest
    variant: _Variant
    in_space: bool

    def sort_key(self) -> tuple[bool, bool]:
        """Sort key: strategies that most trainers run, then those that the plan could choose."""
        return self.request.strategy.name not in KNOWN, not self.in_space


class PlanBaselines:
    """Evaluates strategies for a plan until the time is up."""

    def __init__(self, space: PlanSpace, objective: Objective, backward_kind: BackwardKind) -> None:
        """Use the strategies of the space's runtime whose backwards are of this kind."""
        self._space, self._objective, self._backward_kind = space, objective, backward_kind
        self._evaluated: list[tuple[_Setting, Evaluation]] = []
        """Strategies that are evaluated, and within the memory limits."""
        self._waiting: dict[int, list[_Variant]] = {}
        """Strategies that are not evaluated yet, by number of microbatches."""

    @property
    def results(self) -> list[PlanBaseline]:
        """Baselines within the memory limits."""
        return [
            self._baseline(
                setting.variant.recompute, evaluation.schedule, in_space=setting.in_space
            )
            for setting, evaluation in self._evaluated
            if evaluation.schedule is not None
        ]

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
                self._evaluated.append((setting, evaluation))

    def refine(self, batches: int) -> None:
        """Continue the searches of the strategies that gains are reported over.

        These are the best strategy, and those that most trainers run.
        """
        results = self.results
        named = [
            position
            for position, baseline in enumerate(results)
            if baseline.in_space
            and baseline.schedule.pipeline.batches == batches
            and self._evaluated[position][1].search is not None
        ]
        named.sort(key=lambda position: results[position].value)
        chosen = named[:1]
        for name in KNOWN:
            known = [position for position in named if results[position].strategy == name]
            chosen += [position for position in known[:1] if position not in chosen]
        for position, turn in turns(chosen):
            setting, evaluation = self._evaluated[position]
            assert evaluation.search is not None
            with turn:
                evaluation.search.descend()
            evaluation = evaluation._replace(schedule=evaluation.search.schedule())
            self._evaluated[position] = setting, evaluation

    def add_to(self, plan: Plan) -> Plan:
        """Add the baselines to a plan: same number of microbatches, best first, one per name.

        They include the strategies that are configurations of the plan, with their best schedules.
        """
        assert plan.best is not None
        batches = plan.best.configuration.batches
        baselines = self.results + [
            self._baseline(row.configuration.recompute, row.schedule, in_space=True)
            for row in plan.rows
            if row.configuration.strategy != SEARCHED and row.schedule is not None
        ]
        best: dict[str, PlanBaseline] = {}
        for baseline in sorted(baselines, key=lambda baseline: (baseline.value, baseline.strategy)):
            if baseline.schedule.pipeline.batches == batches:
                best.setdefault(baseline.strategy, baseline)
        names = (variant.strategy.name for variant in self._waiting.get(batches, ()))
        late = dict.fromkeys(name for name in names if name not in best)
        return replace(plan, baselines=tuple(best.values()), late_baselines=tuple(late))

    def _baseline(self, recompute: str, schedule: Schedule, *, in_space: bool) -> PlanBaseline:
        """Schedule of a strategy, as a baseline; if recompute was chosen, perhaps none does."""
        if recompute == SEARCH and not any(schedule.pipeline.recomputed):
            recompute = "none"
        value, name = objective_value(schedule, self._objective), str(schedule.origin.strategy)
        return PlanBaseline(name, schedule, value, recompute, in_space)

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
            own = strategy.chunks_of(space.options)
            for chunks in space.chunks if own is None else (own,):
                yield from (_Variant(strategy, chunks, choice) for choice in recompute)

    def _placed(self, variant: _Variant, batches: int) -> Iterator[_Setting]:
        """Yield a strategy with its pipeline, unless it is skipped.

        Skipped are configurations of the plan, and strategies of two routes if the model does not
        state the weight memory, of which devices then need two copies.
        """
        space, (strategy, chunks, recompute) = self._space, variant
        configuration = PlanConfiguration(batches, strategy.placement, chunks, recompute)
        options = strategy.own_options(space.options)
        with suppress(NotApplicableError), not_applicable():
            pipeline = space.pipeline(configuration)
            placed = strategy.apply(pipeline, options)
            twice = placed.routes > pipeline.routes
            known = space.runtime == "any" and any(pipeline.costs.static)
            is_row = configuration._replace(strategy=strategy.name) in space
            if placed.num_slices == pipeline.num_slices and (known or not twice) and not is_row:
                in_space = not twice and configuration in space
                yield _Setting(EvaluationRequest(strategy, placed, options), variant, in_space)
