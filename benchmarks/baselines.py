"""Schedules by hand: every strategy that applies to a pipeline as it is placed."""

from __future__ import annotations

from ppopt import NotApplicableError, Objective, Pipeline, Schedule, evaluate
from ppopt.strategies import Options, registry


def fitting(pipeline: Pipeline, objective: Objective) -> dict[str, Schedule]:
    """Schedules, by strategy, that keep the memory limit.

    Strategies of another placement, or of slices, are out: they cut the model or the microbatches
    otherwise, which is another problem.
    """
    schedules = {name: _evaluate(name, pipeline, objective) for name in registry()}
    return {
        name: schedule
        for name, schedule in schedules.items()
        if schedule is not None and schedule.fits_limits
    }


def _evaluate(name: str, pipeline: Pipeline, objective: Objective) -> Schedule | None:
    try:
        placed = registry()[name].apply(pipeline, Options())
        if (placed.hosts, placed.num_slices) != (pipeline.hosts, pipeline.num_slices):
            return None
        return evaluate(pipeline, name, objective)
    except NotApplicableError:
        return None
