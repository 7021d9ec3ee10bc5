"""The command that turns measurements into pipelines."""
# ruff: noqa: PLC0415  libraries load inside the commands

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from ppopt.cli.application import command
from ppopt.cli.options import argument, flag, option
from ppopt.cli.options import output as output_option
from ppopt.cli.running import elapsed_notes
from ppopt.cli.settings import Settings
from ppopt.cli.streams import note
from ppopt.errors import InputError
from ppopt.profiles import readers

if TYPE_CHECKING:
    from ppopt.profiles.reader import Recording
    from ppopt.profiles.stage_times import StageTimes
    from ppopt.schedule.schedule import Schedule


YAML = (".yaml", ".yml")


@command(
    output=output_option(
        "Pipeline file (.yaml). Of traces also the median step as a schedule (.json), or a page of "
        "the prediction and the measured steps (.html).",
        "OUT",
    ),
    files=argument(
        "FILE",
        "Files of measurements: one trace per rank or the folder that has them, a log, or the "
        "dump_pp_data folder of Primus. With --stages-from: a schedule file, whose stages are "
        "measured.",
    ),
    source=option(
        "FORMAT",
        f"Format of the measurements: {', '.join(readers.names())} (default: that of their "
        "content).",
        names=("--from",),
    ),
    steps=option("N", "With --stages-from: steps to measure.", min=1, max=1000),
    roles=option(
        "LAYOUT",
        "With --stages-from: roles of the modules, as letters of a layout: Et*6L is an embedding, "
        "six decoder layers and a head (default: found from the input of the first module and the "
        "output of the last).",
    ),
    description=option("TEXT", "What was measured."),
    layers=option(
        "LAYOUT",
        "Layers of each stage that ran, as a layout (Et*8|t*8L) or as numbers of decoder layers "
        "(8,8): the file is in layers, so that ppopt finds a better partition, and a page shows "
        "one.",
    ),
    stages=option("P", "Devices; for timers and with --stages-from.", min=1),
    batches=option("M", "Microbatches; for timers and with --stages-from.", min=1),
    plan=flag(
        "Compare the order that ran with the best for its runtime and the best found, and write a "
        "page; with --layers the partition is searched, too.",
    ),
    time_limit=option(
        "SECONDS", "Time limit of --plan in seconds (default: 60).", show_default=False
    ),
)
def profile(
    output: str,
    files: list[Path] | None = None,
    source: str | None = None,
    stages_from: str | None = None,
    compile: str | None = None,  # noqa: A002  the name of the flag
    device: str = "cpu",
    steps: int = 5,
    roles: str | None = None,
    description: str = "measured pipeline",
    layers: str | None = None,
    stages: int | None = None,
    batches: int | None = None,
    time_limit: float = 60.0,
    *,
    plan: bool = False,
) -> int:
    """Make a pipeline file from measurements, or measure your model.

    `ppopt solve --config FILE` reads it.
    """
    from ppopt.formats.files import write
    from ppopt.profiles.reader import TimerReader

    target, sources = _target(output), files or []
    suffix = target.suffix.lower()
    if stages_from is not None:
        if source is not None or suffix not in YAML or layers is not None:
            raise InputError(
                "stages-from: your own model is measured; leave --from and --layers out, write "
                ".yaml"
            )
        named = _roles(sources, roles)
        write(target, _of_job(sources, stages_from, stages, batches, steps, compile, device, named))
        return 0
    if compile is not None or device != "cpu" or roles is not None:
        raise InputError("compile, device, roles: only with your own model; give --stages-from too")
    if not sources:
        raise InputError(
            f"nothing to read: give files, of {readers.formats()}; or your own model with "
            "--stages-from"
        )
    source = source or readers.detected(sources[0])
    reader = readers.reader(source)
    timers = isinstance(reader, TimerReader)
    _check_counts(source, stages, batches, timers=timers)
    limit = time_limit if plan else None
    if isinstance(reader, TimerReader):
        if len(sources) != 1 or (limit is None and suffix not in YAML):
            raise InputError(f"{source}: give one log, and a .yaml to write")
        times = reader.read(sources[0], stages or 1, batches or 1)
        recorded = _timed(times, batches or 1, description, layers)
    else:
        recorded = _recorded(reader.read(sources), source, description, layers)
    return _write(recorded, reader.runtime, target, limit)


def _target(output: str) -> Path:
    """The file to write; raises InputError if it is of no kind that is written."""
    from ppopt.cli.files import check_place

    target = Path(output)
    if target.suffix.lower() not in (*YAML, ".json", ".html"):
        raise InputError(
            f"output: {output}: end it in .yaml (pipeline), .json (measured step) or .html (page)"
        )
    check_place(target)
    return target


def _check_counts(source: str, stages: int | None, batches: int | None, *, timers: bool) -> None:
    if timers != (stages is not None) or timers != (batches is not None):
        raise InputError(
            f"stages, batches: timers are sums over both; give --stages and --batches with {source}"
            if timers
            else f"stages, batches: {source} states them itself; leave them out"
        )


