"""Orders the microbatches of every step, fast enough for a trainer to call it in every step.

A strategy fixes the order of operations on every device. Local search assigns the microbatches to
the positions of this order (`ppopt.solver.microbatch_orders`), with the strategy's exact times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from ppopt.errors import InputError, check_type
from ppopt.problem.arrays import Floats
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.instance import Instance
from ppopt.problem.microbatches import GIVEN_ORDER
from ppopt.problem.objective import Objective
from ppopt.problem.operation import OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.problem import Problem
from ppopt.problem.sequence_lengths import (
    no_slices_of_documents,
    read_lengths,
    read_reference,
    read_share,
    time_factors,
)
from ppopt.problem.traits import Trait, refuse_unhandled
from ppopt.schedule.order_columns import BY_FACTORS, OrderColumns
from ppopt.solver.arguments import ROUND_TRIPS
from ppopt.solver.bounds.microbatch_bounds import Rows, rows_of, times_of_stage
from ppopt.solver.microbatch_orders.local_search import OrderSearch
from ppopt.strategies import resolve
from ppopt.studies.evaluate import evaluate

EVALUATIONS = 1000
"""Orders that are timed for a step by default."""


@dataclass(frozen=True)
class MicrobatchOrder:
    """An order of the microbatches of a step; times in the user's unit."""

    order: tuple[int, ...]
    """Microbatch of the step that runs k-th, by k."""
    makespan: float
    listed_makespan: float
    """Makespan of the order of the list."""
    lower_bound: float | None
    """Lower bound on the makespan of the strategy in any order; None if pairs overlap."""

    @property
    def gain(self) -> float:
        """By which share it has more throughput than the order of the list."""
        return self.listed_makespan / self.makespan - 1


class MicrobatchOrders:
    """Chooses orders of microbatches for the steps of one pipeline under one strategy.

    The operations of every device keep the order that the strategy has for equal microbatches.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        strategy: str = "1f1b",
        *,
        reference_tokens: Any = None,
        attention_share: Any = None,
        evaluations: int = EVALUATIONS,
    ) -> None:
        """The number of microbatches and the memory limit of `pipeline` do not matter.

        `reference_tokens` and `attention_share` convert lengths of documents to times
        (`ppopt.problem.sequence_lengths`). `evaluations` is the number of orders that are timed for
        every step, at least 1. Raises InputError if the strategy is unknown, NotApplicableError if
        it does not apply.
        """
        check_type("pipeline", pipeline, Pipeline)
        if evaluations < 1:
            raise InputError(f"evaluations: {evaluations} is below 1")
        self._pipeline = replace(
            pipeline, microbatch_times=None, microbatch_memory=None, order=GIVEN_ORDER
        )
        refuse_unhandled("order: search", self._pipeline.traits, BY_FACTORS, "leave it out")
        rule = resolve(strategy)
        if rule.routes > 1:
            advice = f"use another strategy than {rule.name}"
            refuse_unhandled("order: search", frozenset({Trait.ROUTES}), BY_FACTORS, advice)
        self._strategy, self._evaluations = strategy, evaluations
        self._share = read_share(attention_share)
        self._reference = None if reference_tokens is None else read_reference(reference_tokens)
        self._steps: dict[int, _Step] = {}

    def of_lengths(self, lengths: object) -> MicrobatchOrder:
        """Order of the microbatches of a step by the lengths of their documents, in tokens.

        `lengths` has one entry per microbatch: its tokens, or a list with the length of every
        document. Raises InputError if `lengths` has another form, or without `reference_tokens`,
        and ConflictError if the pipeline has slices that a share of attention makes unequal.
        """
        if self._share and self._pipeline.num_slices > 1:
            raise no_slices_of_documents()
        reference, documents = read_reference(self._reference), read_lengths(lengths, "lengths")
        factors = time_factors(documents, reference, self._share)
        return self.order([float(factor) for factor in factors])

    def order(self, times: Sequence[float]) -> MicrobatchOrder:
        """Order of the microbatches with these factors on their times, one or more.

        Raises InputError if a factor is not above 0, or NotApplicableError if the strategy does
        not run so many microbatches.
        """
        factors = np.array(times, dtype=np.float64)
        if factors.ndim != 1 or not len(factors) or not (factors > 0).all():
            raise InputError("times: give one factor above 0 per microbatch")
        if not np.isfinite(factors).all():
            raise InputError("times: give finite factors")
        if len(factors) not in self._steps:
            step = replace(self._pipeline, batches=len(factors))
            self._steps[len(factors)] = _Step.of(step, self._strategy)
        return self._steps[len(factors)].order(factors, self._evaluations)


@dataclass(frozen=True)
class _Step:
    """A strategy on a number of equal microbatches."""

    pipeline: Pipeline
    timing: OrderColumns
    whole: bool
    """Whether all its backwards are whole."""

    @classmethod
    def of(cls, pipeline: Pipeline, strategy: str) -> _Step:
        schedule = evaluate(pipeline, strategy)
        refuse_unhandled("order: search", schedule.pipeline.traits, BY_FACTORS, "leave it out")
        whole = OpKind.B not in schedule.kind
        return cls(schedule.pipeline, OrderColumns.of_schedule(schedule), whole)

    def order(self, factors: Floats, evaluations: int) -> MicrobatchOrder:
        """Order of microbatches with these factors."""
        bound = self._bound(factors)
        search = OrderSearch(self.timing, factors, Objective.MAKESPAN)
        best = search.run(evaluations, bound or 0)
        per_unit = self.pipeline.ticks.per_unit
        return MicrobatchOrder(
            best.order,
            best.value / per_unit,
            search.by_rule[0].value / per_unit,
            None if bound is None else min(bound, best.value) / per_unit,
        )

    def _bound(self, factors: Floats) -> float | None:
        """Lower bound on the makespan in any order, in ticks; None if it is not known."""
        if self.rows is None:
            return None
        rows = [
            [[row * factors for row in each] for each in rows_of_kind] for rows_of_kind in self.rows
        ]
        stages = range(self.pipeline.num_stages)
        times = [times_of_stage(self.instance, Objective.MAKESPAN, rows, stage) for stage in stages]
        return max(bound for each in times for bound, _ in each.in_any_order())

    @cached_property
    def instance(self) -> Instance:
        """The operations at factors of 1; the kind of backwards is the one of minimum work."""
        kind = BackwardKind.WHOLE if self.whole else BackwardKind.MIXED
        return Problem(self.pipeline, Objective.MAKESPAN, kind).relaxed_memory.instance

    @cached_property
    def rows(self) -> Rows | None:
        """Times of these operations; None if pairs may save some."""
        return rows_of(self.instance) if ROUND_TRIPS.applies(self.instance.traits) else None
