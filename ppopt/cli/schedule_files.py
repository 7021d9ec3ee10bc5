"""The commands on schedule files: re-check them, make them again, draw and translate them."""
# ruff: noqa: PLC0415  libraries load inside the commands

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

import typer

from ppopt.cli.application import EXIT_CHANGED, EXIT_UNKNOWN, EXIT_VIOLATIONS, command
from ppopt.cli.options import DETAILS_WITHOUT_PROOF, argument, flag, option
from ppopt.cli.options import output as output_option
from ppopt.cli.settings import OF_SEARCHES, OF_STRATEGIES, Settings, settings_but
from ppopt.cli.streams import note
from ppopt.errors import InputError

if TYPE_CHECKING:
    from ppopt.schedule.schedule import Schedule
    from ppopt.studies.reference_check import ReferenceCheck


class ExportFormat(StrEnum):
    """Formats that schedules are written in."""

    TORCH_CSV = "torch-csv"
    """The order of operations; PyTorch adds sends and receives."""
    TORCH_COMMS = "torch-comms"
    """The order of operations, sends and receives."""
    PERFETTO = "perfetto"
    JSON = "json"
    MEGATRON_ARGUMENTS = "megatron-arguments"
    """The partition of a model in layers."""
    TORCHTITAN = "torchtitan"
    """Its keys, with the partition of a model in layers, and next to it the order as .csv."""
    PRIMUS = "primus"
    """Its settings, and next to them the nodes of every rank and the file that reads them."""


class ImportFormat(StrEnum):
    """Formats that schedules are read from."""

    TORCH_CSV = "torch-csv"
    TORCH_COMMS = "torch-comms"


FILE = argument("FILE", "A schedule file (.json).")
FILES = argument("FILE", "Schedule files (.json).")


@command(
    file=FILE,
    bound=flag("Also prove the lower bound again, by the re-checker."),
    time_limit=option(
        "SECONDS", "Time limit of --bound in seconds (default: 60).", show_default=False
    ),
    workers=option("N", "Number of processors of --bound (default: all)."),
)
def verify(
    context: typer.Context,
    file: Path,
    *,
    json: bool = False,
    quiet: bool = False,
    bound: bool = False,
    time_limit: float = 60.0,
    workers: int | None = None,
) -> int:
    """Check every rule and every claimed figure of a schedule file.

    With `--bound` a re-checker, independent of the search, proves its lower bound again.
    """
    from ppopt.cli import output, progress
    from ppopt.formats.documents import label
    from ppopt.formats.fields import within
    from ppopt.formats.schedule_json import read_schedule
    from ppopt.rechecker import Verdict, recheck
    from ppopt.verifier import verify as check

    schedule, claims = read_schedule(file)
    violations = check(schedule, claims)
    rechecked = None
    if bound and not violations:
        with progress.live_line(quiet=quiet, limit=time_limit) as line:
            rechecked = within(
                label(file),
                recheck,
                schedule,
                time_limit=time_limit,
                workers=workers,
                progress=lambda devices: line.update(
                    f"the bound again, by the rules of {devices} devices"
                ),
                began=context.obj,
            )
    output.show_verification(file, schedule, violations, rechecked, as_json=json, quiet=quiet)
    codes = {Verdict.UNDECIDED: EXIT_UNKNOWN, Verdict.WRONG: EXIT_VIOLATIONS}
    verdict = Verdict.WRONG if violations else rechecked and rechecked.verdict
    return codes.get(verdict, 0) if verdict else 0


@command(
    files=FILES,
    output=output_option("Page to write (.html), or a picture of one schedule (.svg, .png)."),
)
def view(files: list[Path], output: str) -> int:
    """Draw schedule files as one page or a picture.

    Example: `ppopt view best.json 1f1b.json -o both.html`.
    """
    from ppopt.cli.files import writable
    from ppopt.cli.output import picture_of, write_target
    from ppopt.formats.schedule_json import read_valid_schedule
    from ppopt.report.html import page

    (target,) = writable([output])
    if not target.is_page and not (target.is_picture and len(files) == 1):
        only = "; a picture (.svg, .png) shows one schedule" if target.is_picture else ""
        raise InputError(f"output: {target.path}: a page ends in .html{only}")
    drawn = [read_valid_schedule(file) for file in files]
    write_target(target, page(drawn) if target.is_page else picture_of(drawn[0], target))
    return 0


