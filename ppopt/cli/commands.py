"""The commands that make schedules, and those that list what is known.

Libraries load inside the commands, so that `ppopt --help` loads none of the heavy ones.
"""
# ruff: noqa: PLC0415

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from ppopt import interrupts
from ppopt.cli.application import EXIT_INCOMPLETE, EXIT_INFEASIBLE, EXIT_UNKNOWN, command
from ppopt.cli.current import CURRENT, read_current, read_order_file
from ppopt.cli.options import DETAILS_WITHOUT_PROOF, argument, flag, names, one_of, option
from ppopt.cli.settings import OF_STRATEGIES, Settings, note_equal_chunks, settings_but
from ppopt.errors import InputError
from ppopt.problem.decisions import SEARCH, Decisions
from ppopt.problem.setting import Heading

if TYPE_CHECKING:
    from ppopt.problem.pipeline import Pipeline
    from ppopt.schedule.schedule import Schedule
    from ppopt.solver.result import Result, Status
    from ppopt.strategies import Options


PAGE_SECONDS = 0.8
"""Seconds that a report with a page usually takes."""
_IN_ALL = "time limit of all searches together, in seconds (default: 60)"
_OUTPUT = (
    "file to write: page (.html), picture of the best schedule (.svg, .png), or all results "
    "(.json); may be repeated"
)


def _strategy_names(incomplete: str) -> list[str]:
    """Complete the name of a strategy in a shell."""
    import ppopt

    return one_of(ppopt.strategies())(incomplete)


@command(
    settings_but(*OF_STRATEGIES),
    hint=option(
        "FILE",
        "Start from this schedule, .json or PyTorch's .csv, and report the improvement. If no "
        "pipeline flags are given, the pipeline stored in the file is used.",
        Heading.SEARCH,
    ),
    storage=option(
        "URL",
        "Reuse the result of this storage, or else store it there: sqlite:///ppopt.db.",
        Heading.SEARCH,
    ),
    without=option("METHOD", "", hidden=True),
)
def solve(
    settings: Settings,
    *,
    hint: Path | None = None,
    storage: str | None = None,
    without: list[str] | None = None,
    details: bool = False,
) -> int:
    """Find the best schedule, with a lower bound and a proof.

    The order of operations is searched. --placement, --partition, --recompute, --offload and
    --order (of microbatches) are searched with it if their value is `search`. Chunks and routes
    are as given; `ppopt plan` also chooses the chunks of a model in layers. Example: `ppopt solve
    --stages 4 --batches 8 --mem-limit -o best.html`.
    """
    from ppopt.cli import output
    from ppopt.report.objects import result_object
    from ppopt.report.schedule_report import report_result
    from ppopt.report.search_text import describe_next_step
    from ppopt.solver.parameters import SolveParams
    from ppopt.solver.solve import solve as search
    from ppopt.studies.baselines import after_search, baseline, best_other_placement

    params = SolveParams(without=frozenset(without or ()))
    start, pipeline = (None, settings.pipeline()) if hint is None else _hint(settings, hint)
    output.check_formats(settings, pipeline)
    if storage is not None and (hint or without):
        raise InputError("storage: no searches with --hint or --without are stored; leave them out")
    best_baseline, elsewhere, not_stored = None, None, 0
    with searching(settings) as options:
        if storage is None:
            result = search(pipeline, **options, hint=start, params=params)
        else:
            result, not_stored = _stored(settings, pipeline, storage, options)
        options["progress"]("baselines")
        with after_search(result.provenance.time_limit, result.solve_seconds):
            best_baseline = baseline(result, pipeline)
            elsewhere = best_other_placement(pipeline, result, best_baseline)
    report = report_result(result, best_baseline, elsewhere, stopped_early=result.interrupted)
    code = output.show_result(
        settings, report, result_object, details=details, last=describe_next_step(report, pipeline)
    )
    return code or not_stored or exit_code(result.status)


