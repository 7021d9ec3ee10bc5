"""Runs of an instance: the clock stands still, so that work alone decides, on any machine.

A search with one worker shares its time by CP-SAT's deterministic units, and asks the clock only
whether time is up. A study also shares out seconds. Here `time.monotonic` always returns the same
instant, and CP-SAT gets no limit in seconds. So a repeated run takes the same steps, however busy
the machine is. A plan searches its best partition by itself for a share of the time: that ends by
the clock alone, and is left out. A run that takes `MOST_SECONDS` of the processor is out of time
from then on: that is a run that does not end by proof.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from ortools.sat.python import cp_model

Fields = dict[str, Any]
TIME_LIMIT = 30.0
"""Seconds that every study is given, by the clock that stands still."""
MOST_SECONDS = 30.0
"""Seconds of the processor after which that clock has reached the time limit."""
SEED, WORKERS = 0, 1
DIGITS = 12
"""Hexadecimal digits of a digest."""
ANSWERS = ("study", "pipeline", "options", "status", "value", "lower_bound", "points")
"""What is the answer of an instance."""
STEPS = ("proof", "rows", "schedule", "models")
"""How the answer was found; a change of the search may change it."""


class Instance(NamedTuple):
    """A study of one pipeline, as arguments of `ppopt.Pipeline` and of the study."""

    name: str
    study: str
    """`solve`, `plan`, `frontier` or `compare`; for models what builds them."""
    pipeline: Fields
    options: Fields
    may_improve: bool = False
    """Whether it does not end by proof: a lower value and a higher bound are no difference."""


def outcome(ppopt: Any, instance: Instance) -> Fields:
    """The row of an instance: answer and steps, or the words of the error."""
    began = time.process_time()
    with standing_clock(), recorded_models() as models:
        try:
            answer = STUDIES[instance.study](ppopt, instance)
        except Exception as error:  # a crash is a difference to be shown, not an end
            answer = {"status": f"{type(error).__name__}: {error}"}
    models_of = f"{len(models)} {digest(models)}"
    return {
        **instance._asdict(),
        **dict.fromkeys(("value", "lower_bound")),
        **answer,
        "models": models_of,
        "seconds": round(time.process_time() - began, 2),
    }


@contextmanager
def standing_clock() -> Iterator[None]:
    """Let `time.monotonic` stand still, until so much processor time is spent."""
    now, began = time.monotonic(), time.process_time()

    def monotonic() -> float:
        late = time.process_time() - began > MOST_SECONDS
        return now + 2 * TIME_LIMIT if late else now

    with mock.patch.object(time, "monotonic", monotonic):
        yield


@contextmanager
def recorded_models() -> Iterator[list[str]]:
    """The digest of every model that the search gives to CP-SAT, which then has no time limit."""
    digests: list[str] = []
    solve = cp_model.CpSolver.solve

    def recorded(solver: Any, model: Any, *more: Any) -> Any:
        if sys._getframe(1).f_globals["__name__"].startswith("ppopt.solver"):
            digests.append(model_digest(model))
            solver.parameters.max_time_in_seconds = 20 * MOST_SECONDS
        return solve(solver, model, *more)

    with mock.patch.object(cp_model.CpSolver, "solve", recorded):
        yield digests


def model_digest(model: cp_model.CpModel) -> str:
    """The digest of the text of a model: variables, constraints, objective and hint in order."""
    return digest(str(model.proto))


def digest(value: object) -> str:
    """The digest of a text, or of what JSON can write."""
    text = value if isinstance(value, str) else json.dumps(value)
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


def _solve(ppopt: Any, instance: Instance) -> Fields:
    pipeline = _pipeline(ppopt, instance.pipeline)
    options = dict(instance.options)
    if "hint" in options:
        options["hint"] = _from_file(ppopt, **options["hint"])
    if "rounds" in options:
        max_rounds = options.pop("rounds")
        options["params"] = _parameters(rounds=lambda own: own._replace(max_rounds=max_rounds))
    result = ppopt.solve(pipeline, **options, **_common())
    return _answer(result) | {"proof": _proof(result), "schedule": _schedule(result.schedule)}


def _plan(ppopt: Any, instance: Instance) -> Fields:
    arguments = dict(instance.pipeline)
    model = ppopt.Model([ppopt.Layer(**layer) for layer in arguments.pop("model")])
    params = _parameters(
        plan=lambda own: own._replace(
            configurations=own.configurations._replace(small_improving=0.0)
        )
    )
    plan = ppopt.plan(model, **arguments, **instance.options, params=params, **_common())
    least_memory = plan.least_memory
    points = (
        None
        if least_memory is None
        else [_exact(least_memory.memory), _exact(least_memory.lower_bound)]
    )
    rows = [
        [str(row.configuration), row.status.value, _exact(row.value), _exact(row.lower_bound)]
        for row in plan.rows
    ]
    more = plan.more_memory
    if more is not None:
        rows.append(["more memory", _exact(more.value), _exact(more.lower_bound)])
    return _answer(plan) | {
        "points": points,
        "rows": sorted(rows),
        "schedule": _schedule(plan.schedule),
    }


def _frontier(ppopt: Any, instance: Instance) -> Fields:
    pipeline = _pipeline(ppopt, instance.pipeline)
    frontier = ppopt.frontier(pipeline, **instance.options, **_common())
    points = [
        [
            *map(_exact, (point.limit, point.result.value, point.result.lower_bound)),
            point.limit_proved,
        ]
        for point in frontier.points
    ]
    return {
        "status": frontier.status.value,
        "points": points,
        "rows": [list(map(_exact, bound)) for bound in frontier.bounds],
        "schedule": digest([_schedule(point.result.schedule) for point in frontier.points]),
    }


def _compare(ppopt: Any, instance: Instance) -> Fields:
    pipeline = _pipeline(ppopt, instance.pipeline)
    comparison = ppopt.compare(pipeline, **instance.options, **_common())
    best = comparison.optimum
    rows = [
        [row.schedule.origin.strategy, str(row.value), row.fits_limit] for row in comparison.rows
    ]
    return _answer(best) | {
        "proof": _proof(best),
        "rows": sorted(rows),
        "schedule": _schedule(best.schedule),
    }


STUDIES = {"solve": _solve, "plan": _plan, "frontier": _frontier, "compare": _compare}


def _common() -> Fields:
    return {"time_limit": TIME_LIMIT, "workers": WORKERS, "seed": SEED}


def _pipeline(ppopt: Any, fields: Fields) -> Any:
    settings = dict(fields)
    if "model" in settings:
        settings["model"] = [ppopt.Layer(**layer) for layer in settings["model"]]
    return ppopt.Pipeline(**settings)


def _parameters(**changes: Callable[[Any], Any]) -> Any:
    """The parameters of a search, some of them changed."""
    defaults = import_module("ppopt.solver.parameters").SolveParams()
    return replace(
        defaults, **{name: change(getattr(defaults, name)) for name, change in changes.items()}
    )


def _from_file(ppopt: Any, pipeline: Fields, strategy: str) -> Any:
    """The schedule of a strategy, written to a file and read again."""
    schedule = ppopt.evaluate(_pipeline(ppopt, pipeline), strategy)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "hint.json"
        schedule.to_json(path)
        return ppopt.read_schedule(path)[0]


def _answer(result: Any) -> Fields:
    return {
        "status": result.status.value,
        "value": _exact(result.value),
        "lower_bound": _exact(result.lower_bound),
    }


def _proof(result: Any) -> str:
    """The kind of argument behind the bound, and the devices that it names."""
    certificate = result.certificate
    return " ".join((certificate.argument.value, *map(str, certificate.devices)))


def _schedule(schedule: Any) -> str | None:
    """The digest of the operations of a schedule, as its file lists them."""
    if schedule is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "schedule.json"
        schedule.to_json(path)
        return digest(json.loads(path.read_text(encoding="utf-8"))["ops"])


def _exact(value: object) -> str | None:
    return None if value is None else str(value)
