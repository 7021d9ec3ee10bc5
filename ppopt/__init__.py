"""ppopt: schedules of pipeline-parallel training, evaluated, optimized and proved.

    import ppopt

    pipe = ppopt.Pipeline(stages=4, batches=8, forward=1, backward=2, weight=1)
    best = ppopt.solve(pipe, mem_limit="1f1b")
    hand = ppopt.evaluate(pipe, "zb-1p")

Heavy libraries load on use: importing this package loads none of them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ppopt.errors import DeadlockError, InputError, PpoptError, RunError, VerificationError
    from ppopt.formats.schedule_json import read_schedule
    from ppopt.problem.objective import Objective
    from ppopt.problem.operation import Op, OpKind
    from ppopt.problem.pipeline import Pipeline
    from ppopt.rechecker import Recheck, Verdict, recheck
    from ppopt.schedule.metrics import Metrics
    from ppopt.schedule.schedule import Schedule
    from ppopt.solver.result import Result, Status
    from ppopt.solver.search import solve
    from ppopt.strategies.base import Options
    from ppopt.studies.compare import Comparison, compare
    from ppopt.studies.evaluate import evaluate
    from ppopt.studies.frontier import Frontier, frontier
    from ppopt.studies.robustness import Jitter, jitter
    from ppopt.verifier import Rule, Violation, explain, verify

_HOMES = {
    "errors": ("DeadlockError", "InputError", "PpoptError", "RunError", "VerificationError"),
    "formats.schedule_json": ("read_schedule",),
    "problem.operation": ("Op", "OpKind"),
    "problem.pipeline": ("Pipeline",),
    "rechecker": ("Recheck", "Verdict", "recheck"),
    "problem.objective": ("Objective",),
    "schedule.metrics": ("Metrics",),
    "schedule.schedule": ("Schedule",),
    "solver.result": ("Result", "Status"),
    "solver.search": ("solve",),
    "strategies.base": ("Options",),
    "studies.compare": ("Comparison", "compare"),
    "studies.evaluate": ("evaluate",),
    "studies.frontier": ("Frontier", "frontier"),
    "studies.robustness": ("Jitter", "jitter"),
    "verifier": ("Rule", "Violation", "explain", "verify"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Comparison",
    "DeadlockError",
    "Frontier",
    "InputError",
    "Jitter",
    "Metrics",
    "Objective",
    "Op",
    "OpKind",
    "Options",
    "Pipeline",
    "PpoptError",
    "Recheck",
    "Result",
    "Rule",
    "RunError",
    "Schedule",
    "Status",
    "Verdict",
    "VerificationError",
    "Violation",
    "compare",
    "evaluate",
    "explain",
    "frontier",
    "jitter",
    "read_schedule",
    "recheck",
    "solve",
    "verify",
]


def __getattr__(name: str) -> object:
    if name == "__version__":
        metadata = importlib.import_module("importlib.metadata")
        return metadata.version("ppopt-pipeline")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'ppopt' has no attribute {name!r}")
    found = getattr(importlib.import_module(f"ppopt.{_HOME_OF[name]}"), name)
    globals()[name] = found
    return found