@command(files=FILES)
def check(files: list[Path], *, json: bool = False, quiet: bool = False) -> int:
    """Compute reference schedules again and list what changed.

    A reference is a schedule file of ppopt, which holds the settings that it was made with.
    """
    from ppopt.cli import progress
    from ppopt.cli.output import print_json
    from ppopt.formats.origin_json import json_object
    from ppopt.formats.schedule_json import read_valid_schedule
    from ppopt.studies.reference_check import check_reference

    references = [read_valid_schedule(file) for file in files]
    with progress.live_line(quiet=quiet) as line:
        checks = [check_reference(reference, line.update) for reference in references]
    rows = [
        {
            "file": str(file),
            "unchanged": not outcome.differences,
            "differences": outcome.differences,
            "order_compared": outcome.order_compared,
            "not_compared": outcome.ignored_differences,
            "notes": outcome.notes,
        }
        for file, outcome in zip(files, checks, strict=True)
    ]
    if json and len(files) == 1:
        del rows[0]["file"]
    if json:
        print_json(json_object({"schema": 1} | (rows[0] if len(files) == 1 else {"rows": rows})))
    elif not quiet:
        for file, outcome in zip(files, checks, strict=True):
            _print_check(file, outcome)
    return EXIT_CHANGED if any(outcome.differences for outcome in checks) else 0


def _print_check(file: Path, outcome: ReferenceCheck) -> None:
    from ppopt.formats.documents import label

    same = "unchanged" if outcome.order_compared else "status, value and lower bound unchanged"
    for line in outcome.differences or [same]:
        print(f"{label(file)}: {line}")
    for text in (
        *outcome.notes,
        *(f"not compared: {entry}" for entry in outcome.ignored_differences),
    ):
        print(f"note: {text}")


@command(
    file=FILE,
    to=option("", "What to write."),
    output=output_option("File to write.", "OUT"),
    time_unit=option(
        "UNIT", "Unit of time of a trace if the file has none: s, ms (default), us, ns."
    ),
)
def export(file: Path, to: ExportFormat, output: str, time_unit: str | None = None) -> int:
    """Write a schedule in the format of another tool.

    Example: `ppopt export best.json --to perfetto -o trace.json`.
    """
    from ppopt.cli.files import check_place
    from ppopt.formats import perfetto, schedule_json, torch_comms, torch_csv
    from ppopt.formats.files import write
    from ppopt.formats.loader_order import describe_loader_order, file_beside
    from ppopt.formats.megatron_schedule import stated_group_size
    from ppopt.formats.primus_schedule import primus_files
    from ppopt.formats.torchtitan_keys import torchtitan_files
    from ppopt.formats.trainer_partition import megatron_arguments

    writers: dict[ExportFormat, Callable[[Schedule], str]] = {
        ExportFormat.TORCH_CSV: torch_csv.order_csv,
        ExportFormat.TORCH_COMMS: torch_comms.communication_csv,
        ExportFormat.PERFETTO: lambda schedule: perfetto.chrome_trace(schedule, time_unit),
        ExportFormat.JSON: schedule_json.dumps,
        ExportFormat.MEGATRON_ARGUMENTS: lambda schedule: megatron_arguments(
            schedule.pipeline, stated_group_size(schedule)
        ),
    }
    several = {ExportFormat.TORCHTITAN: torchtitan_files, ExportFormat.PRIMUS: primus_files}

    path = Path(output)
    check_place(path)
    if time_unit is not None and to is not ExportFormat.PERFETTO:
        raise InputError(f"time-unit: {to} holds no times in another unit; leave it out")
    exported = schedule_json.read_valid_schedule(file)
    texts = several[to](exported, path) if to in several else {path: writers[to](exported)}
    notes = list(_left_out(exported, to))
    if to not in (ExportFormat.JSON, ExportFormat.PERFETTO):
        beside = file_beside(path, exported)
        loader = describe_loader_order(exported)
        notes += [f"{loader}: {order}" for order in beside if loader]
        texts = {**beside, **texts}
    for target in texts:
        check_place(target)
    for target, text in texts.items():
        write(target, text)
    for text in notes:
        note(f"note: {text}")
    return 0


