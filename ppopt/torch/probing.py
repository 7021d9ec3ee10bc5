"""An order to profile with: it runs every kind of operation of every stage."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ppopt.errors import InputError
from ppopt.problem.objective import Objective
from ppopt.problem.operation import OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule import timing
from ppopt.schedule.origin import Origin
from ppopt.schedule.schedule import Schedule


def probe(batches: int, placement: Sequence[int]) -> Schedule:
    """All forwards, then all backwards, every second one split; memory for all microbatches.

    `placement` is the device of every stage. Half of the microbatches measure BW, the other half
    B and W, so that one run gives the whole pipeline file. Raises InputError below 2 microbatches.
    """
    if batches < 2:
        raise InputError("batches: profiling takes 2 microbatches or more: one whole, one split")
    pipeline = Pipeline(stages=len(placement), batches=batches, placement=list(placement))
    orders = []
    for hosted in pipeline.hosted[0]:
        forwards = [(OpKind.F, stage, m) for stage in hosted for m in range(batches)]
        backwards = [
            (kind, stage, m)
            for stage in reversed(hosted)
            for m in range(batches)
            for kind in ((OpKind.B, OpKind.W) if m % 2 else (OpKind.BW,))
        ]
        orders.append(np.array([pipeline.code(*op) for op in forwards + backwards], dtype=np.int64))
    origin = Origin(strategy="probe", objective=Objective.MAKESPAN, status="feasible")
    return timing.schedule(pipeline, orders, origin=origin)
