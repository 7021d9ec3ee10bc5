"""The command that runs a schedule in PyTorch."""
# ruff: noqa: PLC0415  libraries load inside the commands

from __future__ import annotations

import sys
from itertools import permutations
from pathlib import Path
from statistics import median
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

from ppopt import interrupts
from ppopt.cli import streams
from ppopt.cli.application import command
from ppopt.cli.options import argument, flag, option
from ppopt.cli.options import output as output_option
from ppopt.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ppopt.cli.files import Target
    from ppopt.schedule.schedule import Schedule
    from ppopt.torch.execution import RunResult


@command(
    files=argument(
        "FILE", "A schedule file (.json); with --stages-from also several, run in turn."
    ),
    sleep=option(
        "SECONDS",
        "Simulate: stages and links sleep for the pipeline's times, this many seconds per unit of "
        "time.",
    ),
    unchecked=flag("With --stages-from: skip the comparison with the whole model in one process."),
    steps=option("N", "Steps to measure.", min=1, max=1000),
    output=output_option(
        "The measured step: a schedule file (.json), or a page with it and the predicted one "
        "(.html); repeatable."
    ),
)
def run(
    files: list[Path],
    *,
    sleep: str | None = None,
    stages_from: str | None = None,
    compile: str | None = None,  # noqa: A002  the name of the flag
    device: str = "cpu",
    unchecked: bool = False,
    steps: int = 3,
    output: list[str] | None = None,
    json: bool = False,
    quiet: bool = False,
) -> int:
    """Run a schedule in PyTorch and check every gradient.

    Each device is a process.
    """
    from ppopt.cli.files import writable
    from ppopt.formats.schedule_json import read_valid_schedule

    targets = writable(output or [])
    if any(target.is_order for target in targets):
        raise InputError("output: cannot write a measured step as an order; use .json or .html")
    schedules = [read_valid_schedule(file) for file in files]
    for schedule in schedules:
        _check_runs(schedule, stages_from)
    seconds = _seconds(sleep, schedules, stages_from)
    _check_together(schedules, stages_from, compile, device)
    if targets and len(schedules) > 1:
        raise InputError("output: the measured step of one schedule; give one file")
    from ppopt.torch.world import World  # after what is wrong even without PyTorch

    ranks = schedules[0].pipeline.num_devices
    note = elapsed_notes(quiet=quiet)
    _note(f"starting {ranks} processes", quiet=quiet)
    with World(ranks, _patience(schedules, steps, seconds, compile), device) as world:
        from ppopt.torch import execution
        from ppopt.torch.simulation import SleepingModel

        lengths = [float(execution.predicted_makespan(schedule)) for schedule in schedules]
        if stages_from is None:
            longest = f" of {max(lengths) * seconds:.3g} s each at least" if seconds else ""
            _note(f"running {steps + 1} steps{longest}", quiet=quiet)
            ran = execution.run(world, schedules, SleepingModel(schedules[0], seconds), steps=steps)
        else:
            model = execution.UserModel(stages_from, schedules[0].pipeline.batches, compile)
            ran = execution.run(
                world, schedules, model, steps=steps, check=not unchecked, note=note
            )
        with interrupts.recorded():
            figures = list(map(_figures, schedules, ran, lengths, [seconds] * len(ran)))
    code = _write(targets, schedules[0], ran[0], seconds)
    _print(figures, files, json=json, quiet=quiet)
    return code


def _check_runs(schedule: Schedule, stages_from: str | None) -> None:
    """Refuse what PyTorch cannot run, before anything starts."""
    from ppopt.formats import torch_csv

    torch_csv.order_csv(schedule)
    if schedule.pipeline.has_offload:
        raise InputError(
            "run: it moves no activation to the host; make the schedule without offload"
        )
    if schedule.pipeline.has_auxiliary_operations and stages_from is not None:
        raise InputError(
            "run: with your own model only compute and transfers run as scheduled; "
            "make the schedule without unshard, gradient sync and optimizer"
        )


