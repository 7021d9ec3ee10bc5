"""The rules of work around the microbatches: unshard, gradient sync and optimizer.

Of every stage of every route UNSHARD runs before its first F, and GRADIENT_SYNC after its last W or
BW, both on the collective queue of its device, one at a time. OPTIMIZER runs once on every device,
on its compute, as long as the optimizer steps of its stages together, after their syncs (or their
last W or BW if there is none); with a barrier, after those of all devices.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ppopt.problem.operation import AuxiliaryKind, OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.verifier.rows import LATEST, Rows, frozen_stages
from ppopt.verifier.violation import Rule, Violation
from ppopt.verifier.work import MOVES, Place, Work, WorkCheck


def wanted(pipeline: Pipeline) -> dict[tuple[AuxiliaryKind, Place], int]:
    """Every operation that a step of the pipeline has once, with its time in ticks.

    If any stage has gathered weights, or time for one kind, all stages have that kind. A device
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
        frozen = frozen_stages(pipeline)
        for device in range(pipeline.num_devices):
            stages = [stage for hosted in pipeline.hosted for stage in hosted[device]]
            if all(frozen[stage] for stage in stages):
                continue
            speed = pipeline.device_speed[device]
            time = sum(costs.optimizer[stage] for stage in stages) / speed
            found[AuxiliaryKind.OPTIMIZER, (device, device)] = int(time * per_unit)
    return found


def of_auxiliary(rows: Rows, works: Sequence[Work], strange: Sequence[str]) -> Iterator[Violation]:
    """Check all work around the microbatches; `strange` are rows of no operation, in words."""
    for words in strange:
        text = f"an operation of {words} is none of this pipeline"
        yield Violation(Rule.AUXILIARY, (), None, None, text)
    once = [work for work in works if work.kind not in MOVES]
    yield from _Check(rows.take(rows.named), once).violations()


@dataclass(frozen=True)
class _Check(WorkCheck):
    """The work around the microbatches, beside the operations that have a name."""

    def violations(self) -> Iterator[Violation]:
        yield from self.incomplete()
        yield from self.wrong_times()
        yield from self._order()
        yield from self._optimizer_order()
        yield from self._at_once()

    @cached_property
    def wanted(self) -> dict[tuple[AuxiliaryKind, Place], int]:
        """Operations that must be there, with their times in ticks."""
        return wanted(self.pipeline)

    @cached_property
    def compute(self) -> dict[Place, tuple[int, int]]:
        """First start of F and last end of any operation, by route and stage, in ticks."""
        named = self.named
        route = named.microbatch * self.pipeline.routes // self.pipeline.batches
        forward = named.kind == OpKind.F
        found: dict[Place, tuple[int, int]] = {}
        for way in range(self.pipeline.routes):
            for stage in range(self.pipeline.num_stages):
                here = (route == way) & (named.stage == stage)
                starts = named.starts[:-1][here & forward]
                ends = named.ends[:-1][here]
                found[way, stage] = (
                    int(starts.min(initial=2**62)),
                    int(ends.max(initial=-(2**62))),
                )
        return found

    def where(self, kind: AuxiliaryKind, place: Place) -> tuple[int, str]:
        """Device and words: of an optimizer the device, else stage and route."""
        if kind is AuxiliaryKind.OPTIMIZER:
            return place[0], f"device {place[0]}"
        route, stage = place
        return self.pipeline.hosts[route][stage], f"stage {stage}, route {route}"

    def name(self, work: Work) -> str:
        """Words for an operation and its times."""
        clock = self.named.clock
        what = f"of device {work.device}"
        if work.kind is not AuxiliaryKind.OPTIMIZER:
            route = f" on route {work.place[0]}" if self.pipeline.routes > 1 else ""
            what = f"of stage {work.place[1]}{route}"
        return f"{work.kind.name} {what} at {clock(work.start)}..{clock(work.end)}"

    def _order(self) -> Iterator[Violation]:
        """UNSHARD before the first F of its stage, GRADIENT_SYNC after its last operation."""
        clock = self.named.clock
        for work in self.first.values():
            if work.kind is AuxiliaryKind.OPTIMIZER:
                continue
            first, last = self.compute[work.place]
            if work.kind is AuxiliaryKind.UNSHARD and work.end > first:
                words = f"ends after the first F of its stage starts at {clock(first)}"
                yield self.at(Rule.UNSHARD, work, words)
            if work.kind is AuxiliaryKind.GRADIENT_SYNC and work.start < last:
                words = f"starts before the last operation of its stage ends at {clock(last)}"
                yield self.at(Rule.GRADIENT_SYNC, work, words)

    def _optimizer_order(self) -> Iterator[Violation]:
        """OPTIMIZER after the gradients of its stages, or of all if there is a barrier.

        Frozen stages have no gradients.
        """
        syncs = {place for kind, place in self.wanted if kind is AuxiliaryKind.GRADIENT_SYNC}
        frozen = frozen_stages(self.pipeline)
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
                    yield self.at(Rule.OPTIMIZER, work, words)

    def _at_once(self) -> Iterator[Violation]:
        """Two on one queue at a time, and compute beside an optimizer."""
        queues: dict[int, list[Work]] = defaultdict(list)
        for work in self.known:
            if work.kind is AuxiliaryKind.OPTIMIZER:
                yield from self._beside_compute(work)
            else:
                queues[work.device].append(work)
        for queue in queues.values():
            yield from self.overlapping(queue, Rule.COLLECTIVE)

    def _beside_compute(self, work: Work) -> Iterator[Violation]:
        sane = self.named.sane
        there = (sane.device == work.device) & (sane.start < work.end) & (sane.end > work.start)
        for row in np.flatnonzero(there)[:1].tolist():
            op, start = sane.op(row), self.named.clock(sane.start[row])
            yield self.at(Rule.OVERLAP, work, f"runs beside {op}, which starts at {start}")
