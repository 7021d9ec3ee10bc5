"""Searches under way, for tests of one part of them."""

from __future__ import annotations

import time

from ppopt.problem.problem import Problem
from ppopt.schedule.list_scheduling import one_at_a_time
from ppopt.solver.bounds import head_body_tail
from ppopt.solver.bounds.head_body_tail import Bound
from ppopt.solver.cp_sat.delays import Chain
from ppopt.solver.cp_sat.device_subset import View
from ppopt.solver.dynamic_programming.beam import Beam
from ppopt.solver.dynamic_programming.classes import Classes
from ppopt.solver.dynamic_programming.layered import Sweep
from ppopt.solver.incumbent import Search


def begun(problem: Problem, bound: Bound | None = None, seconds: float = 600.0) -> Search:
    """A search that knows one microbatch after another, and the bound of a device."""
    now = time.monotonic()
    pipeline, fused = problem.pipeline, problem.fused
    known = bound or head_body_tail.device_bound(pipeline, problem.objective, fused=fused)
    search = Search(problem, now, now + seconds, lambda _: None, known)
    search.offer(one_at_a_time(pipeline, fused=fused))
    return search


def ended(
    problem: Problem, devices: tuple[int, ...], below: int, beam: Beam | None = None
) -> Sweep:
    """A sweep of some devices, to its end."""
    view = View(Chain(problem.pipeline, problem.fused), frozenset(devices))
    sweep = Sweep(Classes(view), below)
    while not sweep.ended:
        sweep.advance(beam)
    return sweep