def _stored(
    settings: Settings, pipeline: Pipeline, url: str, options: Mapping[str, Any]
) -> tuple[Result, int]:
    """The result from a storage, or of a search that is stored; and the exit code of storing."""
    from ppopt import processors
    from ppopt.cli.streams import note
    from ppopt.studies.solve_job import job_of
    from ppopt.studies.storage import Storage
    from ppopt.studies.task import solve_stored

    job = job_of(pipeline, {"workers": processors.available()} | search_options(settings))
    with Storage(url) as storage:
        stored = solve_stored(job, storage, options["progress"], settings.began)
    for reason in stored.damaged:
        note(f"note: {reason}; it was solved again")
    if stored.not_stored is not None:
        note(f"error: {stored.not_stored}")
    elif stored.cached and not (settings.quiet or settings.json):
        note(f"note: the result was in {storage.path}, and is verified again")
    return stored.result, EXIT_INCOMPLETE if stored.not_stored else 0


@command(
    settings_but(
        "workers",
        time_limit="seconds of a search of partition, recompute or offload (default: 30)",
        placement="placement of the strategy; with one stage per device also a list with the "
        "device of every stage (default: that of the strategy)",
        partition="layers of each stage: balanced (the slowest stage is as fast as possible), "
        "even, search (the best found for the strategy), a list of counts, or a layout of "
        "Megatron-LM such as Et*3|(tt|)*2tL (default: balanced)",
        recompute="which layers of the model recompute: none, full (every decoder and mtp layer), "
        "or search (the best found for the strategy) (default: set per layer in the file)",
        offload="which layers of the model move their activation to the host between F and the "
        "backward: none, all that have an `offload_time`, or search (the best found for the "
        "strategy) (default: set per layer in the file)",
    ),
    strategy=argument(
        "STRATEGY",
        "Name of the strategy; `ppopt strategies` lists them.",
        autocompletion=_strategy_names,
    ),
    details=DETAILS_WITHOUT_PROOF,
)
def eval_(
    settings: Settings, *, strategy: str, jitter: str | None = None, details: bool = False
) -> int:
    """Evaluate one baseline: a published strategy.

    Example: `ppopt eval zb-1p --stages 4 --batches 8`. A memory limit is reported, not enforced.
    A search of partition, recompute or offload prefers what stays within it.
    """
    from ppopt.cli import output, progress
    from ppopt.problem.backward_kind import BackwardKind
    from ppopt.problem.objective import Objective
    from ppopt.report.objects import evaluation_object
    from ppopt.report.placement_text import unsearched_of_layers
    from ppopt.report.schedule_report import report_evaluation
    from ppopt.report.search_text import note_overlaps
    from ppopt.schedule.communication import cheap_loss
    from ppopt.strategies import resolve
    from ppopt.studies.best_choice import best_choice
    from ppopt.studies.robustness import jitter as run_under

    rule = resolve(strategy)
    kind = BackwardKind.read(settings.get("backward_kind"), settings.get("fused"))
    if kind is BackwardKind.WHOLE and not rule.fused:
        raise InputError(
            f"backward_kind: strategy {rule.name} splits the backward; leave --backward whole out"
        )
    if settings.get("routes") == 1 < rule.routes:
        raise InputError(f"routes: 1 contradicts strategy {rule.name}; leave --routes out")
    if settings.get("partition_order") and settings.get("placement") is None:
        settings = settings.placed(rule.placement)
    objective = Objective(settings.get("objective", "makespan"))
    began = monotonic()
    pipeline, deviation = settings.pipeline(), _deviation(jitter)
    with progress.live_line(quiet=settings.quiet) as line:
        line.update(f"strategy {rule.name}")
        choice = best_choice(
            pipeline,
            strategy,
            objective,
            **choice_arguments(settings, line.update),
        )
        schedule = choice.schedule
        seconds = monotonic() - began
        if pipeline.num_chunks == 1 and not settings.quiet:
            note_equal_chunks(schedule.pipeline)
        output.check_formats(settings, schedule.pipeline)
        line.update("random times")
        spread = None
        if deviation is not None:
            with suppress(KeyboardInterrupt), interrupts.heard():
                spread = run_under(schedule, deviation, objective, seed=settings.get("seed", 0))
    partition_choice = choice if Decisions.PARTITION in pipeline.open_decisions else None
    report = report_evaluation(
        schedule, seconds, jitter=spread, choice=partition_choice, lowering=cheap_loss(schedule)
    )
    last = "\n".join([*note_overlaps([schedule]), unsearched_of_layers(pipeline)]).strip()
    return output.show_result(settings, report, evaluation_object, details=details, last=last)


