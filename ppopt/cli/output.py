"""Show results: JSON or a table on stdout, notes on stderr, files where asked."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console, RenderableType
from rich.text import Text

from ppopt.cli.application import EXIT_INCOMPLETE
from ppopt.cli.files import Target
from ppopt.cli.settings import Settings
from ppopt.cli.streams import note
from ppopt.errors import InputError, NotApplicableError
from ppopt.formats import origin_json, schedule_json, torch_csv
from ppopt.formats.documents import label
from ppopt.formats.figures import ScheduleFigures
from ppopt.formats.files import write
from ppopt.formats.loader_order import describe_loader_order, file_beside
from ppopt.problem.kinds import ResourceKind
from ppopt.problem.operation import ONCE
from ppopt.report import table, text
from ppopt.report.frontier import frontier_page
from ppopt.report.frontier_report import describe_frontier, describe_point_choices
from ppopt.report.headline_table import describe_headline, headline_section
from ppopt.report.html import page as as_page
from ppopt.report.labels import describe_causes, describe_links, describe_rounding, describe_skipped
from ppopt.report.module_table import module_table
from ppopt.report.objects import (
    TIMES,
    comparison_object,
    frontier_object,
    verification_object,
    without,
)
from ppopt.report.placement_text import describe_partition, describe_unsearched, explain_routes
from ppopt.report.plan_objects import plan_object, report_plan
from ppopt.report.plan_page import plan_page
from ppopt.report.plan_table import plan_table
from ppopt.report.plan_text import describe_plan
from ppopt.report.search_text import (
    STOPPED,
    describe_best,
    describe_robustness,
    describe_search,
    note_overlaps,
)
from ppopt.report.summary import describe_title, details_table, summary_table
from ppopt.report.svg import picture_png, svg
from ppopt.studies.baselines import OUT_OF_TIME
from ppopt.verifier import Rule, Violation, explain
from ppopt.verifier.measured_steps import UNTIMED, is_measured

if TYPE_CHECKING:
    from ppopt.problem.pipeline import Pipeline
    from ppopt.rechecker import Recheck
    from ppopt.report.comparison_report import ComparisonReport
    from ppopt.report.frontier_report import FrontierReport
    from ppopt.report.schedule_report import ScheduleReport
    from ppopt.schedule.schedule import Schedule
    from ppopt.studies.compare import Comparison
    from ppopt.studies.parallel_result import ParallelPlan
    from ppopt.studies.plan_result import Plan


Part = str | RenderableType
"""A line, printed as it is, or a table or text that wraps."""


def show_result(
    settings: Settings,
    report: ScheduleReport,
    as_object: Callable[[ScheduleReport], dict[str, Any]],
    *,
    details: bool = False,
    last: str = "",
) -> int:
    """Show one schedule, or why there is none; return the exit code of the files.

    `as_object` makes the object of JSON. `details`: whether to print exact figures, the proof, and
    why every device is idle. `last`: lines to print below the figures.
    """
    schedule = report.schedule

    def parts(_: int) -> Iterator[Part]:
        yield from (Text(describe_title(report), style="bold"), summary_table(report))
        yield from map(Text, filter(None, [last]))
        if details:
            yield from _details(report)
        if schedule is None:
            return
        if details:
            yield from ("", table.idle_title(report), table.idle_table(report))
            yield describe_causes(report.idle or {})
        yield from _gantt(schedule)
        _note_rounding(schedule)

    schedules = [] if schedule is None else [schedule]
    return _show(settings, schedules, partial(as_object, report), parts)


def _details(report: ScheduleReport) -> Iterator[Part]:
    """Exact figures, and the modules of the layers."""
    yield from ("", details_table(report))
    if report.schedule is not None and (own := module_table(report.schedule.pipeline)) is not None:
        yield from ("", own)


def _show(
    settings: Settings,
    schedules: Sequence[Schedule],
    as_object: Callable[[], dict[str, Any]],
    parts: Callable[[int], Iterable[Part]],
    *,
    page: Callable[[], str] | None = None,
    drawn: Schedule | None = None,
    as_file: Callable[[Schedule], str] = schedule_json.dumps,
) -> int:
    """Write the files asked for, then print JSON or the parts of the text.

    Returns the exit code of the files, which `parts` gets. For `page` and `drawn` see `_files`.
    """
    code = _files(settings, schedules, as_file, page, drawn)
    if settings.json:
        print_json(as_object())
    elif not settings.quiet:
        print_parts(parts(code))
    return code


def print_parts(parts: Iterable[Part]) -> None:
    """Print parts of a text, one after the other."""
    for part in parts:
        if isinstance(part, str):
            print(part)
        else:
            print_table(part)


def check_formats(settings: Settings, pipeline: Pipeline) -> None:
    """Raise NotApplicableError if a file asked for cannot express schedules of a pipeline."""
    if any(target.is_order for target in settings.output):
        torch_csv.check_pipeline(pipeline)


def refuse_orders(settings: Settings, what: str) -> None:
    """Raise InputError if a file of one order is asked for and there will be several."""
    if any(target.is_order for target in settings.output):
        raise InputError(f"output: cannot write a {what} as one order; use .html or .json")


def show_comparison(
    settings: Settings, report: ComparisonReport, compared: Comparison, *, details: bool, last: str
) -> int:
    """Show the rows of a comparison; return the exit code of the files.

    `details`: whether to print what the first table leaves out. `last`: text to print at the end.
    """
    schedules = [row.schedule for row in compared.rows]
    closing = filter(None, (*note_overlaps(schedules), last))
    return _show(
        settings,
        schedules,
        partial(comparison_object, report),
        lambda _: chain(
            describe_headline(report.headline),
            _compared_tables(report, details=details),
            _describe_comparison(report, interrupted=compared.interrupted, details=details),
            map(Text, closing),
        ),
        page=lambda: as_page(
            compared.drawn_schedules, what="comparison", lead=headline_section(report.headline)
        ),
        drawn=schedules[0] if schedules else None,
        as_file=lambda _: _dump(comparison_object(report)),
    )


def _compared_tables(report: ComparisonReport, *, details: bool) -> Iterator[Part]:
    rows = report.rows
    yield table.compare_table(rows, exact=details)
    tables = [] if report.steadiest is None else [table.jitter_table]
    if details:
        if any(row.tokens_per_second is not None or row.mfu is not None for row in rows):
            tables.append(table.throughput_table)
        tables += [table.why_table, table.peaks_table]
        tables += [table.partitions_table] if rows[0].partition else []
    for further in tables:
        yield from ("", further(rows))


def _describe_comparison(
    report: ComparisonReport, *, interrupted: bool, details: bool
) -> Iterator[str]:
    """What the tables do not say: a sentence each."""
    yield ""
    yield from _links(report.searches[0].link_mode)
    yield from describe_best(report.rows)
    for search in report.searches:
        yield describe_search(search, report.rows)
    yield from explain_routes(report.rows)
    yield from describe_robustness(report)
    if details:
        yield from describe_skipped(report.skipped)
    else:
        yield from _name_skipped(report.skipped, "left out" if interrupted else "not applicable")
    if interrupted:
        yield f"{STOPPED}: baselines or searches may be missing"
    if not details:
        yield "--details adds exact figures, causes of idle time and the memory of every device"


def _name_skipped(skipped: Sequence[tuple[str, str]], text: str) -> Iterator[str]:
    """A line on the strategies that have no row, and one on those for which there was no time."""
    for what, late in ((text, False), (OUT_OF_TIME, True)):
        names = [name for name, reason in skipped if (reason == OUT_OF_TIME) is late]
        if names:
            yield f"{what}: {', '.join(names)}"


def _links(mode: str | None) -> Iterator[str]:
    """A line on links, if they are more than delays."""
    if text := describe_links(mode):
        yield f"links: {text}"


def show_frontier(settings: Settings, report: FrontierReport, *, details: bool) -> int:
    """Show memory against time; return the exit code of the files.

    `details`: whether the figures of the table are exact.
    """
    frontier = report.frontier

    def parts(_: int) -> Iterator[Part]:
        if not frontier.points:
            yield f"{frontier.status}: {frontier.proof}"
        yield table.frontier_table(report, exact=details)
        if frontier.points and report.baselines:
            yield table.frontier_legend(report)
        yield from describe_point_choices(report)
        yield from _links(frontier.pipeline.link_mode)
        yield from describe_frontier(report)
        yield from describe_skipped(frontier.skipped)
        if frontier.interrupted:
            yield STOPPED
        if frontier.points:
            yield Text(describe_unsearched(frontier.pipeline, frontier.searched))

    return _show(
        settings,
        [point.schedule for point in report.points if point.schedule is not None],
        partial(frontier_object, report),
        parts,
        page=partial(frontier_page, report),
        as_file=lambda _: _dump(frontier_object(report)),
    )


def show_plan(settings: Settings, plan: Plan, *, details: bool) -> int:
    """Show a plan; return the exit code of the files.

    A page shows its table and the schedules of its configurations; other files hold the best one.
    `details`: whether to print exact figures and the proof.
    """

    def parts(code: int) -> Iterator[Part]:
        yield from describe_headline(plan.headline)
        report = report_plan(plan)
        if plan.best is None:
            yield Text(describe_title(report), style="bold")
        if plan.best is not None:
            yield f"best: {plan.best.configuration}"
        yield summary_table(report)
        if details:
            yield from _details(report)
        yield from ("", plan_table(plan, exact=details))
        written = [target.path for target in settings.output] if code == 0 else []
        yield from filter(None, describe_plan(plan, written))
        if plan.schedule is not None:
            _note_rounding(plan.schedule)

    return _show(
        settings,
        [row.schedule for row in plan.rows if row.schedule is not None],
        partial(plan_object, plan),
        parts,
        page=partial(plan_page, plan),
        drawn=plan.schedule,
    )


def show_parallel_plan(settings: Settings, parallel_plan: ParallelPlan) -> int:
    """Show a plan over the parallelism; return the exit code of the files.

    A page shows all combinations and the plan of the best one; other files hold its schedule.
    """
    from ppopt.report import parallel  # noqa: PLC0415  on use
    from ppopt.report.parallel_page import parallel_page  # noqa: PLC0415

    plan = parallel_plan.plan
    return _show(
        settings,
        [] if plan.schedule is None else [plan.schedule],
        lambda: parallel.parallel_plan_object(parallel_plan),
        lambda _: parallel.describe(parallel_plan),
        page=partial(parallel_page, parallel_plan),
    )


def show_verification(
    file: Path,
    schedule: Schedule,
    violations: Sequence[Violation],
    bound: Recheck | None = None,
    *,
    as_json: bool,
    quiet: bool,
) -> None:
    """Show what the verifier found in a file, and what the re-checker found of its bound."""
    if as_json:
        print_json(verification_object(schedule, violations, bound))
    elif not quiet:
        lines = _violations(schedule, violations) if violations else _verified(schedule, bound)
        if violations:
            print(explain(schedule, violations))
        for line in lines:
            print(f"{label(file)}: {line}")


def _violations(schedule: Schedule, violations: Sequence[Violation]) -> Iterator[str]:
    """What violations mean together."""
    if is_measured(schedule):
        untimed = sum(violation.rule in UNTIMED for violation in violations)
        rest = "no other rule is violated"
        if untimed:
            rest = f"{untimed} of the violations do not concern times"
        yield (
            "a measured step, not a planned schedule: its measured times violate the rules on "
            f"times; {rest}"
        )
    elif all(violation.rule is Rule.MEMORY for violation in violations):
        yield (
            "every other rule and every claimed figure holds; eval and compare report a limit, but "
            "do not enforce it"
        )


def _verified(schedule: Schedule, bound: Recheck | None) -> Iterator[str]:
    """What was checked, and what was not."""
    table = schedule.operations
    moves = int(table.on(ResourceKind.HOST).sum())
    around = int((table.microbatch == ONCE).sum())
    more = f" and {around} around the microbatches" if around else ""
    more += f" and {moves} to the host and back" if moves else ""
    yield f"verified: {len(schedule)} operations{more}, every rule and every claimed figure"
    figures = ScheduleFigures.of(None, schedule.pipeline)
    yield from filter(None, [describe_partition(figures.partition, figures.layout)])
    stated = origin_json.number(schedule.origin.lower_bound)
    if bound is not None:
        yield f"lower bound {stated} {bound.verdict}: {bound.reason}"
    elif stated is not None:
        yield f"its lower bound {stated} was not checked; --bound checks it"


def _files(
    settings: Settings,
    schedules: Sequence[Schedule],
    as_json: Callable[[Schedule], str],
    page: Callable[[], str] | None = None,
    drawn: Schedule | None = None,
) -> int:
    """Write the files asked for, the first schedule as the best; return the exit code.

    Every file is tried. One line names each that cannot be written. `page` makes the page, if
    that is more than the schedules; it stands for pictures, too, unless one is `drawn`. That is
    the schedule that a picture shows, else the first.
    """
    if not schedules:
        for target in settings.output:
            note(f"note: there is no schedule, {target.path} is not written")
        return 0
    first = schedules[0]
    orders = [target.path for target in settings.output if target.is_order]
    beside = dict(pair for order in orders for pair in file_beside(order, first).items())
    if beside and (loader := describe_loader_order(first)):
        note(f"note: {loader}: {', '.join(map(str, beside))}")
    code = write_targets(
        settings.output,
        page=page or partial(as_page, schedules),
        as_json=partial(as_json, first),
        order=partial(torch_csv.order_csv, first),
        drawn=drawn if page else first,
    )
    texts = ((Target(path, path), partial(str, text)) for path, text in beside.items())
    return max(code, write_each(texts))


def write_targets(
    targets: Iterable[Target],
    *,
    page: Callable[[], str],
    as_json: Callable[[], str],
    order: Callable[[], str] | None = None,
    drawn: Schedule | None = None,
) -> int:
    """Write each target as its name says; return the exit code.

    A picture shows the schedule `drawn`; without that, it becomes a page.
    """

    def content(target: Target) -> str | bytes:
        if target.is_page:
            return page()
        if target.is_picture and drawn is not None:
            return picture_of(drawn, target)
        return order() if target.is_order and order is not None else as_json()

    written = [
        target.as_page() if target.is_picture and drawn is None else target for target in targets
    ]
    return write_each((target, partial(content, target)) for target in written)


def write_each(files: Iterable[tuple[Target, Callable[[], str | bytes]]]) -> int:
    """Write files, each made as it is written, and name those that failed; the exit code."""
    code = 0
    for target, content in files:
        try:
            write_target(target, content())
        except (InputError, NotApplicableError) as error:
            note(f"error: {' '.join(str(error).split())}")
            code = EXIT_INCOMPLETE
    return code


def picture_of(schedule: Schedule, target: Target) -> str | bytes:
    """A picture of a schedule, as the name of the file says: SVG or PNG."""
    return picture_png(schedule) if target.suffix == ".png" else svg(schedule)


def write_target(target: Target, content: str | bytes) -> None:
    """Write a file; print a note if a page is written in place of something else."""
    write(target.path, content)
    if target.asked != target.path:
        note(f"note: {target.asked} is written as a page, {target.path}")


def _dump(document: dict[str, Any]) -> str:
    """JSON without what differs from run to run: files are repeatable."""
    timeless = without(document, TIMES)
    return f"{json.dumps(timeless, allow_nan=False, default=schedule_json.schedule_to_object)}\n"


def print_json(document: dict[str, Any]) -> None:
    """Print one JSON object on stdout."""
    print(json.dumps(document, allow_nan=False, default=schedule_json.schedule_to_object))


def print_table(renderable: RenderableType) -> None:
    """Print by Python's own print: rich would end the process on a closed pipe.

    What was printed before goes out first, as rich flushes it.
    """
    print(end="", flush=True)
    console = Console(highlight=False)
    with console.capture() as captured:
        console.print(renderable, crop=False)
    print("\n".join(line.rstrip() for line in captured.get().split("\n")), end="")


def _gantt(schedule: Schedule) -> Iterator[str]:
    """The schedule as text, if the terminal is wide enough."""
    lines = text.text_gantt(schedule, Console().width)
    if lines is not None:
        yield from ("", lines)


def _note_rounding(schedule: Schedule) -> None:
    for rounding in describe_rounding(schedule.pipeline):
        note(f"note: {rounding}")
