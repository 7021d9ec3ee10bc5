"""Symmetry of microbatches: their canonical order.

Renumbering microbatches canonically loses no attainable objective value. The proof is in the
docstring of `ppopt.solver.cp_sat.model`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ppopt.problem.arrays import Ints
from ppopt.schedule.schedule import Schedule


def canonical(schedule: Schedule) -> Ints:
    """Operation number of every row of a schedule after canonical renumbering of microbatches.

    Within each class (kind, stage, route, slice), the k-th operation by start goes to the route's
    microbatch k.
    """
    pipeline = schedule.pipeline
    routes = schedule.microbatch * pipeline.routes // pipeline.batches
    of_class = (schedule.slice, routes, schedule.stage, schedule.kind)
    kind: Any = schedule.kind
    codes: Ints = pipeline.code(kind, schedule.stage, schedule.microbatch, schedule.slice)
    new = np.empty_like(codes)
    new[np.lexsort((schedule.start, *of_class))] = codes[np.lexsort((codes, *of_class))]
    return new
