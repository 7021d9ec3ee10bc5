"""Plans end at their deadline, whatever they have found by then. The tests control the clock."""

from __future__ import annotations

import pytest

import ppopt
from ppopt import Model, Status
from tests.factories.clocks import stepping_clock

TIGHT = Model(
    [
        {"forward": 1, "activation": 3},
        {"forward": 1, "activation": 1, "static": 3},
        {"forward": 5, "activation": 2, "count": 3},
        {"forward": 4, "activation": 3, "workspace": 3},
    ]
)
"""On two devices with limits of 12 and 39 few partitions are within memory, the balanced one is
not."""


@pytest.mark.parametrize("readings", [1, 10, 30, 100, 300, 1000])
def test_a_plan_ends_at_its_deadline_without_a_schedule(
    readings: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Time is up before any partition within memory was searched, or just after."""
    clock = stepping_clock(monkeypatch, 1.0, readings)
    plan = ppopt.plan(
        TIGHT, devices=2, batches=2, mem_limit=[12, 39], placement="v", recompute="none",
        workers=1, time_limit=1.0,
    )  # fmt: skip
    assert clock.readings < readings + 2000
    assert plan.status in (Status.UNKNOWN, Status.FEASIBLE, Status.OPTIMAL)
    if plan.schedule is not None:
        assert ppopt.verify(plan.schedule) == []
