"""The commands: each reads settings, calls the library, and shows what came of it.

Libraries load inside the commands, so that `ppopt --help` loads none of the heavy ones.
"""
# ruff: noqa: PLC0415

from __future__ import annotations

from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ppopt.cli.app import EXIT_INFEASIBLE, EXIT_UNKNOWN, EXIT_VIOLATIONS, command, with_options
from ppopt.cli.settings import Settings, shared

if TYPE_CHECKING:
    from ppopt.problem.pipeline import Pipeline
    from ppopt.rechecker import Recheck
    from ppopt.schedule.schedule import Schedule
    from ppopt.solver.result import Status
    from ppopt.strategies import Options


JitterOption = Annotated[
    str | None,
    typer.Option(
        "--jitter",
        metavar="SHARE",
        help="Run the order under random times, of this relative standard deviation (0.1).",
    ),
]


@command
@with_options(shared)
def solve(
    settings: Settings,
    hint: Annotated[
        Path | None,
        typer.Option(
            "--hint",
            metavar="FILE",
            help="Your own schedule to better: .json, or PyTorch's .csv; needs no further flags.",
        ),
    ] = None,
) -> int:
    """Find the best schedule, with a bound and a proof."""
    from ppopt.cli import output, progress
    from ppopt.report.objects import of_result
    from ppopt.solver.search import solve as search

    start, pipeline = (None, settings.pipeline()) if hint is None else _hint(settings, hint)
    with progress.shown(quiet=settings.quiet) as line:
        result = search(pipeline, **_search_options(settings), hint=start, progress=line.update)
    output.result(settings, of_result(result), result.schedule)
    return _exit_code(result.status)


@command
@with_options(shared)
def eval_(
    settings: Settings,
    strategy: Annotated[str, typer.Argument(metavar="STRATEGY", help="See `ppopt strategies`.")],
    jitter: JitterOption = None,
) -> int:
    """Evaluate one hand strategy."""
    from ppopt.cli import output, progress
    from ppopt.errors import InputError
    from ppopt.problem.objective import Objective
    from ppopt.report.objects import of_evaluation
    from ppopt.strategies import resolve
    from ppopt.studies.evaluate import evaluate
    from ppopt.studies.robustness import jitter as run_under

    rule = resolve(strategy)
    if settings.get("fused") and not rule.fused:
        raise InputError(f"fused: strategy {strategy} splits the backward; leave --fused out")
    if settings.get("routes") == 1 < rule.routes:
        raise InputError(f"routes: 1 contradicts strategy {strategy}; leave --routes out")
    objective = Objective(settings.get("objective", "makespan"))
    began = monotonic()
    pipeline, deviation = settings.pipeline(), _deviation(jitter)
    with progress.shown(quiet=settings.quiet) as line:
        line.update(f"strategy {strategy}")
        schedule = evaluate(pipeline, strategy, objective, _strategy_options(settings))
        seconds = monotonic() - began
        line.update("random times")
        spread = None
        if deviation is not None:
            spread = run_under(schedule, deviation, objective, seed=settings.get("seed", 0))
    output.result(settings, of_evaluation(schedule, seconds, spread), schedule)
    return 0


@command
@with_options(shared)
def compare(settings: Settings, jitter: JitterOption = None) -> int:
    """Compare every hand strategy that applies with the optimum."""
    from ppopt.cli import output, progress
    from ppopt.report.objects import of_comparison
    from ppopt.studies.compare import compare as compare_all

    output.refuse_orders(settings, "comparison")
    pipeline = settings.pipeline()
    options, deviation = _strategy_options(settings), _deviation(jitter)
    with progress.shown(quiet=settings.quiet) as line:
        comparison = compare_all(
            pipeline,
            options=options,
            jitter=deviation,
            **_search_options(settings),
            progress=line.update,
        )
    output.comparison(settings, of_comparison(comparison), comparison)
    return _exit_code(comparison.optimum.status)


@command
@with_options(shared)
def frontier(settings: Settings) -> int:
    """Find memory against time: every limit at which the optimum changes."""
    from ppopt.cli import output, progress
    from ppopt.report.objects import of_frontier
    from ppopt.studies.frontier import frontier as explore

    output.refuse_orders(settings, "frontier")
    pipeline = settings.pipeline()
    options = _strategy_options(settings)
    with progress.shown(quiet=settings.quiet) as line:
        found = explore(
            pipeline, options=options, **_search_options(settings), progress=line.update
        )
    output.frontier(settings, of_frontier(found), found)
    return _exit_code(found.status)


