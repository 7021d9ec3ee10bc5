"""The rules of transfers in plain Python, straight from DESIGN section 3, rule 14."""

from __future__ import annotations

from collections.abc import Iterator

from ppopt.problem.operation import Op
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.schedule import Schedule
from ppopt.verifier import Rule
from tests.factories.schedules import BW, B, F, lag_of, table
from tests.factories.streams import transfer_table

Row = tuple[int, ...]
"""Kind, sending stage, microbatch, source, target, start, end."""


def broken_rules(schedule: Schedule) -> set[Rule]:
    """The rules of transfers that a schedule breaks; its operations are complete."""
    pipeline, given = schedule.pipeline, transfer_table(schedule)
    wanted = set(_wanted(pipeline))
    rows = [row for row in given if row[:5] in wanted]
    names = [row[:5] for row in rows]
    found = set()
    if len(rows) < len(given) or len(set(names)) < len(names) or set(names) != wanted:
        found.add(Rule.TRANSFER)
    ends: dict[Row, Row] = {row[:3]: row[4:6] for row in table(schedule)}
    for number, row in enumerate(rows):
        found |= set(_alone(pipeline, ends, row, first=row[:5] not in names[:number]))
        if any(_at_once(row, one) for one in rows[:number]):
            found.add(Rule.LINK)
    return found


def _wanted(pipeline: Pipeline) -> Iterator[Row]:
    """First five fields of every transfer between two devices."""
    for stage in range(pipeline.num_stages):
        for kind, other in ((F, stage + 1), (B, stage - 1)):
            if not 0 <= other < pipeline.num_stages:
                continue
            devices = pipeline.device(stage, 0), pipeline.device(other, 0)
            if devices[0] != devices[1]:
                yield from ((kind, stage, j, *devices) for j in range(pipeline.batches))


def _alone(pipeline: Pipeline, ends: dict[Row, Row], row: Row, *, first: bool) -> Iterator[Rule]:
    """Rules that a transfer breaks by its own times; the first of equal ones carries the result."""
    kind, stage, microbatch, _, _, start, end = row
    other, op = (stage + 1, F) if kind == F else (stage - 1, BW)

    def operation(place: int) -> Row:
        if kind == F:
            return ends[F, place, microbatch]
        return ends.get((B, place, microbatch)) or ends[BW, place, microbatch]

    if end - start != lag_of(pipeline, Op(op, stage, 0), Op(op, other, 0)) or start < 0:
        yield Rule.TRANSFER_TIME
    if first and start < operation(stage)[1]:
        yield Rule.SEND
    if first and operation(other)[0] < end:
        yield Rule.RECEIVE


def _at_once(row: Row, other: Row) -> bool:
    """Whether one link carries both at an instant."""
    inside = row[5] < other[5] < row[6] or other[5] < row[5] < other[6]
    beside = inside or max(row[5], other[5]) < min(row[6], other[6])
    return {*row[3:5]} == {*other[3:5]} and beside
