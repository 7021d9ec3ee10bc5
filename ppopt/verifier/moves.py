"""The rules of activations that move to the host between F and the backward.

If a stage offloads, OFFLOAD of every microbatch (and slice) runs after its F, and RELOAD after
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
from ppopt.verifier.rows import Rows, whole
from ppopt.verifier.violation import Rule, Violation
from ppopt.verifier.work import MOVES, Place, Work, WorkCheck

_BACKWARDS = (OpKind.B, OpKind.BW)


def of_moves(rows: Rows, works: Sequence[Work]) -> Iterator[Violation]:
    """Check all moves among operations besides compute."""
    named = rows.take(rows.named)
    yield from _Check(named, [work for work in works if work.kind in MOVES]).violations()


@dataclass(frozen=True)
class _Check(WorkCheck):
    """The moves of a schedule, beside its operations that have a name."""

    def violations(self) -> Iterator[Violation]:
        yield from self.incomplete()
        yield from self.wrong_times()
        yield from self._order()
        yield from self._at_once()

    @cached_property
    def wanted(self) -> dict[tuple[AuxiliaryKind, Place], int]:
        """Both moves of every microbatch and slice where a stage offloads, with their times.

        They are as many times as long as there is memory to move.
        """
        pipeline, costs = self.pipeline, self.pipeline.costs
        memory = pipeline.microbatch_memory or (1,) * pipeline.batches
        return {
            (kind, (pipeline.route(microbatch), stage, microbatch, part)): whole(
                costs.offload_time[stage] * pipeline.ticks.per_unit * memory[microbatch]
            )
            for microbatch in range(pipeline.batches)
            for stage in range(pipeline.num_stages)
            if costs.offload_memory[stage] > 0
            for part in range(pipeline.num_slices)
            for kind in MOVES
        }

    def where(self, kind: AuxiliaryKind, place: Place) -> tuple[int, str]:  # noqa: ARG002  both alike
        """Device and words: stage and microbatch."""
        route, stage, microbatch, _ = place
        return self.pipeline.hosts[route][stage], f"stage {stage}, microbatch {microbatch}"

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

    def name(self, work: Work) -> str:
        """Words for a move and its times."""
        _, stage, microbatch, part = work.place
        sliced = f", slice {part}" if self.pipeline.num_slices > 1 else ""
        clock = self.named.clock
        what = f"{work.kind.name} of stage {stage}, microbatch {microbatch}{sliced}"
        return f"{what} at {clock(work.start)}..{clock(work.end)}"

    def _order(self) -> Iterator[Violation]:
        """OFFLOAD after F, RELOAD after OFFLOAD and before the backward."""
        clock = self.named.clock
        for (kind, place), work in self.first.items():
            forward, backward = (self.compute.get((back, place)) for back in (False, True))
            out = self.first.get((AuxiliaryKind.OFFLOAD, place))
            if kind is AuxiliaryKind.OFFLOAD and forward and work.start < forward[1]:
                words = f"starts before {forward[2]} ends at {clock(forward[1])}"
                yield self.at(Rule.OFFLOAD, work, words, forward[2])
            if kind is AuxiliaryKind.RELOAD and out and work.start < out.end:
                yield self.at(Rule.RELOAD, work, f"starts before {self.name(out)} ends")
            if kind is AuxiliaryKind.RELOAD and backward and work.end > backward[0]:
                words = f"ends after {backward[2]} starts at {clock(backward[0])}"
                yield self.at(Rule.RELOAD, work, words, backward[2])

    def _at_once(self) -> Iterator[Violation]:
        """Two on one way at a time, or on one shared link."""
        shared = self.pipeline.host_link is HostLink.SHARED
        ways: dict[tuple[int, bool], list[Work]] = defaultdict(list)
        for work in self.known:
            ways[work.device, shared or work.kind is AuxiliaryKind.OFFLOAD].append(work)
        for moves in ways.values():
            yield from self.overlapping(moves, Rule.HOST)