@command
def verify(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A schedule file (.json).")],
    json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Only the exit code.")] = False,
    bound: Annotated[
        bool, typer.Option("--bound", help="The lower bound too, by a proof of its own.")
    ] = False,
    time_limit: Annotated[
        float, typer.Option("--time-limit", metavar="SECONDS", help="For the bound.")
    ] = 60.0,
    workers: Annotated[
        int | None, typer.Option("--workers", metavar="N", help="Threads, for the bound.")
    ] = None,
) -> int:
    """Re-check a schedule file: every rule, every figure it claims, and its bound if asked."""
    from ppopt.cli import output
    from ppopt.formats.schedule_json import read_schedule
    from ppopt.verifier import verify as check

    schedule, claims = read_schedule(file)
    found = check(schedule, claims)
    again = None
    if bound and not found:
        again = _recheck(file, schedule, time_limit, workers, quiet=quiet)
    output.verification(file, schedule, found, again, as_json=json, quiet=quiet)
    return EXIT_VIOLATIONS if found else _bound_code(again)


def _recheck(
    file: Path, schedule: Schedule, time_limit: float, workers: int | None, *, quiet: bool
) -> Recheck:
    from ppopt.cli import progress
    from ppopt.formats.documents import label
    from ppopt.formats.fields import within
    from ppopt.rechecker import recheck

    with progress.shown(quiet=quiet) as line:

        def follow(devices: int) -> None:
            line.update(f"the bound again, by the rules of {devices} devices")

        return within(
            label(file),
            recheck,
            schedule,
            time_limit=time_limit,
            workers=workers,
            progress=follow,
        )


def _bound_code(again: Recheck | None) -> int:
    from ppopt.rechecker import Verdict

    if again is None:
        return 0
    codes = {Verdict.UNDECIDED: EXIT_UNKNOWN, Verdict.WRONG: EXIT_VIOLATIONS}
    return codes.get(again.verdict, 0)


@command
def view(
    files: Annotated[list[Path], typer.Argument(metavar="FILE", help="Schedule files (.json).")],
    output: Annotated[
        str, typer.Option("-o", "--output", metavar="FILE", help="The page to write (.html).")
    ],
) -> int:
    """Draw schedule files on one HTML page."""
    from ppopt.cli.files import valid_schedule, writable
    from ppopt.cli.output import write_page
    from ppopt.errors import InputError

    (target,) = writable([output])
    if not target.is_page:
        raise InputError(f"output: {target.path}: a page ends in .html")
    write_page(target, [valid_schedule(file) for file in files])
    return 0


@command
def strategies() -> int:
    """List the hand strategies."""
    from ppopt.strategies import registry

    width = max(map(len, registry()))
    for name, strategy in registry().items():
        print(f"{name:<{width}}  {strategy.summary}  [{strategy.source}]")
    return 0


@command
def models() -> int:
    """List the pipelines that come with ppopt."""
    from ppopt.formats.models import model_names, summary

    for name in model_names():
        print(summary(name))
    return 0


def _hint(settings: Settings, file: Path) -> tuple[Schedule, Pipeline]:
    """Read a hint, and say what pipeline is to be searched: the file's own but for the flags."""
    from ppopt.formats import torch_csv
    from ppopt.formats.schedule_json import read_schedule
    from ppopt.problem.objective import Objective

    if file.suffix.lower() == ".csv":
        objective = Objective(settings.get("objective", "makespan"))
        order = torch_csv.read_order(file)
        made = torch_csv.schedule(order, settings.values, objective)
        return made, made.pipeline
    schedule, _ = read_schedule(file)
    return schedule, settings.pipeline(schedule.pipeline)


def _exit_code(status: Status) -> int:
    from ppopt.solver.result import Status

    return {Status.INFEASIBLE: EXIT_INFEASIBLE, Status.UNKNOWN: EXIT_UNKNOWN}.get(status, 0)


def _search_options(settings: Settings) -> dict[str, Any]:
    given = {
        name: settings.get(name) for name in ("objective", "fused", "time_limit", "workers", "seed")
    }
    return {name: value for name, value in given.items() if value is not None}


def _deviation(jitter: str | None) -> float | None:
    from ppopt.problem import exact

    return None if jitter is None else float(exact.read(jitter, "jitter").value)


def _strategy_options(settings: Settings) -> Options:
    from ppopt.strategies import Options

    return Options(**{field: settings.get(field) for field in Options._fields})
