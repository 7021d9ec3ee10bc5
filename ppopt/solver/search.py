"""The search: heuristics, bounds and exact methods take turns on one incumbent."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache, cached_property
from importlib import metadata
from typing import TYPE_CHECKING, Any

from ppopt import processors
from ppopt.errors import InputError
from ppopt.loggers import logger
from ppopt.problem import placement as placements
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.objective import Objective
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.problem import Problem
from ppopt.schedule import list_scheduling, timing
from ppopt.schedule.origin import Argument, Certificate, HintRecord
from ppopt.schedule.schedule import Schedule
from ppopt.solver import interrupts
from ppopt.solver import warm_start as warm_starts
from ppopt.solver.bounds import device_bounds
from ppopt.solver.budget import Budget, Clock
from ppopt.solver.choices import NO_CHOICE, Choice, candidates_of
from ppopt.solver.heuristics.construction import (
    HandStrategies,
    ListScheduling,
    MixedHandStrategies,
)
from ppopt.solver.heuristics.steady_state import ShortRunUnrolling
from ppopt.solver.incumbent import Incumbent
from ppopt.solver.method import Method, Outcome, has_pairs, supported
from ppopt.solver.parameters import SolveParams
from ppopt.solver.relaxation import pairs
from ppopt.solver.result import Progress, Provenance, Result, Status
from ppopt.solver.turns import Turn, Turns, alternate
from ppopt.solver.views import BackwardPool, View, backward_pools, links_as_delays, on
from ppopt.solver.warm_start import WarmStart
from ppopt.verifier import checked

if TYPE_CHECKING:
    from ppopt.solver.configurations import Candidates

TIME_LIMIT = 60.0
"""Default seconds of a search."""
MOST_OPERATIONS = 2_000_000
"""Largest number of operations of a problem."""
MOST_WORKERS = 1024


_LOG = logger(__name__)
Callback = Callable[[Progress], None]
Stop = Callable[[Progress], bool]


def solve(
    pipeline: Pipeline,
    *,
    mem_limit: Any = None,
    placement: str | None = None,
    objective: Objective | str = Objective.MAKESPAN,
    backward_kind: BackwardKind | str | None = None,
    time_limit: float = TIME_LIMIT,
    workers: int | None = None,
    seed: int = 0,
    hint: Schedule | None = None,
    progress: Callback | None = None,
    stop: Stop | None = None,
    params: SolveParams = SolveParams(),
    began: float | None = None,
) -> Result:
    """Search the schedule of least makespan or device span within the memory limits.

    Starts are whole ticks: the unit of time, divided so that all times are whole. Other starts gain
    nothing for makespan, and less than a tick for device span.

    The search space: any order on every device, and of every stage and microbatch either BW or B
    and W (`backward_kind` mixed, the default), B and W (split) or BW (whole). `mem_limit`, when
    given, replaces the limit of the pipeline. `time_limit` is in seconds, from `began` (of
    `time.monotonic`) or else from now. `workers` defaults to the processors available; with more
    than one, and several stages per device, part of the search runs in a process of its own.

    A pipeline of `partition="search"` has its partition chosen with the schedule, and the bound is
    over all partitions (`ppopt.solver.partitions`).
    With `placement="search"`, here or in the pipeline, the placement is chosen with the schedule,
    and the bound is over all placements that use all devices (`ppopt.solver.placements`).
    With `recompute="search"` it is chosen which layers of every stage recompute, and the bound is
    over all choices (`ppopt.solver.recompute`). They go together: each placement then has
    partitions and choices of its own.
    `hint` is a schedule to start from (see `ppopt.solver.warm_start`): the result is never worse
    than a hint that is in the search space and keeps the limits, and says by how much it is better.
    A search of partition, placement or recompute starts from the hint's own, among all others.
    `progress` is called whenever the value or the bound improves. `stop` (see `ppopt.stop`) is
    polled between steps. Ctrl-C ends the search and returns the best schedule so far. Raises
    InputError on misuse only; "infeasible" is a result.
    """
    began = time.monotonic() if began is None else began
    if mem_limit is not None:
        pipeline = replace(pipeline, mem_limit=mem_limit)
    provenance = provenance_of(time_limit, workers, seed)
    kind = BackwardKind.read(backward_kind)
    problem = problem_of(pipeline, Objective(objective), kind)
    _check_names(params.without)
    if placement not in (None, placements.SEARCH):
        raise InputError(f"placement: {placement!r} is not search; give it to ppopt.Pipeline")
    further = NO_CHOICE if placement is None else Choice.PLACEMENT
    candidates = candidates_of(problem, began + time_limit, further)
    if candidates is not None:
        from ppopt.solver.configurations import ConfigurationSearch, SolveRequest  # noqa: PLC0415

        request = SolveRequest(search_from, problem, provenance, progress, began, stop, params)
        if hint is not None:
            known, record = _known_configuration(candidates, problem, hint)
            request = replace(request, known=(known,), hint=record)
        return ConfigurationSearch(candidates, request).run()
    start = WarmStart() if hint is None else WarmStart(warm_starts.read_hint(problem, hint))
    return search_from(start, problem, provenance, progress, began, stop=stop, params=params)


def _known_configuration(
    candidates: Candidates, problem: Problem, hint: Schedule
) -> tuple[Schedule, HintRecord]:
    """A hint on the pipeline of its configuration, and as the result reports it.

    Raises InputError where it is of none of the configurations.
    """
    given, asked = hint.pipeline, problem.pipeline
    if asked.model is not None and given.model is None:
        raise InputError("hint: its stages have no layers; give a schedule of a model in layers")
    same = all(
        own == other
        for own, other in (
            (given.num_stages, asked.num_stages),
            (given.num_devices, asked.num_devices),
            (len(given.model or ()), len(asked.model or ())),
        )
    )
    key = candidates.key(given) if same else None
    if key is None:
        raise InputError(
            f"hint: its {candidates.name} is none of those searched; give one of the same layers "
            "and devices"
        )
    own = replace(problem, pipeline=candidates.pipeline(key))
    found = warm_starts.read_hint(own, hint)
    made = found.given
    if found.moved is not None:
        made = timing.schedule(own.pipeline, found.moved, problem.objective)
    return made, found.record(own, followed=True)


def _check_names(without: frozenset[str]) -> None:
    if without:
        from ppopt.solver.portfolio import NAMES  # noqa: PLC0415  ortools takes long to load

        unknown = sorted(without - set(NAMES))
        if unknown:
            raise InputError(f"without: no method is called {unknown[0]!r}; known: {list(NAMES)}")


def problem_of(pipeline: Pipeline, objective: Objective, kind: BackwardKind) -> Problem:
    """The problem of a search; raises InputError if it is too large."""
    problem = Problem(pipeline, objective, kind)
    if problem.operations > MOST_OPERATIONS:
        raise InputError(
            f"batches: {pipeline.batches} make {problem.operations} operations, a search takes at "
            f"most {MOST_OPERATIONS}; use fewer batches: the middle of a long run repeats"
        )
    return problem


def provenance_of(time_limit: float, workers: int | None, seed: int) -> Provenance:
    """Check the settings of a search and record them with versions; raises InputError."""
    workers = processors.available() if workers is None else workers
    if not 0 < time_limit < float("inf"):
        raise InputError(f"time_limit: {time_limit} is not above 0 seconds, or not finite")
    if not 1 <= workers <= MOST_WORKERS:
        raise InputError(f"workers: {workers} is not between 1 and {MOST_WORKERS}")
    if not 0 <= seed < 2**31:
        raise InputError(f"seed: {seed} is not between 0 and 2^31 - 1")
    return Provenance(seed, workers, time_limit, versions())


def search_from(
    start: WarmStart,
    problem: Problem,
    provenance: Provenance,
    progress: Callback | None = None,
    began: float | None = None,
    *,
    stop: Stop | None = None,
    params: SolveParams = SolveParams(),
) -> Result:
    """Search from known schedules and a known bound of this problem.

    The time limit of `provenance` counts from `began` (of `time.monotonic`), by default from now.
    """
    search = Search(problem, provenance, params, progress, stop, began)
    search.run(start)
    with interrupts.recorded() as pressed:
        hinted = start.record(problem, followed=not search.incumbent.infeasible)
        result = _result(search, provenance, hinted)
        _LOG.info(
            "%s: value %s, lower bound %s, %.1f s",
            *(result.status, result.value, result.lower_bound, result.solve_seconds),
        )
    return replace(result, interrupted=True) if pressed else result


class Search:
    """One search: its incumbent, its clock, and methods that take turns."""

    def __init__(
        self,
        problem: Problem,
        provenance: Provenance,
        params: SolveParams = SolveParams(),
        progress: Callback | None = None,
        stop: Stop | None = None,
        began: float | None = None,
    ) -> None:
        self.asked = problem
        """The problem as asked for."""
        self.problem = problem.reduced
        """The problem that is searched: its optimum is that of the problem asked for."""
        self.provenance = provenance
        self.params = params
        self.clock = Clock(provenance.time_limit, began)
        bound = device_bounds.known_bound(self.problem)
        self.incumbent = Incumbent(self.problem, bound, self._announced)
        links = self.problem.pipeline.has_links
        self.view: View | None = links_as_delays(self.incumbent) if links else None
        """Links as delays, where they are resources: most methods work on that."""
        self._progress = progress
        self._phase = "bounds"
        self._stop = stop
        if stop is not None:
            self.clock.stopped = self._stopped

    def _announced(self, value: int | None, bound: int) -> None:
        if self._progress is not None:
            self._progress(self._state(value, bound))

    def _stopped(self) -> bool:
        assert self._stop is not None
        incumbent = self.incumbent
        return self._stop(self._state(incumbent.value, incumbent.bound.value))

    def _state(self, value: int | None, bound: int) -> Progress:
        ticks = self.problem.pipeline.ticks
        shown = None if value is None else ticks.time(value)
        seconds = time.monotonic() - self.clock.began
        return Progress(seconds, self._phase, shown, ticks.time(bound))

    def budget(self, seconds: float = float("inf")) -> Budget:
        """A budget of so many seconds of the time left, or with one worker of units of work."""
        provenance = self.provenance
        return Budget(self.incumbent, self.clock, provenance.workers, provenance.seed, seconds)

    def run(self, start: WarmStart) -> None:
        """Search until proof, until the time is up, or until Ctrl-C.

        At any time limit there is a schedule: the hint, or one microbatch at a time where memory
        lets it run.
        """
        problem, incumbent = self.problem, self.incumbent
        incumbent.infeasible = device_bounds.infeasibility(problem.instance) or ""
        try:
            warm_starts.apply_warm_start(incumbent, self.view, self.clock, start)
            with interrupts.heard():
                if problem.operations >= self.params.construction.first_schedule:
                    self._schedule_one_at_a_time()
                self._take(self._construction())
                self._take(self._improvement())
                self._schedule_one_at_a_time()
        except KeyboardInterrupt:
            self.clock.interrupted = True

    def _schedule_one_at_a_time(self) -> None:
        """If there is no schedule yet, schedule one microbatch at a time, at any time left.

        Where backwards are mixed: with every backward split, and with every one whole.
        """
        incumbent = self.view or self.incumbent
        if incumbent.value is None and not self.incumbent.infeasible:
            for one in self.problem.restrictions:
                incumbent.submit_orders(list_scheduling.one_at_a_time(one.instance))

    def _take(self, turns: Turns) -> None:
        """Take turns until there are none left or the search is over.

        Of a search that is over none is asked for: what takes the turns takes long to import.
        """
        turn = None if self._over else next(turns, None)
        while turn is not None and not self._over:
            outcome = self._turn(turn)
            try:
                turn = turns.send(outcome)
            except StopIteration:
                return

    @property
    def _over(self) -> bool:
        return self.clock.over or self.incumbent.closed

    def _turn(self, turn: Turn) -> Outcome:
        self._phase = turn.method.name
        _LOG.debug("method %s", self._phase)
        self.incumbent.announce(self.incumbent.value, self.incumbent.bound.value)
        return turn.method.run(self.incumbent, self.budget(turn.seconds))

    def _construction(self) -> Turns:
        """For a long run, unroll a shorter one; then rules and hand strategies in turn.

        Where backwards are mixed, all of these for split and for whole ones, and the strategies
        that mix them as they are.
        """
        params = self.params
        for _, view in self.parts:
            short = ShortRunUnrolling(self._solve_for, params.steady_state)
            for method in self._supported(on(view, short)):
                yield Turn(method, 0.0)
        yield from alternate(
            *self._supported(
                *(
                    on(view, method)
                    for pool, view in self.parts
                    for method in (
                        ListScheduling(pool, params.priority_rules, params.construction),
                        HandStrategies(pool),
                    )
                )
            )
        )
        for method in self._supported(on(self.view, MixedHandStrategies())):
            yield Turn(method, 0.0)
        for pool, _ in self.parts:
            pool.end_construction()

    @cached_property
    def parts(self) -> list[BackwardPool]:
        """What heuristics share, per kind of backward: the pool, and who gets what they find."""
        return backward_pools(self.view or self.incumbent, self.params)

    def _supported(self, *methods: Method) -> list[Method]:
        return supported(methods, self.problem, self.params)

    def _improvement(self) -> Turns:
        """Local search, bounds and exact methods. They need CP-SAT, which takes long to import."""
        with interrupts.deferred():
            from ppopt.solver import portfolio  # noqa: PLC0415
        paired = has_pairs(self.problem)
        too_many = pairs.pair_count_bound(self.problem.pipeline) > self.params.cp_sat.max_pairs
        if paired and too_many and self.incumbent.value is not None:
            return
        yield from portfolio.improvement_turns(
            *(self.incumbent, self.view, self.clock, self.parts, self.provenance, self.params),
            self._solve_for,
        )

    def _solve_for(self, problem: Problem, seconds: float) -> Result:
        provenance = replace(self.provenance, time_limit=seconds)
        return search_from(WarmStart(), problem, provenance, params=self.params)


def _result(search: Search, provenance: Provenance, hint: HintRecord | None) -> Result:
    problem, incumbent = search.problem, search.incumbent
    ticks = problem.pipeline.ticks
    infeasible = bool(incumbent.infeasible)
    result = Result(
        pipeline=problem.pipeline,
        objective=problem.objective,
        backward_kind=search.asked.backward_kind,
        status=_status(incumbent),
        schedule=None,
        value=None if incumbent.value is None else ticks.time(incumbent.value),
        lower_bound=None if infeasible else ticks.time(incumbent.bound.value),
        proof=_proof(search),
        certificate=(Certificate(Argument.MEMORY) if infeasible else incumbent.bound.certificate),
        provenance=provenance,
        solve_seconds=time.monotonic() - search.clock.began,
        interrupted=search.clock.interrupted,
        hint=hint,
    )
    if incumbent.best is None:
        return result
    made = replace(incumbent.best, origin=result.origin())
    return replace(result, schedule=checked(made))


def _proof(search: Search) -> str:
    incumbent = search.incumbent
    if incumbent.infeasible:
        return incumbent.infeasible
    return incumbent.bound.proof + device_bounds.bound_scope(search.asked, incumbent.bound)


def _status(incumbent: Incumbent) -> Status:
    if incumbent.infeasible:
        return Status.INFEASIBLE
    if incumbent.best is None:
        return Status.UNKNOWN
    return Status.OPTIMAL if incumbent.closed else Status.FEASIBLE


def versions() -> dict[str, str]:
    """Versions that a result depends on."""
    return {
        "ppopt": _version("ppopt-pipeline"),
        "python": platform.python_version(),
        "ortools": _version("ortools"),
        "numpy": _version("numpy"),
    }


@cache
def _version(distribution: str) -> str:
    """Version of a distribution; to read it takes longer than to search a tiny pipeline."""
    return metadata.version(distribution)