class RunFigures(NamedTuple):
    """Figures of a run of a schedule; its fields are keys of the object that --json prints."""

    devices: int
    strategy: str
    gradients: int
    """Gradients that were compared; 0: the model was not checked."""
    losses: int
    largest_difference: float | None
    predicted: float
    """Predicted makespan in the pipeline's unit of time."""
    time_unit: str | None
    predicted_seconds: float | None
    """None: it is not known how long a unit is."""
    p2p_seconds: float | None
    measured_seconds: float
    steps: tuple[float, ...]
    """Seconds of every step."""
    ratio: float | None
    """Measured over predicted."""
    versions: dict[str, str]


def _print(
    figures: Sequence[RunFigures], files: Sequence[Path], *, json: bool, quiet: bool
) -> None:
    from ppopt.cli.output import print_json

    if json:
        rows = [{"schema": 1, **row._asdict()} for row in figures]
        print_json(rows[0] if len(rows) == 1 else {"schema": 1, "rows": rows})
    elif not quiet:
        for row, file in zip(figures, files, strict=True):
            print(_describe_run(row, "" if len(figures) == 1 else f"{file}: "))
        for line in contradictions(dict(zip(map(str, files), figures, strict=True))):
            print(line)


def contradictions(runs: Mapping[str, RunFigures]) -> Iterator[str]:
    """Pairs of schedules whose measured order is not the predicted one, a line each.

    A pair is named where every step of one was shorter than every step of the other, so that the
    difference is no noise. `runs` has one run per file name.
    """
    from ppopt.report.throughput_text import gain_text, throughput_gain

    for (faster, first), (slower, second) in permutations(runs.items(), 2):
        if first.time_unit != second.time_unit:
            continue
        if first.predicted < second.predicted and min(first.steps) > max(second.steps):
            gain = throughput_gain(second.measured_seconds, first.measured_seconds)
            yield (
                f"measured against predicted: {faster} is predicted faster than {slower}, and "
                f"every step of it took longer (median: {gain_text(gain)}); `ppopt profile` reads "
                "times of a run"
            )


def _check_together(
    schedules: Sequence[Schedule], stages_from: str | None, backend: str | None, device: str
) -> None:
    """Raise InputError if the options or the schedules do not go together."""
    if stages_from is None and (backend is not None or device != "cpu"):
        name = "device" if backend is None else "compile"
        raise InputError(f"{name}: only with your own model; give --stages-from too")
    if stages_from is None and len(schedules) > 1:
        raise InputError("several schedules run by turns with your own model; give --stages-from")
    for what, numbers in (
        ("devices", {schedule.pipeline.num_devices for schedule in schedules}),
        ("microbatches", {schedule.pipeline.batches for schedule in schedules}),
    ):
        if len(numbers) > 1:
            listed = " and ".join(map(str, sorted(numbers)))
            raise InputError(f"the schedules have {listed} {what}; run those of as many together")


def _seconds(sleep: str | None, schedules: Sequence[Schedule], stages_from: str | None) -> float:
    """Seconds of a unit of time; 0 if nothing is predicted."""
    from ppopt.problem import exact, units

    if stages_from is not None:
        if sleep is not None:
            raise InputError("sleep: your own model takes its own time; leave --sleep out")
        names = {schedule.pipeline.time_unit for schedule in schedules}
        unit = names.pop() if len(names) == 1 else None
        return float(units.SCALES["time"][unit]) if unit else 0.0
    if sleep is None:
        return 0.0
    seconds = exact.read(sleep, "sleep").value
    if not 0 < seconds <= 3600:
        raise InputError(f"sleep: {sleep} is not above 0 and at most 3600; give seconds per unit")
    return float(seconds)


