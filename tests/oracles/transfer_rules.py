"""The rules of transfers in plain Python, straight from DESIGN section 3, rule 14."""

from __future__ import annotations

from collections.abc import Iterator

from ppopt.problem.operation import Op
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.schedule import Schedule
from ppopt.verifier import Rule
from tests.factories.schedules import BW, B, F, exists, lag_of, table
from tests.factories.streams import link_of, places
from tests.factories.tables import transfer_table

Row = tuple[int, ...]
"""Kind, sending stage, microbatch, source, target, start, end, slice."""


def broken_rules(schedule: Schedule) -> set[Rule]:
    """The rules of transfers that a schedule breaks; its operations are complete."""
    pipeline, transfers = schedule.pipeline, transfer_table(schedule)
    wanted = set(_wanted(pipeline))
    rows = [row for row in transfers if _name(row) in wanted]
    names = [_name(row) for row in rows]
    rules = set()
    if len(rows) < len(transfers) or len(set(names)) < len(names) or set(names) != wanted:
        rules.add(Rule.TRANSFER)
    ends: dict[Row, Row] = {(*row[:3], row[6]): row[4:6] for row in table(schedule)}
    for index, row in enumerate(rows):
        rules |= set(_alone(pipeline, ends, row, first=_name(row) not in names[:index]))
        if any(_at_once(pipeline, row, earlier) for earlier in rows[:index]):
            rules.add(Rule.LINK)
    return rules


def _name(row: Row) -> Row:
    """Kind, sending stage, microbatch, source, target and slice of a transfer."""
    return (*row[:5], *row[7:])


def _wanted(pipeline: Pipeline) -> Iterator[Row]:
    """Names of all transfers between two devices."""
    for stage, j, slice_index in places(pipeline):
        for kind, neighbour in ((F, stage + 1), (B, stage - 1)):
            if not 0 <= neighbour < pipeline.num_stages:
                continue
            if not exists(pipeline, kind, neighbour):
                continue
            devices = pipeline.device(stage, j), pipeline.device(neighbour, j)
            if devices[0] != devices[1]:
                yield (kind, stage, j, *devices, slice_index)


def _alone(pipeline: Pipeline, ends: dict[Row, Row], row: Row, *, first: bool) -> Iterator[Rule]:
    """Rules that a transfer breaks by its own times; the first of equal ones carries the result."""
    kind, stage, microbatch, _, _, start, end, slice_index = row
    neighbour, op = (stage + 1, F) if kind == F else (stage - 1, BW)

    def operation(stage: int) -> Row:
        if kind == F:
            return ends[F, stage, microbatch, slice_index]
        return (
            ends.get((B, stage, microbatch, slice_index))
            or ends[BW, stage, microbatch, slice_index]
        )

    length = lag_of(pipeline, Op(op, stage, microbatch), Op(op, neighbour, microbatch))
    if end - start != length or start < 0:
        yield Rule.TRANSFER_TIME
    if first and start < operation(stage)[1]:
        yield Rule.SEND
    if first and operation(neighbour)[0] < end:
        yield Rule.RECEIVE


def _at_once(pipeline: Pipeline, row: Row, second: Row) -> bool:
    """Whether one link carries both at an instant."""
    inside = row[5] < second[5] < row[6] or second[5] < row[5] < second[6]
    beside = inside or max(row[5], second[5]) < min(row[6], second[6])
    return link_of(pipeline, *row[3:5]) == link_of(pipeline, *second[3:5]) and beside
