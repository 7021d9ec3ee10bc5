"""Runs of CP-SAT for the re-checker: an answer, the clock or Ctrl-C ends them."""

from __future__ import annotations

import threading
from time import monotonic

from ortools.sat.python import cp_model

POLL = 0.05
"""Seconds between two looks at the clock, in which Ctrl-C is heard."""
ENDING = 0.1
"""Share of the time of a run that is left for its end: presolve and threads look at the time at
steps of their own, which take longer on a busy machine."""
NO_ORDERS = 0
"""Most operations of a device whose orders CP-SAT may state by literals, where some have no length:
it takes the literal and its negation for "before" and "after", and of two such operations at one
instant both hold (9.15; its reduced_costs, lb_tree_search and probing do so)."""
MAX_ENERGY = 2**60
"""Maximum memory times time of a cumulative constraint for which presolve may probe: where energies
exceed 64 bits, it may refute schedules that exist (9.15)."""


def run(
    cp: cp_model.CpModel,
    seconds: float,
    workers: int,
    seed: int,
    *,
    instants: bool,
    energy: int = 0,
) -> tuple[cp_model.CpSolverStatus, cp_model.CpSolver]:
    """Solve for so many seconds; `instants`: some operations have no length.

    `energy` is the maximum memory times time of a cumulative constraint. CP-SAT runs in a thread of
    its own, so that Ctrl-C reaches this one, and has ended on return. Ctrl-C may come before the
    thread runs: it then does not solve.
    """
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = (1 - ENDING) * seconds
    solver.parameters.num_workers = workers
    solver.parameters.random_seed = seed
    solver.parameters.catch_sigint_signal = False
    if instants:
        solver.parameters.max_size_to_create_precedence_literals_in_disjunctive = NO_ORDERS
    if energy > MAX_ENERGY:
        solver.parameters.cp_model_probing_level = 0
    until, statuses = monotonic() + seconds, [cp_model.UNKNOWN]
    begun, ended, done = threading.Event(), threading.Event(), threading.Event()

    def solve() -> None:
        begun.set()
        try:
            if not ended.is_set():
                statuses[0] = solver.solve(cp)
        finally:
            done.set()

    try:
        threading.Thread(target=solve, daemon=True).start()
        begun.wait()
        while not done.wait(POLL) and monotonic() < until:
            pass
    finally:
        ended.set()
        while begun.is_set() and not done.wait(POLL):
            solver.stop_search()
    if statuses[0] == cp_model.MODEL_INVALID:
        raise AssertionError(f"invalid model: {cp.validate()}")
    return statuses[0], solver
