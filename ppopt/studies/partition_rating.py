"""Rates a partition: how much faster a strategy is with the best partition of the same layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ppopt.errors import InputError
from ppopt.problem.decisions import SEARCH, Decisions
from ppopt.problem.exact import ratio
from ppopt.problem.objective import Objective
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.schedule import Schedule
from ppopt.strategies import Options
from ppopt.studies.best_choice import TIME_LIMIT, StrategyChoice, best_choice
from ppopt.studies.evaluate import evaluate


@dataclass(frozen=True)
class PartitionRating:
    """A partition, and the best one for its strategy, within the memory limits."""

    schedule: Schedule
    """Of the rated partition."""
    value_ticks: int
    """Objective of the schedule, in ticks."""
    choice: StrategyChoice
    """The best partition."""

    @property
    def gain(self) -> float:
        """Throughput of the best partition found over that of the rated one, minus 1.

        0 if the rated partition is the best one. Negative if it is faster beyond the limits.
        """
        best = self.choice.value_ticks
        return ratio(self.value_ticks - best, best)

    @property
    def max_gain(self) -> float | None:
        """Upper bound of the gain of every partition; None without a lower bound."""
        bound = self.choice.bound_ticks
        return ratio(self.value_ticks - bound, bound) if bound else None


def rate_partition(
    pipeline: Pipeline,
    strategy: str,
    objective: Objective = Objective.MAKESPAN,
    options: Options | None = None,
    *,
    time_limit: float = TIME_LIMIT,
    progress: Callable[[str], None] = lambda _: None,
    began: float | None = None,
) -> PartitionRating:
    """Evaluate a strategy with the pipeline's partition, and search the best partition.

    Recompute and placement are those of the pipeline. Raises InputError if its partition is to be
    searched, if it has no layers, or if several losses meet a memory limit: their layers have the
    output matrix where the rated partition has it (`ppopt.problem.layout.with_losses`).
    """
    if pipeline.model is None or Decisions.PARTITION in pipeline.open_decisions:
        raise InputError(
            "partition: the partition of a model in layers is rated; give a layout, counts, or "
            "names per stage"
        )
    heads = sum(layer.role == "head" for layer in pipeline.model.layers)
    if heads > 1 and pipeline.limits is not None:
        raise InputError(
            "partition: a layout with several L is rated without a memory limit; leave "
            "--mem-limit out"
        )
    schedule = evaluate(pipeline, strategy, objective, options)
    choice = best_choice(
        replace(pipeline, partition=SEARCH),
        strategy,
        objective,
        options,
        time_limit=time_limit,
        progress=progress,
        began=began,
    )
    value = schedule.metrics.value_ticks(objective)
    if value <= choice.value_ticks and schedule.fits_limits:
        choice = replace(choice, schedule=schedule, value_ticks=value)
    return PartitionRating(schedule, value, choice)
