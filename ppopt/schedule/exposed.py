"""Exposed time: how much longer a step is for unshard, gradient sync and optimizer."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from ppopt.problem.features.gradient_work import without_gradient_work
from ppopt.schedule import timing
from ppopt.schedule.host_orders import own_moves
from ppopt.schedule.link_queues import queues_of_schedule
from ppopt.schedule.schedule import Schedule


def exposed(schedule: Schedule) -> Fraction | None:
    """The objective less that of the same orders without this work, in the user's unit of time.

    The orders of compute, links and moves to the host stay, and get new times. None if the
    pipeline has no such work. Raises as `timing.schedule` does, which is where the schedule is
    incomplete.
    """
    pipeline, objective = schedule.pipeline, schedule.objective
    if not pipeline.has_gradient_work:
        return None
    plain = without_gradient_work(pipeline)
    queues = queues_of_schedule(replace(schedule, pipeline=plain)) if pipeline.has_links else None
    moves = own_moves(schedule) if pipeline.has_offload else None
    alone = timing.schedule(plain, schedule.orders, objective, None, queues, moves)
    own, least = (made.metrics.value_ticks(objective) for made in (schedule, alone))
    return pipeline.ticks.time(own) - plain.ticks.time(least)
