"""Searches under way, for tests of one part of them."""

from __future__ import annotations

import time

from ppopt.solver import bounds
from ppopt.solver.bounds import Bound
from ppopt.solver.chain import Chain
from ppopt.solver.construct import one_at_a_time
from ppopt.solver.incumbent import Problem, Search
from ppopt.solver.prefix.beam import Beam
from ppopt.solver.prefix.classes import Classes
from ppopt.solver.prefix.sweep import Sweep
from ppopt.solver.relaxation import View


def begun(problem: Problem, bound: Bound | None = None, seconds: float = 600.0) -> Search:
    """A search that knows one microbatch after another, and the bound of a device."""
    now = time.monotonic()
    pipeline, fused = problem.pipeline, problem.fused
    known = bound or bounds.device_bound(pipeline, problem.objective, fused=fused)
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
