"""Runs CP-SAT on a model: reports progress, handles Ctrl-C, returns what is found and proved."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from ortools.sat.python import cp_model

from ppopt.schedule.operations import ALONE, Operations
from ppopt.schedule.schedule import Schedule
from ppopt.solver import interrupts
from ppopt.solver.budget import SolverLimits
from ppopt.solver.cp_sat.model import CpSatModel
from ppopt.solver.parameters import CP_SAT, CpSatParams

_ORDERING = (
    "use_dynamic_precedence_in_disjunctive: true use_strong_propagation_in_disjunctive: true"
)
_OWN = {
    "ordering": _ORDERING,
    "ordering_quick_restart": (
        f"{_ORDERING} search_branching: PORTFOLIO_WITH_QUICK_RESTART_SEARCH"
    ),
}
"""Subsolvers defined here: their names, and their parameters."""
_INSTANTS = "max_size_to_create_precedence_literals_in_disjunctive: 0"
"""Works around wrong refutations of operations of no length.

CP-SAT (9.15) may state the order of two operations of a device by a literal and its negation: "the
first ends before the second starts" and the reverse. For two operations of no length at the same
instant both hold, and CP-SAT refutes them. Strong propagation creates these literals, also in
subsolvers of CP-SAT (reduced_costs, lb_tree_search, probing), unless their number is limited to 0.
Dynamic precedences create them too, so the subsolvers defined here are left out."""


@dataclass(frozen=True)
class CpSatOutcome:
    """Solution, bound and proof of a run of CP-SAT."""

    schedule: Schedule | None
    """Best solution, at its own times; None if none was found."""
    bound: int
    """Proved lower bound in ticks, within the model's horizon."""
    work: float
    """Deterministic units spent."""
    ended: bool
    """Whether the search reached its end: no solution is better by a step of the model."""
    complete: bool
    """Whether the best solution is proved best."""
    infeasible: bool
    """Whether infeasibility within the horizon is proved."""
    interrupted: bool


class _Watch(cp_model.CpSolverSolutionCallback):
    def __init__(self, model: CpSatModel, report: Callable[[int, int], None]) -> None:
        super().__init__()
        self._model = model
        self._report = report

    def on_solution_callback(self) -> None:
        value = self.value(self._model.variables.objective)
        self._report(value, self._model.low(self.best_objective_bound))


def search(
    model: CpSatModel,
    limits: SolverLimits,
    report: Callable[[int | None, int], None],
    params: CpSatParams = CP_SAT,
) -> CpSatOutcome:
    """Search until proof, limit or Ctrl-C; `report(value, bound)` gets improvements, in ticks."""
    solving = solver(limits, params, instants=model.instants)
    bounds = [0]

    def note_bound(bound: float) -> None:
        bounds.append(model.low(bound))
        report(None, bounds[-1])
        if bounds[-1] >= model.horizon:
            solving.stop_search()

    solving.best_bound_callback = note_bound
    watch, poll = _Watch(model, report), params.poll_seconds
    status, interrupted = run(solving, model.cp, watch, limits.enough, poll)
    if status == cp_model.MODEL_INVALID:
        raise AssertionError(f"invalid model: {model.cp.validate()}")
    found = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    return CpSatOutcome(
        schedule=_schedule(model, solving) if found else None,
        bound=model.low(solving.best_objective_bound) if found else max(bounds),
        ended=status == cp_model.OPTIMAL,
        complete=status == cp_model.OPTIMAL and model.step == 1,
        work=solving.response_proto.deterministic_time,
        infeasible=status == cp_model.INFEASIBLE,
        interrupted=interrupted,
    )


@interrupts.deferred()
def solver(
    limits: SolverLimits, params: CpSatParams = CP_SAT, *, instants: bool = False
) -> cp_model.CpSolver:
    """CP-SAT with its parameters set; `instants`: for a model with operations of no length."""
    made = cp_model.CpSolver()
    made.parameters.max_time_in_seconds = max(0.0, limits.seconds)
    made.parameters.max_deterministic_time = limits.work
    made.parameters.num_workers = limits.workers
    made.parameters.random_seed = limits.seed
    made.parameters.catch_sigint_signal = False
    made.parameters.cp_model_presolve = limits.presolve
    if instants:
        _merge(made, _INSTANTS)
        limits = replace(limits, focus=tuple(name for name in limits.focus if name not in _OWN))
    _focus(made, limits, params)
    return made


def _focus(solver: cp_model.CpSolver, limits: SolverLimits, params: CpSatParams) -> None:
    """Choose subsolvers; a single worker takes the parameters of the first one defined here."""
    plain = f"linearization_level: {params.linearization_level}"
    own = [name for name in limits.focus if name in _OWN]
    if limits.workers == 1:
        texts = [_OWN[name] for name in own[:1]]
    else:
        texts = [f'subsolver_params {{ name: "{name}" {plain} {_OWN[name]} }}' for name in own]
        fills = len(limits.focus) == limits.workers
        chosen = solver.parameters.subsolvers if fills else solver.parameters.extra_subsolvers
        chosen.extend(limits.focus)
        solver.parameters.use_lns = not fills
    for text in (plain, *texts):
        _merge(solver, text)


def _merge(solver: cp_model.CpSolver, text: str) -> None:
    if not solver.parameters.merge_text_format(text):
        raise AssertionError(f"CP-SAT does not know these parameters: {text}")


def run(
    solver: cp_model.CpSolver,
    cp: cp_model.CpModel,
    watch: cp_model.CpSolverSolutionCallback | None = None,
    enough: Callable[[], bool] = lambda: False,
    poll_seconds: float = CP_SAT.poll_seconds,
) -> tuple[cp_model.CpSolverStatus, bool]:
    """Solve; return the status, and whether Ctrl-C was pressed.

    CP-SAT runs in a thread of its own, so that Ctrl-C reaches this thread. The call returns after
    that thread has ended, because a process that exits earlier aborts.
    """
    status: list[cp_model.CpSolverStatus] = []
    done = threading.Event()

    def solve() -> None:
        try:
            status.append(solver.solve(cp, watch))
        finally:
            done.set()

    with interrupts.recorded() as pressed:
        threading.Thread(target=solve, daemon=True).start()
        try:
            while not done.wait(poll_seconds):
                if pressed or enough():
                    solver.stop_search()
        finally:
            while not done.wait(poll_seconds):
                solver.stop_search()
    return status[0], bool(pressed)


@interrupts.deferred()
def _schedule(model: CpSatModel, solver: cp_model.CpSolver) -> Schedule:
    pipeline, variables = model.pipeline, model.variables
    there = [
        code
        for code, literal in variables.there.items()
        if literal is None or solver.boolean_value(literal)
    ]
    numbers = np.array(there, dtype=np.int64)
    begins, ends = (
        np.array([solver.value(times[code]) for code in there], dtype=np.int64)
        for times in (variables.start, variables.end)
    )
    pair = np.full(len(numbers), ALONE)
    chosen = [pair for pair, literal in variables.pairs.items() if solver.value(literal)]
    row = {code: place for place, code in enumerate(there)}
    for number, both in enumerate(chosen):
        pair[[row[both.forward], row[both.backward]]] = number
    return Schedule(
        pipeline, Operations.of_numbers(pipeline, numbers, begins, ends, pair).ordered()
    )
