"""The rules of work around the microbatches: unshard, gradient sync and optimizer.

It also reads what moves to the host, whose rules are in `ppopt.verifier.moves`.

Of every stage of every route UNSHARD runs before its first F, and GRADIENT_SYNC after its last W or
BW, both on the collective queue of its device, one at a time. OPTIMIZER runs once on every device,
on its compute, as long as the optimizer steps of its stages together, after their syncs (or their
last W or BW where there is none); with a barrier, after those of all devices.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import NamedTuple

import numpy as np

from ppopt.errors import InputError
from ppopt.problem.operation import AuxiliaryKind, OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.auxiliary import AuxiliaryOperations
from ppopt.schedule.timetable import Timetable
from ppopt.verifier.rows import LATEST, Ints, Rows
from ppopt.verifier.violation import Rule, Violation

_FIELDS = ("kind", "stage", "device", "start", "end", "route", "microbatch", "slice")
ONCE = -1
"""Microbatch of what a step has once."""
MOVES = (AuxiliaryKind.OFFLOAD, AuxiliaryKind.RELOAD)
Place = tuple[int, ...]


class Work(NamedTuple):
    """One operation besides compute, of a stage; an optimizer is of its device."""

    kind: AuxiliaryKind
    place: Place
    """Route and stage; of an optimizer, the device twice; of a move to the host or back also
    microbatch and slice."""
    device: int
    start: int
    end: int


def read(schedule: Timetable) -> tuple[list[Work], list[str]]:
    """The operations that belong to the pipeline, and what the others are, in words.

    Raises InputError where the columns are not whole numbers of one length.
    """
    given = schedule.auxiliary
    columns = [_column(given, field) for field in _FIELDS]
    if len({len(column) for column in columns}) > 1:
        raise InputError("schedule: auxiliary: columns differ in length; give one entry each")
    known: list[Work] = []
    strange: list[str] = []
    for row in zip(*(column.tolist() for column in columns), strict=True):
        work = _work(schedule.pipeline, *row)
        if work is None:
            fields = zip(_FIELDS, row, strict=True)
            strange.append(", ".join(f"{name} {value}" for name, value in fields))
        else:
            known.append(work)
    return known, strange


def _column(given: AuxiliaryOperations, field: str) -> Ints:
    column = np.asarray(getattr(given, field))
    if column.ndim != 1 or not np.can_cast(column.dtype, np.int64):
        raise InputError(f"schedule: auxiliary: {field} is not a list of whole numbers (int64)")
    return column.astype(np.int64, copy=False)


def _work(
    pipeline: Pipeline,
    kind: int,
    stage: int,
    device: int,
    start: int,
    end: int,
    route: int,
    microbatch: int,
    part: int,
) -> Work | None:
    """The operation of a row, if the pipeline has it there and its times are exact."""
    if kind not in tuple(AuxiliaryKind) or not 0 <= route < pipeline.routes:
        return None
    if not 0 <= stage < pipeline.num_stages or pipeline.hosts[route][stage] != device:
        return None
    if not (-LATEST <= start <= LATEST and -LATEST <= end <= LATEST):
        return None
    place: Place = (device, device) if kind == AuxiliaryKind.OPTIMIZER else (route, stage)
    known = (microbatch, part) == (ONCE, 0)
    if kind in MOVES:
        share = pipeline.batches // pipeline.routes
        on_route = share * route <= microbatch < share * (route + 1)
        known = on_route and 0 <= part < pipeline.num_slices
        place = (route, stage, microbatch, part)
    return Work(AuxiliaryKind(kind), place, device, start, end) if known else None


def memory_changes(pipeline: Pipeline, work: Work) -> tuple[int, int]:
    """Memory taken at the start and given back at the end, in ticks.

    UNSHARD takes the gathered weights of its stage, GRADIENT_SYNC gives them back. OFFLOAD gives
    back the part of the activation that moves to the host, RELOAD takes it again.
    """
    if work.kind is AuxiliaryKind.OPTIMIZER:
        return 0, 0
    costs = pipeline.costs
    amounts = costs.offload_memory if work.kind in MOVES else costs.unshard_memory
    amount = int(amounts[work.place[1]] * pipeline.ticks.memory_per_unit)
    takes = work.kind in (AuxiliaryKind.UNSHARD, AuxiliaryKind.RELOAD)
    return (amount, 0) if takes else (0, amount)


def wanted(pipeline: Pipeline) -> dict[tuple[AuxiliaryKind, Place], int]:
    """Every operation that a step of the pipeline has once, with its time in ticks.

    Where any stage has gathered weights, or time for one kind, all stages have that kind. A device
    of frozen stages alone has no optimizer.
    """
    costs, per_unit = pipeline.costs, pipeline.ticks.per_unit
    gathered = any(costs.unshard_memory)
    found: dict[tuple[AuxiliaryKind, Place], int] = {}
    for kind, times in (
        (AuxiliaryKind.UNSHARD, costs.unshard),
        (AuxiliaryKind.GRADIENT_SYNC, costs.gradient_sync),
    ):
        if gathered or any(times):
            for route in range(pipeline.routes):
                for stage, time in enumerate(times):
                    found[kind, (route, stage)] = int(time * per_unit)
    if any(costs.optimizer):
        frozen = _frozen(pipeline)
        for device in range(pipeline.num_devices):
            stages = [stage for hosted in pipeline.hosted for stage in hosted[device]]
            if all(frozen[stage] for stage in stages):
                continue
            speed = pipeline.device_speed[device]
            time = sum(costs.optimizer[stage] for stage in stages) / speed
            found[AuxiliaryKind.OPTIMIZER, (device, device)] = int(time * per_unit)
    return found


def _frozen(pipeline: Pipeline) -> list[bool]:
    """Whether nothing in a stage is trained, per stage."""
    if pipeline.model is None:
        return list(pipeline.frozen or (False,) * pipeline.num_stages)
    layers = iter(pipeline.model.layers)
    return [all(layer.frozen for layer in list(islice(layers, n))) for n in pipeline.counts]


def of_auxiliary(schedule: Timetable, rows: Rows) -> Iterator[Violation]:
    """Check all work around the microbatches of a schedule, and what moves to the host."""
    known, strange = read(schedule)
    for words in strange:
        text = f"an operation of {words} is none of this pipeline"
        yield Violation(Rule.AUXILIARY, (), None, None, text)
    once = [work for work in known if work.kind not in MOVES]
    yield from _Check(rows.take(rows.named), once).violations()


@dataclass(frozen=True)
class _Check:
    """The work around the microbatches, beside the operations that have a name."""

    named: Rows
    known: list[Work]

    @property
    def pipeline(self) -> Pipeline:
        return self.named.pipeline

    def violations(self) -> Iterator[Violation]:
        yield from self._incomplete()
        yield from self._times()
        yield from self._order()
        yield from self._optimizer_order()
        yield from self._at_once()

    @cached_property
    def wanted(self) -> dict[tuple[AuxiliaryKind, Place], int]:
        """Operations that must be there, with their times in ticks."""
        return wanted(self.pipeline)

    @cached_property
    def first(self) -> dict[tuple[AuxiliaryKind, Place], Work]:
        """The first row of every operation that must be there: the one that counts."""
        found: dict[tuple[AuxiliaryKind, Place], Work] = {}
        for work in self.known:
            if (work.kind, work.place) in self.wanted:
                found.setdefault((work.kind, work.place), work)
        return found

    @cached_property
    def compute(self) -> dict[Place, tuple[int, int]]:
        """First start of F and last end of W or BW, by route and stage, in ticks."""
        named = self.named
        route = named.microbatch * self.pipeline.routes // self.pipeline.batches
        forward = named.kind == OpKind.F
        closing = (named.kind == OpKind.W) | (named.kind == OpKind.BW)
        found: dict[Place, tuple[int, int]] = {}
        for way in range(self.pipeline.routes):
            for stage in range(self.pipeline.num_stages):
                here = (route == way) & (named.stage == stage)
                starts = named.starts[:-1][here & forward]
                ends = named.ends[:-1][here & closing]
                found[way, stage] = (
                    int(starts.min(initial=2**62)),
                    int(ends.max(initial=-(2**62))),
                )
        return found

    def _name(self, work: Work) -> str:
        clock = self.named.clock
        what = f"of device {work.device}"
        if work.kind is not AuxiliaryKind.OPTIMIZER:
            route = f" on route {work.place[0]}" if self.pipeline.routes > 1 else ""
            what = f"of stage {work.place[1]}{route}"
        return f"{work.kind.name} {what} at {clock(work.start)}..{clock(work.end)}"

    def _at(self, rule: Rule, work: Work, words: str) -> Violation:
        return Violation(rule, (), work.device, work.start, f"{self._name(work)} {words}")

    def _incomplete(self) -> Iterator[Violation]:
        for kind, place in self.wanted:
            if (kind, place) not in self.first:
                is_device = kind is AuxiliaryKind.OPTIMIZER
                device = place[0] if is_device else self.pipeline.hosts[place[0]][place[1]]
                what = f"device {device}" if is_device else f"stage {place[1]}, route {place[0]}"
                text = f"{kind.name} of {what} is missing"
                yield Violation(Rule.AUXILIARY, (), device, None, text)
        for work in self.known:
            if (work.kind, work.place) not in self.wanted:
                yield self._at(Rule.AUXILIARY, work, "is none of this pipeline")
            elif self.first[work.kind, work.place] is not work:
                yield self._at(Rule.AUXILIARY, work, "is there twice")

    def _times(self) -> Iterator[Violation]:
        for work in self.known:
            ticks = self.wanted.get((work.kind, work.place))
            if ticks is not None and (work.end - work.start != ticks or work.start < 0):
                words = f"is not {self.named.clock(ticks)} long from 0 or later on"
                yield self._at(Rule.AUXILIARY_TIME, work, words)

    def _order(self) -> Iterator[Violation]:
        """UNSHARD before the first F of its stage, GRADIENT_SYNC after its last W or BW."""
        clock = self.named.clock
        for work in self.first.values():
            if work.kind is AuxiliaryKind.OPTIMIZER:
                continue
            first, last = self.compute[work.place]
            if work.kind is AuxiliaryKind.UNSHARD and work.end > first:
                words = f"ends after the first F of its stage starts at {clock(first)}"
                yield self._at(Rule.UNSHARD, work, words)
            if work.kind is AuxiliaryKind.GRADIENT_SYNC and work.start < last:
                words = f"starts before the last W or BW of its stage ends at {clock(last)}"
                yield self._at(Rule.GRADIENT_SYNC, work, words)

    def _optimizer_order(self) -> Iterator[Violation]:
        """OPTIMIZER after the gradients of its stages, or of all where there is a barrier.

        Frozen stages have no gradients.
        """
        syncs = {place for kind, place in self.wanted if kind is AuxiliaryKind.GRADIENT_SYNC}
        frozen = _frozen(self.pipeline)
        for work in self.first.values():
            if work.kind is not AuxiliaryKind.OPTIMIZER:
                continue
            for place, (_, last) in self.compute.items():
                if frozen[place[1]]:
                    continue
                device = self.pipeline.hosts[place[0]][place[1]]
                if device != work.device and not self.pipeline.optimizer_barrier:
                    continue
                sync = self.first.get((AuxiliaryKind.GRADIENT_SYNC, place))
                until = last if place not in syncs else sync.end if sync else -LATEST
                if work.start < until:
                    at = f"{self.named.clock(until)} on device {device}"
                    words = f"starts before the gradients of stage {place[1]} are done at {at}"
                    yield self._at(Rule.OPTIMIZER, work, words)

    def _at_once(self) -> Iterator[Violation]:
        """Two on one queue at a time, and compute beside an optimizer."""
        queues: dict[int, list[Work]] = defaultdict(list)
        for work in self.known:
            if work.kind is AuxiliaryKind.OPTIMIZER:
                yield from self._beside_compute(work)
            else:
                queues[work.device].append(work)
        for queue in queues.values():
            queue.sort(key=lambda work: (work.start, work.end))
            for place, work in enumerate(queue):
                running = max(queue[:place], key=lambda other: other.end, default=None)
                if running is not None and work.start < running.end:
                    yield self._at(Rule.COLLECTIVE, work, f"runs beside {self._name(running)}")

    def _beside_compute(self, work: Work) -> Iterator[Violation]:
        sane = self.named.sane
        there = (sane.device == work.device) & (sane.start < work.end) & (sane.end > work.start)
        for row in np.flatnonzero(there)[:1].tolist():
            op, start = sane.op(row), self.named.clock(sane.start[row])
            yield self._at(Rule.OVERLAP, work, f"runs beside {op}, which starts at {start}")
