"""The rules of activations that move to the host between F and the backward.

Where a stage offloads, OFFLOAD of every microbatch (and slice) runs after its F, and RELOAD after
that and before its B or BW. Each way between a device and its host moves one at a time; where the
link is shared, both ways together do. OFFLOAD gives memory back at its end, RELOAD takes it at its
start (`ppopt.verifier.measure`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from ppopt.problem.offload import HostLink
from ppopt.problem.operation import AuxiliaryKind, Op, OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.verifier.auxiliary import MOVES, Place, Work
from ppopt.verifier.rows import Rows
from ppopt.verifier.violation import Rule, Violation

_BACKWARDS = (OpKind.B, OpKind.BW)


def of_moves(rows: Rows, works: Sequence[Work]) -> Iterator[Violation]:
    """Check all moves among operations besides compute."""
    named = rows.take(rows.named)
    yield from _Check(named, [work for work in works if work.kind in MOVES]).violations()


@dataclass(frozen=True)
class _Check:
    """The moves of a schedule, beside its operations that have a name."""

    named: Rows
    known: list[Work]

    @property
    def pipeline(self) -> Pipeline:
        return self.named.pipeline

    def violations(self) -> Iterator[Violation]:
        yield from self._incomplete()
        yield from self._times()
        yield from self._order()
        yield from self._at_once()

    def _moves(self, stage: int) -> bool:
        return self.pipeline.costs.offload_memory[stage] > 0

    @cached_property
    def first(self) -> dict[tuple[AuxiliaryKind, Place], Work]:
        """The first row of every move that must be there: the one that counts."""
        found: dict[tuple[AuxiliaryKind, Place], Work] = {}
        for work in self.known:
            if self._moves(work.place[1]):
                found.setdefault((work.kind, work.place), work)
        return found

    @cached_property
    def compute(self) -> dict[tuple[bool, Place], tuple[int, int, Op]]:
        """Start, end and name of every F and backward (True), by place; the first of each."""
        named, found = self.named, dict[tuple[bool, Place], tuple[int, int, Op]]()
        for row in range(len(named)):
            op = named.op(row)
            if op.kind is not OpKind.W:
                place = (self.pipeline.route(op.microbatch), *op[1:])
                times = int(named.starts[row]), int(named.ends[row])
                found.setdefault((op.kind in _BACKWARDS, place), (*times, op))
        return found

    def _name(self, work: Work) -> str:
        _, stage, microbatch, part = work.place
        sliced = f", slice {part}" if self.pipeline.num_slices > 1 else ""
        clock = self.named.clock
        what = f"{work.kind.name} of stage {stage}, microbatch {microbatch}{sliced}"
        return f"{what} at {clock(work.start)}..{clock(work.end)}"

    def _at(self, rule: Rule, work: Work, words: str, *ops: Op) -> Violation:
        return Violation(rule, ops, work.device, work.start, f"{self._name(work)} {words}")

    def _incomplete(self) -> Iterator[Violation]:
        pipeline = self.pipeline
        for microbatch in range(pipeline.batches):
            route = pipeline.route(microbatch)
            for stage in filter(self._moves, range(pipeline.num_stages)):
                for part in range(pipeline.num_slices):
                    place = (route, stage, microbatch, part)
                    for kind in (kind for kind in MOVES if (kind, place) not in self.first):
                        device = pipeline.hosts[route][stage]
                        text = f"{kind.name} of stage {stage}, microbatch {microbatch} is missing"
                        yield Violation(Rule.AUXILIARY, (), device, None, text)
        for work in self.known:
            if not self._moves(work.place[1]):
                yield self._at(Rule.AUXILIARY, work, "is none of this pipeline")
            elif self.first[work.kind, work.place] is not work:
                yield self._at(Rule.AUXILIARY, work, "is there twice")

    def _times(self) -> Iterator[Violation]:
        for work in self.known:
            time = self.pipeline.costs.offload_time[work.place[1]]
            ticks = int(time * self.pipeline.ticks.per_unit)
            if self._moves(work.place[1]) and (work.end - work.start != ticks or work.start < 0):
                words = f"is not {self.named.clock(ticks)} long from 0 or later on"
                yield self._at(Rule.AUXILIARY_TIME, work, words)

    def _order(self) -> Iterator[Violation]:
        """OFFLOAD after F, RELOAD after OFFLOAD and before the backward."""
        clock = self.named.clock
        for (kind, place), work in self.first.items():
            forward, backward = (self.compute.get((back, place)) for back in (False, True))
            out = self.first.get((AuxiliaryKind.OFFLOAD, place))
            if kind is AuxiliaryKind.OFFLOAD and forward and work.start < forward[1]:
                words = f"starts before {forward[2]} ends at {clock(forward[1])}"
                yield self._at(Rule.OFFLOAD, work, words, forward[2])
            if kind is AuxiliaryKind.RELOAD and out and work.start < out.end:
                yield self._at(Rule.RELOAD, work, f"starts before {self._name(out)} ends")
            if kind is AuxiliaryKind.RELOAD and backward and work.end > backward[0]:
                words = f"ends after {backward[2]} starts at {clock(backward[0])}"
                yield self._at(Rule.RELOAD, work, words, backward[2])

    def _at_once(self) -> Iterator[Violation]:
        """Two on one way at a time, or on one shared link."""
        shared = self.pipeline.host_link is HostLink.SHARED
        ways: dict[tuple[int, bool], list[Work]] = defaultdict(list)
        for work in self.known:
            ways[work.device, shared or work.kind is AuxiliaryKind.OFFLOAD].append(work)
        for moves in ways.values():
            moves.sort(key=lambda work: (work.start, work.end))
            running: Work | None = None
            for work in moves:
                if running is not None and work.start < running.end:
                    yield self._at(Rule.HOST, work, f"runs beside {self._name(running)}")
                if running is None or work.end > running.end:
                    running = work
