"""The models that the search gives to CP-SAT, each built directly for a fixed question.

BUILDERS is the one place that names the builders of the product. After a change of these, it is all
that has to follow. The question (horizon, bound, devices, window) is fixed here, so that no bound
and no heuristic of the product has a part in it.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from tests.equivalence.runs import Fields, Instance, digest, model_digest, recorded_models

PREFIX = "model-"
"""The names of these rows begin so."""
MODEL = ("study", "pipeline", "options", "status", "models")
"""What must be equal in two rows of models."""
WINDOWS = ((0, 3), (1, 3), (1, 4), (0, 4))
"""Windows: the first place and the one after the last, in quarters of all operations."""


def outcome(ppopt: Any, question: Instance) -> Fields:
    """The row of a model: how many were built, and a digest of them, or the words of the error."""
    status, built = "built", list[str]()
    try:
        pipeline = ppopt.Pipeline(**question.pipeline)
        built = BUILDERS[question.study](pipeline, question.options)
    except Exception as error:  # a crash is a difference to be shown, not an end
        status = f"{type(error).__name__}: {error}"
    return {
        "name": question.name,
        "study": question.study,
        "pipeline": question.pipeline,
        "options": question.options,
        "status": status,
        "models": f"{len(built)} {digest(built)}",
    }


def _problem(pipeline: Any, options: Fields) -> Any:
    objective = import_module("ppopt.problem.objective").Objective
    kind = import_module("ppopt.problem.backward_kind").BackwardKind
    problem = import_module("ppopt.problem.problem").Problem
    return problem(
        pipeline,
        objective(options.get("objective", "makespan")),
        kind(options.get("backward_kind", "mixed")),
    )


def _horizon(pipeline: Any) -> int:
    """More ticks than any schedule needs: all operations one after the other, and their delays."""
    work = sum(sum(times) for times in pipeline.ticks.durations)
    return int(2 * work * pipeline.batches * pipeline.num_slices)


def _built(build: Callable[..., Any], pipeline: Any, options: Fields) -> list[str]:
    """A model in steps of a tick, and one in steps of seven below half of its horizon."""
    problem, horizon = _problem(pipeline, options), _horizon(pipeline)
    cp_models = (
        build(problem, horizon=horizon, bound=horizon // 5),
        build(problem, horizon=horizon // 2, bound=horizon // 5, step=7),
    )
    return [model_digest(cp_model.cp) for cp_model in cp_models]


def _full(pipeline: Any, options: Fields) -> list[str]:
    return _built(import_module("ppopt.solver.cp_sat.model").build_model, pipeline, options)


def _subset(pipeline: Any, options: Fields) -> list[str]:
    """The model of the first device, of the last one, and of both."""
    build = import_module("ppopt.solver.cp_sat.model").build_model
    problem, horizon = _problem(pipeline, options), _horizon(pipeline)
    last = pipeline.num_devices - 1
    return [
        model_digest(build(problem, horizon=horizon, bound=horizon // 5, devices=devices).cp)
        for devices in sorted({(0,), (last,), tuple(sorted({0, last}))})
    ]


def _question(pipeline: Any, options: Fields) -> list[str]:
    build = import_module("ppopt.solver.bounds.destructive_bounds").feasibility_model
    target = _horizon(pipeline) // 3
    return [model_digest(build(_problem(pipeline, options), target).cp)]


def _window(pipeline: Any, options: Fields) -> list[str]:
    """Models of windows of the schedule of a strategy; that of 1F1B has whole backwards."""
    window = import_module("ppopt.solver.heuristics.window")
    network_of = import_module("ppopt.solver.heuristics.operation_network").OperationNetwork
    network = network_of(_problem(pipeline, options))
    split = options.get("backward_kind") == "split"
    start = network.starts(_baseline(pipeline, "zb-h1" if split else "1f1b"))
    current = window.SemiActiveSchedule.of(network, start)
    with recorded_models() as models:
        for first, after in WINDOWS:
            ends = (index * network.size // 4 for index in (first, after))
            window.Window(current, *ends).reoptimise(_short())
    return models


def _baseline(pipeline: Any, strategy: str) -> Any:
    """The schedule of a strategy; windows of it need one that keeps the limits."""
    schedule = import_module("ppopt.studies.evaluate").evaluate(pipeline, strategy)
    if not schedule.fits_limits:
        raise ValueError(f"{strategy} is over the limit")
    return schedule


def _short() -> Any:
    """Limits of a run of CP-SAT that ends at once: only its model matters."""
    limits = import_module("ppopt.solver.budget").SolverLimits
    return limits(seconds=1.0, workers=1, seed=0, work=1e-3)


BUILDERS: dict[str, Callable[[Any, Fields], list[str]]] = {
    "full": _full,
    "subset": _subset,
    "question": _question,
    "window": _window,
    "mixed": _full,
    "mixed window": _window,
}
"""Digests of the models of a pipeline, by what builds them."""
