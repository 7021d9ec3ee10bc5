"""Random schedules with moves to the host, independent of the package's own timing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import assume
from hypothesis import strategies as st

from ppopt.problem.operation import AuxiliaryKind
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.schedule import Schedule
from tests.factories.schedules import F, W, limited, schedules, table
from tests.factories.tables import joined

OFFLOAD, RELOAD = AuxiliaryKind.OFFLOAD, AuxiliaryKind.RELOAD


@st.composite
def with_offload(
    draw: st.DrawFn, problems: st.SearchStrategy[Pipeline], backwards: Sequence[str]
) -> Schedule:
    """Draw a valid schedule, and add every OFFLOAD right after its F, every RELOAD just in time."""
    given = limited(draw(schedules(problems, backwards)), None)
    least = min(given.pipeline.kept or given.pipeline.activation)
    assume(least > 0)
    pipeline = replace(
        given.pipeline,
        offload_memory=least / draw(st.integers(1, 3)),
        offload_time=draw(st.integers(1, 3)),
        host_link=draw(st.sampled_from(("duplex", "shared"))),
        mem_limit=None,
    )
    return _moved(given, pipeline)


def _moved(given: Schedule, pipeline: Pipeline) -> Schedule:
    """The schedule with starts so many times as late that two moves fit between operations."""
    ticks, finer = pipeline.ticks, pipeline.ticks.per_unit // given.pipeline.ticks.per_unit
    factor = 2 * max(ticks.costs.offload_time) + 1
    rows = [
        (*row[:4], begin := factor * finer * row[4], begin + finer * (row[5] - row[4]), *row[6:])
        for row in table(given)
    ]
    moves = []
    for kind, stage, microbatch, device, start, end, part, _ in rows:
        if kind != W:
            time = ticks.costs.offload_time[stage]
            move, begin = (OFFLOAD, end) if kind == F else (RELOAD, start - time)
            place = (pipeline.route(microbatch), microbatch, part)
            moves.append((move, stage, device, begin, begin + time, *place))
    backs = [move[2:4] for move in moves if move[0] == RELOAD]
    assume(len(backs) == len(set(backs)))
    return joined(pipeline, rows, auxiliary=moves)