@command(
    settings_but(time_limit=_IN_ALL, output=_OUTPUT),
    placement=option(
        "LIST",
        "Placements whose best schedule is searched (default: linear): linear, interleaved, v, "
        "several of them, or the device of every stage.",
        Heading.PIPELINE,
    ),
    strategies=option(
        "LIST",
        "Baselines to evaluate, e.g. 1f1b,zb-1p (default: all that apply).",
        Heading.STRATEGIES,
    ),
    current=CURRENT,
    details=flag(
        "Print exact figures and further tables: causes of idle time, memory of every device, "
        "throughput, layers of every stage, and why strategies do not apply.",
        Heading.OUTPUT,
    ),
)
def compare(
    settings: Settings,
    *,
    placement: str | None = None,
    strategies: str | None = None,
    current: str | None = None,
    jitter: str | None = None,
    details: bool = False,
) -> int:
    """Compare baselines with the best schedule found.

    Every baseline has its own placement and number of chunks. The best schedule is searched for the
    placements of --placement, e.g. `linear,v`. Example: `ppopt compare --stages 4 --batches
    8 --mem-limit`.
    """
    from ppopt.cli import output
    from ppopt.report.comparison_report import report_comparison
    from ppopt.report.placement_text import describe_first_tries, unsearched_of_layers
    from ppopt.studies.compare import compare as compare_all

    output.refuse_orders(settings, "comparison")
    pipeline, *other_pipelines = settings.pipelines(placement)
    chosen = _strategies(strategies)
    deviation, own_schedule = _deviation(jitter), read_current(settings, current)
    with searching(settings) as options:
        comparison = compare_all(
            pipeline,
            also=other_pipelines,
            strategies=chosen,
            current=own_schedule,
            options=strategy_options(settings),
            jitter=deviation,
            **options,
        )
    report = report_comparison(comparison)
    notes = unsearched_of_layers(pipeline), describe_first_tries(pipeline)
    last = "\n".join(filter(None, notes))
    code = output.show_comparison(settings, report, comparison, details=details, last=last)
    return code or exit_code(comparison.status)


@command(
    settings_but(
        time_limit=_IN_ALL, output="file to write: page (.html) or data (.json); may be repeated"
    ),
    details=flag("Print exact figures.", Heading.OUTPUT),
)
def frontier(settings: Settings, *, within: str | None = None, details: bool = False) -> int:
    """Show how much faster a step gets with more memory.

    Finds every memory limit at which the best schedule changes, each with a lower bound, and
    compares them with baselines. Without `--placement` it searches linear, interleaved and v.
    Partition, recompute and offload are as given, or `search`. `ppopt plan` also chooses the chunks
    of a model in layers. Example: `ppopt frontier --stages 4 --batches 8 -o frontier.html`.
    """
    from ppopt.cli import output
    from ppopt.formats.typed_values import share
    from ppopt.report.frontier_report import report_frontier
    from ppopt.studies.frontier import frontier as search

    output.refuse_orders(settings, "frontier")
    near = None if within is None else share("within", within)
    pipeline, *further = _of_all_placements(settings)
    with searching(settings, text_seconds=0.7) as options:
        curve = search(pipeline, also=further, options=strategy_options(settings), **options)
    code = output.show_frontier(settings, report_frontier(curve, near), details=details)
    return code or exit_code(curve.status)


def _of_all_placements(settings: Settings) -> list[Pipeline]:
    """The pipeline in every named placement; as given if its stages or placement are."""
    from dataclasses import replace

    from ppopt.cli.streams import note
    from ppopt.problem.partition import RULES
    from ppopt.problem.placement import DEFAULT_CHUNKS

    pipeline = settings.pipeline()
    fixing = ("placement", "chunks", "routes")
    is_given = any(settings.get(name) is not None for name in fixing)
    if is_given or settings.get("partition", SEARCH) not in (*RULES, SEARCH):
        return [pipeline]
    pipelines = [pipeline]
    for name in DEFAULT_CHUNKS if pipeline.num_devices > 1 else ():
        if name == pipeline.resolved_placement:
            continue
        try:
            pipelines.append(replace(pipeline, placement=name, chunks=None))
        except InputError as error:
            note(f"note: placement {name} is not searched: {error}")
    return pipelines


@command()
def strategies() -> int:
    """List the published strategies, each with its rule and source."""
    import ppopt

    return _print_lines(ppopt.strategies())


@command()
def models() -> int:
    """List the bundled pipelines and models."""
    import ppopt

    return _print_lines(ppopt.models())


