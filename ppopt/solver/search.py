"""The search: heuristics, bounds and exact methods take turns on one incumbent."""

from __future__ import annotations

import sys
from functools import cached_property
from importlib import import_module
from math import inf

from ppopt.cancellation import checkpoint, scope, shield, within
from ppopt.errors import InputError
from ppopt.loggers import logger
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.objective import Objective
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.problem import Problem
from ppopt.problem.traits import BESIDE_COMPUTE
from ppopt.schedule.origin import Argument, Certificate, HintRecord
from ppopt.solver import warm_start as warm_starts
from ppopt.solver.arguments import applicable
from ppopt.solver.bounds import device_bounds, proof_scope
from ppopt.solver.budget import Budget
from ppopt.solver.heuristics.construction import (
    QUICK_ORDERS,
    Baselines,
    ListScheduling,
    MixedBaselines,
)
from ppopt.solver.heuristics.steady_state import ShortRun, ShortRunUnrolling
from ppopt.solver.incumbent import Incumbent
from ppopt.solver.method import Method, Outcome, supported
from ppopt.solver.options import SolveOptions
from ppopt.solver.problem_views import BackwardPool, View, backward_pools, compute_view, run_on_view
from ppopt.solver.relaxation import pairs
from ppopt.solver.result import Progress, Result, Status
from ppopt.solver.turns import Turn, Turns, alternate
from ppopt.solver.warm_start import WarmStart

MAX_OPERATIONS = 2_000_000
"""Largest number of operations of a problem."""
_PORTFOLIO = "ppopt.solver.portfolio"
_IMPORT_SECONDS = 0.5
"""Seconds to import CP-SAT for the first search of a process."""
_LOG = logger(__name__)


def problem_of(pipeline: Pipeline, objective: Objective, backward_kind: BackwardKind) -> Problem:
    """Make the problem of a search; raises InputError if it is too large."""
    problem = Problem(pipeline, objective, backward_kind)
    if problem.num_operations > MAX_OPERATIONS:
        raise InputError(
            f"batches: {pipeline.batches} make {problem.num_operations} operations, a search takes "
            f"at most {MAX_OPERATIONS}; use fewer batches: the middle of a long run repeats"
        )
    return problem


def can_load_portfolio(seconds: float) -> bool:
    """Whether the methods that need CP-SAT are imported, or can be in so many seconds."""
    return _PORTFOLIO in sys.modules or seconds >= _IMPORT_SECONDS


def load_portfolio(seconds: float) -> None:
    """Import the methods that need CP-SAT, if so many seconds suffice."""
    if can_load_portfolio(seconds):
        import_module(_PORTFOLIO)


def search_from(start: WarmStart, problem: Problem, options: SolveOptions) -> Result:
    """Search from known schedules and a known bound of this problem."""
    return run_search(Search(problem, options), start)


def run_search(search: Search, start: WarmStart) -> Result:
    """Run a search from known schedules and a known bound of its problem."""
    problem = search.requested
    search.run(start)
    hinted = start.record(problem, followed=not search.incumbent.infeasible)
    result = _result(search, hinted)
    _LOG.info(
        "%s: value %s, lower bound %s, %.1f s",
        *(result.status, result.value, result.lower_bound, result.solve_seconds),
    )
    return result


