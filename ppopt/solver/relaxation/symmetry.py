"""Symmetry of microbatches: their canonical order.

Renumbering microbatches canonically loses no objective value. The proof is in the
docstring of `ppopt.solver.cp_sat.model`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ppopt.problem.arrays import Ints
from ppopt.problem.operation import OpKind
from ppopt.schedule.operations import Operations
from ppopt.schedule.schedule import Schedule


def canonical(schedule: Schedule) -> Ints:
    """Operation number of every row of a schedule after canonical renumbering of microbatches.

    Within each stage, route and slice, the k-th F goes to the route's microbatch k, the k-th
    backward (B or BW) too, and the k-th W to the microbatch of the k-th B.
    """
    pipeline = schedule.pipeline
    routes = schedule.microbatch * pipeline.routes // pipeline.batches
    columns = (schedule.slice, routes, schedule.stage)
    slot = np.where(schedule.kind == OpKind.BW, OpKind.B, schedule.kind)
    microbatch = schedule.microbatch
    new = np.empty_like(microbatch)
    new[np.lexsort((schedule.start, *columns, slot))] = microbatch[
        np.lexsort((microbatch, *columns, slot))
    ]
    split, weight = (np.flatnonzero(schedule.kind == kind) for kind in (OpKind.B, OpKind.W))
    if not pipeline.has_all_operations:
        split = split[np.array(pipeline.has_operations[OpKind.W])[schedule.stage[split]]]
    stages = [tuple(column[rows] for column in columns) for rows in (split, weight)]
    in_order = np.lexsort((new[split], *stages[0]))
    new[weight[np.lexsort((schedule.start[weight], *stages[1]))]] = new[split[in_order]]
    kind: Any = schedule.kind
    codes: Ints = pipeline.code(kind, schedule.stage, new, schedule.slice)
    return codes


def canonical_besides(table: Operations) -> Ints:
    """Operation number of every operation besides compute after the same renumbering.

    The k-th of each kind, stage, route and slice goes to the route's microbatch k.
    """
    columns = (table.slice, table.route, table.stage, table.kind)
    new = np.empty_like(table.microbatch)
    new[np.lexsort((table.end, table.start, *columns))] = table.microbatch[
        np.lexsort((table.microbatch, *columns))
    ]
    return replace(table, microbatch=new).numbers
