"""The command that runs a schedule in PyTorch."""
# ruff: noqa: PLC0415  libraries load inside the commands

from __future__ import annotations

import sys
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ppopt.cli import streams
from ppopt.cli.application import JsonFlag, QuietFlag, ScheduleFile, command
from ppopt.solver import interrupts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ppopt.cli.files import Target
    from ppopt.schedule.schedule import Schedule
    from ppopt.torch.execution import RunResult


@command
def run(
    file: ScheduleFile,
    sleep: Annotated[
        str | None,
        typer.Option(
            "--sleep",
            metavar="SECONDS",
            help="Stages and links take the pipeline's times; a unit of time lasts so long.",
        ),
    ] = None,
    steps: Annotated[
        int, typer.Option("--steps", metavar="N", min=1, max=1000, help="Steps to measure.")
    ] = 3,
    output: Annotated[
        list[str] | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="The measured step: a schedule file (.json), or a page with it and "
            "the predicted one (.html); repeatable.",
        ),
    ] = None,
    json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> int:
    """Run a schedule in PyTorch and check every gradient.

    One process runs each device.
    """
    from ppopt.cli.files import valid_schedule, writable
    from ppopt.cli.output import print_json
    from ppopt.errors import InputError
    from ppopt.formats import torch_csv
    from ppopt.torch.world import World

    targets = writable(output or [])
    if any(target.is_order for target in targets):
        raise InputError("output: a measured step is no order for PyTorch; write .json or .html")
    schedule = valid_schedule(file)
    torch_csv.order_csv(schedule)  # refuses what PyTorch cannot run, before anything starts
    seconds = _seconds(sleep)
    ranks = schedule.pipeline.num_devices
    _note(f"starting {ranks} processes", quiet=quiet)
    with World(ranks, _patience(schedule, steps, seconds)) as world:
        from ppopt.torch import execution

        length = float(execution.predicted_makespan(schedule)) * seconds
        _note(f"running {steps + 1} steps of {length:.3g} s each at least", quiet=quiet)
        ran = execution.run(world, schedule, steps=steps, seconds_per_unit=seconds)
        interrupts.only_record()
    shown = _shown(schedule, ran, length, seconds)
    code = _write(targets, schedule, ran, seconds)
    if json:
        print_json(shown)
    elif not quiet:
        print(_words(shown))
    return code


def _seconds(sleep: str | None) -> float:
    from ppopt.errors import InputError
    from ppopt.problem import exact

    if sleep is None:
        return 0.0
    seconds = exact.read(sleep, "sleep").value
    if not 0 < seconds <= 3600:
        raise InputError(f"sleep: {sleep} is not above 0 and at most 3600; give seconds per unit")
    return float(seconds)


def _patience(schedule: Schedule, steps: int, seconds: float) -> float:
    """Return the seconds that a run may take, and that ranks wait for each other.

    PyTorch's W of stage 0, a whole backward, may double the length of a step.
    """
    from ppopt.torch.world import PATIENCE

    length = float(schedule.pipeline.ticks.time(schedule.metrics.makespan)) * seconds
    return PATIENCE + 4 * (steps + 1) * length


def _note(words: str, *, quiet: bool) -> None:
    if not quiet and sys.stderr.isatty():
        streams.note(words)


def _write(targets: Sequence[Target], schedule: Schedule, ran: RunResult, seconds: float) -> int:
    """Write the measured step, in the pipeline's unit of time with `--sleep`, else in ms.

    Returns the exit code.
    """
    from ppopt.cli.output import page_of, picture_of, write_each
    from ppopt.formats import schedule_json
    from ppopt.profiles.measured import measured
    from ppopt.torch import execution

    if not targets:
        return 0
    unit = round(seconds * 10**9) if seconds else 10**6
    found = measured(ran.records, schedule.pipeline, unit)

    def words(target: Target) -> str | bytes:
        if target.is_picture:
            return picture_of(found, target)
        if not target.is_page:
            return schedule_json.dumps(found)
        predicted = [execution.predicted_schedule(schedule)] if seconds else []
        return page_of([*predicted, found])

    return write_each((target, partial(words, target)) for target in targets)


def _shown(schedule: Schedule, ran: RunResult, length: float, seconds: float) -> dict[str, Any]:
    from ppopt.torch import require

    measured = median(ran.steps)
    ticks = schedule.pipeline.ticks
    longest = max((time for row in (*ticks.down, *ticks.up) for time in row), default=0)
    link = float(ticks.time(longest)) * seconds
    return {
        "schema": 1,
        "devices": schedule.pipeline.num_devices,
        "strategy": schedule.origin.strategy or "schedule",
        "gradients": ran.gradients,
        "losses": schedule.pipeline.batches,
        "largest_difference": ran.difference,
        "predicted_seconds": round(length, 9) or None,
        "p2p_seconds": round(link, 9) if length else None,
        "measured_seconds": round(measured, 6),
        "steps": [round(seconds, 6) for seconds in ran.steps],
        "ratio": round(measured / length, 4) if length else None,
        "versions": {"torch": require()},
    }


def _words(shown: dict[str, Any]) -> str:
    lines = [
        f"{shown['strategy']} on {shown['devices']} processes, torch {shown['versions']['torch']}",
        f"gradients  {shown['gradients']} gradients and {shown['losses']} losses as in one "
        f"process (largest difference {shown['largest_difference']:.2g})",
    ]
    steps = shown["steps"]
    spread = f"median of {len(steps)} ({1000 * min(steps):.1f} to {1000 * max(steps):.1f})"
    if shown["predicted_seconds"] is not None:
        link = 1000 * shown["p2p_seconds"]
        sent = f", transfers of up to {link:.3g} ms" if link else ""
        lines.append(f"predicted  {1000 * shown['predicted_seconds']:.1f} ms a step{sent}")
        spread += f", {shown['ratio']:.3f} of the prediction"
    lines.append(f"measured   {1000 * shown['measured_seconds']:.1f} ms a step, {spread}")
    return "\n".join(lines)
