"""Exposed time: how much longer a step is for unshard, gradient sync and optimizer."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from ppopt.problem.features.gradient_work import without_gradient_work
from ppopt.schedule import timing
from ppopt.schedule.auxiliary import NO_AUXILIARY
from ppopt.schedule.schedule import Schedule


def exposed(schedule: Schedule) -> Fraction | None:
    """The objective less that of the same orders without this work, in the user's unit of time.

    The orders of compute and links stay, and get new times. None where the pipeline has no such
    work. Raises as `timing.schedule` does, which is where the schedule is incomplete.
    """
    pipeline, objective = schedule.pipeline, schedule.objective
    if not pipeline.has_gradient_work:
        return None
    plain = without_gradient_work(pipeline)
    bare = replace(schedule, pipeline=plain, auxiliary=NO_AUXILIARY)
    alone = timing.retimed(bare, objective)
    own, least = (made.metrics.value(objective) for made in (schedule, alone))
    return pipeline.ticks.time(own) - plain.ticks.time(least)
