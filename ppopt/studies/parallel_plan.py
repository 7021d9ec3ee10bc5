"""Plan over the parallelism: one plan per combination, one bound over all of them.

All combinations train the same batch on the same GPUs, so their steps compare by their length. At
first each has a bound that takes no time: its work over its devices. The combination that promises
most is planned first, for a share of the time. The best step found closes every combination whose
bound is no lower, and a plan ends as soon as its own bound gets there. The better half of what is
open at the end of a round goes on, for longer, from its best schedule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ppopt.derivation.derived_model import DerivedModel
from ppopt.errors import InputError
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
from ppopt.studies.plan_result import Plan, RowStatus
from ppopt.studies.plan_space import (
    CHUNKS,
    PLACEMENTS,
    PlanSpace,
    default_recompute,
    default_strategies,
    fields_of,
)

CLOSE = Fraction(1, 10**4)
"""Share of the best step by which a bound is lower and its combination is closed all the same:
derived times are whole microseconds, and combinations differ by their rounding."""
ROUND = 0.5
"""Share of the time left of a round, unless it is of one combination."""
SHORTEST = 0.5
"""Seconds; with less left no plan is begun."""


@dataclass(frozen=True)
class Choices:
    """What the plan of every combination chooses from, as of `ppopt.plan`."""

    placements: tuple[str, ...] = PLACEMENTS
    chunks: tuple[int, ...] = CHUNKS
    recompute: tuple[str, ...] | None = None
    """None: as of `ppopt.plan`."""
    strategies: tuple[str, ...] | None = None
    runtime: str = "any"
    mem_limit: Any = None
    """Of every device; None: all that the GPU has."""

    def space(self, model: DerivedModel) -> PlanSpace:
        """The plan space of a combination."""
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


def plan_parallelism(
    space: ParallelSpace,
    choices: Choices = Choices(),
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
    communication out, which grows with tensor parallelism. Raises InputError where there is no
    combination at all; "infeasible" is a result.
    """
    models, skipped = space.models()
    if not models:
        raise InputError(f"no parallelism is left: {next(iter(skipped.values()))}")
    options = checked_options(
        time_limit, workers, seed, progress=progress, params=params, began=began
    )
    search = _ParallelSearch(models, choices, options)
    search.run()
    best, least = search.best, search.least
    rows = sorted((one.row() for one in search.combinations), key=_place)
    if best is None:
        status = Status.INFEASIBLE if least is None else Status.UNKNOWN
    else:
        status = Status.OPTIMAL if least == best else Status.FEASIBLE
    return ParallelPlan(
        space, status, tuple(rows), least, skipped, options.provenance, options.deadline.spent,
        search.interrupted,
    )  # fmt: skip


def _place(row: ParallelRow) -> tuple[bool, Fraction, bool, Fraction, Parallelism]:
    """Where a row stands: by its step, then by its bound, those that do not fit last."""
    bound = row.lower_bound
    return (
        row.value is None, row.value or Fraction(0), bound is None, bound or Fraction(0),
        row.parallelism,
    )  # fmt: skip


def work_bound(pipeline: Pipeline, layers: Layers) -> Fraction:
    """Work of a step over its devices: no partition, placement or order takes less.

    Of every layer F and the less of BW and of B and W, of all microbatches.
    """
    each = sum(
        (one.forward + min(one.backward, one.backward_input + one.weight) for one in layers.costed),
        Fraction(0),
    )
    return each * pipeline.batches / pipeline.num_devices


@dataclass
class _Combination:
    """What is known of a combination while others are searched."""

    parallelism: Parallelism
    model: DerivedModel
    lower_bound: Fraction | None
    plan: Plan | None = None
    seconds: float = 0.0
    stuck: bool = False
    """Whether its last plan ended before its time was up: more time brings nothing."""

    @property
    def value(self) -> Fraction | None:
        """The shortest step found."""
        return None if self.plan is None else self.plan.value

    def row(self) -> ParallelRow:
        """The same as a result."""
        return ParallelRow(self.parallelism, self.model, self.lower_bound, self.plan, self.seconds)


class _ParallelSearch:
    """One search over combinations."""

    def __init__(
        self,
        models: Mapping[Parallelism, DerivedModel],
        choices: Choices,
        options: SolveOptions,
    ) -> None:
        self._choices, self._options = choices, options
        self.interrupted = False
        self.combinations = [
            _Combination(one, model, work_bound(model.pipeline, model.model))
            for one, model in models.items()
        ]

    @property
    def best(self) -> Fraction | None:
        """The shortest step found."""
        return min((one.value for one in self.combinations if one.value is not None), default=None)

    @property
    def least(self) -> Fraction | None:
        """No step is shorter; None: no combination keeps the memory limit."""
        bounds = [one.lower_bound for one in self.combinations if one.lower_bound is not None]
        found = min(bounds, default=None)
        best = self.best
        return found if best is None or found is None else min(found, best)

    def run(self) -> None:
        """Plan in rounds, each for half of the time left; one combination at any time.

        Of those that are open every round has half as many as the one before (successive halving).
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
        return any(one.plan is not None for one in self.combinations)

    def _open(self) -> list[_Combination]:
        """The combinations that may have a shorter step than the best, by their promise."""
        return sorted(filter(self._is_open, self.combinations), key=_promise)

    def _is_open(self, one: _Combination) -> bool:
        """Whether a combination may have a shorter step than the best."""
        if one.lower_bound is None or one.stuck or self.interrupted:
            return False
        best = self.best
        return best is None or one.lower_bound < best * (1 - CLOSE)

    def _round(self, waiting: Sequence[_Combination], deadline: Deadline) -> None:
        for place, one in enumerate(waiting):
            left = deadline.left
            if self._is_open(one) and (left > SHORTEST or not self._planned):
                others = sum(map(self._is_open, waiting[place + 1 :]))
                self._plan(one, max(SHORTEST, min(left, deadline.turn(others).seconds)))

    def _plan(self, one: _Combination, seconds: float) -> None:
        """Plan a combination for so many seconds, and take over what is better."""
        best, turn = self.best, Deadline.after(seconds, progress=self._options.deadline.progress)
        batches = one.model.training.batches
        found = search_plan_space(
            self._choices.space(one.model),
            Objective.MAKESPAN,
            BackwardKind.MIXED,
            self._options.by(turn),
            known_value=None if best is None else best / batches,
            start=None if one.plan is None else one.plan.schedule,
        )
        took = turn.spent
        one.seconds += took
        one.stuck = took < seconds
        self.interrupted |= found.interrupted
        if all(row.status is RowStatus.INFEASIBLE for row in found.rows):
            one.lower_bound = None
        elif one.lower_bound is not None and found.lower_bound is not None:
            one.lower_bound = max(one.lower_bound, found.lower_bound)
        better = found.value is not None and (one.value is None or found.value < one.value)
        if one.plan is None or better:
            one.plan = found


def _promise(one: _Combination) -> Fraction:
    """Combinations are planned in this order: by the shortest step found, or by an estimate.

    The estimate is the bound, and the idle time of 1F1B: (devices - 1) / microbatches of it
    (Megatron-LM, arXiv 2104.04473, section 2.2.1).
    """
    if one.value is not None:
        return one.value
    assert one.lower_bound is not None
    training = one.model.training
    return one.lower_bound * (1 + Fraction(training.devices - 1, training.batches))
