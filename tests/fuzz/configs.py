"""Models as their user gives them: a file and a line of words, and what the command says of them.

A case has the fields of a pipeline of layers as `tests.fuzz.layers.draw_stated` draws them.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import ppopt
from ppopt import Pipeline, Schedule
from ppopt.errors import PpoptError
from tests.cli.cli_run import run
from tests.fuzz import layers
from tests.fuzz.category import Finding, SkippedError


def answer(command: Sequence[str], fields: dict[str, Any]) -> Any:
    """The JSON that a command prints of the model, run in this process.

    Raises SkippedError if the command refuses what is asked; a bug of the product is raised.
    """
    keys = {"model": "layers", "p2p": "p2p_time"}
    settings = {keys.get(key, key): value for key, value in fields.items() if value is not None}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.json"
        path.write_text(json.dumps(settings), encoding="utf-8")
        code, out, err = run("", *command, "--config", path, "--json")
    if code == 2:
        raise SkippedError(err.strip().splitlines()[-1])
    return json.loads(out) | {"code": code}


def exact(value: float) -> Fraction:
    """A number of JSON: the fraction of few digits that it stands for."""
    return Fraction(value).limit_denominator(10**6)


def stated(value: float | None) -> Fraction | None:
    """The same of a number that may not be known."""
    return None if value is None else exact(value)


def chosen(fields: dict[str, Any], recompute: str) -> list[layers.Chosen]:
    """The choices of layers that a word of `--recompute` leaves open."""
    word = None if recompute == "layers" else recompute
    return list(layers.choices(fields | {"recompute": word}))


def schedule(
    fields: dict[str, Any], strategy: str, counts: Any, which: layers.Chosen
) -> Schedule | None:
    """A strategy on a partition, where exactly these layers recompute; None: it has none."""
    model = [
        layer | {"recompute": list(recomputes) if isinstance(recomputes, tuple) else recomputes}
        for layer, recomputes in zip(fields["model"], which, strict=True)
    ]
    try:
        return ppopt.evaluate(Pipeline(**fields | {"model": model, "partition": counts}), strategy)
    except PpoptError:
        return None


def value(schedule: Schedule) -> Fraction:
    """Makespan of a schedule in the user's unit."""
    return schedule.pipeline.ticks.time(schedule.metrics.makespan_ticks)


def within(schedules: Iterator[Schedule | None]) -> Iterator[Schedule]:
    """The schedules that keep their memory limits."""
    return (schedule for schedule in schedules if schedule is not None and schedule.fits_limits)


def ended(ran: Any, *, best: Fraction | None) -> Iterator[Finding]:
    """Compare status, value and bound of an answer with the least value; None: nothing fits."""
    status, value, bound = ran["status"], stated(ran["value"]), stated(ran["lower_bound"])
    if best is None:
        if value is not None:
            yield Finding("value-of-nothing", f"{status}, {value}, where nothing keeps the limits")
        return
    if status == "infeasible":
        yield Finding("wrong-infeasible", f"infeasible, where {best} is possible")
    if bound is not None and bound > best:
        yield Finding("wrong-bound", f"the bound is {bound}, where {best} is possible")
    if value is not None and value < best:
        yield Finding("below-optimum", f"the value is {value}, the least is {best}")
    if status == "optimal" and value != best:
        yield Finding("wrong-optimum", f"optimal at {value}, where {best} is possible")
