"""Microbatches renamed into order, which loses no schedule (see `ppopt.solver.cp_sat.model`)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ppopt.problem.arrays import Ints
from ppopt.schedule.schedule import Schedule


def renamed(schedule: Schedule) -> Ints:
    """Number of every operation once each class (kind, stage, route, slice) is in that order."""
    pipeline = schedule.pipeline
    routes = schedule.microbatch * pipeline.routes // pipeline.batches
    of_class = (schedule.slice, routes, schedule.stage, schedule.kind)
    kind: Any = schedule.kind
    codes: Ints = pipeline.code(kind, schedule.stage, schedule.microbatch, schedule.slice)
    new = np.empty_like(codes)
    new[np.lexsort((schedule.start, *of_class))] = codes[np.lexsort((codes, *of_class))]
    return new
