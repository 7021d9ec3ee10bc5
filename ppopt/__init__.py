"""ppopt: schedules of pipeline-parallel training, evaluated, optimized and proved.

    import ppopt

    pipe = ppopt.Pipeline(stages=4, batches=8, forward=1, backward=2, weight=1)
    best = ppopt.solve(pipe, mem_limit="1f1b")
    baseline = ppopt.evaluate(pipe, "zb-1p")

All else loads on use: importing this package loads no other module. Messages go to the logger
`ppopt`, which is silent by default; `logging.basicConfig(level="INFO")` shows them.
"""

TYPE_CHECKING = False  # as in `typing`, whose import takes longer than all that is done here

if TYPE_CHECKING:
    from ppopt.derivation.derived_model import DerivedModel as DerivedModel
    from ppopt.derivation.derived_model import derive_model as derive_model
    from ppopt.errors import ConflictError as ConflictError
    from ppopt.errors import DeadlockError as DeadlockError
    from ppopt.errors import InputError as InputError
    from ppopt.errors import NotApplicableError as NotApplicableError
    from ppopt.errors import PpoptError as PpoptError
    from ppopt.errors import RunError as RunError
    from ppopt.errors import VerificationError as VerificationError
    from ppopt.formats.models import models as models
    from ppopt.formats.models import read_model as read_model
    from ppopt.formats.models import read_pipeline as read_pipeline
    from ppopt.formats.schedule_json import read_schedule as read_schedule
    from ppopt.problem.costs import StageCosts as StageCosts
    from ppopt.problem.costs import Ticks as Ticks
    from ppopt.problem.decisions import Decisions as Decisions
    from ppopt.problem.layer import Layer as Layer
    from ppopt.problem.objective import Objective as Objective
    from ppopt.problem.operation import Op as Op
    from ppopt.problem.operation import OpKind as OpKind
    from ppopt.problem.pipeline import Model as Model
    from ppopt.problem.pipeline import Pipeline as Pipeline
    from ppopt.rechecker import Recheck as Recheck
    from ppopt.rechecker import Verdict as Verdict
    from ppopt.rechecker import recheck as recheck
    from ppopt.rechecker.claim import Claim as Claim
    from ppopt.schedule.metrics import Metrics as Metrics
    from ppopt.schedule.origin import Argument as Argument
    from ppopt.schedule.origin import Certificate as Certificate
    from ppopt.schedule.origin import HintRecord as HintRecord
    from ppopt.schedule.origin import Origin as Origin
    from ppopt.schedule.schedule import Schedule as Schedule
    from ppopt.solver import stop as stop
    from ppopt.solver.parameters import SolveParams as SolveParams
    from ppopt.solver.result import Progress as Progress
    from ppopt.solver.result import Provenance as Provenance
    from ppopt.solver.result import Result as Result
    from ppopt.solver.result import Status as Status
    from ppopt.solver.solve import solve as solve
    from ppopt.strategies.base import Options as Options
    from ppopt.studies.baselines import Baseline as Baseline
    from ppopt.studies.baselines import baseline as baseline
    from ppopt.studies.best_choice import StrategyChoice as StrategyChoice
    from ppopt.studies.best_choice import best_choice as best_choice
    from ppopt.studies.calibrate import calibrate as calibrate
    from ppopt.studies.compare import Comparison as Comparison
    from ppopt.studies.compare import ComparisonRow as ComparisonRow
    from ppopt.studies.compare import compare as compare
    from ppopt.studies.evaluate import evaluate as evaluate
    from ppopt.studies.frontier import Frontier as Frontier
    from ppopt.studies.frontier import FrontierBaseline as FrontierBaseline
    from ppopt.studies.frontier import FrontierPoint as FrontierPoint
    from ppopt.studies.frontier import frontier as frontier
    from ppopt.studies.headline import Headline as Headline
    from ppopt.studies.headline import HeadlineRow as HeadlineRow
    from ppopt.studies.microbatch_order import MicrobatchOrder as MicrobatchOrder
    from ppopt.studies.microbatch_order import MicrobatchOrders as MicrobatchOrders
    from ppopt.studies.plan import plan as plan
    from ppopt.studies.plan_result import LeastMemory as LeastMemory
    from ppopt.studies.plan_result import MoreMemory as MoreMemory
    from ppopt.studies.plan_result import Plan as Plan
    from ppopt.studies.plan_result import PlanRow as PlanRow
    from ppopt.studies.plan_result import RowStatus as RowStatus
    from ppopt.studies.plan_result import WithinShare as WithinShare
    from ppopt.studies.plan_space import PlanConfiguration as PlanConfiguration
    from ppopt.studies.plan_space import PlanSpace as PlanSpace
    from ppopt.studies.records import SweepRow as SweepRow
    from ppopt.studies.robustness import Jitter as Jitter
    from ppopt.studies.robustness import jitter as jitter
    from ppopt.studies.sweep import Study as Study
    from ppopt.studies.sweep import sweep as sweep
    from ppopt.verifier import Rule as Rule
    from ppopt.verifier import Violation as Violation
    from ppopt.verifier import explain as explain
    from ppopt.verifier import verify as verify

    __version__: str

    def strategies() -> dict[str, str]:
        """Return every strategy by name, sorted: what it is, and its source."""