def _roles(files: Sequence[Path], text: str | None) -> tuple[str, ...] | None:
    """The roles of the modules of the user's model; None: they are to be found."""
    from ppopt.problem import layout

    if text is None:
        return None
    if files:
        raise InputError("roles: of a schedule, stages are measured, which have none; leave it out")
    return layout.roles(text)


def _of_job(
    files: Sequence[Path],
    spec: str,
    stages: int | None,
    batches: int | None,
    steps: int,
    backend: str | None,
    device: str,
    roles: tuple[str, ...] | None,
) -> str:
    """Measure the modules of the user's model, or the stages of a schedule made of them."""
    from ppopt.formats.schedule_json import read_valid_schedule
    from ppopt.profiles import pipeline_file
    from ppopt.torch.world import PATIENCE, World

    if len(files) > 1:
        raise InputError("stages-from: the stages of one schedule; give one file")
    schedule = read_valid_schedule(files[0]) if files else None
    if schedule is not None:
        if stages is not None or batches is not None:
            raise InputError("stages, batches: the schedule states them; leave them out")
        stages, batches = schedule.pipeline.num_devices, schedule.pipeline.batches
    if stages is None or batches is None:
        raise InputError("stages, batches: give both, --stages 4 --batches 8, or a schedule file")
    progress = elapsed_notes(quiet=False)
    with World(stages, PATIENCE * (1 if backend is None else 10), device) as world:
        from ppopt.torch import execution

        model = execution.UserModel(spec, batches, backend)
        measurements, layers = execution.measure(
            world, model, schedule, steps=steps, roles=roles, note=progress
        )
    for warning in pipeline_file.warnings(measurements):
        note(f"note: {warning}")
    measured_on = _measured_on(device, backend)
    if schedule is None:
        if roles is None:
            _note_roles([layer.role for layer in layers])
        return pipeline_file.dumps_layers(
            measurements, layers, stages, description=spec, source=measured_on
        )
    loss = "The loss belongs to F of the last stage, its gradient to B and BW."
    return pipeline_file.dumps(measurements, description=spec, source=measured_on, comments=[loss])


def _note_roles(roles: Sequence[str]) -> None:
    """Say which roles were found: exports to trainers name modules by them."""
    from ppopt.problem import layout
    from ppopt.problem.layer import ENDS

    missing = [f"no {role}" for role in ENDS if role not in roles]
    lacking = f" ({' and '.join(missing)})" if missing else ""
    note(f"note: roles found: {layout.write_roles([roles])}{lacking}; --roles states others")


def _measured_on(device: str, backend: str | None) -> str:
    from ppopt.torch import require

    how = "eager" if backend is None else f"torch.compile, {backend}"
    return f"ppopt profile on {device}, torch {require()}, {how}"


class _Recorded(NamedTuple):
    """Records of operations, and the pipeline file that they make."""

    text: str
    """The file: of layers if these are known, else of stages."""
    is_layered: bool
    steps: Callable[[], list[Schedule]]
    """The steps that ran, as schedules."""
    comments: Sequence[str]


def _recorded(recording: Recording, source: str, description: str, layers: str | None) -> _Recorded:
    """The pipeline file of recorded operations; prints what is remarkable of them."""
    from ppopt.problem.pipeline import Pipeline
    from ppopt.profiles import pipeline_file
    from ppopt.profiles.estimate import profile as estimate
    from ppopt.profiles.layers_of_stages import read_layers
    from ppopt.profiles.measured_runs import measured_steps

    estimates = estimate(recording.records)
    for warning in (*pipeline_file.warnings(estimates), *recording.warnings):
        note(f"note: {warning}")
    about: dict[str, Any] = {
        "description": description,
        "source": source,
        "comments": [*recording.warnings, *recording.comments],
    }
    if layers is None:
        text = pipeline_file.dumps(estimates, memory=recording.memory, **about)
    else:
        text = pipeline_file.dumps_layers_of_stages(estimates, read_layers(layers), **about)
    where = Pipeline(
        stages=len(estimates.hosts),
        batches=estimates.batches,
        placement=estimates.hosts,
        name=description,
    )
    steps = partial(measured_steps, recording.records, where, pipeline_file.MILLISECOND)
    return _Recorded(text, layers is not None, steps, recording.comments)


def _timed(times: StageTimes, batches: int, description: str, layers: str | None) -> _Recorded:
    """The pipeline file of times of stages, or of layers; there are no measured steps."""
    from ppopt.profiles.layers_of_stages import read_layers
    from ppopt.profiles.pipeline_file import dumps_timers

    if times.unknown is not None:
        note(f"note: times of single stages are unmeasured: {times.unknown}")
    stage_layers = None if layers is None else read_layers(layers)
    text = dumps_timers(times, batches, stage_layers, description=description)
    return _Recorded(text, layers is not None, list, ())


