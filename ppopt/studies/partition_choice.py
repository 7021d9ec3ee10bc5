"""The best partition for a hand strategy, with a bound over all partitions.

Partitions are evaluated in the order of a bound that holds for every schedule of theirs
(`ppopt.solver.partitions`), after a few good candidates. Once the next bound reaches the best value
found, no partition is better: with few partitions that is soon, with many a gap may remain.

Where recompute is to be searched too, every partition is evaluated with as little of it as keeps
the memory limits (`ppopt.studies.recompute_choice`), and those that keep them come first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from ppopt.errors import not_applicable
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.objective import Objective
from ppopt.problem.partition import SEARCH, Counts, all_by_rule
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.problem import Problem
from ppopt.problem.recompute import SEARCH_RECOMPUTE
from ppopt.schedule.schedule import Schedule
from ppopt.solver import interrupts
from ppopt.solver.partitions.candidates import layer_moves
from ppopt.solver.partitions.partition_bounds import (
    SHARES,
    bounds_of,
    highest_bound,
    quick_bound,
)
from ppopt.solver.partitions.space import FOREVER, PartitionTicks, space_of
from ppopt.strategies import Options, resolve
from ppopt.studies.evaluate import evaluate, objective_value
from ppopt.studies.recompute_choice import choose_recompute

TIME_LIMIT = 30.0
"""Default seconds of the choice of a partition."""


@dataclass(frozen=True)
class PartitionChoice:
    """The best partition found for a strategy."""

    schedule: Schedule
    """The strategy on the best partition; its pipeline has the layers per stage (`counts`)."""
    value: Fraction
    """Objective of the schedule, in the user's unit."""
    lower_bound: Fraction
    """The strategy has no lower value on any partition, in the user's unit; where recompute is
    chosen, with as little of it as keeps the limits."""
    partitions: int
    """Number of partitions."""
    evaluated: int
    """Number of those on which the strategy was timed."""
    interrupted: bool = False
    """Whether Ctrl-C ended the choice."""

    @property
    def proved(self) -> bool:
        """Whether no partition is better."""
        return self.lower_bound >= self.value

    @property
    def gap(self) -> Fraction:
        """(value - lower_bound) / value."""
        return (self.value - self.lower_bound) / self.value if self.value else Fraction(0)


def choose_partition(
    pipeline: Pipeline,
    strategy: str,
    objective: Objective | str = Objective.MAKESPAN,
    options: Options | None = None,
    *,
    time_limit: float = TIME_LIMIT,
    progress: Callable[[str], None] = lambda _: None,
    began: float | None = None,
) -> PartitionChoice:
    """Choose the partition on which a strategy has the least value; limits are not enforced.

    The pipeline has a model in layers; its own partition does not matter. With
    `recompute="search"` the layers that recompute are chosen too, and a partition that keeps the
    limits comes before all that do not. `time_limit` is in seconds, from `began` (of
    `time.monotonic`) or else from now. Ctrl-C ends the choice with the best so far. Raises
    InputError where the strategy is unknown, and NotApplicableError where it does not apply or
    partitions of its pipeline are not searched (routes, slices, a first backward in W).
    """
    deadline = (time.monotonic() if began is None else began) + time_limit
    return _Choice(
        pipeline, strategy, Objective(objective), options or Options(), deadline, progress
    ).run()