def _left_out(schedule: Schedule, to: ExportFormat) -> Iterator[str]:
    """What a file of a format does not say of a schedule."""
    from ppopt.formats import primus_schedule
    from ppopt.formats.megatron_schedule import runs_order
    from ppopt.formats.trainer_partition import added_ends, num_encoder_layers
    from ppopt.report.throughput_text import gain_text, throughput_gain
    from ppopt.schedule.communication import cheap_loss

    order_alone = to in (ExportFormat.TORCH_CSV, ExportFormat.TORCHTITAN)
    arguments, model = to is ExportFormat.MEGATRON_ARGUMENTS, schedule.pipeline.model
    loss = cheap_loss(schedule) if to is ExportFormat.TORCH_CSV else None
    if loss is not None and loss.share:
        yield (
            "PyTorch adds its own sends and receives: "
            f"{gain_text(throughput_gain(loss.own, loss.lowered))} than in the order of the "
            "schedule's times where links are streams (predicted); --to torch-comms writes that "
            "order"
        )
    if order_alone and schedule.pipeline.has_gradient_work:
        yield (
            "this order is of compute alone: PyTorch places unshard and gradient sync itself; "
            "--to torch-comms writes where this schedule has them"
        )
    if (order_alone or to is ExportFormat.TORCH_COMMS) and schedule.pipeline.has_offload:
        yield (
            "this order moves no activation to the host; without offload of your own it takes more "
            "memory than planned"
        )
    if arguments and not runs_order(schedule):
        yield (
            "these arguments are the partition alone, since Megatron-LM has its own order (1F1B, "
            "or interleaved 1F1B); ppopt plan --runtime megatron finds the best of these"
        )
    if arguments and (training := schedule.pipeline.training) and training.assumes:
        yield f"the costs assume {'; '.join(training.assumes)}"
    if arguments and model and (encoder := num_encoder_layers(model)):
        yield (
            f"the layout is that of the language model: Megatron-LM runs the encoder, the "
            f"{encoder} layers before the embedding, in the first stage"
        )
    if arguments and model is None:
        yield (
            "the schedule has no layers; Megatron-LM divides its own evenly over the stages, so "
            "their number must be a multiple of the stages"
        )
    if to is ExportFormat.PRIMUS:
        yield from primus_schedule.left_out(schedule)
    if (
        (arguments or to in (ExportFormat.TORCHTITAN, ExportFormat.PRIMUS))
        and model
        and (added := added_ends(model))
    ):
        yield (
            f"the model has no layer of role {' or '.join(added)}, and the trainer's own was added "
            "at no cost; where a layer is one, give it that role"
        )


@command(
    settings_but(
        *OF_STRATEGIES,
        *(name for name in OF_SEARCHES if name != "objective"),
        placement="which device hosts each stage: linear, interleaved, v, or a list with the "
        "device of every stage (default: linear; interleaved with chunks)",
        partition="layers of each stage: balanced (the slowest stage is as fast as possible), "
        "even, a list of counts, or a layout of Megatron-LM such as Et*3|(tt|)*2tL (default: "
        "balanced)",
        recompute="which layers of the model recompute: none, or full, every decoder and mtp layer "
        "(default: set per layer in the file)",
        offload="which layers of the model move their activation to the host between F and the "
        "backward: none, or all that have an `offload_time` (default: set per layer in the file)",
    ),
    file=argument("FILE", "The file to read."),
    source=option("", "Format of the file.", names=("--from",)),
    details=DETAILS_WITHOUT_PROOF,
)
def import_(settings: Settings, file: Path, source: ImportFormat, *, details: bool = False) -> int:
    """Read an order of another tool, compute its times, and verify it.

    Example: `ppopt import order.csv --from torch-csv --forward-times 1.2 -o my.json`.
    """
    from ppopt.cli import output
    from ppopt.formats import torch_comms, torch_csv
    from ppopt.formats.documents import label
    from ppopt.formats.fields import within
    from ppopt.problem.objective import Objective
    from ppopt.report.objects import evaluation_object
    from ppopt.report.schedule_report import report_evaluation
    from ppopt.verifier import checked

    objective = Objective(settings.get("objective", "makespan"))
    began = monotonic()
    if source is ImportFormat.TORCH_COMMS:
        posted = torch_comms.read_communication_order(file)
        timed = within(
            label(file), torch_comms.time_communication_order, posted, settings.values, objective
        )
    else:
        order = torch_csv.read_order(file)
        timed = within(label(file), torch_csv.schedule, order, settings.values, objective)
    schedule = checked(timed, enforce_limit=False)
    report = report_evaluation(schedule, monotonic() - began)
    return output.show_result(settings, report, evaluation_object, details=details)
