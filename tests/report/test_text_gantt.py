"""The text Gantt: every operation at its place, to scale, or nothing at all."""

from __future__ import annotations

import re
from math import ceil

import pytest
from hypothesis import given

import ppopt
from ppopt.problem.operation import OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.report import text
from ppopt.report.text import text_gantt
from ppopt.schedule.schedule import Schedule
from tests.factories.schedules import BW, B, F, W, schedules
from tests.tiers import examples

_ROWS = [
    (F, 0, 0, 0, 0, 1),
    (F, 0, 1, 0, 1, 2),
    (BW, 0, 0, 0, 4, 6),
    (BW, 0, 1, 0, 7, 9),
    (F, 1, 0, 1, 1, 2),
    (BW, 1, 0, 1, 2, 4),
    (F, 1, 1, 1, 4, 5),
    (BW, 1, 1, 1, 5, 7),
]
"""1F1B of two devices and two microbatches, F = 1 and BW = 2, by hand."""


def one_f_one_b() -> Schedule:
    """The schedule of `_ROWS`."""
    return Schedule.from_rows(Pipeline(stages=2, batches=2), _ROWS)


def test_whole_columns_per_unit() -> None:
    """9 units in 45 - 9 columns are 4 columns each."""
    assert text_gantt(one_f_one_b(), 45) == (
        "device 0 F0- F1- ........BW0---- ....BW1---- \n"
        "device 1 ....F0- BW0---- F1- BW1---- ........\n"
        "    time 0                                  9"
    )


def test_names_may_touch_where_they_stay_clear() -> None:
    assert text_gantt(one_f_one_b(), 27) == (
        "device 0 F0F1....BW0 ..BW1 \ndevice 1 ..F0BW0 F1BW1 ....\n    time 0                9"
    )


@pytest.mark.parametrize("width", [26, 9, 1, 0, -5])
def test_nothing_where_a_name_does_not_fit(width: int) -> None:
    """F0 needs two columns per unit: 9 + 2 x 9 = 27."""
    assert text_gantt(one_f_one_b(), width) is None


def test_a_schedule_with_more_operations_than_columns_is_not_drawn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A device of a long schedule has more operations than a terminal has columns."""
    monkeypatch.setattr(text, "drawing", lambda *_: pytest.fail("this takes seconds"))
    assert text_gantt(ppopt.evaluate(Pipeline(stages=2, batches=41), "1f1b"), 80) is None


def test_names_in_full_where_a_device_hosts_several_stages() -> None:
    """Two chunks: every F is half a unit, and `0F0` needs a space behind it."""
    rows = [(F, stage, 0, min(stage, 3 - stage), stage, stage + 1) for stage in range(4)]
    schedule = Schedule.from_rows(Pipeline(stages=2, batches=1, placement="v"), rows)
    assert text_gantt(schedule, 25) == (
        "device 0 0F0 ........3F0 \ndevice 1 ....1F0 2F0 ....\n    time 0              2"
    )
    assert text_gantt(schedule, 24) is None


def test_unequal_times_are_stretched_to_the_width() -> None:
    """10, 11 and 9 of 30 units in 20 columns: edges at 6.67, 14 and 20."""
    times = Pipeline(stages=1, batches=1, forward=10, backward=20, weight=9)
    rows = [(F, 0, 0, 0, 0, 10), (B, 0, 0, 0, 10, 21), (W, 0, 0, 0, 21, 30)]
    assert text_gantt(Schedule.from_rows(times, rows), 29) == (
        "device 0 F0---- B0---- W0--- \n    time 0                 30"
    )


def test_time_is_in_the_users_unit() -> None:
    halves = Pipeline(stages=1, batches=1, forward=0.5)
    schedule = Schedule.from_rows(halves, [(F, 0, 0, 0, 0, 1), (BW, 0, 0, 0, 1, 3)])
    assert str(text_gantt(schedule, 40)).endswith(" 1.5")


@examples(12)
@given(schedules())
def test_what_is_drawn_is_the_schedule(schedule: Schedule) -> None:
    """A width that gives the shortest operation the name of a pair and a space, and one column
    lost in rounding.

    An operation of no length has no room for a name at any width.
    """
    rows = list(schedule.rows())
    shortest = min(row.end - row.start for row in rows)
    if not shortest:
        assert text_gantt(schedule, 10**6) is None
        return
    columns = 2 + 2 * max(len(str(row.op)) for row in rows) + 1
    width = len("device 0 ") + ceil(columns * max(row.end for row in rows) / shortest)
    drawn = text_gantt(schedule, width)
    *lines, _ = str(drawn).splitlines()
    assert len(lines) == schedule.pipeline.num_devices
    assert all(len(line) <= width for line in str(drawn).splitlines())
    assert len({len(line) for line in lines}) == 1
    for device, line in enumerate(lines):
        names = re.findall(r"(\d*)(BW|F|B|W)(\d+)", line.split(maxsplit=2)[2])
        expected = [row for row in rows if row.device == device]
        assert [(OpKind[kind], int(batch)) for _, kind, batch in names] == [
            (row.kind, row.microbatch) for row in expected
        ]


def test_overlapping_operations_are_not_drawn() -> None:
    rows = [*_ROWS[1:], (F, 0, 0, 0, 1, 2)]
    assert text_gantt(Schedule.from_rows(Pipeline(stages=2, batches=2), rows), 100) is None
