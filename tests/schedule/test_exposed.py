"""How much longer a step is for unshard, gradient sync and optimizer."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

import ppopt
from ppopt.problem.objective import Objective
from ppopt.schedule.schedule import Schedule
from ppopt.schedule.timing import exposed
from tests.tiers import slow

PLAIN = ppopt.Pipeline(stages=4, batches=8)
WORK: dict[str, object] = {"unshard": 2, "gradient_sync": 3, "optimizer": 1}


@pytest.mark.parametrize(("strategy", "value"), [("gpipe", 33), ("1f1b", 33)])
@pytest.mark.parametrize(
    ("work", "more"),
    [
        ({"unshard": 2}, 2),  # all devices gather at once, the first F waits
        ({"unshard": [0, 1, 2, 3]}, 0),  # hidden: the first F of stage s is at s
        ({"unshard": [0, 1, 2, 4]}, 1),
        ({"gradient_sync": 3}, 3),
        ({"gradient_sync": [0, 2, 4, 6]}, 0),  # hidden: device d ends 2 d before the makespan
        ({"gradient_sync": [0, 2, 4, 7]}, 1),
        ({"optimizer": 1}, 1),
        ({"gradient_sync": [0, 2, 4, 7], "optimizer": 5, "optimizer_barrier": True}, 6),
        (WORK, 6),
    ],
)
def test_what_compute_does_not_hide(
    strategy: str, value: int, work: dict[str, object], more: int
) -> None:
    """4 devices, F = 1 and BW = 2: the makespan alone is 33, and device d ends at 33 - 2 d."""
    schedule = ppopt.evaluate(replace(PLAIN, **work), strategy)
    assert schedule.metrics.makespan_ticks == value + more
    assert exposed(schedule) == more


def test_none_without_such_work() -> None:
    assert exposed(ppopt.evaluate(PLAIN, "1f1b")) is None
    nothing = replace(PLAIN, unshard=0, optimizer_barrier=True)
    assert exposed(ppopt.evaluate(nothing, "1f1b")) is None


def test_under_the_device_span() -> None:
    """Devices wait for each other's weights; every span has its unshard and its sync."""
    schedule = ppopt.evaluate(replace(PLAIN, **WORK), "1f1b", objective="device-span")
    bare = ppopt.evaluate(PLAIN, "1f1b", objective="device-span")
    more = schedule.metrics.device_span_ticks - bare.metrics.device_span_ticks
    assert exposed(schedule) == more > 0


def test_in_the_ticks_of_the_schedule() -> None:
    """Ticks differ with the work and without it: 1/3 and 1."""
    schedule = ppopt.evaluate(replace(PLAIN, optimizer=Fraction(1, 3)), "1f1b")
    assert exposed(schedule) == 1
    assert schedule.pipeline.ticks.per_unit == 3


def test_idle_before_the_first_operation_counts() -> None:
    """A file's own times stand on the one side, the earliest ones on the other."""
    schedule = ppopt.evaluate(replace(PLAIN, optimizer=1), "1f1b")
    late = schedule.with_starts(schedule.operations.start + 5 * ~schedule.operations.computed)
    assert ppopt.verify(late) == []
    assert exposed(late) == 6


def test_links_keep_their_order() -> None:
    pipeline = replace(PLAIN, p2p=1, link_mode="streams")
    schedule = ppopt.evaluate(replace(pipeline, **WORK), "1f1b")
    time = exposed(schedule)
    assert time is not None
    assert time >= 0
    assert schedule.metrics.makespan_ticks - time >= ppopt.solve(pipeline, time_limit=1).lower_bound


def test_two_routes_and_pairs() -> None:
    for strategy in ("chimera", "dualpipe"):
        schedule = ppopt.evaluate(replace(PLAIN, **WORK), strategy)
        bare = ppopt.evaluate(PLAIN, strategy)
        assert exposed(schedule) == schedule.metrics.makespan_ticks - bare.metrics.makespan_ticks


@pytest.mark.parametrize(("stages", "batches"), [(2, 2), slow(3, 4), slow(4, 4)])
def test_never_below_zero(stages: int, batches: int) -> None:
    pipeline = ppopt.Pipeline(stages=stages, batches=batches, unshard=1, gradient_sync=2)
    for strategy in ppopt.strategies():
        for objective in Objective:
            schedule = _evaluated(pipeline, strategy, objective)
            time = schedule and exposed(schedule)
            assert time is None or time >= 0


def _evaluated(pipeline: ppopt.Pipeline, strategy: str, objective: Objective) -> Schedule | None:
    try:
        return ppopt.evaluate(pipeline, strategy, objective=objective)
    except ppopt.NotApplicableError:
        return None


def test_moves_to_the_host_keep_their_order() -> None:
    """Both stages sync 2 and 3 at the end; nothing else of the schedule depends on them."""
    pipeline = ppopt.Pipeline(
        stages=3, placement=(0, 1, 1), batches=2, forward=[1, 2, 1], backward_input=[1, 2, 2],
        weight=[1, 2, 1], activation=[3, 2, 3], gradient_sync=[2, 2, 3], p2p=2,
        offload_memory=[2, 1, 2], offload_time=3,
    )  # fmt: skip
    schedule = ppopt.solve(pipeline, workers=1).schedule
    assert schedule is not None
    closed = max(
        int(schedule.end[schedule.device == device].max()) for device in range(pipeline.num_devices)
    )
    time = exposed(schedule)
    assert time is not None and time >= 0
    bare_span = closed - schedule.start.min()
    assert time <= schedule.metrics.makespan_ticks - bare_span
