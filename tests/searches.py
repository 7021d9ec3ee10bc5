"""Searches under way, for tests of one part of them."""

from __future__ import annotations

import time

from ppopt.solver import bounds
from ppopt.solver.bounds import Bound
from ppopt.solver.construct import one_at_a_time
from ppopt.solver.incumbent import Problem, Search


def begun(problem: Problem, bound: Bound | None = None, seconds: float = 600.0) -> Search:
    """A search that knows one microbatch after another, and the bound of a device."""
    now = time.monotonic()
    pipeline, fused = problem.pipeline, problem.fused
    known = bound or bounds.device_bound(pipeline, problem.objective, fused=fused)
    search = Search(problem, now, now + seconds, lambda _: None, known)
    search.offer(one_at_a_time(pipeline, fused=fused))
    return search
