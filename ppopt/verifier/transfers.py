"""The rules of transfers, where links are streams (`ppopt.problem.link_mode`).

Any schedule that keeps them can be posted: let every device post the transfers of a pair in the
order in which the link carries them, each as early as that order and its own operation let. By the
times given, everything before a post has ended when its transfer starts, and a receive stands
before the operation that needs it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ppopt.errors import InputError
from ppopt.problem.operation import Op, OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.timetable import Timetable
from ppopt.schedule.transfers import Transfer, Transfers
from ppopt.verifier.rows import ABSENT, LATEST, Bools, Ints, Places, Rows
from ppopt.verifier.violation import MOST_LISTED, Rule, Violation, more

_FIELDS = ("kind", "stage", "microbatch", "source", "target", "start", "end")


def of_transfers(schedule: Timetable, rows: Rows) -> Iterator[Violation]:
    """Check all transfers of a schedule; where links are delays there must be none."""
    table = _read(schedule.transfers)
    if not schedule.pipeline.streams:
        if len(table):
            words = f"{len(table)} transfers are given, but the links are delays"
            yield Violation(Rule.TRANSFER, (), None, None, words)
        return
    yield from _Check(rows.take(rows.named), table).violations()


def _read(given: Transfers) -> Transfers:
    columns = []
    for field in _FIELDS:
        column = np.asarray(getattr(given, field))
        if column.ndim != 1 or not np.can_cast(column.dtype, np.int64):
            raise InputError(f"schedule: transfers: {field} is not a list of whole numbers (int64)")
        columns.append(column.astype(np.int64, copy=False))
    if len({len(column) for column in columns}) > 1:
        raise InputError("schedule: transfers: columns differ in length; give one entry each")
    return Transfers(*columns)


@dataclass(frozen=True)
class _Check:
    """The transfers of a schedule beside its operations that have a name."""

    named: Rows
    given: Transfers

    @property
    def pipeline(self) -> Pipeline:
        return self.named.pipeline

    def violations(self) -> Iterator[Violation]:
        yield from self._unknown()
        yield from self._repeated()
        yield from self._missing()
        yield from self._lengths()
        yield from self._sent()
        yield from self._received()
        yield from self._at_once()

    @cached_property
    def known(self) -> Bools:
        """Whether a row is a transfer of the pipeline, between its two devices."""
        given, pipeline = self.given, self.pipeline
        hosts = np.array(pipeline.hosts[0], dtype=np.int64)
        forward = given.kind == OpKind.F
        right = (forward | (given.kind == OpKind.B)) & _within(given.stage, pipeline.num_stages)
        right &= _within(given.microbatch, pipeline.batches)
        stage = np.where(right, given.stage, 0)
        other = np.where(forward, stage + 1, stage - 1)
        right &= _within(other, pipeline.num_stages)
        there = hosts[np.where(right, other, 0)]
        right &= (given.source == hosts[stage]) & (given.target == there)
        return np.asarray(right & (given.source != given.target))

    @cached_property
    def other(self) -> Ints:
        """Stage that receives, of every known row."""
        return np.where(self.given.kind == OpKind.F, self.given.stage + 1, self.given.stage - 1)

    @cached_property
    def timed(self) -> Bools:
        """Whether a known row has times that can be computed with."""
        fine = self.known.copy()
        for column in (self.given.start, self.given.end):
            fine &= (column >= -LATEST) & (column <= LATEST)
        return fine

    @cached_property
    def first(self) -> Ints:
        """Rows with times that are the first of their transfer: the ones that count."""
        rows = np.flatnonzero(self.timed)
        return np.asarray(rows[self.row[self._place(rows)] == rows])

    @cached_property
    def row(self) -> Ints:
        """First row of every transfer, [way, sending stage, microbatch]; ABSENT: none."""
        table = np.full((2, self.pipeline.num_stages, self.pipeline.batches), ABSENT)
        rows = np.flatnonzero(self.known)[::-1]
        table[self._place(rows)] = rows
        return table

    def _place(self, rows: Ints) -> tuple[Ints, Ints, Ints]:
        way = np.where(self.given.kind[rows] == OpKind.F, 0, 1)
        return way, self.given.stage[rows], self.given.microbatch[rows]

    def _transfer(self, row: int) -> Transfer:
        given = self.given
        kind = OpKind(int(given.kind[row]))
        return Transfer(kind, int(given.stage[row]), int(given.microbatch[row]))

    def _at(self, rule: Rule, row: int, words: str, *ops: Op) -> Violation:
        given = self.given
        where = f"{self._transfer(row)} {self._span(row)}"
        device, start = int(given.source[row]), int(given.start[row])
        return Violation(rule, ops, device, start, f"{where} {words}")

    def _span(self, row: int) -> str:
        given, clock = self.given, self.named.clock
        devices = f"from device {given.source[row]} to {given.target[row]}"
        return f"{devices} at {clock(given.start[row])}..{clock(given.end[row])}"

    def _unknown(self) -> Iterator[Violation]:
        for row in np.flatnonzero(~self.known).tolist():
            fields = ", ".join(f"{name} {getattr(self.given, name)[row]}" for name in _FIELDS[:5])
            words = f"a transfer of {fields} is none of this pipeline"
            yield Violation(Rule.TRANSFER, (), None, None, words)

    def _repeated(self) -> Iterator[Violation]:
        rows = np.flatnonzero(self.known)
        for row in rows[self.row[self._place(rows)] != rows].tolist():
            yield self._at(Rule.TRANSFER, row, "is there twice")

    def _missing(self) -> Iterator[Violation]:
        hosts = np.array(self.pipeline.hosts[0], dtype=np.int64)
        crossing = np.flatnonzero(hosts[1:] != hosts[:-1])
        needed = np.zeros_like(self.row, dtype=bool)
        needed[0, crossing] = needed[1, crossing + 1] = True
        lacking = np.argwhere(needed & (self.row == ABSENT)).tolist()
        for way, stage, microbatch in lacking[:MOST_LISTED]:
            name = Transfer(OpKind.B if way else OpKind.F, stage, microbatch)
            device = int(hosts[stage])
            yield Violation(Rule.TRANSFER, (), device, None, f"{name} is missing")
        yield from more(Rule.TRANSFER, len(lacking) - MOST_LISTED)

    def _lengths(self) -> Iterator[Violation]:
        """A transfer takes the p2p time of its boundary and way, and starts at 0 or later."""
        places = Places(self.pipeline, np.array([0], dtype=np.int64))
        down, up = places.forward[:, 0, 0], places.backward[:, 0, 0]
        rows, given = np.flatnonzero(self.known), self.given
        stage, other = given.stage[rows], self.other[rows]
        boundary = np.minimum(stage, other)
        wanted = np.where(given.kind[rows] == OpKind.F, down[boundary], up[boundary])
        start, end = given.start[rows], given.end[rows]
        right = self.timed[rows] & (end - start == wanted) & (start >= 0)
        for row, ticks in zip(rows[~right].tolist(), wanted[~right].tolist(), strict=True):
            words = f"is not {self.named.clock(ticks)} long from 0 or later on"
            yield self._at(Rule.TRANSFER_TIME, row, words)

    def _operations(self, stage: Ints, rows: Ints) -> Ints:
        """Row of the F, or of the B or BW, of a stage and the microbatch of each transfer."""
        named, given = self.named, self.given
        forward, b, _, full = named.index[..., 0]
        backward = np.where(b != ABSENT, b, full)
        slot = np.searchsorted(named.present, given.microbatch[rows])
        found = np.full(len(rows), ABSENT)
        there = np.isin(given.microbatch[rows], named.present)
        at = stage[there], slot[there]
        found[there] = np.where(given.kind[rows][there] == OpKind.F, forward[at], backward[at])
        return found

    def _sent(self) -> Iterator[Violation]:
        rows = self.first
        maker = self._operations(self.given.stage[rows], rows)
        early = self.given.start[rows] < self.named.ends[maker]
        for row, op in zip(rows[early].tolist(), maker[early].tolist(), strict=True):
            words = (
                f"starts before {self.named.op(op)} ends at {self.named.clock(self.named.end[op])}"
            )
            yield self._at(Rule.SEND, row, words, self.named.op(op))

    def _received(self) -> Iterator[Violation]:
        rows = self.first
        user = self._operations(self.other[rows], rows)
        late = self.named.starts[user] < self.given.end[rows]
        for row, op in zip(rows[late].tolist(), user[late].tolist(), strict=True):
            start = self.named.clock(self.named.start[op])
            yield self._at(
                Rule.RECEIVE,
                row,
                f"ends after {self.named.op(op)} starts at {start}",
                self.named.op(op),
            )

    def _at_once(self) -> Iterator[Violation]:
        """Every transfer that starts while its link carries another one."""
        rows, given = np.flatnonzero(self.timed & (self.given.end >= self.given.start)), self.given
        low = np.minimum(given.source, given.target)[rows]
        high = np.maximum(given.source, given.target)[rows]
        rows = rows[np.lexsort((given.end[rows], given.start[rows], high, low))]
        link = np.stack((given.source[rows], given.target[rows]))
        link = np.sort(link, axis=0)
        until, running = 0, ABSENT
        for place, row in enumerate(rows.tolist()):
            if place == 0 or (link[:, place] != link[:, place - 1]).any():
                until, running = -LATEST - 1, ABSENT
            if given.start[row] < until:
                words = f"runs beside {self._transfer(running)} {self._span(running)}"
                yield self._at(Rule.LINK, row, words)
            if given.end[row] > until:
                until, running = int(given.end[row]), row


def _within(column: Ints, size: int) -> Bools:
    return np.asarray((column >= 0) & (column < size))