_HOMES = {
    "derivation.derived_model": ("DerivedModel", "derive_model"),
    "errors": (
        *("PpoptError", "InputError", "ConflictError", "DeadlockError", "NotApplicableError"),
        *("RunError", "VerificationError"),
    ),
    "formats.models": ("models", "read_model", "read_pipeline"),
    "formats.schedule_json": ("read_schedule",),
    "problem.costs": ("StageCosts", "Ticks"),
    "problem.decisions": ("Decisions",),
    "problem.layers": ("Layer",),
    "problem.operation": ("Op", "OpKind"),
    "problem.pipeline": ("Model", "Pipeline"),
    "problem.objective": ("Objective",),
    "rechecker": ("Recheck", "Verdict", "recheck"),
    "rechecker.claim": ("Claim",),
    "schedule.metrics": ("Metrics",),
    "schedule.origin": ("Argument", "Certificate", "HintRecord", "Origin"),
    "schedule.schedule": ("Schedule",),
    "solver.parameters": ("SolveParams",),
    "solver.result": ("Progress", "Provenance", "Result", "Status"),
    "solver.solve": ("solve",),
    "strategies.base": ("Options",),
    "studies.baselines": ("Baseline", "baseline"),
    "studies.best_choice": ("StrategyChoice", "best_choice"),
    "studies.calibrate": ("calibrate",),
    "studies.compare": ("Comparison", "ComparisonRow", "compare"),
    "studies.evaluate": ("evaluate",),
    "studies.frontier": ("Frontier", "FrontierBaseline", "FrontierPoint", "frontier"),
    "studies.headline": ("Headline", "HeadlineRow"),
    "studies.microbatch_order": ("MicrobatchOrder", "MicrobatchOrders"),
    "studies.plan": ("plan",),
    "studies.plan_result": (
        "LeastMemory",
        "MoreMemory",
        "Plan",
        "PlanRow",
        "RowStatus",
        "WithinShare",
    ),
    "studies.plan_space": ("PlanConfiguration", "PlanSpace"),
    "studies.robustness": ("Jitter", "jitter"),
    "studies.records": ("SweepRow",),
    "studies.sweep": ("Study", "sweep"),
    "verifier": ("Rule", "Violation", "explain", "verify"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
_MODULES = {"stop": "ppopt.solver.stop", "strategies": "ppopt.strategies"}
"""Public modules; `strategies` can be called, too."""

__all__ = tuple(sorted((*_HOME_OF, *_MODULES, "__version__", "show_versions")))


def __getattr__(name: str) -> object:
    import importlib  # noqa: PLC0415  loads on use

    if name == "__version__":
        module = importlib.import_module("ppopt.versions")
        return module.version_of(module.DISTRIBUTION)
    if name in _MODULES:
        return importlib.import_module(_MODULES[name])
    if name not in _HOME_OF:
        raise AttributeError(f"module 'ppopt' has no attribute {name!r}")
    member = getattr(importlib.import_module(f"ppopt.{_HOME_OF[name]}"), name)
    globals()[name] = member
    return member


def __dir__() -> list[str]:
    return list(__all__)


def show_versions() -> None:
    """Print the versions of ppopt, Python, the system, and the libraries, for a bug report."""
    import platform  # noqa: PLC0415  loads on use

    from ppopt.versions import DISTRIBUTION, UNKNOWN, version_of  # noqa: PLC0415

    rows = {"Python": platform.python_version(), "system": platform.platform()}
    names = ("ortools", "numpy", "plotly", "typer", "rich", "pyyaml", "pandas", "torch")
    rows |= {name: version_of(name) for name in (DISTRIBUTION, *names)}
    for name, version in rows.items():
        print(f"{name:<16}{'not installed' if version == UNKNOWN else version}")