class Search:
    """One search: its incumbent, its budget, and methods that take turns."""

    def __init__(self, problem: Problem, options: SolveOptions) -> None:
        self.requested = problem
        """Problem as requested."""
        self.problem = problem.reduced
        """Problem that is searched: its optimum is that of the requested problem."""
        self.options = options
        self.params = options.params
        bound = device_bounds.known_bound(self.problem)
        arguments = applicable(self.problem.relaxed.traits)
        _LOG.debug("arguments for bounds: %s", "; ".join(each.text for each in arguments))
        self.incumbent = Incumbent(self.problem, bound, self._announced)
        self.budget = Budget(
            self.incumbent, options.seconds, options.workers, options.seed, stopped=self._stopped
        )
        has_other_operations = self.problem.traits & BESIDE_COMPUTE
        self.view: View | None = compute_view(self.incumbent) if has_other_operations else None
        """View of compute alone, if there are other operations: most methods work on that."""
        self._phase = "bounds"

    def _announced(self, value: int | None, bound: int) -> None:
        if self.options.progress is not None:
            self.options.progress(self._state(value, bound))

    def _stopped(self) -> bool:
        incumbent, stop = self.incumbent, self.options.stop
        return stop is not None and stop(self._state(incumbent.value, incumbent.bound.value))

    def _state(self, value: int | None, bound: int) -> Progress:
        per_unit = self.problem.pipeline.grid.time
        return Progress(self.options.spent, self._phase, value, bound, per_unit)

    def run(self, start: WarmStart) -> None:
        """Search until proof, until the time is up, or until Ctrl-C.

        With any time limit there is a schedule if one microbatch at a time fits into memory: that
        of 1F1B or interleaved 1F1B if it fits. If none is known before, priority rules and
        baselines may exceed the time limit by `params.construction.grace` seconds, because a
        schedule of one microbatch at a time is several times as long.
        """
        problem, incumbent = self.problem, self.incumbent
        incumbent.infeasible = device_bounds.infeasibility(problem.instance) or ""
        with self.options.scope():
            warm_starts.apply_warm_start(incumbent, self.view, start)
        with shield(), scope(inf):
            checkpoint()
            grace = self.params.construction.grace if incumbent.value is None else 0.0
            large = problem.num_operations >= self.params.construction.first_schedule
            if large and incumbent.value is None:
                self._schedule_simply()
            self._run_turns(self._unrolling())
            self._run_turns(self._construction(), grace)
            self._run_turns(self._improvement())
            checkpoint()
            if not (large or any(pool.constructed for pool, _ in self.parts)):
                self._schedule_simply()

    def _schedule_simply(self) -> None:
        """Schedule by the first of the `QUICK_ORDERS` that fits, even if time is up.

        If backwards are mixed: with every backward split, and with every backward whole.
        """
        incumbent = self.view or self.incumbent
        if self.incumbent.closed:
            return
        for number, orders_of in enumerate(QUICK_ORDERS):
            if not number or incumbent.value is None:
                for restriction in self.problem.restrictions:
                    incumbent.submit_orders(orders_of(restriction))

    def _run_turns(self, turns: Turns, grace: float = 0.0) -> None:
        """Run turns until none remains, the problem is solved, or the time limit is reached.

        `grace`: further seconds. A search that is over requests no turn, because the methods take
        long to import.
        """
        budget = self.budget
        with scope(self.options.end + grace):
            turn = None if budget.search_over else next(turns, None)
            while turn is not None and not budget.search_over:
                outcome = self._turn(turn)
                try:
                    turn = turns.send(outcome)
                except StopIteration:
                    return

    def _turn(self, turn: Turn) -> Outcome:
        self._phase = turn.method.name
        _LOG.debug("method %s", self._phase)
        value = self.incumbent.value
        self.incumbent.announce(value, self.incumbent.bound.value)
        outcome = Outcome()
        with scope(inf):
            outcome = turn.method.run(self.incumbent, self.budget.portion(turn.seconds))
        return outcome._replace(fruitful=outcome.fruitful or self.incumbent.value != value)

    def _unrolling(self) -> Turns:
        """Unroll a shorter run, if the run is long."""
        for pool, view in self.parts:
            short = ShortRunUnrolling(pool, self._solve_for, self.params.steady_state)
            for method in self._supported(run_on_view(view, short)):
                yield Turn(method, 0.0)

    def _construction(self) -> Turns:
        """Rules and baselines in alternation.

        If backwards are mixed, all of these for split and for whole backwards, and the strategies
        that mix them unchanged.
        """
        params = self.params
        yield from alternate(
            *self._supported(
                *(
                    run_on_view(view, method, constructs=True)
                    for pool, view in self.parts
                    for method in (
                        ListScheduling(pool, params.priority_rules, params.construction),
                        Baselines(pool),
                    )
                )
            )
        )
        for method in self._supported(run_on_view(self.view, MixedBaselines())):
            yield Turn(method, 0.0)
        for pool, _ in self.parts:
            pool.end_construction()

    @cached_property
    def parts(self) -> list[BackwardPool]:
        """Pool of the heuristics per kind of backward, and the view that receives schedules."""
        return backward_pools(self.view or self.incumbent, self.params)

    def _supported(self, *methods: Method) -> list[Method]:
        return supported(methods, self.problem, self.params)

    def _improvement(self) -> Turns:
        """Local search, bounds and exact methods, which need CP-SAT; its import takes long."""
        if not can_load_portfolio(self.budget.search_left):
            return
        from ppopt.solver import portfolio  # noqa: PLC0415

        too_many = pairs.pair_count_bound(self.problem.instance) > self.params.cp_sat.max_pairs
        if too_many and self.incumbent.value is not None:
            return
        yield from portfolio.improvement_turns(
            self.incumbent, self.view, self.parts, self.options, self.budget
        )

    def _solve_for(self, problem: Problem, seconds: float) -> ShortRun:
        """Search the short run, whose backwards are all of one kind."""
        with within(seconds):
            options = self.options.in_scope(stop=lambda _: self._stopped())
        search = Search(problem, options)
        result = run_search(search, WarmStart())
        _, rule = min(search.parts[0].pool.rules, default=(0, None))
        return ShortRun(result, rule)


def _result(search: Search, hint: HintRecord | None) -> Result:
    problem, incumbent = search.problem, search.incumbent
    infeasible = bool(incumbent.infeasible)
    result = Result(
        pipeline=problem.pipeline,
        objective=problem.objective,
        backward_kind=search.requested.backward_kind,
        status=_status(incumbent),
        schedule=None,
        value_ticks=incumbent.value,
        bound_ticks=None if infeasible else incumbent.bound.value,
        proof=_proof(search),
        certificate=(Certificate(Argument.MEMORY) if infeasible else incumbent.bound.certificate),
        provenance=search.options.provenance,
        solve_seconds=search.options.spent,
        hint=hint,
    )
    if incumbent.best is None:
        return result
    return result.with_schedule(incumbent.best)


def _proof(search: Search) -> str:
    incumbent = search.incumbent
    if incumbent.infeasible:
        return incumbent.infeasible
    return incumbent.bound.proof + proof_scope.bound_scope(search.requested, incumbent.bound)


def _status(incumbent: Incumbent) -> Status:
    if incumbent.infeasible:
        return Status.INFEASIBLE
    if incumbent.best is None:
        return Status.UNKNOWN
    return Status.OPTIMAL if incumbent.closed else Status.FEASIBLE
