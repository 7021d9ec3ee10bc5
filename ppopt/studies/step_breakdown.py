"""Breaks down the time of a step with derived costs into five parts that add up to it."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from ppopt.derivation.derived_layer import DerivedLayer
from ppopt.derivation.layer_costs import KINDS
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.cost_table import ZERO
from ppopt.problem.instance import Instance
from ppopt.problem.kinds import Per
from ppopt.problem.operation import OpKind
from ppopt.schedule.operations import occurs_per
from ppopt.schedule.orders import codes
from ppopt.schedule.schedule import Schedule
from ppopt.schedule.timing import exposed

BACKWARDS = (OpKind.B, OpKind.BW)
"""Kinds that repeat F of a layer that recomputes."""
_FIELD = dict(zip((OpKind.F, OpKind.B, OpKind.W, OpKind.BW), KINDS, strict=True))
"""Kind of operation -> field of `Times`."""


class StepBreakdown(NamedTuple):
    """Parts of the makespan in ms; the first three are means over the devices."""

    compute: Fraction
    """F, B, W and BW without communication; a pair of F and BW counts once."""
    communication: Fraction
    """Exposed collectives inside these operations: of tensor, context and expert parallelism. What
    overlapped pairs save is not exposed."""
    bubble: Fraction
    """Idle time of the same orders without gradient sync and optimizer; includes waits for
    transfers."""
    gradient_sync: Fraction
    """Exposed time of gradient sync and unshard: time by which they make the step longer."""
    optimizer: Fraction
    """Exposed time of the optimizer."""


def step_breakdown(schedule: Schedule, layers: Sequence[DerivedLayer]) -> StepBreakdown:
    """Break down the makespan of a schedule on the pipeline of derived layers."""
    pipeline = schedule.pipeline
    time, devices = pipeline.ticks.time, pipeline.num_devices
    step = time(schedule.metrics.makespan_ticks)
    durations = np.where(schedule.seconds, 0, schedule.end - schedule.start)
    total = int(durations.sum())
    busy = time(total) / devices
    hidden = time(_alone(schedule) - total)
    communication = (Fraction(_communication(schedule, layers), 1000) - hidden) / devices
    around = time(exposed(schedule) or 0)
    optimizer = min(around, _last_optimizer(schedule))
    return StepBreakdown(
        compute=busy - communication,
        communication=communication,
        bubble=step - around - busy,
        gradient_sync=around - optimizer,
        optimizer=optimizer,
    )


def _alone(schedule: Schedule) -> int:
    """Ticks of all F, B, W and BW if none ran as a pair."""
    durations = Instance.of(schedule.pipeline, BackwardKind.MIXED).durations
    return sum(int(durations[codes(order)].sum()) for order in schedule.orders)


def _communication(schedule: Schedule, layers: Sequence[DerivedLayer]) -> int:
    """Communication of all operations together: whole microseconds, as all derived times.

    A layer that recomputes as a whole repeats the communication of F in B and BW; that of modules
    which recompute is left out.
    """
    pipeline = schedule.pipeline
    counts = np.zeros((len(OpKind), pipeline.num_stages), dtype=np.int64)
    np.add.at(counts, (schedule.kind, schedule.stage), 1)
    bounds = np.concatenate([[0], np.cumsum(pipeline.counts)])
    stage_of = np.repeat(np.arange(pipeline.num_stages), np.diff(bounds))
    each = [costs.communication for costs in layers for _ in range(costs.count)]
    total = 0
    for times, layer, stage in zip(each, pipeline.model.layers, stage_of, strict=True):
        for kind, field in _FIELD.items():
            recomputed = times.forward if layer.recompute is True and kind in BACKWARDS else 0.0
            total += int(counts[kind, stage]) * round(1000 * (getattr(times, field) + recomputed))
    return total


def _last_optimizer(schedule: Schedule) -> Fraction:
    """Time of the optimizer that ends last, in ms; 0 if there is none."""
    table = schedule.operations
    rows = np.flatnonzero(occurs_per(Per.DEVICE)[table.kind])
    if not len(rows):
        return ZERO
    last = rows[np.argmax(table.end[rows])]
    return schedule.pipeline.ticks.time(int(table.end[last] - table.start[last]))