def _patience(
    schedules: Sequence[Schedule], steps: int, seconds: float, backend: str | None
) -> float:
    """Return the seconds that a run may take, and that ranks wait for each other.

    PyTorch's W of stage 0, a whole backward, may double the length of a step. Compilation takes
    minutes.
    """
    from ppopt.torch.world import PATIENCE

    lengths = [schedule.makespan for schedule in schedules]
    compilation = 0.0 if backend is None else 10 * PATIENCE
    return PATIENCE + compilation + 4 * (steps + 1) * float(sum(lengths)) * seconds


def _note(text: str, *, quiet: bool) -> None:
    if not quiet and sys.stderr.isatty():
        streams.note(text)


def elapsed_notes(*, quiet: bool) -> Callable[[str], None]:
    """Return a function that says on stderr what begins, with the seconds since this call."""
    start = monotonic()

    def note(text: str) -> None:
        if not quiet:
            streams.note(f"{monotonic() - start:5.1f} s  {text}")

    return note


def _write(targets: Sequence[Target], schedule: Schedule, ran: RunResult, seconds: float) -> int:
    """Write the measured step, in the pipeline's unit of time with `--sleep`, else in ms.

    Returns the exit code.
    """
    from ppopt.cli.output import write_targets
    from ppopt.formats import schedule_json
    from ppopt.profiles.measured_runs import measured
    from ppopt.report.html import page as page_of
    from ppopt.torch import execution

    if not targets:
        return 0
    unit = round(seconds * 10**9) if seconds else 10**6
    measured_schedule = measured(ran.records, schedule.pipeline, unit)

    predicted = [execution.predicted_schedule(schedule)] if seconds else []
    return write_targets(
        targets,
        page=lambda: page_of([*predicted, measured_schedule]),
        as_json=lambda: schedule_json.dumps(measured_schedule),
        drawn=measured_schedule,
    )


def _figures(schedule: Schedule, ran: RunResult, predicted: float, seconds: float) -> RunFigures:
    """Figures of a run; `predicted` in the pipeline's unit, which lasts so many seconds.

    0 seconds: it is not known how long.
    """
    from ppopt.torch import require

    measured = median(ran.steps)
    ticks = schedule.pipeline.ticks
    longest = max((time for row in (*ticks.down, *ticks.up) for time in row), default=0)
    link = float(ticks.time(longest)) * seconds
    length = predicted * seconds
    return RunFigures(
        devices=schedule.pipeline.num_devices,
        strategy=schedule.origin.strategy or "schedule",
        gradients=ran.gradients,
        losses=schedule.pipeline.batches if ran.gradients else 0,
        largest_difference=ran.difference if ran.gradients else None,
        predicted=predicted,
        time_unit=schedule.pipeline.time_unit,
        predicted_seconds=round(length, 9) or None,
        p2p_seconds=round(link, 9) if length else None,
        measured_seconds=round(measured, 6),
        steps=tuple(round(seconds, 6) for seconds in ran.steps),
        ratio=round(measured / length, 4) if length else None,
        versions={"torch": require()},
    )


def _describe_run(run: RunFigures, name: str) -> str:
    lines = [f"{name}{run.strategy} on {run.devices} processes, torch {run.versions['torch']}"]
    if run.gradients:
        lines.append(
            f"gradients  {run.gradients} gradients and {run.losses} losses as in one process "
            f"(largest difference {run.largest_difference:.2g})"
        )
    steps = run.steps
    spread = f"median of {len(steps)} ({1000 * min(steps):.1f} to {1000 * max(steps):.1f})"
    if run.predicted_seconds is not None:
        link = 1000 * (run.p2p_seconds or 0)
        sent = f", transfers of up to {link:.3g} ms" if link else ""
        lines.append(f"predicted  {1000 * run.predicted_seconds:.1f} ms a step{sent}")
        spread += f", {run.ratio:.3f} of the prediction"
    else:
        lines.append(
            f"predicted  {run.predicted:g} {run.time_unit or 'units'} a step by the times of the "
            "file, as PyTorch hands over transfers; compare it with --sleep, or with your own model"
        )
    lines.append(f"measured   {1000 * run.measured_seconds:.1f} ms a step, {spread}")
    return "\n".join(lines)
