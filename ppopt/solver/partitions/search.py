"""The search over partitions: the partition and the schedule of least value, with a bound over all.

Every partition has a bound of its own (`ppopt.solver.partitions.device_bounds`), and dynamic
programs give the partitions in its order. A partition is closed when its bound, or the bound of its
own search, reaches the best value found; the proof is complete when all are. First a few candidates
are scheduled quickly: the most even partitions whose bound is within 0 to 5 % of the least, and
those that move one layer. Then partitions are searched longer and longer, by turns the best found
and those of the least bounds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil
from typing import Protocol

from ppopt.errors import InputError
from ppopt.problem import exact
from ppopt.problem.partition import RULES
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.problem import Problem
from ppopt.schedule.origin import Argument, Certificate
from ppopt.solver import interrupts
from ppopt.solver.bounds.device_bounds import Bound
from ppopt.solver.parameters import SolveParams
from ppopt.solver.partitions.candidates import one_layer_moves
from ppopt.solver.partitions.cut_program import Counts
from ppopt.solver.partitions.partition_bounds import (
    SHARES,
    PartitionBounds,
    bounds_of,
    highest_bound,
    partition_bound,
    quick_bound,
)
from ppopt.solver.partitions.space import FOREVER, PartitionSpace, space_of
from ppopt.solver.result import Progress, Provenance, Result, Status
from ppopt.solver.warm_start import WarmStart
from ppopt.verifier import checked

MOST_MOVES = 40
"""Most partitions that are tried for moving one layer of the best one."""
TOGETHER = 3
"""Partitions of the least bounds that are searched beside the best one, per level of effort."""
FURTHER = 0.01
"""Share by which the order of partitions is followed further; it doubles every time."""

Stop = Callable[[Progress], bool]


class SolveOne(Protocol):
    """The search of one partition: `ppopt.solver.search.search_from`."""

    def __call__(
        self,
        start: WarmStart,
        problem: Problem,
        provenance: Provenance,
        progress: Callable[[Progress], None] | None = None,
        began: float | None = None,
        *,
        stop: Stop | None = None,
        params: SolveParams = SolveParams(),
    ) -> Result:
        """Search the schedule of least value of one partition."""
        ...


@dataclass
class Partition:
    """What is known of one partition; values in the user's unit."""

    counts: Counts
    bound: Fraction
    """No schedule of it is below."""
    result: Result | None = None
    """Its best schedule."""
    level: int = -1
    """Effort of its last search: rounds of all methods; -1: not searched yet."""

    @property
    def value(self) -> Fraction | None:
        """Objective of its best schedule."""
        return None if self.result is None else self.result.value


