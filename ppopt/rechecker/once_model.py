"""CP-SAT variables and constraints of what a step has once (`ppopt.rechecker.once`)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import NamedTuple

from ortools.sat.python import cp_model

from ppopt.problem.operation import AuxiliaryKind
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
    busy: dict[int, cp_model.IntervalVar]
    """When every device runs its optimizer."""

    def rows(self, solver: cp_model.CpSolver) -> list[tuple[int, ...]]:
        """Kind, stage, device, start, end and route of every operation of a solution."""
        rows: list[tuple[int, ...]] = []
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
    building = _Building(cp, claim, latest, Once(claim, {}, {}, {}, defaultdict(list), {}))
    done: dict[Place, list[cp_model.LinearExprT]] = {}
    for route, hosts in enumerate(claim.pipeline.hosts):
        for stage in range(len(hosts)):
            place = route, stage
            done[place] = building.add_stage(place, forwards(place), list(closings(place)))
    for intervals in building.queues.values():
        cp.add_no_overlap(intervals)
    for device in range(claim.pipeline.num_devices):
        building.add_optimizer(device, done)
    return building.made


class _Building:
    """The model of these operations so far."""

    def __init__(self, cp: cp_model.CpModel, claim: Claim, latest: int, made: Once) -> None:
        self.cp, self.claim, self.latest, self.made = cp, claim, latest, made
        self.queues: dict[int, list[cp_model.IntervalVar]] = defaultdict(list)
        """What the collective queue of every device runs."""

    def add_stage(
        self,
        place: Place,
        forwards: Iterable[cp_model.LinearExprT],
        done: list[cp_model.LinearExprT],
    ) -> list[cp_model.LinearExprT]:
        """Add what a stage has; returns the ends after which its gradients are there."""
        route, stage = place
        made, times = self.made, times_of(self.claim, stage)
        device = self.claim.pipeline.hosts[route][stage]
        unshard, sync = (AuxiliaryKind.UNSHARD, place), (AuxiliaryKind.GRADIENT_SYNC, place)
        if times.unshard is not None:
            self.queues[device].append(self._add(*unshard, device, times.unshard))
            for start in forwards:
                self.cp.add(start >= made.end[unshard])
        if times.sync is not None:
            self.queues[device].append(self._add(*sync, device, times.sync))
            for end in done:
                self.cp.add(made.start[sync] >= end)
            done = [made.end[sync]]
        amount = self.claim.pipeline.ticks.unshard_memory[stage]
        if amount:
            size = self.cp.new_int_var(0, self.latest, "")
            interval = self.cp.new_interval_var(made.start[unshard], size, made.end[sync], "")
            made.held[device].append((interval, amount))
        return done

    def add_optimizer(self, device: int, done: dict[Place, list[cp_model.LinearExprT]]) -> None:
        """Add the optimizer of a device, if there is one."""
        pipeline, time = self.claim.pipeline, optimizer_time(self.claim, device)
        if time is None:
            return
        key = AuxiliaryKind.OPTIMIZER, (device, device)
        self.made.busy[device] = self._add(*key, device, time)
        for (route, stage), ends in done.items():
            if pipeline.optimizer_barrier or pipeline.hosts[route][stage] == device:
                for end in ends:
                    self.cp.add(self.made.start[key] >= end)

    def _add(
        self, kind: AuxiliaryKind, place: Place, device: int, time: int
    ) -> cp_model.IntervalVar:
        start = self.cp.new_int_var(0, max(0, self.latest - time), "")
        key = kind, place
        self.made.start[key], self.made.end[key] = start, start + time
        self.made.device[key] = device
        return self.cp.new_fixed_size_interval_var(start, time, "")
