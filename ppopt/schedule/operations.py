"""All operations of a schedule in one table: compute, transfers, and all others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ppopt.problem.arrays import Bools, Ints
from ppopt.problem.kinds import RECORDS, Kind, KindRecord, Per, ResourceKind
from ppopt.problem.operation import NUM_KINDS, ONCE, OpKind, TransferKind
from ppopt.problem.operation_classes import Resource
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.resources import resources_of
from ppopt.schedule.auxiliary import AuxiliaryOperations
from ppopt.schedule.timetable import ALONE, Timetable
from ppopt.schedule.transfers import Transfers

MISSING = -1
"""Resource of an operation on a device or link that the pipeline does not have."""


class Operation(NamedTuple):
    """One operation of a schedule; times in ticks."""

    kind: Kind
    stage: int
    microbatch: int
    """Microbatch, or ONCE."""
    slice: int
    route: int
    device: int
    target: int
    resource: int
    start: int
    end: int
    pair: int

    def __str__(self) -> str:
        if self.microbatch != ONCE:
            part = f"s{self.slice}" if self.slice else ""
            return f"{self.stage}{self.kind.name}{self.microbatch}{part}"
        route = f"r{self.route}" if self.route else ""
        return f"{self.stage}{self.kind.name}{route}"


class OperationColumns(NamedTuple):
    """Columns of all operations of a schedule, of one length, as files have them."""

    kind: Ints
    stage: Ints
    microbatch: Ints
    """Microbatch, or ONCE."""
    device: Ints
    start: Ints
    end: Ints
    slice: Ints
    pair: Ints
    route: Ints
    target: Ints
    """Device that receives; of all but transfers, the device."""

    def where(self, chosen: Bools) -> OperationColumns:
        """Those of which this holds."""
        return OperationColumns(*(column[chosen] for column in self))


@dataclass(frozen=True, eq=False)
class Operations:
    """Operations as columns of one length, sorted by resource, then start.

    Their contents are not checked: `ppopt.verify` does.
    """

    pipeline: Pipeline
    resources: tuple[Resource, ...]
    """The resources of the pipeline, by number; devices come first."""
    kind: Ints
    """Codes of kinds; `ppopt.problem.kinds.RECORDS` has the record of each."""
    stage: Ints
    """The stage; of a transfer, the one that sends; of what a device has once, its lowest stage."""
    microbatch: Ints
    """Microbatch, or ONCE."""
    slice: Ints
    """Part of the microbatch."""
    route: Ints
    device: Ints
    """Device; of a transfer, the one that sends."""
    target: Ints
    """Device that receives; of all other operations, the device."""
    resource: Ints
    """Number of the resource that runs it, or MISSING."""
    start: Ints
    end: Ints
    pair: Ints
    """Number of the overlapped pair, or ALONE."""

    def __len__(self) -> int:
        return len(self.kind)

    @property
    def columns(self) -> tuple[Ints, ...]:
        """All columns, in the order of the fields of `Operation`."""
        return tuple(getattr(self, name) for name in Operation._fields)

    def where(self, chosen: Bools | Ints) -> Operations:
        """Some of them: those of which this holds, or those of these rows."""
        columns = (column[chosen] for column in self.columns)
        return Operations(self.pipeline, self.resources, *columns)

    def on(self, *kinds: ResourceKind) -> Bools:
        """Which of them run on resources of these kinds."""
        there = [resource.kind in kinds for resource in self.resources]
        return np.asarray(np.array([*there, False])[self.resource])

    @property
    def computed(self) -> Bools:
        """Which of them are compute of a microbatch: the rows of the schedule, in their order."""
        return np.asarray(self.on(ResourceKind.COMPUTE) & (self.microbatch != ONCE))

    @property
    def known(self) -> Bools:
        """Which of them have a resource, stage and microbatch that the pipeline has."""
        pipeline = self.pipeline
        stage = (self.stage >= 0) & (self.stage < pipeline.num_stages)
        microbatch = (self.microbatch >= ONCE) & (self.microbatch < pipeline.batches)
        there = (self.resource != MISSING) & stage & microbatch
        once = of_per(Per.STAGE, Per.DEVICE)[np.where(there, self.kind, 0)]
        return np.asarray(there & ((self.microbatch == ONCE) == once))

    @property
    def numbers(self) -> Ints:
        """Number of every operation (`Instance.codes`), if the pipeline has it."""
        batches = self.pipeline.batches // self.pipeline.routes
        microbatch = np.where(self.microbatch == ONCE, self.route * batches, self.microbatch)
        return np.asarray(self.pipeline.code(self.kind, self.stage, microbatch, self.slice))

    @property
    def seconds(self) -> Bools:
        """Whether an operation is the second of its pair, the first being the row before it."""
        same = (self.pair[1:] == self.pair[:-1]) & (self.pair[1:] != ALONE)
        return np.append(False, same)[: len(self)]

    def rows(self) -> Iterator[Operation]:
        """The operations, in their order."""
        kinds = [record.kind for record in RECORDS]
        lists = (column.tolist() for column in self.columns)
        for kind, *rest in zip(*lists, strict=True):
            yield Operation(kinds[kind], *rest)


def of_per(*per: Per) -> Bools:
    """By code of a kind of operation: whether each of these has one."""
    return np.array([record.per in per for record in RECORDS])


def operations_of(schedule: Timetable) -> Operations:
    """The table of all operations of a schedule.

    Behind the compute of microbatches of every device stands what it computes once in a step.
    """
    parts = [_compute(schedule)]
    if len(schedule.transfers):
        parts.append(_transfers(schedule))
    if len(schedule.auxiliary):
        parts.append(_others(schedule))
    columns = parts[0]
    if len(parts) > 1:
        columns = tuple(np.concatenate(column) for column in zip(*parts, strict=True))
    kind, _, _, _, _, device, target, *_ = columns
    resources = resources_of(schedule.pipeline)
    resource = _resource(resources, schedule.pipeline.num_devices, kind, device, target)
    columns = (*columns[:7], resource, *columns[7:])
    if len(parts) > 1:
        order = np.argsort(resource, kind="stable")
        columns = tuple(column[order] for column in columns)
    return Operations(schedule.pipeline, resources, *columns)


def receivers(kind: Ints, stage: Ints) -> Ints:
    """Stage that gets what an operation hands on; of all but transfers, its own."""
    step = {OpKind.F: 1, OpKind.B: -1, None: 0}
    steps = np.array([step[record.carries] for record in RECORDS])
    return np.asarray(stage + steps[kind])


def split_tables(
    columns: OperationColumns,
) -> tuple[OperationColumns, Transfers, AuxiliaryOperations]:
    """Compute of microbatches, transfers, and the rest."""
    carries = np.array([-1 if one.carries is None else int(one.carries) for one in RECORDS])
    sent = carries[columns.kind] >= 0
    computed = columns.kind < NUM_KINDS
    carried, others = columns.where(sent), columns.where(~sent & ~computed)
    transfers = Transfers(
        *(carries[carried.kind], carried.stage, carried.microbatch, carried.device),
        *(carried.target, carried.start, carried.end, carried.slice),
    )
    auxiliary = AuxiliaryOperations(
        *(others.kind, others.stage, others.device, others.start, others.end),
        *(others.route, others.microbatch, others.slice),
    )
    return columns.where(computed), transfers, auxiliary


def _compute(schedule: Timetable) -> tuple[Ints, ...]:
    place = (schedule.kind, schedule.stage, schedule.microbatch, schedule.slice)
    route = schedule.microbatch * schedule.pipeline.routes // schedule.pipeline.batches
    device = schedule.device
    return *place, route, device, device, schedule.start, schedule.end, schedule.pair


def _transfers(schedule: Timetable) -> tuple[Ints, ...]:
    sent, pipeline = schedule.transfers, schedule.pipeline
    kind = np.where(sent.kind == OpKind.F, int(TransferKind.SEND_F), int(TransferKind.SEND_B))
    route = sent.microbatch * pipeline.routes // pipeline.batches
    place = (kind, sent.stage, sent.microbatch, sent.slice, route, sent.source, sent.target)
    return *place, sent.start, sent.end, np.full_like(kind, ALONE)


def _others(schedule: Timetable) -> tuple[Ints, ...]:
    given = schedule.auxiliary
    place = (given.kind, given.stage, given.microbatch, given.slice, given.route)
    alone = np.full_like(given.kind, ALONE)
    return *place, given.device, given.device, given.start, given.end, alone


def _resource(
    resources: tuple[Resource, ...], devices: int, kind: Ints, device: Ints, target: Ints
) -> Ints:
    """Number of the resource of every operation."""
    there = (kind >= 0) & (kind < len(RECORDS))
    there &= (device >= 0) & (device < devices) & (target >= 0) & (target < devices)
    if there.all() and kind.max(initial=0) < NUM_KINDS:
        return device
    ends = device * devices + target
    number = np.full_like(kind, MISSING)
    for code in np.unique(kind[there]).tolist():
        own = there & (kind == code)
        number[own] = _matched(ends[own], _numbers(resources, RECORDS[code], devices))
    return number


def _matched(keys: Ints, numbers: dict[int, int]) -> Ints:
    """The number of every key, or MISSING."""
    if not numbers:
        return np.full_like(keys, MISSING)
    known, values = (np.array(column) for column in zip(*sorted(numbers.items()), strict=True))
    place = np.minimum(np.searchsorted(known, keys), len(known) - 1)
    return np.where(known[place] == keys, values[place], MISSING)


def _numbers(resources: tuple[Resource, ...], record: KindRecord, devices: int) -> dict[int, int]:
    """Numbers of the resources that run a kind, by source x devices + target."""
    numbers: dict[int, list[int]] = {}
    for number, resource in enumerate(resources):
        if resource.kind is record.resource:
            source, target = resource.devices[0], resource.devices[-1]
            keys = {source * devices + target}
            if not resource.one_way:
                keys.add(target * devices + source)
            for key in keys:
                numbers.setdefault(key, []).append(number)
    return {key: ways[min(record.way, len(ways) - 1)] for key, ways in numbers.items()}
