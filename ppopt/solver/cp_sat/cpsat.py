"""Runs CP-SAT on a model: reports progress, ends with its scope, returns solution and bound."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from ortools.sat.python import cp_model

from ppopt.cancellation import over
from ppopt.schedule.operations import ALONE, Operations
from ppopt.schedule.schedule import Schedule
from ppopt.solver.budget import SolverLimits
from ppopt.solver.cp_sat.model import CpSatModel
from ppopt.solver.parameters import CP_SAT, CpSatParams

_ORDERING = "use_dynamic_precedence_in_disjunctive: true"
"""Without strong propagation, which takes more time than it saves (record
2026-11-30-strong-propagation)."""
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
instant both hold, and CP-SAT refutes them. Subsolvers of CP-SAT (reduced_costs, lb_tree_search,
probing) create these literals, unless their number is limited to 0. Dynamic precedences create them
too, so the subsolvers defined here are left out."""

_MAX_ENERGY = 2**60
"""Maximum energy of a cumulative constraint (demand times time) for probing in presolve.

Probing (9.15) may refute schedules if energies exceed 64 bits: one stage with times of 10^10 ticks
and memory of 2 10^9 had none, by 12 of 12 seeds; without probing, by 0 of 12."""


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
    """Whether CP-SAT proved that no solution is better by a step of the model."""
    complete: bool
    """Whether the best solution is proved optimal."""
    infeasible: bool
    """Whether infeasibility within the horizon is proved."""


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
    """Search until proof, limit, or the end of an enclosing scope.

    `report(value, bound)` gets improvements, in ticks.
    """
    solving = solver(limits, params, instants=model.instants)
    if model.energy > _MAX_ENERGY:
        solving.parameters.cp_model_probing_level = 0
    bounds = [0]

    def note_bound(bound: float) -> None:
        bounds.append(model.low(bound))
        report(None, bounds[-1])
        if bounds[-1] >= model.horizon:
            solving.stop_search()

    solving.best_bound_callback = note_bound
    watch, poll = _Watch(model, report), params.poll_seconds
    status = run(solving, model.cp, watch, limits.enough, poll)
    if status == cp_model.MODEL_INVALID:
        raise AssertionError(f"invalid model: {model.cp.validate()}")
    has_solution = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    return CpSatOutcome(
        schedule=_schedule(model, solving) if has_solution else None,
        bound=model.low(solving.best_objective_bound) if has_solution else max(bounds),
        ended=status == cp_model.OPTIMAL,
        complete=status == cp_model.OPTIMAL and model.step == 1,
        work=solving.response_proto.deterministic_time,
        infeasible=status == cp_model.INFEASIBLE,
    )


def solver(
    limits: SolverLimits, params: CpSatParams = CP_SAT, *, instants: bool = False
) -> cp_model.CpSolver:
    """CP-SAT with its parameters set; `instants`: for a model with operations of no length."""
    cp_solver = cp_model.CpSolver()
    cp_solver.parameters.max_time_in_seconds = max(0.0, limits.seconds)
    cp_solver.parameters.max_deterministic_time = limits.work
    cp_solver.parameters.num_workers = limits.workers
    cp_solver.parameters.random_seed = limits.seed
    cp_solver.parameters.catch_sigint_signal = False
    cp_solver.parameters.cp_model_presolve = limits.presolve
    if instants:
        _merge(cp_solver, _INSTANTS)
        limits = replace(limits, focus=tuple(name for name in limits.focus if name not in _OWN))
    _focus(cp_solver, limits, params)
    return cp_solver


def _focus(solver: cp_model.CpSolver, limits: SolverLimits, params: CpSatParams) -> None:
    """Choose subsolvers; a single worker uses the parameters of the first one defined here."""
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
) -> cp_model.CpSolverStatus:
    """Solve until proof, limit, or the end of an enclosing scope; return the status.

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

    threading.Thread(target=solve, daemon=True).start()
    try:
        while not done.wait(poll_seconds):
            if over() or enough():
                solver.stop_search()
    finally:
        while not done.wait(poll_seconds):
            solver.stop_search()
    return status[0]


def _schedule(model: CpSatModel, solver: cp_model.CpSolver) -> Schedule:
    pipeline, variables = model.pipeline, model.variables
    present = [
        code
        for code, literal in variables.present.items()
        if literal is None or solver.boolean_value(literal)
    ]
    numbers = np.array(present, dtype=np.int64)
    begins, ends = (
        np.array([solver.value(times[code]) for code in present], dtype=np.int64)
        for times in (variables.start, variables.end)
    )
    pair = np.full(len(numbers), ALONE)
    chosen = [pair for pair, literal in variables.pairs.items() if solver.value(literal)]
    row = {code: index for index, code in enumerate(present)}
    for pair_id, both in enumerate(chosen):
        pair[[row[both.forward], row[both.backward]]] = pair_id
    return Schedule(
        pipeline, Operations.of_numbers(pipeline, numbers, begins, ends, pair).ordered()
    )
