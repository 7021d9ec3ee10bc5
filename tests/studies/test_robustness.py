"""Orders under random times: exact where nothing is random, and by known distributions."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ppopt import Comparison, Objective, Op, OpKind, Pipeline, Schedule, compare, evaluate, solve
from ppopt.errors import InputError
from ppopt.schedule.order_columns import OrderColumns
from ppopt.schedule.orders import codes
from ppopt.studies import robustness
from ppopt.studies.robustness import Jitter, jitter
from tests.factories.schedules import _predecessors, lag_of, schedules

MAKESPAN, SPAN = Objective.MAKESPAN, Objective.DEVICE_SPAN


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "interleaved", "zb-h2", "zbv", "hanayo"])
def test_times_as_planned_give_the_schedule(name: str) -> None:
    for objective in (MAKESPAN, SPAN):
        pipe = Pipeline(stages=3, batches=9, p2p=1, forward=[2, 3, 1])
        schedule = evaluate(pipe, name, objective)
        run = OrderColumns.of_schedule(schedule)
        planned = run.duration[:, None].astype(float)
        assert run.values(planned, objective) == [schedule.metrics.value_ticks(objective)]


@pytest.mark.parametrize(
    "work",
    [
        {"unshard": 2, "gradient_sync": 3, "optimizer": 1},
        {"gradient_sync": [1, 5, 0], "optimizer": 1, "optimizer_barrier": True},
        {"unshard": [4, 0, 9]},
    ],
)
@pytest.mark.parametrize("name", ["gpipe", "1f1b", "zbv"])
def test_work_around_the_microbatches_counts(name: str, work: dict[str, Any]) -> None:
    for objective in (MAKESPAN, SPAN):
        for links in ({}, {"p2p": 1, "link_mode": "streams"}):
            schedule = evaluate(Pipeline(stages=3, batches=9, **work, **links), name, objective)
            run = OrderColumns.of_schedule(schedule)
            planned = run.duration[:, None].astype(float)
            assert run.values(planned, objective) == [schedule.metrics.value_ticks(objective)]


def test_collectives_keep_their_times() -> None:
    """One operation of each kind on one device: what varies is F and BW alone."""
    work = {"unshard": 100, "gradient_sync": 100, "optimizer": 100}
    sample = jitter(evaluate(Pipeline(stages=1, batches=1, **work), "1f1b"), 0.5, samples=200)
    assert sample.values.min() > 300
    assert sample.values.max() < 330


def slowly(schedule: Schedule, duration: dict[Op, float], release: tuple[int, ...]) -> list[float]:
    """End of every device, op by op in plain Python; the two of a pair share start and end."""
    pipeline, ends = schedule.pipeline, {}
    split = {
        (row.stage, row.microbatch, row.slice): row.kind is OpKind.B
        for row in schedule.rows()
        if row.kind in (OpKind.B, OpKind.BW)
    }
    free, waiting = [float(time) for time in release], [list(row) for row in schedule.orders]
    while any(waiting):
        for device, row in enumerate(waiting):
            group = [pipeline.op(code) for code in codes(np.array(row[: _size(row)], dtype=int))]
            needed = [(op, before) for op in group for before in _predecessors(pipeline, op, split)]
            if not group or any(before not in ends for _, before in needed):
                continue
            arrivals = [ends[before] + lag_of(pipeline, before, op) for op, before in needed]
            free[device] = max([free[device], *arrivals]) + duration[group[0]]
            ends |= dict.fromkeys(group, free[device])
            del row[: len(group)]
    return free


def _size(row: list[int]) -> int:
    """Entries of the next operation or pair."""
    return min(len(row), 2 if len(row) > 1 and row[1] < 0 else 1)


@settings(max_examples=60, deadline=None)
@given(schedules(), st.integers(0, 2**32))
def test_any_times_agree_with_plain_python(schedule: Schedule, seed: int) -> None:
    run, random = OrderColumns.of_schedule(schedule), Random(seed)
    drawn = np.array([[random.randint(0, 9) for _ in range(3)] for _ in run.duration], float)
    drawn[: run.machines] = run.duration[: run.machines, None]
    values = run.values(drawn.copy(), MAKESPAN)
    for sample in range(3):
        net = run.net
        duration = {
            schedule.pipeline.op(code): drawn[run.row[position], sample]
            for code, position in zip(net.ops.tolist(), net.positions.tolist(), strict=True)
        }
        assert values[sample] == max(slowly(schedule, duration, schedule.metrics.first_ticks))


def test_a_sum_of_independent_times() -> None:
    """One device: the sum of 60 operations of 1, 2 and 3, each of deviation 0.3 of its time."""
    schedule = evaluate(Pipeline(stages=1, batches=20, backward_input=2, weight=3), "zb-h1")
    sample = jitter(schedule, 0.3, samples=4000)
    deviation = 0.3 * np.sqrt(20 * (1 + 4 + 9))
    assert sample.nominal == 120
    assert sample.mean == pytest.approx(120, abs=4 * deviation / np.sqrt(4000))
    assert sample.values.std() == pytest.approx(deviation, rel=0.05)
    assert sample.p95 == pytest.approx(120 + 1.645 * deviation, rel=0.01)
    assert sample.degradation == pytest.approx(sample.mean / 120 - 1)


def test_the_same_seed_gives_the_same_luck() -> None:
    schedule = evaluate(Pipeline(stages=3, batches=6), "zb-h1")
    same, second = (
        jitter(schedule, 0.1, seed=7, samples=50),
        jitter(schedule, 0.1, seed=8, samples=50),
    )
    assert (jitter(schedule, 0.1, seed=7, samples=50).values == same.values).all()
    assert (same.values != second.values).any()


def test_one_sample_is_enough_and_none_is_refused() -> None:
    schedule = evaluate(Pipeline(stages=2, batches=3), "1f1b")
    assert len(jitter(schedule, 0.1, samples=1).values) == 1
    with pytest.raises(InputError, match="samples: 0 is below 1"):
        jitter(schedule, 0.1, samples=0)


def test_an_operation_has_its_factors_whatever_the_order() -> None:
    """ZB-H1 and ZB-H2 run the same operations: drawn times differ in place alone."""
    pipe = Pipeline(stages=3, batches=6)
    times = []
    for name in ("zb-h1", "zb-h2"):
        run = OrderColumns.of_schedule(evaluate(pipe, name))
        times.append(robustness.random_times(run, 0.1, 0, 0, 5)[run.row[np.argsort(run.net.ops)]])
    assert (times[0] == times[1]).all()


def test_long_runs_go_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = evaluate(Pipeline(stages=2, batches=5), "1f1b")
    monkeypatch.setattr(robustness, "BLOCK", 100)
    sample = jitter(schedule, 0.2, samples=33)
    assert len(sample.values) == len(set(sample.values.tolist())) == 33


def test_slack_makes_a_schedule_steady() -> None:
    """A device span with idle time inside absorbs delays that a full one passes on."""
    pipe = Pipeline(stages=4, batches=8)
    loose, tight = evaluate(pipe, "zb-h2"), evaluate(pipe, "zb-h1")
    assert loose.metrics.makespan_ticks == tight.metrics.makespan_ticks == 27
    assert jitter(loose, 0.1).degradation < jitter(tight, 0.1).degradation


def test_a_fragile_optimum_is_called_so() -> None:
    """Told apart where the means differ by more than twice the error of their difference."""
    comparison = compare(Pipeline(stages=2, batches=4), time_limit=600)
    best, second, *_ = comparison.rows
    assert comparison.fragile is comparison.steadiest is None

    def under(first: float, rival: float, scatter: float) -> Comparison:
        values = np.array([-scatter, scatter] * 200)
        pairs = ((best, first), (second, rival))
        rows = tuple(
            replace(row, jitter=Jitter(0.1, 0, float(row.value), values + mean))
            for row, mean in pairs
        )
        return replace(comparison, rows=rows)

    fragile = under(90, 80, 1)
    assert fragile.fragile == fragile.rows
    assert fragile.steadiest is fragile.rows[1]
    assert under(80, 90, 1).fragile is None
    assert under(90, 89.9, 1).fragile is None  # the error of the difference is 0.07


@pytest.mark.parametrize("deviation", [0, -0.1, 10.5])
def test_deviations_out_of_range_are_refused(deviation: float) -> None:
    schedule = evaluate(Pipeline(stages=1, batches=1), "1f1b")
    with pytest.raises(InputError, match=r"jitter: .* is not above 0"):
        jitter(schedule, deviation)
    with pytest.raises(InputError, match=r"jitter: .* is not above 0"):
        compare(schedule.pipeline, jitter=deviation)


@pytest.mark.parametrize("name", ["1f1b", "zbv", "1f1b-overlap", "dualpipe"])
def test_a_level_runs_nearly_all_devices(name: str) -> None:
    """What makes it fast: few more levels than the busiest device has operations, and each row
    after those it waits for."""
    run = OrderColumns.of_schedule(evaluate(Pipeline(stages=8, batches=64, p2p=1), name))
    longest = int(np.bincount(run.net.machine).max())
    assert longest <= len(run.levels) <= 1.1 * longest + 2 * 8
    rows = [row for level in run.levels for row in range(level.rows.start, level.rows.stop)]
    assert rows == list(range(run.machines, len(run.duration)))
    assert sorted(run.row.tolist()) == rows
    for level in run.levels:
        before = np.arange(len(run.duration))[level.before]
        for needed in (before, *(wait.source for wait in level.waits)):
            assert needed.max() < level.rows.start


@pytest.mark.parametrize("limit", [None, 5])
def test_moves_of_a_schedule_keep_its_times_where_nothing_is_random(limit: int | None) -> None:
    pipeline = Pipeline(
        stages=2, placement=(0, 0), batches=1, forward=3, backward_input=1, weight=2,
        backward=[2, 4], activation=[2, 3], offload_memory=[2, 1], offload_time=2,
        host_link="shared", mem_limit=limit,
    )  # fmt: skip
    schedule = solve(pipeline, workers=1).schedule
    assert schedule is not None
    timing = OrderColumns.of_schedule(schedule)
    times = timing.duration[:, None].astype(float)
    assert timing.values(times, Objective.MAKESPAN).tolist() == [schedule.metrics.makespan_ticks]


def test_a_device_without_optimizer_has_no_queue() -> None:
    """Device 1 trains nothing, and runs nothing once in a step."""
    pipeline = Pipeline(stages=2, batches=2, optimizer=1, frozen=[False, True])
    schedule = evaluate(pipeline, "1f1b")
    assert jitter(schedule, 0.1).nominal == pipeline.ticks.time(schedule.metrics.makespan_ticks)
