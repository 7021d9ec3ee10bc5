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
    from ppopt.comparison import Comparison, compare
    from ppopt.errors import DeadlockError, InputError, PpoptError, RunError, VerificationError
    from ppopt.evaluation import evaluate
    from ppopt.formats.schedule_json import read_schedule
    from ppopt.metrics import Metrics, Objective
    from ppopt.op import Op, OpKind
    from ppopt.pipeline import Pipeline
    from ppopt.rechecker import Recheck, Verdict, recheck
    from ppopt.robustness import Jitter, jitter
    from ppopt.schedule import Schedule
    from ppopt.solver.result import Result, Status
    from ppopt.solver.solve import solve
    from ppopt.strategies.base import Options
    from ppopt.tradeoff.frontier import Frontier, frontier
    from ppopt.verifier import Rule, Violation, explain, verify

_HOMES = {
    "errors": ("DeadlockError", "InputError", "PpoptError", "RunError", "VerificationError"),
    "comparison": ("Comparison", "compare"),
    "evaluation": ("evaluate",),
    "formats.schedule_json": ("read_schedule",),
    "metrics": ("Metrics", "Objective"),
    "op": ("Op", "OpKind"),
    "pipeline": ("Pipeline",),
    "robustness": ("Jitter", "jitter"),
    "schedule": ("Schedule",),
    "rechecker": ("Recheck", "Verdict", "recheck"),
    "solver.result": ("Result", "Status"),
    "solver.solve": ("solve",),
    "strategies.base": ("Options",),
    "tradeoff.frontier": ("Frontier", "frontier"),
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
