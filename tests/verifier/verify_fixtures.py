"""Small schedules drawn by hand, and how to write one down."""

from __future__ import annotations

import numpy as np

from ppopt.problem.kinds import ResourceKind
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.schedule import Schedule
from ppopt.verifier import Rule, Violation
from tests.factories.schedules import BW, B, F, W
from tests.factories.tables import changed


def schedule_of(pipeline: Pipeline, *lines: str) -> Schedule:
    """Read lines of `<device>: <op>@<start>..<end> ...`, in ticks."""
    rows = []
    for line in lines:
        device, ops = line.split(":")
        for text in ops.split():
            name, times = text.split("@")
            kind = next(k for k in (BW, F, B, W) if k.name in name)
            stage, microbatch = map(int, name.split(kind.name))
            rows.append((kind, stage, microbatch, int(device), *map(int, times.split(".."))))
    return Schedule.from_rows(pipeline, rows)


def one_f_one_b() -> Schedule:
    """1F1B of two stages and two microbatches, F = 1 and BW = 2, drawn by hand:

    device 0: F0 F1 .  .  BW0 BW0 .  BW1 BW1
    device 1: .  F0 BW0 BW0 F1 BW1 BW1
    """
    return schedule_of(
        Pipeline(stages=2, batches=2, mem_limit=[2, 1]),
        "0: 0F0@0..1 0F1@1..2 0BW0@4..6 0BW1@7..9",
        "1: 1F0@1..2 1BW0@2..4 1F1@4..5 1BW1@5..7",
    )


def split_with_p2p() -> Schedule:
    """One microbatch through two stages with B = 0, W = 1, p2p 1/2 and 1/4 back; ticks are 1/4.

    The device span is that of device 0: from 0 to 15; device 1 runs from 6 to 14.
    """
    pipeline = Pipeline(
        stages=2,
        batches=1,
        backward_input=0,
        weight=1,
        p2p=[[0, "0.5"], ["0.25", 0]],
        memory_b="0.5",
        static=[1, 2],
    )
    return schedule_of(
        pipeline, "0: 0F0@0..4 0B0@11..11 0W0@11..15", "1: 1F0@6..10 1B0@10..10 1W0@10..14"
    )


def rules(violations: list[Violation]) -> set[Rule]:
    return {violation.rule for violation in violations}


def with_auxiliary(schedule: Schedule, row: int, **columns: int) -> Schedule:
    """The schedule with other values in a row of its auxiliary operations; times in units."""
    unit, table = schedule.pipeline.ticks.per_unit, schedule.operations
    besides = np.flatnonzero(~table.computed & ~table.on(ResourceKind.LINK))
    values = {
        name: value * unit if name in ("start", "end") else value for name, value in columns.items()
    }
    return changed(schedule, np.arange(len(table)) == besides[row], **values)