class _Choice:
    """One choice under way."""

    def __init__(
        self,
        pipeline: Pipeline,
        strategy: str,
        objective: Objective,
        options: Options,
        deadline: float,
        progress: Callable[[str], None],
    ) -> None:
        self._pipeline, self._strategy = pipeline, strategy
        self._objective, self._options, self._progress = objective, options, progress
        self._deadline = deadline
        self._recomputing = pipeline.recompute == SEARCH_RECOMPUTE
        if self._recomputing:
            self._pipeline = replace(pipeline, mem_limit=pipeline.limits)
        self._values: dict[Counts, Fraction] = {}
        """Of every partition evaluated; where recompute is chosen, of those within the limits."""
        self._evaluated: set[Counts] = set()
        self._best: Schedule | None = None
        rule = resolve(strategy)
        with not_applicable():
            free = replace(pipeline, mem_limit=None, partition=SEARCH, **self._without_recompute)
        self._placed = rule.apply(free, self._options)
        self._ticks = self._space(fused=rule.fused)
        self._bound = quick_bound(self._ticks.space)

    @property
    def _without_recompute(self) -> dict[str, Any]:
        """Fields of the pipeline in which nothing recomputes, where that is to be chosen."""
        if not self._recomputing:
            return {}
        model = self._pipeline.model.recomputing(lambda _: False)
        return {"model": model, "recompute": None}

    def _space(self, *, fused: bool) -> PartitionTicks:
        """Partitions of the strategy's stages; where it splits backwards, some may be whole."""
        ticks = space_of(Problem(self._placed, self._objective, BackwardKind.uniform(fused=fused)))
        return ticks._replace(space=replace(ticks.space, whole=True))

    def run(self) -> PartitionChoice:
        interrupted = False
        try:
            with interrupts.heard(), suppress(TimeoutError):
                self._search()
        except KeyboardInterrupt:
            interrupted = True
        if self._best is None:
            self._best = self._schedule(self._placed.counts)
        return self._found(self._best, interrupted=interrupted)

    def _search(self) -> None:
        """Candidates, one-layer moves, then all partitions in the order of their bounds."""
        self._evaluate(self._placed.counts)
        bounds = bounds_of(self._ticks.space, self._deadline)
        self._bound = bounds.least
        for share in SHARES:
            self._evaluate(bounds.most_even(share))
        speeds = tuple(self._placed.device_speed[host] for host in self._placed.hosts[0])
        for counts in all_by_rule(self._placed.model, self._placed.num_stages, speeds):
            self._evaluate(counts)
        self._move_layers()
        if bounds.complete:
            self._in_order(bounds.in_order(self._ceiling))

    @property
    def _ceiling(self) -> int:
        """Bounds up to this are looked at: none above can be better."""
        highest = highest_bound(self._ticks.space)
        best = min(self._values.values(), default=None)
        return highest if best is None else min(int(best * self._ticks.per_unit), highest)

    def _evaluate(self, counts: Counts | None) -> None:
        """Time the strategy on a partition, once."""
        if counts is None or counts in self._evaluated:
            return
        if time.monotonic() > self._deadline and self._evaluated:
            raise TimeoutError
        made = self._schedule(counts)
        self._evaluated.add(counts)
        self._progress(f"strategy {self._strategy}, {len(self._evaluated)} partitions")
        if self._recomputing and not made.fits_limits:
            self._best = self._best or made
            return
        value = objective_value(made, self._objective)
        if not self._values or value < min(self._values.values()):
            self._best = made
        self._values[counts] = value

    def _schedule(self, counts: Counts) -> Schedule:
        pipeline = replace(self._pipeline, partition=counts)
        make = choose_recompute if self._recomputing else evaluate
        return make(pipeline, self._strategy, self._objective, self._options)

    def _move_layers(self) -> None:
        """Move one layer of the best partition over a cut, as long as that is better."""
        before = None
        while self._best is not None and before is not self._best:
            before = self._best
            for counts in layer_moves(before.pipeline.counts):
                self._evaluate(counts)

    def _in_order(self, order: Iterator[tuple[int, Counts]]) -> None:
        """Evaluate partitions until the next bound reaches the best value."""
        for bound, counts in order:
            self._bound = bound
            if bound >= self._ceiling:
                return
            self._evaluate(counts)
        self._bound = FOREVER

    def _found(self, schedule: Schedule, *, interrupted: bool) -> PartitionChoice:
        value = min(self._values.values(), default=None)
        if value is None:
            value = objective_value(schedule, self._objective)
        every = len(self._evaluated) == self._ticks.space.size and not self._recomputing
        bound = value if every else Fraction(self._bound, self._ticks.per_unit)
        return PartitionChoice(
            schedule=schedule,
            value=value,
            lower_bound=min(value, bound),
            partitions=self._ticks.space.size,
            evaluated=len(self._evaluated),
            interrupted=interrupted,
        )
