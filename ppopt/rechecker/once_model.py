"""CP-SAT variables and constraints of what a step has once (`ppopt.rechecker.once`)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import NamedTuple

from ortools.sat.python import cp_model

from ppopt.problem.operation_classes import AuxiliaryKind
from ppopt.rechecker.claim import Claim
from ppopt.rechecker.once import optimizer_time, times_of

Place = tuple[int, int]
"""Route and stage; of an optimizer, its device twice."""


class Once(NamedTuple):
    """The variables of these operations in a model, by kind and place."""

    claim: Claim
    start: dict[tuple[AuxiliaryKind, Place], cp_model.IntVar]
    end: dict[tuple[AuxiliaryKind, Place], cp_model.LinearExprT]
    device: dict[tuple[AuxiliaryKind, Place], int]
    held: dict[int, list[tuple[cp_model.IntervalVar, int]]]
    """What every device holds of gathered weights."""
    busy: dict[int, list[cp_model.IntervalVar]]
    """When every device runs its optimizer."""

    def rows(self, solver: cp_model.CpSolver) -> list[tuple[int, ...]]:
        """Kind, stage, device, start, end and route of every operation of a solution."""
        rows = []
        for (kind, place), start in self.start.items():
            device, (route, stage) = self.device[kind, place], place
            span = solver.value(start), solver.value(self.end[kind, place])
            if kind is AuxiliaryKind.OPTIMIZER:
                route, stage = self._lowest(device)
            rows.append((int(kind), stage, device, *span, route))
        return rows

    def _lowest(self, device: int) -> Place:
        hosts = enumerate(self.claim.pipeline.hosts)
        return next((route, row.index(device)) for route, row in hosts if device in row)


def add_once(
    cp: cp_model.CpModel,
    claim: Claim,
    latest: int,
    forwards: Callable[[Place], Iterable[cp_model.LinearExprT]],
    closings: Callable[[Place], Iterable[cp_model.LinearExprT]],
) -> Once:
    """Add the operations of a step, given the starts of F and the ends of W and BW of a stage."""
    made = Once(claim, {}, {}, {}, defaultdict(list), defaultdict(list))
    queues: dict[int, list[cp_model.IntervalVar]] = defaultdict(list)
    pipeline = claim.pipeline

    def add(kind: AuxiliaryKind, place: Place, device: int, time: int) -> cp_model.IntervalVar:
        start = cp.new_int_var(0, max(0, latest - time), "")
        key = kind, place
        made.start[key], made.end[key], made.device[key] = start, start + time, device
        return cp.new_fixed_size_interval_var(start, time, "")

    done: dict[Place, list[cp_model.LinearExprT]] = {}
    for route, hosts in enumerate(pipeline.hosts):
        for stage, device in enumerate(hosts):
            place, times = (route, stage), times_of(claim, stage)
            done[place] = list(closings(place))
            if times.unshard is not None:
                queues[device].append(add(AuxiliaryKind.UNSHARD, place, device, times.unshard))
                for start in forwards(place):
                    cp.add(start >= made.end[AuxiliaryKind.UNSHARD, place])
            if times.sync is not None:
                queues[device].append(add(AuxiliaryKind.GRADIENT_SYNC, place, device, times.sync))
                for end in done[place]:
                    cp.add(made.start[AuxiliaryKind.GRADIENT_SYNC, place] >= end)
                done[place] = [made.end[AuxiliaryKind.GRADIENT_SYNC, place]]
            amount = pipeline.ticks.unshard_memory[stage]
            if amount:
                size = cp.new_int_var(0, latest, "")
                first = made.start[AuxiliaryKind.UNSHARD, place]
                last = made.end[AuxiliaryKind.GRADIENT_SYNC, place]
                interval = cp.new_interval_var(first, size, last, "")
                made.held[device].append((interval, amount))
    for intervals in queues.values():
        cp.add_no_overlap(intervals)
    for device in range(pipeline.num_devices):
        time = optimizer_time(claim, device)
        if time is not None:
            place = device, device
            made.busy[device].append(add(AuxiliaryKind.OPTIMIZER, place, device, time))
            for (route, stage), ends in done.items():
                if pipeline.optimizer_barrier or pipeline.hosts[route][stage] == device:
                    for end in ends:
                        cp.add(made.start[AuxiliaryKind.OPTIMIZER, place] >= end)
    return made
