"""Plan over the parallelism: one plan per combination, one bound over all of them.

All combinations train the same batch on the same GPUs, so they are compared by step time. At first
each has a quick bound: its work divided by its devices. The most promising combination is planned
first, for a share of the time. A combination is closed when its bound is at least the best step
time found; a plan ends as soon as its own bound reaches it. The better half of the combinations
that are open at the end of a round continues, for longer, from its best schedules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ppopt.derivation.derived_model import DerivedModel
from ppopt.errors import InputError, NotApplicableError
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.layers import Layers
from ppopt.problem.objective import Objective
from ppopt.problem.pipeline import Pipeline
from ppopt.solver.deadline import Callback, Deadline
from ppopt.solver.options import TIME_LIMIT, SolveOptions, checked_options
from ppopt.solver.parameters import SolveParams
from ppopt.solver.result import Status
from ppopt.studies.parallel_result import ParallelPlan, ParallelRow
from ppopt.studies.parallel_space import Parallelism, ParallelSpace
from ppopt.studies.plan import search_plan_space
from ppopt.studies.plan_result import Plan
from ppopt.studies.plan_space import (
    CHUNKS,
    PLACEMENTS,
    PlanSpace,
    default_recompute,
    default_strategies,
    fields_of,
)

CLOSE = Fraction(1, 10**4)
"""Share of the best step time: a combination whose bound is lower by at most this is closed,
because derived times are whole microseconds, and combinations differ by their rounding."""
ROUND = 0.5
"""Share of the time left for a round, unless it is of one combination."""
SHORTEST = 0.5
"""Least seconds to start a plan."""


@dataclass(frozen=True)
class PlanArguments:
    """Arguments of `ppopt.plan` that all combinations share."""

    placements: tuple[str, ...] = PLACEMENTS
    chunks: tuple[int, ...] = CHUNKS
    recompute: tuple[str, ...] | None = None
    """Recompute modes; None: the default of `ppopt.plan`."""
    strategies: tuple[str, ...] | None = None
    runtime: str = "any"
    mem_limit: Any = None
    """Memory limit of every device; None: the memory of the GPU."""

    def space(self, model: DerivedModel) -> PlanSpace:
        """Plan space of a combination."""
        pipeline = model.pipeline
        layers = pipeline.model
        assert layers is not None
        limit = pipeline.mem_limit if self.mem_limit is None else self.mem_limit
        recompute = default_recompute(layers, self.runtime, limited=True)
        return PlanSpace(
            model=layers,
            devices=pipeline.num_devices,
            batches=(pipeline.batches,),
            placements=self.placements if pipeline.num_devices > 1 else ("linear",),
            chunks=self.chunks if pipeline.num_devices > 1 else (1,),
            recompute=self.recompute or recompute,
            strategies=self.strategies or default_strategies(self.runtime),
            runtime=self.runtime,
            fields=fields_of(pipeline) | {"mem_limit": limit},
        )

    def refused(self, models: Mapping[Parallelism, DerivedModel]) -> dict[Parallelism, str]:
        """Combinations of which Megatron-LM runs no configuration, each with a reason."""
        if self.runtime != "megatron":
            return {}
        reasons = {each: self._refusal(self.space(model)) for each, model in models.items()}
        return {each: reason for each, reason in reasons.items() if reason is not None}

    @staticmethod
    def _refusal(space: PlanSpace) -> str | None:
        """Why the runtime runs no configuration of a space; None: it runs one."""
        reason = None
        for configuration in space:
            try:
                space.pipeline(configuration)
            except NotApplicableError as error:
                reason = str(error)
            else:
                return None
        return reason


def plan_parallelism(
    space: ParallelSpace,
    choices: PlanArguments = PlanArguments(),
    *,
    time_limit: float = TIME_LIMIT,
    workers: int | None = None,
    seed: int = 0,
    progress: Callback | None = None,
    params: SolveParams = SolveParams(),
    began: float | None = None,
) -> ParallelPlan:
    """Find the parallelism of the shortest step, with a bound over all combinations.

    Each combination is planned as `ppopt.plan` does, on its derived model. Costs leave collective
    communication out, which grows with tensor parallelism. Raises InputError if there is no valid
    combination; "infeasible" is a result.
    """
    models, skipped = space.models()
    refused = choices.refused(models)
    models = {each: model for each, model in models.items() if each not in refused}
    skipped |= refused
    if not models:
        raise InputError(f"no parallelism is left: {next(iter(skipped.values()))}")
    options = checked_options(
        time_limit, workers, seed, progress=progress, params=params, began=began
    )
    search = _ParallelSearch(models, choices, options)
    search.run()
    best, lower_bound = search.best, search.lower_bound
    rows = sorted((combination.row() for combination in search.combinations), key=_sort_key)
    if best is None:
        status = Status.INFEASIBLE if lower_bound is None else Status.UNKNOWN
    else:
        status = Status.OPTIMAL if lower_bound == best else Status.FEASIBLE
    return ParallelPlan(
        space, status, tuple(rows), lower_bound, skipped, options.provenance,
        options.deadline.spent, search.interrupted,
    )  # fmt: skip


def _sort_key(row: ParallelRow) -> tuple[bool, Fraction, bool, Fraction, Parallelism]:
    """Sort key of a row: its step, then its bound, infeasible ones last."""
    bound = row.lower_bound
    return (
        row.value is None, row.value or Fraction(0), bound is None, bound or Fraction(0),
        row.parallelism,
    )  # fmt: skip


def work_bound(pipeline: Pipeline, layers: Layers) -> Fraction:
    """Total work divided by the number of devices, a lower bound on the step.

    Counts F and the less of BW and of B + W of every layer and microbatch.
    """
    each = sum(
        (
            layer.forward + min(layer.backward, layer.backward_input + layer.weight)
            for layer in layers.costed
        ),
        Fraction(0),
    )
    return each * pipeline.batches / pipeline.num_devices


@dataclass
class _Combination:
    """State of a combination during the search."""

    parallelism: Parallelism
    model: DerivedModel
    lower_bound: Fraction | None
    plan: Plan | None = None
    seconds: float = 0.0
    exhausted: bool = False
    """Whether the last plan ended before its time was up: more time cannot help."""

    @property
    def value(self) -> Fraction | None:
        """Shortest step found."""
        return None if self.plan is None else self.plan.value

    def row(self) -> ParallelRow:
        """Row of the result."""
        return ParallelRow(self.parallelism, self.model, self.lower_bound, self.plan, self.seconds)


class _ParallelSearch:
    """Search over combinations."""

    def __init__(
        self,
        models: Mapping[Parallelism, DerivedModel],
        choices: PlanArguments,
        options: SolveOptions,
    ) -> None:
        self._choices, self._options = choices, options
        self.interrupted = False
        self.combinations = [
            _Combination(combination, model, work_bound(model.pipeline, model.model))
            for combination, model in models.items()
        ]

    @property
    def best(self) -> Fraction | None:
        """Shortest step found."""
        return min(
            (
                combination.value
                for combination in self.combinations
                if combination.value is not None
            ),
            default=None,
        )

    @property
    def lower_bound(self) -> Fraction | None:
        """Lower bound of all steps; None: no combination is within the memory limit."""
        bounds = [
            combination.lower_bound
            for combination in self.combinations
            if combination.lower_bound is not None
        ]
        found = min(bounds, default=None)
        best = self.best
        return found if best is None or found is None else min(found, best)

    def run(self) -> None:
        """Plan in rounds, each for half of the time left; one combination even if time is up.

        Every round has half as many open combinations as the one before (successive halving).
        """
        waiting, deadline = self._open(), self._options.deadline
        while waiting and not (deadline.over and self._planned):
            last = len(waiting) == 1
            self._round(waiting, deadline if last else deadline.share(ROUND))
            waiting = self._open()[: (len(waiting) + 1) // 2]
            if last:
                return

    @property
    def _planned(self) -> bool:
        """Whether a combination has been planned."""
        return any(combination.plan is not None for combination in self.combinations)

    def _open(self) -> list[_Combination]:
        """Open combinations, the most promising first."""
        return sorted(filter(self._is_open, self.combinations), key=_estimate)

    def _is_open(self, combination: _Combination) -> bool:
        """Whether a combination may have a shorter step than the best."""
        if combination.lower_bound is None or combination.exhausted or self.interrupted:
            return False
        best = self.best
        return best is None or combination.lower_bound < best * (1 - CLOSE)

    def _round(self, waiting: Sequence[_Combination], deadline: Deadline) -> None:
        for index, combination in enumerate(waiting):
            left = deadline.left
            if self._is_open(combination) and (left > SHORTEST or not self._planned):
                others = sum(map(self._is_open, waiting[index + 1 :]))
                self._plan(combination, max(SHORTEST, min(left, deadline.turn(others).seconds)))

    def _plan(self, combination: _Combination, seconds: float) -> None:
        """Plan a combination for `seconds`, and keep the better plan and bound."""
        best, turn = self.best, Deadline.after(seconds, progress=self._options.deadline.progress)
        batches = combination.model.training.batches
        plan = search_plan_space(
            self._choices.space(combination.model),
            Objective.MAKESPAN,
            BackwardKind.MIXED,
            self._options.by(turn),
            known_value=None if best is None else best / batches,
            start=None if combination.plan is None else combination.plan.schedule,
        )
        took = turn.spent
        combination.seconds += took
        combination.exhausted = took < seconds
        self.interrupted |= plan.interrupted
        if plan.status is Status.INFEASIBLE:
            combination.lower_bound = None
        elif combination.lower_bound is not None and plan.lower_bound is not None:
            combination.lower_bound = max(combination.lower_bound, plan.lower_bound)
        better = plan.value is not None and (
            combination.value is None or plan.value < combination.value
        )
        if combination.plan is None or better:
            combination.plan = plan


def _estimate(combination: _Combination) -> Fraction:
    """Sort key of a combination: the shortest step found or, before any, an estimate.

    The estimate is the bound plus the bubble of 1F1B, (devices - 1) / microbatches of the bound
    (Megatron-LM, arXiv 2104.04473, section 2.2.1).
    """
    if combination.value is not None:
        return combination.value
    assert combination.lower_bound is not None
    training = combination.model.training
    return combination.lower_bound * (1 + Fraction(training.devices - 1, training.batches))
