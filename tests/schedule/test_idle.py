"""Why devices stand idle: by hand on tiny schedules, and tick by tick on random ones."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from ppopt.errors import InputError
from ppopt.problem.objective import Objective
from ppopt.problem.operation import AuxiliaryKind, Op, OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule import timing
from ppopt.schedule.idle import FREE, Cause, by_cause, idle, share, totals
from ppopt.schedule.schedule import Schedule
from ppopt.studies.evaluate import evaluate
from ppopt.verifier import verify
from tests.factories.schedules import (
    BW,
    B,
    F,
    TableRow,
    W,
    build,
    lag_of,
    limited,
    op_of,
    peaks,
    schedules,
    table,
)
from tests.tiers import examples, slow

Gaps = list[tuple[int, int, int, str]]


def gaps(schedule: Schedule) -> Gaps:
    """Device, start, end and label of every interval."""
    rows_of_idle = idle(schedule)
    rows = zip(*(column.tolist() for column in rows_of_idle[:4]), strict=True)
    return [(device, start, end, Cause(cause).label) for device, start, end, cause in rows]


def one_f_one_b(p2p: Any = 0) -> Schedule:
    """1F1B of two devices and two microbatches, F = 1, BW = 2: makespan 9 + 4 p2p."""
    return evaluate(Pipeline(stages=2, batches=2, p2p=p2p), "1f1b")


def test_1f1b_waits_for_its_gradients() -> None:
    """Device 0: F0 F1 to 2, BW0 from 4 as device 1 ends it, BW1 from 7. Device 1: 1 to 7."""
    assert gaps(one_f_one_b()) == [
        (0, 2, 4, "input"),
        (0, 6, 7, "input"),
        (1, 0, 1, "warm-up"),
        (1, 7, 9, "cool-down"),
    ]


def test_transfers_are_apart_from_what_they_carry() -> None:
    """With p2p 1, device 1 runs from 2 to 8 without a break; its gradients end at 5 and 8.

    Device 0: F0 F1 to 2, BW0 from 6 to 8, BW1 from 9 to 11: the gradient that ended at 5 is
    under way until 6, that of 8 until 9.
    """
    assert gaps(one_f_one_b(1)) == [
        (0, 2, 5, "input"),
        (0, 5, 6, "link"),
        (0, 8, 9, "link"),
        (1, 0, 2, "warm-up"),
        (1, 8, 11, "cool-down"),
    ]


def split(b_at: int, limit: Any) -> Schedule:
    """Two devices, two microbatches one after the other, F = B = W = 1, device 0 starts B0 at
    `b_at`; the gradient for it ends at 3."""
    rows = [
        *((F, 0, 0, 0, 0, 1), (B, 0, 0, 0, b_at, b_at + 1), (W, 0, 0, 0, b_at + 1, b_at + 2)),
        *((F, 0, 1, 0, 6, 7), (B, 0, 1, 0, 9, 10), (W, 0, 1, 0, 10, 11)),
        *((F, 1, 0, 1, 1, 2), (B, 1, 0, 1, 2, 3), (W, 1, 0, 1, 3, 4)),
        *((F, 1, 1, 1, 7, 8), (B, 1, 1, 1, 8, 9), (W, 1, 1, 1, 9, 10)),
    ]
    return Schedule.from_rows(Pipeline(stages=2, batches=2, mem_limit=limit), rows)


def test_a_limit_that_keeps_a_ready_forward_out_is_the_cause() -> None:
    """With room for one activation, F1 is ready on device 0 and does not fit until W0 ends at 5.

    From 5 to 6 nothing hinders it. From 7 to 9 device 0 has nothing else left to run.
    """
    schedule = split(3, 1)
    assert gaps(schedule)[:3] == [(0, 1, 3, "memory"), (0, 5, 6, "order"), (0, 7, 9, "input")]
    idle_times = idle(schedule)
    assert op_at(schedule, idle_times.subject[0]) == Op(OpKind.F, 0, 1)
    assert op_at(schedule, idle_times.following[0]) == Op(OpKind.B, 0, 0)
    assert op_at(schedule, idle_times.subject[2]) == Op(OpKind.B, 1, 1)


def test_with_room_for_the_ready_forward_the_device_waits_for_its_input() -> None:
    assert gaps(split(3, 2))[0] == (0, 1, 3, "input")


def test_waiting_although_the_next_could_start_is_the_schedules_own() -> None:
    """B0 could start at 3 and starts at 4: what hinders F1 is no reason any more."""
    assert gaps(split(4, 1))[:2] == [(0, 1, 3, "memory"), (0, 3, 4, "order")]


def test_memory_is_no_cause_while_an_operation_that_fits_is_ready() -> None:
    """Room for two activations: from 2 on F2 does not fit. From 4 on W0 could run, and fits, while
    B1, which device 0 runs next, waits for its gradient until 7."""
    rows = [
        *((F, 0, 0, 0, 0, 1), (F, 0, 1, 0, 1, 2), (B, 0, 0, 0, 3, 4), (B, 0, 1, 0, 7, 8)),
        *((W, 0, 0, 0, 8, 9), (W, 0, 1, 0, 9, 10), (F, 0, 2, 0, 10, 11), (B, 0, 2, 0, 13, 14)),
        *((W, 0, 2, 0, 14, 15), (F, 1, 0, 1, 1, 2), (B, 1, 0, 1, 2, 3), (W, 1, 0, 1, 3, 4)),
        *((F, 1, 1, 1, 4, 5), (B, 1, 1, 1, 6, 7), (W, 1, 1, 1, 7, 8), (F, 1, 2, 1, 11, 12)),
        *((B, 1, 2, 1, 12, 13), (W, 1, 2, 1, 13, 14)),
    ]
    schedule = Schedule.from_rows(Pipeline(stages=2, batches=3, mem_limit=2), rows)
    assert verify(schedule) == []
    assert gaps(schedule)[:2] == [(0, 2, 3, "memory"), (0, 4, 7, "input")]


def op_at(schedule: Schedule, row: int) -> Op:
    return Op(OpKind(schedule.kind[row]), int(schedule.stage[row]), int(schedule.microbatch[row]))


def test_totals_and_shares() -> None:
    """Of 2 x 9 ticks: 3 for inputs, 1 of warm-up, 2 of cool-down; in units of half a tick."""
    halves = evaluate(Pipeline(stages=2, batches=2, forward=0.5), "1f1b")
    assert by_cause(halves) == {
        "warm-up": [0, 0.5],
        "input": [1.5, 0],
        "link": [0, 0],
        "memory": [0, 0],
        "order": [0, 0],
        "cool-down": [0, 1],
    }
    assert {label: 18 * part for label, part in share(halves).items() if part} == {
        "warm-up": 1,
        "input": 3,
        "cool-down": 2,
    }


def naive(schedule: Schedule) -> dict[tuple[int, int], tuple[Cause, TableRow | None]]:
    """Cause and next operation of every idle tick (device, tick), from the definitions."""
    rows = table(schedule)
    devices, last = range(schedule.pipeline.num_devices), max(row[5] for row in rows)
    arrivals = {row: arrival(schedule, rows, row) for row in rows}
    return {
        (device, tick): cause_at(schedule, arrivals, device, tick)
        for device in devices
        for tick in range(last)
        if not any(row[3] == device and row[4] <= tick < row[5] for row in rows)
    }


def cause_at(
    schedule: Schedule, arrivals: dict[TableRow, tuple[int, int]], device: int, tick: int
) -> tuple[Cause, TableRow | None]:
    """`arrivals` of all operations, in the order of the table."""
    rows = [*arrivals]
    done = [row for row in rows if row[3] == device and row[5] <= tick]
    later = [row for row in rows if row[3] == device and row[5] > tick]
    if not later:
        return Cause.COOL_DOWN, None
    if not done:
        return Cause.WARM_UP, later[0]
    sent, ready = arrivals[later[0]]
    if tick >= ready:
        return Cause.ORDER, later[0]
    waiting = [row for row in later if arrivals[row][1] <= tick]
    if waiting and not any(fits(schedule, rows, done, row) for row in waiting):
        return Cause.MEMORY, later[0]
    return Cause.INPUT if tick < sent else Cause.LINK, later[0]


def arrival(schedule: Schedule, rows: list[TableRow], row: TableRow) -> tuple[int, int]:
    """When the last operation that this one waits for ends, and when all have arrived."""
    sources = [
        (cause[5], lag_of(schedule.pipeline, op_of(cause), op_of(member)))
        for member in together(rows, row)
        for cause in causes(rows, member)
    ]
    sent = max((end for end, _ in sources), default=0)
    return sent, max((end + lag for end, lag in sources), default=0)


def together(rows: list[TableRow], row: TableRow) -> list[TableRow]:
    """An operation, or both of its pair."""
    return [row] if row[7] < 0 else [partner for partner in rows if partner[7] == row[7]]


def causes(rows: list[TableRow], row: TableRow) -> list[TableRow]:
    """What an operation waits for."""
    kind, stage, microbatch, _, _, _, part, _ = row
    of_same = {(r[0], r[1], r[6]): r for r in rows if r[2] == microbatch}
    either = [(k, s, q) for s, q in ((stage + 1, part), (stage, part + 1)) for k in (B, BW)]
    before = {
        F: [(F, stage - 1, part), (F, stage, part - 1)],
        W: [(B, stage, part)],
    }.get(OpKind(kind), [(F, stage, part), *either])
    return [of_same[op] for op in before if op in of_same]


def most_taken(schedule: Schedule, row: TableRow) -> int:
    """Memory that an operation takes; of one without length, no more than its net change."""
    kind, stage, _, _, start, end, *_ = row
    table = schedule.pipeline.ticks
    frees = table.frees[kind][stage] if start == end else 0
    return max(0, table.allocates[kind][stage] - frees)


def fits(schedule: Schedule, rows: list[TableRow], done: list[TableRow], row: TableRow) -> bool:
    ticks = schedule.pipeline.ticks
    if ticks.limits is None:
        return True
    live = sum(ticks.memory_change(OpKind(kind), stage) for kind, stage, *_ in done)
    taken = sum(most_taken(schedule, member) for member in together(rows, row))
    return not taken or ticks.static[row[3]] + live + taken <= ticks.limits[row[3]]


@examples(20)
@given(schedules())
def test_every_idle_tick_has_the_cause_that_its_definition_gives(schedule: Schedule) -> None:
    idle_times, rows = idle(schedule), table(schedule)
    ticks = {}
    for device, start, end, cause, following, _ in zip(
        *(c.tolist() for c in idle_times), strict=True
    ):
        assert start < end
        for tick in range(start, end):
            assert (device, tick) not in ticks
            ticks[device, tick] = (Cause(cause), None if following == FREE else rows[following])
    assert ticks == naive(schedule)


@examples(15)
@given(schedules())
def test_causes_add_up_to_the_idle_time(schedule: Schedule) -> None:
    figures = schedule.metrics
    table = totals(idle(schedule), schedule.pipeline.num_devices)
    waits = [figures.makespan_ticks - busy for busy in figures.busy_ticks]
    assert table.sum(axis=1).tolist() == waits
    rate = figures.bubble_rate(Objective.MAKESPAN)
    assert sum(share(schedule).values()) == pytest.approx(rate, abs=1e-12)


@examples(15)
@given(schedules())
def test_the_subject_is_what_the_cause_names(schedule: Schedule) -> None:
    idle_times, rows = idle(schedule), table(schedule)
    for device, start, _, cause, following, subject in zip(
        *(column.tolist() for column in idle_times), strict=True
    ):
        if cause in (Cause.ORDER, Cause.COOL_DOWN):
            assert subject == FREE
        elif cause == Cause.MEMORY:
            assert rows[subject][3] == device
            assert arrival(schedule, rows, rows[subject])[1] <= start
            done = [row for row in rows if row[3] == device and row[5] <= start]
            assert not fits(schedule, rows, done, rows[subject])
        elif subject != FREE:
            end = rows[subject][5]
            sent, ready = arrival(schedule, rows, rows[following])
            if cause == Cause.INPUT:
                assert end == sent > start
            else:
                lag = lag_of(schedule.pipeline, op_of(rows[subject]), op_of(rows[following]))
                assert end + lag == ready
                assert end <= start or cause == Cause.WARM_UP


def test_random_schedules_meet_every_cause() -> None:
    """The tests above would be empty where a cause never came up."""
    met: set[Cause] = set()
    for seed in range(30):
        schedule = build(Pipeline(stages=2, batches=3, p2p=1), Random(seed), "split")
        causes = idle(limited(schedule, peaks(schedule))).cause
        met.update(Cause(cause) for cause in causes.tolist())
    assert met == set(Cause) - {Cause.COLLECTIVE, Cause.HOST}


WORK = [
    {"unshard": 4},
    {"unshard": [0, 5, 1]},
    {"gradient_sync": 3},
    {"gradient_sync": [1, 6, 0]},
    {"optimizer": [1, 0, 2]},
    {"optimizer": 2, "optimizer_barrier": True},
    {"unshard": 3, "unshard_memory": 1, "gradient_sync": 2, "optimizer": 1},
    {"unshard": 1, "gradient_sync": [0, 1, 5], "optimizer": 1, "optimizer_barrier": True},
]
"""Work around the microbatches of three stages."""


class TestWorkAroundTheMicrobatches:
    def test_weights_of_the_second_chunk(self) -> None:
        """One device: stage 0 is gathered to 2, stage 1 to 4, and F of stage 0 ends at 2.5."""
        work: dict[str, Any] = {"unshard": 4, "gradient_sync": 4}
        pipeline = Pipeline(stages=1, batches=1, chunks=2, placement="interleaved", **work)
        schedule = evaluate(pipeline, "looped-bfs")
        assert [(start, end, label) for _, start, end, label in gaps(schedule)] == [
            (0, 4, "warm-up"),  # in ticks of half a unit
            (5, 8, "collective"),  # for weights
            (13, 19, "collective"),  # for gradients: BW of stage 1 at 11, its sync until 15
        ]
        assert by_cause(schedule)["collective"] == [4.5]

    def test_gradients_before_the_optimizer(self) -> None:
        """Device 0 ends at 9 and syncs to 12, device 1 at 7, to 10; the optimizer takes 1."""
        work = {"gradient_sync": 3, "optimizer": 1}
        pipeline = Pipeline(stages=2, batches=2, **work)
        ends = [(0, 9, 12, "collective"), (1, 7, 10, "collective"), (1, 11, 13, "cool-down")]
        assert gaps(evaluate(pipeline, "1f1b"))[2:] == [ends[0], (1, 0, 1, "warm-up"), *ends[1:]]

    def test_a_barrier_waits_for_the_gradients_of_all(self) -> None:
        pipeline = Pipeline(stages=2, batches=2, optimizer=1, optimizer_barrier=True)
        assert gaps(evaluate(pipeline, "1f1b"))[2:] == [
            (1, 0, 1, "warm-up"),
            (1, 7, 9, "collective"),
        ]

    def test_an_optimizer_that_could_start(self) -> None:
        schedule = evaluate(Pipeline(stages=1, batches=1, gradient_sync=1, optimizer=1), "1f1b")
        later = 2 * (schedule.operations.kind == AuxiliaryKind.OPTIMIZER)
        late = schedule.with_starts(schedule.operations.start + later)
        assert gaps(late) == [(0, 3, 4, "collective"), (0, 4, 6, "order")]

    def test_gathered_weights_keep_a_forward_out(self) -> None:
        """F of microbatch 1 fits with one activation, and not with the weights as well.

        One microbatch at a time: device 0 runs F0 from 1 to 2, and B0 from 4 on.
        """
        kinds = [(kind, microbatch) for microbatch in (0, 1) for kind in (F, B, W)]
        for gathered, label in ((1, "memory"), (0, "input")):
            work: dict[str, Any] = {"unshard": 1, "unshard_memory": gathered, "mem_limit": 2}
            pipeline = Pipeline(stages=2, batches=2, **work)
            orders = [
                np.array(
                    [int(pipeline.code(kind, stage, microbatch)) for kind, microbatch in kinds]
                )
                for stage in (0, 1)
            ]
            schedule = timing.schedule(pipeline, orders)
            assert verify(schedule) == []
            assert gaps(schedule)[:2] == [(0, 0, 1, "warm-up"), (0, 2, 4, label)]

    @pytest.mark.parametrize("work", WORK)
    @pytest.mark.parametrize(
        "strategy", ["1f1b", "zbv", "chimera", slow("gpipe"), slow("interleaved")]
    )
    def test_causes_add_up_to_the_idle_time(self, strategy: str, work: dict[str, Any]) -> None:
        two = strategy == "chimera"
        stages = {
            name: values[:2] if isinstance(values, list) else values
            for name, values in work.items()
        }
        fields = stages if two else work
        schedule = evaluate(Pipeline(stages=2 if two else 3, batches=4, **fields), strategy)
        figures, table = schedule.metrics, totals(idle(schedule), schedule.pipeline.num_devices)
        waits = [figures.makespan_ticks - busy for busy in figures.busy_ticks]
        assert table.sum(axis=1).tolist() == waits
        rate = figures.bubble_rate(Objective.MAKESPAN)
        assert sum(share(schedule).values()) == pytest.approx(rate, abs=1e-12)
        assert [*by_cause(schedule)][-1] == "collective"


@pytest.mark.parametrize("lost", ["1B1", "1W0", "0F2"])
def test_an_incomplete_schedule_has_no_causes(lost: str) -> None:
    """One operation taken out: it is named, and nothing is read in its place."""
    whole = evaluate(Pipeline(stages=2, batches=3), "zb-h1")
    part = Schedule.from_rows(whole.pipeline, [row for row in whole.rows() if str(row.op) != lost])
    with pytest.raises(InputError, match=f"incomplete: {lost} is missing"):
        idle(part)


def test_a_backward_waits_for_the_host() -> None:
    """By hand: F until 1, out until 4, back until 7, then BW."""
    schedule = evaluate(Pipeline(stages=1, batches=1, offload_memory=1, offload_time=3), "gpipe")
    assert [tuple(map(int, gap)) for gap in zip(*idle(schedule)[1:4], strict=True)] == [
        (1, 7, Cause.HOST)
    ]