class PartitionSearch:
    """One search over partitions."""

    def __init__(
        self,
        solve_one: SolveOne,
        problem: Problem,
        provenance: Provenance,
        progress: Callable[[Progress], None] | None,
        began: float,
        stop: Stop | None,
        params: SolveParams,
    ) -> None:
        pipeline = problem.pipeline
        if pipeline.limits is not None:
            pipeline = replace(pipeline, mem_limit=pipeline.limits)
        self._problem = replace(problem, pipeline=pipeline)
        self._solve_one, self._provenance, self._params = solve_one, provenance, params
        self._progress, self._stop, self._began = progress, stop, began
        self._ticks = space_of(self._problem)
        self._known: dict[Counts, Partition] = {}
        self._best: Partition | None = None
        self._seconds = provenance.time_limit
        self._bounds: PartitionBounds | None = None
        self._order: _Order | None = None
        self._least = self._time(quick_bound(self._ticks.space))
        """Bound over all partitions; it never falls."""
        self._none = False
        """Whether every partition is proved to have no schedule."""
        self._interrupted = False

    def run(self) -> Result:
        """Search until proof, until the time is up, or until Ctrl-C."""
        try:
            with interrupts.heard(), suppress(TimeoutError):
                self._solve(self._partition(self._problem.pipeline.counts), 0)
                self._bounds = bounds_of(self._ticks.space, self._began + self._seconds)
                if self._bounds.least == FOREVER:
                    return self._infeasible(self._bounds)
                self._search(self._bounds)
        except KeyboardInterrupt:
            self._interrupted = True
        return self._result()

    def _search(self, bounds: PartitionBounds) -> None:
        self._order = _Order(self._ticks.space, bounds, self._known)
        for counts in self._candidates(bounds):
            self._solve(self._partition(counts), 0)
        self._move_layers()
        level = 1
        while not self._over:
            for partition in self._chosen(level):
                if self._over:
                    return
                self._solve(partition, level)
            level += 1

    @property
    def _over(self) -> bool:
        if self._interrupted or self._left <= 0:
            return True
        self._raise_bound()
        return (
            self._none
            or self._closed
            or (self._stop is not None and self._stop(self._state("partitions")))
        )

    @property
    def _left(self) -> float:
        """Seconds left."""
        return self._began + self._seconds - time.monotonic()

    @property
    def _value(self) -> Fraction | None:
        return None if self._best is None else self._best.value

    @property
    def _closed(self) -> bool:
        return self._value is not None and self._least >= self._value

    def _time(self, ticks: int) -> Fraction:
        return Fraction(ticks, self._ticks.per_unit)

    def _partition(self, counts: Counts) -> Partition:
        """What is known of a partition; its own bound where it is new."""
        if counts not in self._known:
            bound = self._time(partition_bound(self._ticks.space, counts))
            self._known[counts] = Partition(counts, bound)
        return self._known[counts]

    def _is_open(self, partition: Partition) -> bool:
        """Whether it may have a better schedule than the best one."""
        if partition.bound >= self._time(FOREVER):
            return False
        return self._value is None or partition.bound < self._value

    # Which partitions.

    def _candidates(self, bounds: PartitionBounds) -> Iterator[Counts]:
        """Partitions to begin with, each once."""
        seen: set[Counts] = set()
        for counts in self._proposals(bounds):
            if counts is None or counts in seen:
                continue
            seen.add(counts)
            if self._over:
                return
            if self._is_open(self._partition(counts)):
                yield counts

    def _proposals(self, bounds: PartitionBounds) -> Iterator[Counts | None]:
        pipeline = self._problem.pipeline
        for share in SHARES:
            yield bounds.most_even(share)
        for rule in RULES.values():
            with suppress(InputError):
                yield rule(pipeline.model, pipeline.num_stages, None)
        first = next(bounds.in_order(bounds.least), None)
        yield None if first is None else first[1]

    def _move_layers(self) -> None:
        """Move one layer of the best partition over a cut, as long as that is better."""
        tried = 0
        while self._best is not None and not self._over:
            best = self._best
            moves = [self._partition(counts) for counts in one_layer_moves(best.counts)]
            fresh = [one for one in moves if one.level < 0 and self._is_open(one)]
            for partition in sorted(fresh, key=lambda one: (one.bound, one.counts)):
                if self._over or tried >= MOST_MOVES:
                    return
                if self._is_open(partition):
                    self._solve(partition, 0)
                    tried += 1
            if self._best is best:
                return

    def _chosen(self, level: int) -> Iterator[Partition]:
        """Partitions to search at a level of effort: the best, then those of least bounds."""
        best = self._best
        if best is not None and best.level < level and self._is_open(best):
            yield best
        for _ in range(TOGETHER):
            self._follow_order()
            waiting = [
                one for one in self._known.values() if one.level < level and self._is_open(one)
            ]
            if self._over or not waiting:
                return
            yield min(waiting, key=lambda one: (one.bound, one.counts))

    def _follow_order(self) -> None:
        """Take the next partition of the order where no open one has a lower bound."""
        following = self._following()
        if following is not None:
            self._partition(following[1])

    def _following(self) -> tuple[int, Counts] | None:
        """The next unknown partition, if its bound is below those of all open ones."""
        bounds = [one.bound for one in self._known.values() if self._is_open(one)]
        if self._value is not None:
            bounds.append(self._value)
        ceiling = min(bounds, default=None)
        if self._order is None:
            return None
        if ceiling is None:
            return self._order.peek(self._order.highest)
        return self._order.peek(ceil(ceiling * self._ticks.per_unit) - 1)

    # One partition.

    def _solve(self, partition: Partition, level: int) -> None:
        """Search a partition with so many rounds, from what is known of it."""
        if not self._is_open(partition) or partition.level >= level:
            return
        problem = self._of(partition)
        rounds = replace(self._params.rounds, most=level)
        result = self._solve_one(
            self._known_of(partition, problem.pipeline),
            problem,
            replace(self._provenance, time_limit=max(self._left, 0.01)),
            lambda state: self._report(state, partition.counts),
            stop=lambda state: self._enough(state, partition.counts),
            params=replace(self._params, rounds=rounds),
        )
        partition.level = level
        self._learn(partition, result)

    def _of(self, partition: Partition) -> Problem:
        pipeline = replace(self._problem.pipeline, partition=partition.counts)
        return replace(self._problem, pipeline=pipeline)

    def _known_of(self, partition: Partition, pipeline: Pipeline) -> WarmStart:
        bound = Bound(
            ceil(partition.bound * pipeline.ticks.per_unit),
            "one of its devices needs that long",
            Certificate(Argument.ENDS),
        )
        schedule = None if partition.result is None else partition.result.schedule
        return WarmStart(schedules=() if schedule is None else (schedule,), bound=bound)

    def _learn(self, partition: Partition, result: Result) -> None:
        if result.status is Status.INFEASIBLE:
            partition.bound = self._time(FOREVER)
        elif result.lower_bound is not None:
            partition.bound = max(partition.bound, result.lower_bound)
        if result.value is not None and (partition.value is None or result.value < partition.value):
            partition.result = result
        if partition.value is not None and (self._value is None or partition.value < self._value):
            self._best = partition
        self._interrupted |= result.interrupted

    def _raise_bound(self) -> None:
        """The least bound of all partitions that are not closed; the best value where all are."""
        if self._bounds is None or self._order is None:
            return
        bounds = [one.bound for one in self._known.values() if self._is_open(one)]
        following = self._following()
        if following is not None:
            bounds.append(self._time(following[0]))
        if not self._bounds.complete:
            bounds.append(self._time(self._bounds.least))
        self._none = not bounds and self._value is None
        known = min(bounds, default=self._value)
        if known is not None:
            self._least = max(self._least, known)

    # What is told.

    def _state(self, phase: str, value: Fraction | None = None) -> Progress:
        found = [one for one in (value, self._value) if one is not None]
        seconds = time.monotonic() - self._began
        return Progress(seconds, phase, min(found, default=None), self._least)

    def _report(self, state: Progress, counts: Counts) -> None:
        if self._progress is not None:
            self._progress(self._state(f"{_words(counts)}, {state.phase}", state.value))

    def _enough(self, state: Progress, counts: Counts) -> bool:
        """Whether one partition can no longer be better, or the caller has enough."""
        if self._value is not None and state.lower_bound >= self._value:
            return True
        return self._stop is not None and self._stop(self._state(_words(counts), state.value))

    def _infeasible(self, bounds: PartitionBounds) -> Result:
        least = Fraction(bounds.least_limit, self._ticks.memory_per_unit)
        words = "the least limit that works on every device is"
        if not bounds.complete or self._ticks.passing:
            words = "one that works on every device is at least"
        return replace(
            self._empty(Status.INFEASIBLE),
            lower_bound=None,
            proof=f"no partition of {len(self._problem.pipeline.model)} layers keeps the limits "
            f"even for one microbatch at a time; {words} {exact.plain(least)}",
            certificate=Certificate(Argument.PARTITIONS),
        )

    def _empty(self, status: Status) -> Result:
        return Result(
            pipeline=self._problem.pipeline,
            objective=self._problem.objective,
            backward_kind=self._problem.backward_kind,
            status=status,
            schedule=None,
            value=None,
            lower_bound=self._least,
            proof=self._proof(),
            certificate=Certificate(Argument.PARTITIONS),
            provenance=self._provenance,
            solve_seconds=time.monotonic() - self._began,
            interrupted=self._interrupted,
        )

    def _proof(self) -> str:
        """The argument behind the bound over all partitions, in words."""
        space = self._ticks.space
        searched = sum(one.level >= 0 for one in self._known.values())
        return (
            f"over all {space.size} partitions of {space.num_layers} layers into "
            f"{space.num_stages} stages: every one but the {searched} searched has a device that "
            "alone needs as long, by head, work, forced idle time and way out; the searches of "
            f"these {searched} found as much"
        )

    def _result(self) -> Result:
        """The best schedule, with the bound over all partitions."""
        if self._none and self._bounds is not None:
            return self._infeasible(self._bounds)
        if self._best is None or self._best.result is None:
            return self._empty(Status.UNKNOWN)
        found = self._best.result
        assert found.value is not None and found.schedule is not None
        result = replace(
            found,
            status=Status.OPTIMAL if self._closed else Status.FEASIBLE,
            lower_bound=min(self._least, found.value),
            proof=self._proof(),
            certificate=Certificate(Argument.PARTITIONS),
            provenance=self._provenance,
            solve_seconds=time.monotonic() - self._began,
            interrupted=self._interrupted,
        )
        made = replace(found.schedule, origin=result.origin())
        return replace(result, schedule=checked(made))


class _Order:
    """Partitions in the order of their bounds, followed as far as is asked for."""

    def __init__(
        self, space: PartitionSpace, bounds: PartitionBounds, known: Mapping[Counts, Partition]
    ) -> None:
        """Partitions that are known are left out."""
        self._bounds, self._known = bounds, known
        self._reached = bounds.least
        """Bounds up to this are in the order at hand."""
        self.highest = highest_bound(space)
        self._share = FURTHER
        self._rest = bounds.in_order(self._reached)
        self._next: tuple[int, Counts] | None = None

    def peek(self, ceiling: int) -> tuple[int, Counts] | None:
        """The next partition and its bound; None: no more have bounds up to the ceiling."""
        ceiling = min(ceiling, self.highest)
        while self._next is None or self._next[1] in self._known:
            self._next = next(self._rest, None)
            if self._next is None:
                if self._reached >= ceiling or not self._bounds.complete:
                    return None
                self._reached = min(ceiling, self._reached + 1 + int(self._share * self._reached))
                self._share *= 2
                self._rest = self._bounds.in_order(self._reached)
        return self._next if self._next[0] <= ceiling else None


def _words(counts: Counts) -> str:
    return f"partition {','.join(map(str, counts))}"
