"""The command that turns measurements into pipelines."""
# ruff: noqa: PLC0415  libraries load inside the commands

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ppopt.cli.application import command
from ppopt.cli.streams import note

if TYPE_CHECKING:
    from ppopt.problem.pipeline import Pipeline
    from ppopt.profiles.estimate import Record


class Source(StrEnum):
    """Tools whose measurements are read."""

    TORCH_PROFILER = "torch-profiler"
    MEGATRON_TIMERS = "megatron-timers"
    MEASURED = "measured"


@command
def profile(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE", help="Measurements; traces: one per rank.")
    ],
    source: Annotated[Source, typer.Option("--from", help="What they are.", show_default=False)],
    output: Annotated[
        str,
        typer.Option(
            "-o",
            "--output",
            metavar="OUT",
            help="Pipeline file (.yaml), or of traces a measured step (.json).",
        ),
    ],
    description: Annotated[
        str, typer.Option("--description", metavar="TEXT", help="What was measured.")
    ] = "measured pipeline",
    stages: Annotated[
        int | None, typer.Option("--stages", metavar="P", min=1, help="Of timers: devices.")
    ] = None,
    batches: Annotated[
        int | None, typer.Option("--batches", metavar="M", min=1, help="Of timers: microbatches.")
    ] = None,
) -> int:
    """Turn measured times into a pipeline file.

    `ppopt solve --config FILE` reads it.
    """
    from ppopt.cli.files import check_place
    from ppopt.errors import InputError
    from ppopt.formats.files import write

    target = Path(output)
    suffix = target.suffix.lower()
    if suffix not in (".yaml", ".yml", ".json"):
        raise InputError(f"output: {output}: end it in .yaml (pipeline) or .json (measured step)")
    check_place(target)
    timers = source is Source.MEGATRON_TIMERS
    if timers != (stages is not None) or timers != (batches is not None):
        raise InputError(
            "stages, batches: Megatron's timers need both"
            if timers
            else f"stages, batches: {source} states them itself; leave them out"
        )
    if stages is not None and batches is not None:
        text = _of_timers(files, stages, batches, description, suffix)
    else:
        text = _of_records(files, source, description, suffix)
    write(target, text)
    return 0


def _steps(files: Sequence[Path]) -> tuple[list[Record], Pipeline]:
    """Records of measured steps, and the pipeline of the schedule that ran."""
    from ppopt.cli.files import valid_schedule
    from ppopt.errors import InputError
    from ppopt.formats.documents import label
    from ppopt.formats.fields import within
    from ppopt.profiles.measured import records_of

    steps: dict[tuple[Record, ...], Path] = {}
    for file in files:
        schedule = valid_schedule(file)
        step = tuple(within(label(file), records_of, schedule))
        if step in steps:
            raise InputError(
                f"{label(file)}: the same step as {label(steps[step])}; give each once"
            )
        steps[step] = file
    records = [record._replace(step=n) for n, ran in enumerate(steps) for record in ran]
    return records, schedule.pipeline


def _of_records(files: Sequence[Path], source: Source, description: str, suffix: str) -> str:
    from ppopt.formats import schedule_json
    from ppopt.problem.pipeline import Pipeline
    from ppopt.profiles import pipeline_file
    from ppopt.profiles.estimate import profile as estimate
    from ppopt.profiles.measured import measured
    from ppopt.profiles.torch_trace import read_traces

    traced = source is Source.TORCH_PROFILER
    records, memory = (read_traces(files), None) if traced else _steps(files)
    found = estimate(records)
    for warning in pipeline_file.warnings(found):
        note(f"note: {warning}")
    if suffix != ".json":
        return pipeline_file.dumps(
            found, description=description, source=source.value, memory=memory
        )
    where = Pipeline(
        stages=len(found.hosts), batches=found.batches, placement=found.hosts, name=description
    )
    return schedule_json.dumps(measured(records, where, pipeline_file.MILLISECOND))


def _of_timers(
    files: Sequence[Path], stages: int, batches: int, description: str, suffix: str
) -> str:
    from ppopt.errors import InputError
    from ppopt.profiles.megatron_timers import read_timers
    from ppopt.profiles.pipeline_file import dumps_timers

    if len(files) != 1 or suffix == ".json":
        raise InputError("Megatron's timers: give one log, and a .yaml to write")
    found = read_timers(files[0], stages, batches)
    return dumps_timers(found, batches, description=description)
