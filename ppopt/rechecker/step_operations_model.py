"""CP-SAT variables and constraints of the operations of `ppopt.rechecker.step_operations`.

Offload: in a claim, F frees the offloaded memory at its end, and the backward allocates it at its
start. Here it stays live until OFFLOAD ends, and is live again from the start of RELOAD.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ortools.sat.python import cp_model

from ppopt.problem.link_mode import HostLink
from ppopt.problem.operation import ONCE, AuxiliaryKind, Op, OpKind
from ppopt.rechecker.claim import Claim
from ppopt.rechecker.quantities import device_of, memory_factor, microbatches_of_routes
from ppopt.rechecker.step_operations import optimizer_time, times_of, trained_stages
from ppopt.schedule.operations import ALONE

Location = tuple[int, int]
"""Route and stage; for an optimizer, its device twice."""
Key = tuple[AuxiliaryKind, tuple[int, ...]]
"""Kind and location; for a move also microbatch and slice."""


class StepOperations(NamedTuple):
    """The variables of these operations in a model, by kind and location."""

    claim: Claim
    start: dict[Key, cp_model.IntVar]
    end: dict[Key, cp_model.LinearExprT]
    device: dict[Key, int]
    live: dict[int, list[tuple[cp_model.IntervalVar, int]]]
    """Per device, when gathered weights, and activations around their moves, are live."""
    busy: dict[int, cp_model.IntervalVar]
    """When every device runs its optimizer."""

    def rows(self, solver: cp_model.CpSolver) -> list[tuple[int, ...]]:
        """All in a solution, as rows of the fields of `Operation`."""
        rows: list[tuple[int, ...]] = []
        for key, start in self.start.items():
            device, (kind, (route, stage, *rest)) = self.device[key], key
            span = solver.value(start), solver.value(self.end[key])
            if kind is AuxiliaryKind.OPTIMIZER:
                route, stage = self._lowest(device)
            microbatch, slice_index = rest or (ONCE, 0)
            fields = (int(kind), stage, microbatch, device)
            rows.append((*fields, *span, slice_index, ALONE, route, device))
        return rows

    def add_window(
        self, cp: cp_model.CpModel, device: int, begin: cp_model.IntVar, max_value: int
    ) -> None:
        """Every operation of a device runs between `begin` and `begin` + `max_value`."""
        for key, host in self.device.items():
            if host == device:
                cp.add(self.start[key] >= begin)
                cp.add(self.end[key] <= begin + max_value)

    def _lowest(self, device: int) -> Location:
        hosts = enumerate(self.claim.pipeline.hosts)
        return next((route, row.index(device)) for route, row in hosts if device in row)


def add_step_operations(
    cp: cp_model.CpModel,
    claim: Claim,
    latest: int,
    start: Mapping[Op, cp_model.IntVar],
    end: Mapping[Op, cp_model.LinearExprT],
) -> StepOperations:
    """Add these operations, given the starts and ends of all compute."""
    building = _Building(
        cp, claim, latest, StepOperations(claim, {}, {}, {}, defaultdict(list), {})
    )
    done: dict[Location, list[cp_model.LinearExprT]] = {}
    slices = range(claim.pipeline.num_slices)
    for route, microbatches in enumerate(microbatches_of_routes(claim)):
        for stage in range(claim.pipeline.num_stages):
            first = [Op(OpKind.F, stage, microbatches[0], slice_index) for slice_index in slices]
            last = [
                Op(kind, stage, microbatches[-1], slice_index)
                for kind in OpKind
                for slice_index in slices
            ]
            location = route, stage
            done[location] = building.add_stage(
                location, [start[op] for op in first], [end[op] for op in last if op in end]
            )
    building.add_moves(start, end)
    for intervals in building.queues.values():
        cp.add_no_overlap(intervals)
    for device in range(claim.pipeline.num_devices):
        building.add_optimizer(device, done)
    return building.variables


class _Building:
    """The model of these operations so far."""

    def __init__(
        self, cp: cp_model.CpModel, claim: Claim, latest: int, variables: StepOperations
    ) -> None:
        self.cp, self.claim, self.latest, self.variables = cp, claim, latest, variables
        self.queues: dict[tuple[int, str], list[cp_model.IntervalVar]] = defaultdict(list)
        """What the collective queue and the host link of every device run."""

    def add_stage(
        self,
        location: Location,
        forwards: Iterable[cp_model.LinearExprT],
        done: list[cp_model.LinearExprT],
    ) -> list[cp_model.LinearExprT]:
        """Add the collectives of a stage; returns the ends after which its gradients exist."""
        route, stage = location
        variables, times = self.variables, times_of(self.claim, stage)
        device = self.claim.pipeline.hosts[route][stage]
        unshard, sync = (AuxiliaryKind.UNSHARD, location), (AuxiliaryKind.GRADIENT_SYNC, location)
        if times.unshard is not None:
            self.queues[device, "collective"].append(self._add(*unshard, device, times.unshard))
            for start in forwards:
                self.cp.add(start >= variables.end[unshard])
        if times.sync is not None:
            self.queues[device, "collective"].append(self._add(*sync, device, times.sync))
            for end in done:
                self.cp.add(variables.start[sync] >= end)
            done = [variables.end[sync]]
        amount = self.claim.pipeline.ticks.costs.unshard_memory[stage]
        if amount:
            size = self.cp.new_int_var(0, self.latest, "")
            interval = self.cp.new_interval_var(
                variables.start[unshard], size, variables.end[sync], ""
            )
            variables.live[device].append((interval, amount))
        return done

    def add_moves(
        self, start: Mapping[Op, cp_model.IntVar], end: Mapping[Op, cp_model.LinearExprT]
    ) -> None:
        """Add OFFLOAD and RELOAD of every microbatch where its stage moves memory."""
        pipeline, variables = self.claim.pipeline, self.variables
        shared = pipeline.host_link is HostLink.SHARED
        last: dict[tuple[int, ...], tuple[int, ...]] = {}
        for forward in sorted(op for op in start if op.kind is OpKind.F):
            backwards = (forward._replace(kind=kind) for kind in (OpKind.B, OpKind.BW))
            backward = next((op for op in backwards if op in start), None)
            if backward is None:
                continue
            after, before = end[forward], start[backward]
            stage, device = forward.stage, device_of(self.claim, forward)
            costs = pipeline.ticks.costs
            if not costs.offload_memory[stage]:
                continue
            factor = memory_factor(self.claim, forward.microbatch)
            rows = (costs.offload_memory, costs.offload_time)
            amount, time = (int(factor * row[stage]) for row in rows)
            route = pipeline.route(forward.microbatch)
            location, row = (route, *forward[1:]), (route, stage, forward.slice)
            out, back = (AuxiliaryKind.OFFLOAD, location), (AuxiliaryKind.RELOAD, location)
            for kind, _ in (out, back):
                way = "host" if shared else kind.name
                self.queues[device, way].append(self._add(kind, location, device, time))
                if row in last:
                    self.cp.add(variables.start[kind, location] >= variables.end[kind, last[row]])
            last[row] = location
            self.cp.add(variables.start[out] >= after)
            self.cp.add(variables.start[back] >= variables.end[out])
            self.cp.add(before >= variables.end[back])
            for begin, until in ((after, variables.end[out]), (variables.start[back], before)):
                size = self.cp.new_int_var(0, self.latest, "")
                interval = self.cp.new_interval_var(begin, size, until, "")
                variables.live[device].append((interval, amount))

    def add_optimizer(self, device: int, done: dict[Location, list[cp_model.LinearExprT]]) -> None:
        """Add the optimizer of a device, if there is one."""
        pipeline, time = self.claim.pipeline, optimizer_time(self.claim, device)
        trained = trained_stages(pipeline)
        if time is None:
            return
        key = AuxiliaryKind.OPTIMIZER, (device, device)
        self.variables.busy[device] = self._add(*key, device, time)
        for (route, stage), ends in done.items():
            if stage not in trained:
                continue
            if pipeline.optimizer_barrier or pipeline.hosts[route][stage] == device:
                for end in ends:
                    self.cp.add(self.variables.start[key] >= end)

    def _add(
        self, kind: AuxiliaryKind, location: tuple[int, ...], device: int, time: int
    ) -> cp_model.IntervalVar:
        start = self.cp.new_int_var(0, max(0, self.latest - time), "")
        key = kind, location
        self.variables.start[key], self.variables.end[key] = start, start + time
        self.variables.device[key] = device
        return self.cp.new_fixed_size_interval_var(start, time, "")
