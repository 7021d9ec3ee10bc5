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
from typing import Any, NamedTuple

from ppopt.problem.link_mode import LinkMode
from ppopt.problem.objective import Objective
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.problem import Problem
from ppopt.schedule import timing
from ppopt.schedule.orders import Orders
from ppopt.schedule.schedule import Schedule
from ppopt.solver import interrupts
from ppopt.solver.bounds.device_bounds import STREAMS
from ppopt.solver.heuristics.construction import initial_orders
from ppopt.solver.heuristics.stream_local_search import improve
from ppopt.solver.heuristics.stream_network import StreamNetwork
from ppopt.solver.parameters import SolveParams
from ppopt.solver.result import Progress, Provenance, Result, Status
from ppopt.solver.warm_start import WarmStart
from ppopt.verifier import checked

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
    """Search a problem whose links are streams; arguments as those of `search_from`.

    Ctrl-C ends it with the best schedule so far, whichever part of it runs.
    """
    began = time.monotonic() if began is None else began
    watch = _Watch(began, began + provenance.time_limit, progress, stop)
    with interrupts.recorded(inner=True) as pressed:
        found = _search(solve, start, problem, provenance, watch, params)
    return replace(found, interrupted=True) if pressed else found


def _search(
    solve: Solve,
    start: WarmStart,
    problem: Problem,
    provenance: Provenance,
    watch: _Watch,
    params: SolveParams,
) -> Result:
    now, progress, stop = time.monotonic(), watch.progress, watch.stop
    delays = replace(problem, pipeline=as_delays(problem.pipeline))
    share = params.streams.delay_share * max(0.0, watch.deadline - now)
    told = None if progress is None else lambda seen: progress(seen._replace(value=None))
    asked = None if stop is None else lambda seen: stop(seen._replace(value=None))
    given = replace(provenance, time_limit=max(share, 0.01))
    found = solve(_start(start, delays), delays, given, told, now, stop=asked, params=params)
    own: dict[str, Any] = {"pipeline": problem.pipeline, "provenance": provenance}
    if found.schedule is None:
        proof = found.proof if found.status is Status.INFEASIBLE else found.proof + STREAMS
        return replace(found, **own, proof=proof)
    run = _Run(problem, found, watch, params, provenance)
    run.take(found.schedule.orders)
    for schedule in _known(start, problem.pipeline):
        run.keep(schedule)
    if not run.over and not found.interrupted:
        run.others(solve, delays)
    if not run.over and not found.interrupted:
        run.improve()
    hint = start.record(problem, followed=True)
    return run.result(own | {"hint": hint, "solve_seconds": time.monotonic() - watch.began})


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


class _Watch(NamedTuple):
    """When a search began and ends, and who follows it."""

    began: float
    deadline: float
    progress: Callable[[Progress], None] | None
    stop: Stop | None


class _Run:
    """The best schedule over streams so far."""

    def __init__(
        self,
        problem: Problem,
        found: Result,
        watch: _Watch,
        params: SolveParams,
        provenance: Provenance,
    ) -> None:
        self.problem, self.found, self.watch = problem, found, watch
        self.params, self.provenance = params, provenance
        assert found.lower_bound is not None
        self.bound = int(found.lower_bound * problem.pipeline.ticks.per_unit)
        self.best: Schedule | None = None
        self.value: int | None = None

    @property
    def over(self) -> bool:
        """Whether time is up, the value is the bound, or somebody ends the search."""
        late = time.monotonic() >= self.watch.deadline
        return late or self.value == self.bound or self._stopped(self.value)

    def _stopped(self, value: int | None) -> bool:
        """Whether Ctrl-C or the caller ends the search."""
        if interrupts.pressed():
            return True
        stop = self.watch.stop
        return stop is not None and stop(self._state(value))

    def _state(self, value: int | None) -> Progress:
        ticks, seconds = self.problem.pipeline.ticks, time.monotonic() - self.watch.began
        shown = None if value is None else ticks.time(value)
        return Progress(seconds, "orders of links", shown, ticks.time(self.bound))

    def take(self, orders: Orders) -> None:
        """Time orders over streams, and keep them if they are better and fit."""
        self.keep(timing.schedule(self.problem.pipeline, orders, self.problem.objective))

    def keep(self, schedule: Schedule) -> None:
        value = schedule.metrics.value(self.problem.objective)
        if schedule.fits_limits and (self.value is None or value < self.value):
            self.best, self.value = schedule, value

    def others(self, solve: Solve, delays: Problem) -> None:
        """Hand strategies, and searches over longer delays."""
        for one in self.problem.restrictions:
            reduced = replace(one, pipeline=delays.pipeline)
            for orders in initial_orders(reduced, self.watch.deadline):
                if orders is not None and not self.over:
                    self.take(orders)
        share = self.params.streams.factor_share * self.provenance.time_limit
        for factor in self.params.streams.factors:
            left = self.watch.deadline - time.monotonic()
            if self.over or left <= 0:
                return
            longer = replace(delays, pipeline=_stretched(delays.pipeline, factor))
            given = replace(self.provenance, time_limit=max(min(left, share), 0.01))
            made = solve(WarmStart(), longer, given, params=self.params).schedule
            if made is not None:
                self.take(made.orders)

    def improve(self) -> None:
        """Local search until time is up, the value is the bound, or its steps are done.

        It shortens the makespan. Where the objective is the device span, the orders that it ends
        with are kept if they are better by that.
        """
        if self.best is None:
            return
        network = StreamNetwork(self.best)
        most = self.params.streams.most_steps(self.params.rounds.most)
        spans = self.problem.objective is Objective.DEVICE_SPAN
        steps, told = 0, inf

        def over(length: int) -> bool:
            nonlocal steps, told
            value = self.value if spans and self.value is not None else length
            steps += 1
            if value < told and self.watch.progress is not None:
                told = value
                self.watch.progress(self._state(value))
            if value <= self.bound or time.monotonic() >= self.watch.deadline:
                return True
            return steps > most or (steps % 256 == 0 and self._stopped(value))

        sequences = improve(network, self.provenance.seed, self.params.streams, over)
        self.keep(network.schedule(sequences, self.problem.objective))

    def result(self, own: dict[str, Any]) -> Result:
        found, pipeline = self.found, self.problem.pipeline
        closed = self.value == self.bound
        status = Status.OPTIMAL if closed else Status.FEASIBLE
        if self.best is None:
            status = Status.UNKNOWN
        value = None if self.value is None else pipeline.ticks.time(self.value)
        made = replace(
            found,
            **own,
            status=status,
            schedule=None,
            value=value,
            proof=found.proof + STREAMS,
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
