"""Show results: JSON or a table on stdout, notes on stderr, files where asked."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
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
from ppopt.formats.files import write
from ppopt.problem.kinds import ONCE, ResourceKind
from ppopt.report import table, text
from ppopt.report.baseline_words import overlap_words
from ppopt.report.frontier_words import what_if
from ppopt.report.jitter_words import robustness_words
from ppopt.report.labels import causes_words, link_words
from ppopt.report.layout_words import partition_words, routes_words, unsearched_words
from ppopt.report.objects import of_result, of_verification
from ppopt.report.plan_table import plan_table
from ppopt.report.plan_words import (
    beyond_words,
    gain_words,
    late_words,
    least_memory_words,
    limit_words,
    more_memory_words,
    outside_words,
    space_words,
    use_words,
    within_words,
)
from ppopt.report.search_words import STOPPED, best_words, searched_words
from ppopt.verifier import Rule, Violation, explain
from ppopt.verifier.measured import UNTIMED, is_measured

if TYPE_CHECKING:
    from ppopt.problem.pipeline import Pipeline
    from ppopt.rechecker import Recheck
    from ppopt.schedule.schedule import Schedule
    from ppopt.studies.compare import Comparison
    from ppopt.studies.frontier import Frontier
    from ppopt.studies.parallel_result import ParallelPlan
    from ppopt.studies.plan_result import Plan


def show_result(
    settings: Settings,
    shown: Mapping[str, Any],
    schedule: Schedule | None,
    *,
    stopped: bool = False,
    details: bool = False,
    last: str = "",
) -> int:
    """Show one schedule, or why there is none; return the exit code of the files.

    `stopped`: whether the search was ended early. `details`: whether to print why every device is
    idle. `last`: text to print last, if there is a schedule.
    """
    code = _files(settings, [] if schedule is None else [schedule], schedule_json.dumps)
    if _table_wanted(settings, shown):
        print_table(table.result_table({**shown, "stopped_early": stopped}))
        if schedule is not None:
            if details:
                print()
                print_table(table.idle_table(shown))
                print(causes_words(shown))
            _print_gantt(schedule, drawn=any(target.is_page for target in settings.output))
            if last:
                print_table(Text(last))
            _note_rounding(schedule)
    return code


def _table_wanted(settings: Settings, shown: Mapping[str, Any]) -> bool:
    """Print JSON if it is asked for; return whether to print a table instead."""
    if settings.json:
        print_json(shown)
    return not settings.json and not settings.quiet


def check_formats(settings: Settings, pipeline: Pipeline) -> None:
    """Raise NotApplicableError if a file asked for cannot express schedules of a pipeline."""
    if any(target.is_order for target in settings.output):
        torch_csv.check_pipeline(pipeline)


def refuse_orders(settings: Settings, what: str) -> None:
    """Raise InputError if a file of one order is asked for and there will be several."""
    if any(target.is_order for target in settings.output):
        raise InputError(f"output: a {what} is no single order; write .html or .json")


def show_comparison(
    settings: Settings, shown: Mapping[str, Any], compared: Comparison, *, details: bool, last: str
) -> int:
    """Show the rows of a comparison; return the exit code of the files.

    `details`: whether to print what the first table leaves out. `last`: text to print at the end.
    """
    best = next((row.schedule for row in compared.rows if row.fits_limit), None)
    code = _files(
        settings, [row.schedule for row in compared.rows], lambda _: _dump(shown), drawn=best
    )
    if _table_wanted(settings, shown):
        rows = shown["rows"]
        print_table(table.compare_table(rows))
        if "steadiest" in shown:
            print()
            print_table(table.jitter_table(rows))
        if details:
            _print_details(rows)
        for line in _comparison_words(shown, compared, details=details):
            print(line)
        for line in filter(None, (*overlap_words(row.schedule for row in compared.rows), last)):
            print_table(Text(line))
    return code


def _print_details(rows: Sequence[Mapping[str, Any]]) -> None:
    known = any(row["tokens_per_second"] is not None or row["mfu"] is not None for row in rows)
    rates = [table.throughput_table] if known else []
    cuts = [table.partitions_table] if rows[0]["partition"] else []
    for further in (*rates, table.why_table, table.peaks_table, *cuts):
        print()
        print_table(further(rows))


def _comparison_words(
    shown: Mapping[str, Any], compared: Comparison, *, details: bool
) -> Iterator[str]:
    """What the table does not say: a sentence each."""
    yield ""
    yield from _links(shown)
    yield from best_words(shown["rows"])
    for search in compared.optima:
        yield searched_words(of_result(search, None), shown["rows"])
    yield from routes_words(shown["rows"])
    yield from robustness_words(shown)
    if details:
        yield from (f"skipped {name}: {reason}" for name, reason in compared.skipped)
    elif compared.skipped:
        words = "left out" if compared.interrupted else "not applicable"
        yield f"{words}: {', '.join(name for name, _ in compared.skipped)}"
    if compared.interrupted:
        yield f"{STOPPED}: strategies or searches may be missing"
    if not details:
        yield "--details adds causes of idle time and the memory of every device"


def _links(shown: Mapping[str, Any]) -> Iterator[str]:
    """A line on links, if they are more than delays."""
    if words := link_words(shown):
        yield f"links: {words}"


def show_frontier(settings: Settings, shown: Mapping[str, Any], found: Frontier) -> int:
    """Show memory against time; return the exit code of the files."""
    schedules = [schedule for point in found.points if (schedule := point.result.schedule)]
    code = _files(
        settings, schedules, lambda _: _dump(shown), lambda: _frontier_page(shown, schedules)
    )
    if _table_wanted(settings, shown):
        _print_frontier(shown, found)
    return code


def _print_frontier(shown: Mapping[str, Any], found: Frontier) -> None:
    if not found.points:
        print(f"{found.status}: {found.proof}")
    print_table(table.frontier_table(shown))
    for line in (*_links(shown), *what_if(shown)):
        print(line)
    for name, reason in found.skipped:
        print(f"skipped {name}: {reason}")
    if found.interrupted:
        print(STOPPED)
    if found.points:
        print_table(Text(unsearched_words(found.pipeline)))


def show_plan(settings: Settings, shown: Mapping[str, Any], found: Plan) -> int:
    """Show a plan; return the exit code of the files.

    A page shows its table and the schedules of its configurations; other files hold the best one.
    """
    made = [row.schedule for row in found.rows if row.schedule is not None]
    code = _files(
        settings, made, schedule_json.dumps, lambda: _plan_page(shown, found), found.schedule
    )
    if _table_wanted(settings, shown):
        if found.best is not None:
            print(f"best: {found.best.configuration}")
        of_best = {**shown, "strategy": None, "stopped_early": found.interrupted}
        print_table(table.result_table(of_best))
        print()
        print_table(plan_table(shown))
        saved = [
            destination.path
            for destination in settings.output
            if destination.path.suffix.lower() == ".json"
        ]
        file = str(saved[0].with_suffix("")) if saved and code == 0 else None
        closing = (
            *(limit_words(shown), gain_words(shown), late_words(shown), outside_words(shown)),
            *(least_memory_words(shown), within_words(shown), more_memory_words(shown)),
            *(space_words(shown), beyond_words(shown), *use_words(shown, file)),
        )
        for line in filter(None, closing):
            print(line)
        for name, reason in found.skipped:
            print(f"skipped {name}: {reason}")
        if found.schedule is not None:
            _note_rounding(found.schedule)
    return code


def show_parallel_plan(settings: Settings, shown: Mapping[str, Any], found: ParallelPlan) -> int:
    """Show a plan over the parallelism; return the exit code of the files.

    A page shows the plan of the best combination; other files hold its schedule.
    """
    from ppopt.report.parallel import (  # noqa: PLC0415  on use
        MOST_SHOWN,
        breakdown_table,
        parallel_table,
        parallel_words,
        skipped_words,
    )
    from ppopt.report.plan_objects import of_plan  # noqa: PLC0415

    plan = found.plan
    made = [] if plan.schedule is None else [plan.schedule]
    code = _files(settings, made, schedule_json.dumps, lambda: _plan_page(of_plan(plan), plan))
    if _table_wanted(settings, shown):
        for line in parallel_words(shown):
            print(line)
        if found.interrupted:
            print(f"stopped early{'' if found.storage is None else '; the same command continues'}")
        print()
        print_table(parallel_table(shown))
        more = len(shown["parallelism"]["rows"]) - MOST_SHOWN
        if more > 0:
            print(f"{more} more combinations; --json has all")
        parts = breakdown_table(shown)
        if parts is not None:
            print("\nparts of a step (ms):")
            print_table(parts)
        for line in skipped_words(shown):
            print(line)
    return code


def show_verification(
    file: Path,
    schedule: Schedule,
    found: Sequence[Violation],
    bound: Recheck | None = None,
    *,
    as_json: bool,
    quiet: bool,
) -> None:
    """Show what the verifier found in a file, and what the re-checker found of its bound."""
    if as_json:
        print_json(of_verification(schedule, found, bound))
    elif found and not quiet:
        print(explain(schedule, found))
        if is_measured(schedule):
            print(f"{label(file)}: {_of_measured(found)}")
        elif all(violation.rule is Rule.MEMORY for violation in found):
            print(
                f"{label(file)}: every other rule and every claimed figure holds; eval and compare "
                "report a limit, and save schedules over it"
            )
    elif not quiet:
        table = schedule.operations
        moves = int(table.on(ResourceKind.HOST).sum())
        around = int((table.microbatch == ONCE).sum())
        more = f" and {around} around the microbatches" if around else ""
        more += f" and {moves} to the host and back" if moves else ""
        checked = f"{len(schedule)} operations{more}, every rule and every claimed figure"
        print(f"{label(file)}: verified, {checked}")
        cut = partition_words(of_verification(schedule, found))
        if cut:
            print(f"{label(file)}: {cut}")
        stated = origin_json.number(schedule.origin.lower_bound)
        if bound is not None:
            print(f"{label(file)}: bound {stated} {bound.verdict}: {bound.reason}")
        elif stated is not None:
            print(f"{label(file)}: its bound {stated} is not proved again here; --bound does")


def _of_measured(found: Sequence[Violation]) -> str:
    untimed = sum(violation.rule in UNTIMED for violation in found)
    rest = (
        f"{untimed} of the violations are no matter of times" if untimed else "no other is broken"
    )
    return (
        "a measured step, not a planned schedule: its operations took their own times, which "
        f"break the rules of times; {rest}"
    )


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

    def words(target: Target) -> str | bytes:
        if target.is_page:
            return page_of(schedules) if page is None else page()
        if target.is_picture:
            return picture_of(drawn or schedules[0], target)
        dumps = torch_csv.order_csv if target.is_order else as_json
        return dumps(schedules[0])

    if not schedules:
        for target in settings.output:
            note(f"note: there is no schedule, {target.path} is not written")
        return 0
    instead = page is not None and drawn is None
    targets = [
        target.as_page() if instead and target.is_picture else target for target in settings.output
    ]
    return write_each((target, partial(words, target)) for target in targets)


def write_each(files: Iterable[tuple[Target, Callable[[], str | bytes]]]) -> int:
    """Write files, each made as it is written, and name those that failed; the exit code."""
    code = 0
    for target, words in files:
        try:
            write_target(target, words())
        except (InputError, NotApplicableError) as error:
            note(f"error: {' '.join(str(error).split())}")
            code = EXIT_INCOMPLETE
    return code


def page_of(schedules: Sequence[Schedule]) -> str:
    """The HTML page of schedules."""
    from ppopt.report.html import page  # noqa: PLC0415  plotly takes long to load

    return page(schedules)


def _frontier_page(shown: Mapping[str, Any], schedules: Sequence[Schedule]) -> str:
    from ppopt.report.frontier import frontier_page  # noqa: PLC0415  plotly takes long to load

    return frontier_page(shown, schedules)


def _plan_page(shown: Mapping[str, Any], found: Plan) -> str:
    from ppopt.report.plan_page import plan_page  # noqa: PLC0415  plotly takes long to load

    return plan_page(shown, [row.schedule for row in found.rows])


def picture_of(schedule: Schedule, target: Target) -> str | bytes:
    """A picture of a schedule, as the name of the file says: SVG or PNG."""
    from ppopt.report.picture import picture_png  # noqa: PLC0415  takes long to load
    from ppopt.report.svg import svg  # noqa: PLC0415

    return picture_png(schedule) if target.path.suffix.lower() == ".png" else svg(schedule)


def write_target(target: Target, words: str | bytes) -> None:
    """Write a file; print a note if a page is written in place of something else."""
    write(target.path, words)
    if target.asked != target.path:
        note(f"note: {target.asked} is written as a page, {target.path}")


def _dump(shown: Mapping[str, Any]) -> str:
    return (
        json.dumps(_timeless(shown), allow_nan=False, default=schedule_json.schedule_to_object)
        + "\n"
    )


def _timeless(shown: Any) -> Any:
    """Leave out what differs from run to run: files are repeatable."""
    if isinstance(shown, Mapping):
        return {key: _timeless(value) for key, value in shown.items() if key != "solve_seconds"}
    return [_timeless(value) for value in shown] if isinstance(shown, list) else shown


def print_json(shown: Mapping[str, Any]) -> None:
    """Print one JSON object on stdout."""
    print(json.dumps(shown, allow_nan=False, default=schedule_json.schedule_to_object))


def print_table(renderable: RenderableType) -> None:
    """Print by Python's own print: rich would end the process on a closed pipe.

    What was printed before goes out first, as rich flushes it.
    """
    print(end="", flush=True)
    console = Console(highlight=False)
    with console.capture() as captured:
        console.print(renderable)
    print("\n".join(line.rstrip() for line in captured.get().split("\n")), end="")


def _print_gantt(schedule: Schedule, *, drawn: bool) -> None:
    """Print the schedule as text where it fits; `drawn`: whether a page shows it."""
    lines = text.text_gantt(schedule, Console().width)
    if lines is not None:
        print()
        print(lines)
    elif not drawn:
        print("\nThe schedule is too wide for text here; add `-o schedule.html` to see it.")


def _note_rounding(schedule: Schedule) -> None:
    rounded = schedule.pipeline.rounded
    if rounded:
        note(f"note: finer than 10^-6 and rounded to it: {', '.join(rounded)}")