def _write(recorded: _Recorded, runtime: str, target: Path, limit: float | None) -> int:
    """Write a pipeline file, a measured step, or a page; with a time limit, compare."""
    from ppopt.formats import schedule_json
    from ppopt.formats.files import write
    from ppopt.profiles.measured_runs import median_step
    from ppopt.report.html import page as page_of

    suffix = target.suffix.lower()
    if limit is not None:
        return _compare(recorded.text, runtime, recorded.steps(), target, limit)
    if suffix in YAML:
        write(target, recorded.text)
        return 0
    for comment in recorded.comments:
        note(f"note: {comment}")
    steps = recorded.steps()
    if suffix == ".html":
        layered = recorded.text if recorded.is_layered else None
        text = page_of([*_beside_prediction(steps), *_rebalanced(median_step(steps), layered)])
    else:
        text = schedule_json.dumps(median_step(steps))
    write(target, text)
    return 0


def _compare(
    text: str, runtime: str, steps: list[Schedule], target: Path, time_limit: float
) -> int:
    """Compare the order that ran with the best for its runtime and the best found.

    Writes the pipeline file `text` if the target is of that kind, and a page of the same name.
    Raises InputError if the target is of another kind.
    """
    from ppopt.cli import output
    from ppopt.cli.commands import exit_code, searching
    from ppopt.cli.files import writable
    from ppopt.formats.config import parse_config, pipeline_of
    from ppopt.formats.files import write
    from ppopt.profiles.measured_runs import median_step, predicted
    from ppopt.report.comparison_report import report_comparison
    from ppopt.studies.compare import compare
    from ppopt.studies.evaluate import evaluate

    if target.suffix.lower() == ".json":
        raise InputError("output: with --plan, end it in .yaml (pipeline and page) or .html (page)")
    values, began = parse_config(text, ".yaml", "profile"), monotonic()
    pages = writable([str(target.with_suffix(".html"))])
    if target.suffix.lower() in YAML:
        write(target, text)
    settings = Settings(
        values | {"time_limit": time_limit}, pages, json=False, quiet=False, began=began
    )
    ran = pipeline_of(values)
    strategy = "1f1b" if ran.num_chunks == 1 else "interleaved"
    current = predicted(median_step(steps), ran) if steps else evaluate(ran, strategy)
    pipeline = ran if ran.model is None else replace(ran, partition="search")
    with searching(settings) as options:
        comparison = compare(pipeline, current=current, runtime=runtime, **options)
    report = report_comparison(comparison)
    code = output.show_comparison(settings, report, comparison, details=False, last="")
    return code or exit_code(comparison.status)


def _beside_prediction(steps: Sequence[Schedule]) -> list[Schedule]:
    """The order that ran at median times, and the fastest, the median and the slowest step."""
    from ppopt.profiles.measured_runs import median_step, predicted
    from ppopt.report.throughput_text import gain_text, throughput_gain

    middle = median_step(steps)
    step_schedule = predicted(middle)
    times = step_schedule.makespan, middle.makespan
    note(
        f"note: the order that ran takes {times[0]:.6g} ms at median times; measured, median of "
        f"{len(steps)} steps, {times[1]:.6g} ms ({gain_text(throughput_gain(*times))})"
    )
    by_length = sorted(steps, key=lambda step: step.metrics.makespan_ticks)
    named = {"fastest": by_length[0], "median": middle, "slowest": by_length[-1]}
    if len(steps) < len(named):
        return [step_schedule, *by_length]
    return [step_schedule, *(_named(step, name) for name, step in named.items())]


def _rebalanced(step: Schedule, layered: str | None) -> list[Schedule]:
    """The order that ran with equal stages and, of a model in layers, with a balanced partition."""
    from ppopt.formats.config import parse_config, pipeline_of
    from ppopt.profiles.measured_runs import predicted, with_equal_stages
    from ppopt.report.throughput_text import gain_text, throughput_gain

    pipelines = {"equal stages": with_equal_stages(step.pipeline)}
    if layered is not None:
        model = pipeline_of(parse_config(layered, ".yaml", "profile"))
        better = replace(model, partition="balanced")
        counts = ",".join(map(str, better.counts))
        if better.counts == model.counts:
            note(f"note: the partition {counts} that ran is balanced")
        else:
            named = replace(better, name=f"{step.pipeline.name}, partition {counts}")
            pipelines[f"partition {counts}"] = named
    schedule = predicted(step)
    before = schedule.makespan
    schedules = []
    for title, pipeline in pipelines.items():
        schedules.append(predicted(step, pipeline))
        after = schedules[-1].makespan
        gain = gain_text(throughput_gain(before, after))
        note(f"note: with {title} the order takes {after:.6g} ms, {gain}")
    return schedules


def _named(step: Schedule, name: str) -> Schedule:
    """A measured step under a name of its own."""
    pipeline = replace(step.pipeline, name=f"{step.pipeline.name}, {name} step")
    return replace(step, pipeline=pipeline)
