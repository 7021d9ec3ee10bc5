"""The search over streams: search where links are delays, then time and improve over streams.

Streams only delay more (`ppopt.problem.link_mode`): without its transfers, every schedule over
streams is one over delays. So the bound of the search over delays holds, and its words say what it
is a bound of. Schedules come from four places, and all are timed over streams: that search, one
over longer delays (as if every transfer waited for another), hand strategies, and known schedules.
The best one is improved by local search over the orders of devices and links.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from math import inf
from typing import Any

from ppopt.problem.link_mode import LinkMode
from ppopt.problem.objective import Objective
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.problem import Problem
from ppopt.schedule import timing
from ppopt.schedule.orders import Orders
from ppopt.schedule.schedule import Schedule
from ppopt.solver.heuristics.construction import initial_orders
from ppopt.solver.heuristics.stream_local_search import improve
from ppopt.solver.heuristics.stream_network import StreamNetwork
from ppopt.solver.parameters import SolveParams
from ppopt.solver.result import Progress, Provenance, Result, Status
from ppopt.solver.warm_start import WarmStart
from ppopt.verifier import checked

SCOPE = "; streams only delay more than delays do, so this bound of the delays holds for them"
"""Words of every proof over streams."""
Stop = Callable[[Progress], bool]
Solve = Callable[..., Result]
"""`ppopt.solver.search.search_from`."""


def search_streams(
    solve: Solve,
    start: WarmStart,
    problem: Problem,
    provenance: Provenance,
    progress: Callable[[Progress], None] | None,
    began: float | None,
    stop: Stop | None,
    params: SolveParams,
) -> Result:
    """Search a problem whose links are streams; arguments as those of `search_from`."""
    began = time.monotonic() if began is None else began
    delays = replace(problem, pipeline=as_delays(problem.pipeline))
    share = params.streams.delay_share * provenance.time_limit
    told = None if progress is None else lambda seen: progress(seen._replace(value=None))
    given = replace(provenance, time_limit=share)
    found = solve(_start(start, delays), delays, given, told, began, stop=stop, params=params)
    own: dict[str, Any] = {"pipeline": problem.pipeline, "provenance": provenance}
    if found.schedule is None:
        proof = found.proof if found.status is Status.INFEASIBLE else found.proof + SCOPE
        return replace(found, **own, proof=proof)
    run = _Run(problem, found, began + provenance.time_limit, params, provenance.seed)
    run.take(found.schedule.orders)
    for schedule in _known(start, problem.pipeline):
        run.keep(schedule)
    if not run.over and not found.interrupted:
        run.others(solve, delays, provenance, stop)
    if problem.objective is Objective.MAKESPAN and not run.over and not found.interrupted:
        run.improve(stop, progress)
    hint = start.record(problem, followed=True)
    return run.result(own | {"hint": hint, "solve_seconds": time.monotonic() - began})


def as_delays(pipeline: Pipeline) -> Pipeline:
    """The same pipeline with links that are delays."""
    return replace(pipeline, link_mode=LinkMode.DELAY)


def _start(start: WarmStart, delays: Problem) -> WarmStart:
    """What is known, over delays: known schedules keep their times without their transfers."""

    def without(made: Schedule) -> Schedule:
        columns = (*made.columns, made.slice, made.pair)
        return Schedule.from_columns(delays.pipeline, *columns, origin=made.origin)

    hint = start.hint and start.hint._replace(given=without(start.hint.given))
    return start._replace(hint=hint, schedules=tuple(map(without, start.schedules)))


def _known(start: WarmStart, pipeline: Pipeline) -> Iterator[Schedule]:
    """Known schedules over streams."""
    given = [start.hint.given] if start.hint is not None and start.hint.moved is None else []
    for schedule in (*given, *start.schedules):
        if schedule.pipeline.streams:
            yield replace(schedule, pipeline=pipeline)


class _Run:
    """The best schedule over streams so far."""

    def __init__(
        self, problem: Problem, found: Result, deadline: float, params: SolveParams, seed: int
    ) -> None:
        self.problem, self.found, self.deadline = problem, found, deadline
        self.params, self.seed = params, seed
        assert found.lower_bound is not None
        self.bound = int(found.lower_bound * problem.pipeline.ticks.per_unit)
        self.best: Schedule | None = None
        self.value: float = inf

    @property
    def over(self) -> bool:
        """Whether time is up, or the value is the bound."""
        return bool(self.value <= self.bound) or time.monotonic() >= self.deadline

    def take(self, orders: Orders) -> None:
        """Time orders over streams, and keep them if they are better and fit."""
        self.keep(timing.schedule(self.problem.pipeline, orders, self.problem.objective))

    def keep(self, schedule: Schedule) -> None:
        value = schedule.metrics.value(self.problem.objective)
        if value < self.value and schedule.fits_limits:
            self.best, self.value = schedule, value

    def others(
        self, solve: Solve, delays: Problem, provenance: Provenance, stop: Stop | None
    ) -> None:
        """Hand strategies, and searches over longer delays."""
        for one in self.problem.restrictions:
            reduced = replace(one, pipeline=delays.pipeline)
            for orders in initial_orders(reduced, self.deadline):
                if orders is not None and not self.over:
                    self.take(orders)
        for factor in self.params.streams.factors:
            left = self.deadline - time.monotonic()
            if self.over or left <= 0:
                return
            seconds = min(left, self.params.streams.factor_share * provenance.time_limit)
            longer = replace(delays, pipeline=_stretched(delays.pipeline, factor))
            given = replace(provenance, time_limit=max(seconds, 0.01))
            made = solve(WarmStart(), longer, given, stop=stop, params=self.params).schedule
            if made is not None:
                self.take(made.orders)

    def improve(self, stop: Stop | None, progress: Callable[[Progress], None] | None) -> None:
        """Local search until time is up or the value is the bound."""
        if self.best is None:
            return
        network = StreamNetwork(self.best)
        ticks, began = self.problem.pipeline.ticks, time.monotonic()
        bound, steps, told = ticks.time(self.bound), 0, inf

        def over(value: int) -> bool:
            nonlocal steps, told
            steps += 1
            if value < told and progress is not None:
                told = value
                seconds = time.monotonic() - began
                progress(Progress(seconds, "orders of links", ticks.time(value), bound))
            if value <= self.bound or time.monotonic() >= self.deadline:
                return True
            if steps % 256 == 0 and stop is not None:
                seconds = time.monotonic() - began
                return stop(Progress(seconds, "orders of links", ticks.time(value), bound))
            return steps > self.params.streams.steps

        sequences = improve(network, self.seed, self.params.streams, over)
        self.keep(network.schedule(sequences, self.problem.objective))

    def result(self, own: dict[str, Any]) -> Result:
        found, pipeline = self.found, self.problem.pipeline
        closed = self.value == self.bound
        status = Status.OPTIMAL if closed else Status.FEASIBLE
        if self.best is None:
            status = Status.UNKNOWN
        value = None if self.best is None else pipeline.ticks.time(int(self.value))
        made = replace(
            found,
            **own,
            status=status,
            schedule=None,
            value=value,
            proof=found.proof + SCOPE,
        )
        if self.best is None:
            return made
        best = replace(self.best, origin=made.origin())
        return replace(made, schedule=checked(best))


def _stretched(pipeline: Pipeline, factor: Any) -> Pipeline:
    """The pipeline with longer delays."""

    def longer(given: Any) -> Any:
        if given is None:
            return None
        return tuple(map(longer, given)) if isinstance(given, tuple) else given * factor

    plain = pipeline.without_model()
    return replace(plain, p2p=longer(plain.p2p), backward_p2p=longer(plain.backward_p2p))