class SchemaOf(StrEnum):
    """What has a JSON Schema."""

    CONFIG = "config"
    SCHEDULE = "schedule"
    RESULT = "result"


@command(
    of=argument(
        "[config|schedule|result]",
        "Files for --config (the default), native schedule files (.json), or what --json prints "
        "of a schedule: of solve, eval, and a row of compare.",
    )
)
def schema(of: SchemaOf = SchemaOf.CONFIG) -> int:
    """Print the JSON Schema of config files, schedules or results.

    Example: `ppopt schema > ppopt-schema.json`; files of `ppopt init` name it, so
    that editors check them.
    """
    import json

    from ppopt.formats import config
    from ppopt.formats.figures import result_schema
    from ppopt.formats.schedule_schema import schedule_schema
    from ppopt.report.schedule_report import ScheduleReport

    schemas: dict[SchemaOf, Callable[[], Mapping[str, object]]] = {
        SchemaOf.CONFIG: config.schema,
        SchemaOf.SCHEDULE: schedule_schema,
        SchemaOf.RESULT: lambda: result_schema(ScheduleReport),
    }
    print(json.dumps(schemas[of](), indent=2))
    return 0


def _print_lines(descriptions: Mapping[str, str]) -> int:
    width = max(map(len, descriptions))
    for name, line in descriptions.items():
        print(f"{name:<{width}}  {line}")
    return 0


def _hint(settings: Settings, file: Path) -> tuple[Schedule, Pipeline]:
    """Read a hint, and return the pipeline to search: that of the file, changed by the flags."""
    from ppopt.formats.schedule_json import read_schedule

    if file.suffix.lower() == ".csv":
        hint = read_order_file(settings, file)
        return hint, hint.pipeline
    schedule, _ = read_schedule(file)
    return schedule, settings.pipeline(schedule.pipeline)


def exit_code(status: Status) -> int:
    """The exit code of a search that ended so."""
    from ppopt.solver.result import Status

    return {Status.INFEASIBLE: EXIT_INFEASIBLE, Status.UNKNOWN: EXIT_UNKNOWN}.get(status, 0)


def search_options(settings: Settings) -> dict[str, Any]:
    """The settings of a search that are given, as arguments of `ppopt.solve`."""
    from ppopt.problem.backward_kind import BackwardKind

    names = ("objective", "time_limit", "workers", "seed")
    kind = BackwardKind.read(settings.get("backward_kind"), settings.get("fused"))
    options = {name: settings.get(name) for name in names} | {"backward_kind": kind}
    return {name: value for name, value in options.items() if value is not None}


@contextmanager
def searching(settings: Settings, text_seconds: float = 0.4) -> Iterator[dict[str, Any]]:
    """Show the progress of a search; its arguments, as of `ppopt.solve`, with that callback.

    `text_seconds`: what its report, and the end of a search, usually take without a page.
    """
    from ppopt.cli import progress
    from ppopt.solver.options import reporting

    seconds = PAGE_SECONDS if settings.output else text_seconds
    limit = settings.seconds
    with reporting(seconds), progress.live_line(quiet=settings.quiet, limit=limit) as line:
        yield search_options(settings) | {"progress": line.update, "began": settings.began}


def _strategies(text: str | None) -> list[str] | None:
    """The baselines that are named; raises InputError on an unknown one."""
    from ppopt.schedule.origin import SEARCHED
    from ppopt.strategies import canonical_name

    if text is None:
        return None
    try:
        return [name for name in map(canonical_name, names(text) or ()) if name != SEARCHED]
    except InputError as error:
        raise InputError(f"strategies{str(error).removeprefix('strategy')}") from None


def _deviation(jitter: str | None) -> float | None:
    from ppopt.problem import exact

    return None if jitter is None else float(exact.read(jitter, "jitter").value)


def strategy_options(settings: Settings) -> Options:
    """The options of strategies that are given."""
    from ppopt.strategies import OPTIONS, Options

    return Options(**{name: settings.get(name) for name in OPTIONS})


def choice_arguments(settings: Settings, progress: Callable[[str], None]) -> dict[str, Any]:
    """Arguments of a search of the best partition of a strategy, besides pipeline and objective."""
    from ppopt.studies.best_choice import TIME_LIMIT

    return {
        "options": strategy_options(settings),
        "time_limit": settings.get("time_limit", TIME_LIMIT),
        "progress": progress,
        "began": settings.began,
    }
