"""The table of all operations of a schedule: their resources and times."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ppopt.problem.arrays import Bools, Ints
from ppopt.problem.kinds import RECORDS, Kind, KindRecord, Per, ResourceKind
from ppopt.problem.operation import KINDS, NUM_KINDS, ONCE, Op, OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.resources import Resource, resources_of

ALONE = -1
"""Pair number of an operation that runs alone."""
MISSING = -1
"""Resource of an operation on a device or link that the pipeline does not have."""


class Operation(NamedTuple):
    """One operation of a schedule; times in ticks."""

    kind: Kind
    stage: int
    microbatch: int
    """Microbatch, or ONCE."""
    device: int
    start: int
    end: int
    slice: int
    pair: int
    route: int
    target: int

    @property
    def op(self) -> Op:
        """Compute of a microbatch, without its place and time."""
        return Op(OpKind(self.kind), self.stage, self.microbatch, self.slice)

    def __str__(self) -> str:
        if self.microbatch != ONCE:
            slice_text = f"s{self.slice}" if self.slice else ""
            return f"{self.stage}{self.kind.name}{self.microbatch}{slice_text}"
        route = f"r{self.route}" if self.route else ""
        return f"{self.stage}{self.kind.name}{route}"


@dataclass(frozen=True, eq=False)
class Operations:
    """Operations as columns of one length.

    Their contents are not checked: `ppopt.verify` does.
    """

    pipeline: Pipeline
    kind: Ints
    """Codes of kinds; `ppopt.problem.kinds.RECORDS` has the record of each."""
    stage: Ints
    """The stage; of a transfer, the sender; of an operation of a device, its lowest stage."""
    microbatch: Ints
    """Microbatch, or ONCE."""
    device: Ints
    """Device; of a transfer, the sender."""
    start: Ints
    """In ticks."""
    end: Ints
    slice: Ints
    """Part of the microbatch."""
    pair: Ints
    """Number of the overlapped pair, or ALONE. Both operations of a pair have one start and end."""
    route: Ints
    target: Ints
    """Device that receives; of all other operations, the device itself."""

    @classmethod
    def of_numbers(
        cls, pipeline: Pipeline, numbers: Ints, start: Ints, end: Ints, pair: Ints
    ) -> Operations:
        """The table of operations by number (`Instance.codes`), with their times and pairs."""
        kind, stage, microbatch, slice_index = split_codes(pipeline, numbers)
        route = pipeline.route(microbatch)
        device = np.array(pipeline.hosts, dtype=np.int64)[route, stage]
        if numbers.max(initial=0) < pipeline.num_codes:
            return cls(
                *(
                    pipeline,
                    kind,
                    stage,
                    microbatch,
                    device,
                    start,
                    end,
                    slice_index,
                    pair,
                    route,
                    device,
                )
            )
        once = occurs_per(Per.STAGE, Per.DEVICE)[kind]
        columns = (kind, stage, np.where(once, ONCE, microbatch), device)
        return cls.complete(pipeline, (*columns, start, end, slice_index, pair, route))

    @classmethod
    def untimed(cls, pipeline: Pipeline, numbers: Sequence[int] | Ints) -> Operations:
        """Operations by number (`Instance.codes`), all at 0."""
        none = np.zeros(len(numbers), dtype=np.int64)
        alone = np.full_like(none, ALONE)
        return cls.of_numbers(pipeline, np.array(numbers, dtype=np.int64), none, none, alone)

    @classmethod
    def complete(cls, pipeline: Pipeline, columns: Sequence[Ints]) -> Operations:
        """The table of columns of which the last ones may be missing: all but the first six.

        If missing, slices are 0, no operation has a pair, and route and target are those of the
        pipeline.
        """
        kind, stage, microbatch, device, *optional = columns
        if len(columns) < 7:
            optional.append(np.zeros_like(kind))
        if len(columns) < 8:
            optional.append(np.full_like(kind, ALONE))
        if len(columns) < 9:
            route = np.zeros_like(kind)
            if pipeline.routes > 1:
                route = np.where(microbatch == ONCE, 0, pipeline.route(microbatch))
            optional.append(route)
        if len(columns) < 10:
            optional.append(_targets(pipeline, kind, stage, device, optional[-1]))
        return cls(pipeline, kind, stage, microbatch, device, *optional)

    def __len__(self) -> int:
        return len(self.kind)

    @property
    def columns(self) -> tuple[Ints, ...]:
        """All columns, in the order of the fields of `Operation`."""
        return tuple(getattr(self, name) for name in Operation._fields)

    @cached_property
    def resources(self) -> tuple[Resource, ...]:
        """The resources of the pipeline, by number; devices come first."""
        return resources_of(self.pipeline, self.pipeline.traits)

    @cached_property
    def resource(self) -> Ints:
        """Number of the resource that runs each, or MISSING."""
        devices = self.pipeline.num_devices
        ends = (self.device, self.target)
        exists = (self.kind >= 0) & (self.kind < KINDS)
        for device in ends:
            exists &= (device >= 0) & (device < devices)
        if exists.all() and self.computed.all():
            return self.device
        link, resource_id = self.device * devices + self.target, np.full_like(self.kind, MISSING)
        for code in np.unique(self.kind[exists]).tolist():
            own = exists & (self.kind == code)
            resource_id[own] = _matched(link[own], _numbers(self.resources, RECORDS[code], devices))
        return resource_id

    def where(self, chosen: Bools | Ints) -> Operations:
        """A part of the table: by a mask or by rows."""
        return Operations(self.pipeline, *(column[chosen] for column in self.columns))

    def ordered(self, *, compute_in_order: bool = False) -> Operations:
        """The same, sorted by resource, start and end; pairs numbered in the order of rows.

        Step-long operations of a device follow its compute of microbatches. Operations of zero
        duration at the same instant are in the order of the data flow; with `compute_in_order`
        compute of microbatches is sorted already, and keeps its order.
        """
        in_order = self._is_in_order(compute_in_order=compute_in_order)
        table = self if in_order else self.where(self._row_order(compute_in_order=compute_in_order))
        paired = (table.pair != ALONE).any()
        return replace(table, pair=_renumbered(table.pair)) if paired else table

    def on(self, *kinds: ResourceKind) -> Bools:
        """Mask of those that run on resources of these kinds."""
        return self.of(lambda record: record.resource in kinds)

    def of(self, holds: Callable[[KindRecord], bool]) -> Bools:
        """Mask of those whose kind fulfils the predicate."""
        return np.asarray(np.array([*map(holds, RECORDS), False])[np.clip(self.kind, -1, KINDS)])

    @property
    def computed(self) -> Bools:
        """Mask of compute of microbatches, and of unknown kinds."""
        return np.asarray((self.kind < NUM_KINDS) | (self.kind >= KINDS))

    @property
    def known(self) -> Bools:
        """Mask of those with a resource and position of the pipeline, and thus with a number."""
        pipeline = self.pipeline
        known = (self.resource != MISSING) & (self.microbatch >= ONCE)
        known &= self.microbatch < pipeline.batches
        sizes = (pipeline.num_stages, pipeline.num_slices, pipeline.routes)
        for column, size in zip((self.stage, self.slice, self.route), sizes, strict=True):
            known &= (column >= 0) & (column < size)
        once = self.of(lambda record: record.per is not Per.MICROBATCH)
        return np.asarray(known & ((self.microbatch == ONCE) == once))

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

    def _is_in_order(self, *, compute_in_order: bool) -> bool:
        """Whether they are compute of microbatches, sorted by device and start without ties."""
        if not self.computed.all():
            return False
        device, start = np.diff(self.device), np.diff(self.start)
        return compute_in_order or bool(((device > 0) | (device == 0) & (start > 0)).all())

    def _row_order(self, *, compute_in_order: bool) -> Ints:
        """Rows in the order of `ordered`."""
        computed = self.computed
        forward = self.kind == OpKind.F
        if not computed.all():
            forward |= self.of(lambda record: record.carries is OpKind.F)
        depth = np.where(forward, self.stage, 2 * self.pipeline.num_stages - self.stage)
        slice_key = np.where(forward, self.slice, -self.slice)
        keys = (self.kind == OpKind.W, slice_key, self.microbatch, depth)
        if computed.all():
            return np.lexsort((*keys, self.end, self.start, self.device))
        flows = self.on(ResourceKind.LINK) | (False if compute_in_order else computed)
        flow = tuple(np.where(flows, key, 0) for key in keys)
        strange = len(self.resources)
        resource = np.where(computed, self.device, self.resource)
        has_no_resource = ~computed & (resource == MISSING) | (resource > strange)
        resource = np.where(has_no_resource, strange, resource)
        apart = np.where(has_no_resource, self.device, 0)
        return np.lexsort((*flow, self.end, self.start, self.microbatch == ONCE, apart, resource))


def occurs_per(*per: Per) -> Bools:
    """By code of a kind: whether an operation of it occurs once per device, stage or microbatch."""
    return np.array([record.per in per for record in RECORDS])


_STEPS = np.array(
    [0 if record.carries is None else 1 if record.carries is OpKind.F else -1 for record in RECORDS]
)
"""By code of a kind: from the stage of an operation to the stage that receives its result."""


def split_codes(pipeline: Pipeline, codes: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """Kind, stage, microbatch and slice of operation numbers: `Pipeline.op` for arrays."""
    rest, slice_index = np.divmod(codes, pipeline.num_slices)
    kind_stage, microbatch = np.divmod(rest, pipeline.batches)
    kind, stage = np.divmod(kind_stage, pipeline.num_stages)
    return kind, stage, microbatch, slice_index


def _targets(pipeline: Pipeline, kind: Ints, stage: Ints, device: Ints, route: Ints) -> Ints:
    """Devices that receive: of transfers, the host of the next stage, if there is one."""
    sent = (kind >= NUM_KINDS) & (kind < KINDS)
    if not sent.any():
        return device
    receiver = stage + _STEPS[np.where(sent, kind, 0)]
    sent &= (receiver != stage) & (receiver >= 0) & (receiver < pipeline.num_stages)
    sent &= (route >= 0) & (route < pipeline.routes)
    hosts = np.array(pipeline.hosts, dtype=np.int64)
    target = device.copy()
    target[sent] = hosts[route[sent], receiver[sent]]
    return target


def _renumbered(pair: Ints) -> Ints:
    """Pairs numbered 0, 1, ... in the order of their first rows."""
    pairs, first, inverse = np.unique(pair, return_index=True, return_inverse=True)
    first[pairs == ALONE] = -1
    rank = np.argsort(np.argsort(first)) - (pairs == ALONE).sum()
    return np.asarray(rank[inverse])


def _matched(keys: Ints, numbers: dict[int, int]) -> Ints:
    """The number of every key, or MISSING."""
    if not numbers:
        return np.full_like(keys, MISSING)
    known, values = (np.array(column) for column in zip(*sorted(numbers.items()), strict=True))
    index = np.minimum(np.searchsorted(known, keys), len(known) - 1)
    return np.where(known[index] == keys, values[index], MISSING)


def _numbers(resources: tuple[Resource, ...], record: KindRecord, devices: int) -> dict[int, int]:
    """Numbers of the resources that run a kind, by source x devices + target."""
    numbers: dict[int, list[int]] = {}
    for resource_id, resource in enumerate(resources):
        if resource.kind is record.resource:
            source, target = resource.devices[0], resource.devices[-1]
            keys = {source * devices + target}
            if not resource.one_way:
                keys.add(target * devices + source)
            for key in keys:
                numbers.setdefault(key, []).append(resource_id)
    return {key: ways[min(record.way, len(ways) - 1)] for key, ways in numbers.items()}
