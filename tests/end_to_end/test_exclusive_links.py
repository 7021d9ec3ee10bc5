"""Exclusive links: baselines against a plain simulation, and what shares a link."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given

from ppopt import Pipeline, evaluate, recheck, solve, verify
from ppopt.cli.application import EXIT_VIOLATIONS
from ppopt.formats import schedule_json
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.instance import Instance
from ppopt.problem.kinds import ResourceKind
from ppopt.problem.link_mode import LinkMode
from ppopt.problem.operation import Op
from ppopt.problem.resources import Resource
from ppopt.report.labels import link_label, link_title
from ppopt.schedule import communication, timing
from ppopt.schedule.link_queues import queues_of_schedule
from ppopt.schedule.schedule import Schedule
from ppopt.strategies import names
from ppopt.verifier import Rule
from ppopt.verifier.posting import posting_faults
from tests.cli.cli_run import done, run
from tests.factories.schedules import BW, B, F, W, duration_of, lag_of, table
from tests.factories.streams import Built, built, linked_pipelines
from tests.factories.tables import joined, transfer_table
from tests.tiers import examples, first

EXCLUSIVE = linked_pipelines((LinkMode.EXCLUSIVE,))
TWO = Pipeline(stages=2, batches=2, forward=1, backward=2, p2p=2, link_mode="exclusive")
"""Transfers as long as BW: the second activation waits for the first one."""


def times(schedule: Schedule, kind: int) -> list[tuple[int, int]]:
    """Start and end of the transfers of activations (F) or gradients (B), in units of time."""
    unit = schedule.pipeline.ticks.per_unit
    return [(row[5] // unit, row[6] // unit) for row in transfer_table(schedule) if row[0] == kind]


def test_a_link_carries_one_transfer_at_a_time_and_each_way_is_free_of_the_other() -> None:
    """F0 0..1 and F1 1..2 of device 0; their transfers 1..3 and 3..5.

    Device 1: F0 3..4, BW0 4..6, F1 6..7, BW1 7..9. Gradients go 6..8 and 9..11.
    """
    schedule = evaluate(TWO, "1f1b")
    assert times(schedule, F) == [(1, 3), (3, 5)]
    assert times(schedule, B) == [(6, 8), (9, 11)]
    assert schedule.metrics.makespan_ticks == 13 * schedule.pipeline.ticks.per_unit


def crossing() -> Schedule:
    """F2 of device 0 and BW0 of device 1 end at 6; both results go from 6 to 7.

    Device 0: F0 0..2, F1 2..4, F2 4..6. Device 1: F0 3..4, BW0 4..6, F1 6..7, BW1 7..9, F2, BW2.
    """
    pipeline = Pipeline(
        stages=2, batches=3, forward=(2, 1), backward=2, p2p=1, link_mode="exclusive"
    )
    code = pipeline.code
    orders = [
        np.array([code(kind, 0, j) for kind in (F, BW) for j in range(3)]),
        np.array([code(kind, 1, j) for j in range(3) for kind in (F, BW)]),
    ]
    return timing.schedule(pipeline, orders)


def test_opposite_ways_at_one_time() -> None:
    schedule = crossing()
    assert verify(schedule) == []
    assert times(schedule, F) == [(2, 3), (4, 5), (6, 7)]
    assert times(schedule, B) == [(6, 7), (9, 10), (12, 13)]
    one_queue = replace(schedule, pipeline=replace(schedule.pipeline, link_mode="streams"))
    (violation,) = verify(one_queue)
    assert violation.rule is Rule.LINK


def test_two_at_once_on_one_way_are_named() -> None:
    """Transfers of 3 from the same starts: each begins before the one before it has ended."""
    schedule = crossing()
    slow = replace(schedule.pipeline, p2p=3, backward_p2p=1)
    longer = 3 * schedule.pipeline.ticks.per_unit
    rows = [
        (*row[:6], row[5] + longer, row[7]) if row[0] == F else row
        for row in transfer_table(schedule)
    ]
    changed = joined(slow, table(schedule), transfers=rows)
    assert [str(violation) for violation in verify(changed) if violation.rule is Rule.LINK] == [
        "link-overlap: 0SEND_F1 from device 0 to 1 at 4..7 overlaps "
        "0SEND_F0 from device 0 to 1 at 2..5",
        "link-overlap: 0SEND_F2 from device 0 to 1 at 6..9 overlaps "
        "0SEND_F1 from device 0 to 1 at 4..7",
    ]


def test_links_of_an_instance_are_one_for_each_way() -> None:
    pipeline = Pipeline(stages=3, batches=2, p2p=2, link_mode="exclusive")
    instance = Instance(pipeline, BackwardKind.WHOLE, all_resources=True)
    assert instance.resources[3:] == tuple(
        Resource(ResourceKind.LINK, pair, one_way=True) for pair in ((0, 1), (1, 0), (1, 2), (2, 1))
    )
    assert [
        (link_label(resource), link_title(resource)) for resource in instance.resources[3:5]
    ] == [
        ("0→1", "link from device 0 to device 1"),
        ("1→0", "link from device 1 to device 0"),
    ]
    ring = Instance(replace(pipeline, chunks=2), BackwardKind.WHOLE, all_resources=True)
    carried = [len(numbers) for numbers in ring.hosted[3:]]
    assert dict(
        zip((resource.devices for resource in ring.resources[3:]), carried, strict=True)
    ) == {
        **dict.fromkeys(((0, 1), (1, 2), (1, 0), (2, 1)), 2),
        **dict.fromkeys(((2, 0), (0, 2)), 1),
    }


# Hand strategies against a plain simulation

Send = tuple[int, int, int, int]
"""F or B, sending stage, microbatch, slice."""


class Simulation:
    """Devices run their orders, links first come, first served, one tick after the other."""

    def __init__(self, schedule: Schedule) -> None:
        self.pipeline = schedule.pipeline
        rows = sorted(schedule.rows(), key=lambda row: (row.device, row.start, row.end))
        self.left: list[list[list[Op]]] = [
            [[row.op for row in group] for group in _groups(ours)]
            for _, ours in groupby(rows, key=lambda row: row.device)
        ]
        self.free = [0] * len(self.left)
        self.done: set[Op] = set()
        self.running: list[tuple[int, list[Op]]] = []
        self.waiting: dict[tuple[int, int], list[tuple[int, int, Send]]] = {}
        self.link_free: dict[tuple[int, int], int] = {}
        self.under_way: list[tuple[int, Send]] = []
        self.brought: set[Send] = set()
        self.starts: dict[Op, int] = {}
        self.carried: dict[Send, tuple[int, int]] = {}

    def run(self) -> None:
        """Run to the end."""
        now = 0
        while any(self.left) or self.running:
            self._end(now)
            for device, groups in enumerate(self.left):
                if groups and self.free[device] <= now and all(map(self._ready, groups[0])):
                    self._start(device, groups.pop(0), now)
            self._serve(now)
            now += 1

    def _start(self, device: int, group: list[Op], now: int) -> None:
        self.free[device] = now + duration_of(self.pipeline, group)
        self.running.append((self.free[device], group))
        self.starts |= dict.fromkeys(group, now)

    def _end(self, now: int) -> None:
        for end, send in self.under_way:
            if end == now:
                self.brought.add(send)
        for end, group in self.running:
            if end == now:
                self.done.update(group)
                for op in group:
                    self._hand_on(op, now)
        self.running = [pair for pair in self.running if pair[0] > now]

    def _hand_on(self, op: Op, now: int) -> None:
        neighbour = op.stage + (1 if op.kind is F else -1)
        if op.kind is W or not 0 <= neighbour < self.pipeline.num_stages:
            return
        link = tuple(self.pipeline.device(stage, op.microbatch) for stage in (op.stage, neighbour))
        if link[0] != link[1]:
            send = (F if op.kind is F else B, *op[1:])
            self.waiting.setdefault((link[0], link[1]), []).append((now, op.microbatch, send))

    def _serve(self, now: int) -> None:
        for link, waiting in self.waiting.items():
            if waiting and self.link_free.get(link, 0) <= now:
                first = min(waiting)
                waiting.remove(first)
                kind, stage, microbatch, slice_index = first[2]
                ends = (F, stage, stage + 1) if kind == F else (BW, stage, stage - 1)
                ops = (
                    Op(ends[0], stage_index, microbatch, slice_index) for stage_index in ends[1:]
                )
                end = self.link_free[link] = now + lag_of(self.pipeline, *ops)
                self.carried[first[2]] = now, end
                self.under_way.append((end, first[2]))

    def _ready(self, op: Op) -> bool:
        """Whether everything that an operation waits for is there."""
        kind, stage, microbatch, slice_index = op
        if kind is W:
            return op._replace(kind=B) in self.done
        step = -1 if kind is F else 1
        if kind is not F and op._replace(kind=F) not in self.done:
            return False
        if 0 <= slice_index + step < self.pipeline.num_slices and not self._has_result(
            op, stage, slice_index + step
        ):
            return False
        neighbour = stage + step
        if not 0 <= neighbour < self.pipeline.num_stages:
            return True
        if self.pipeline.device(neighbour, microbatch) == self.pipeline.device(stage, microbatch):
            return self._has_result(op, neighbour, slice_index)
        return (F if kind is F else B, neighbour, microbatch, slice_index) in self.brought

    def _has_result(self, op: Op, stage: int, slice_index: int) -> bool:
        kinds = (F,) if op.kind is F else (B, BW)
        return any(Op(kind, stage, op.microbatch, slice_index) in self.done for kind in kinds)


def _groups(rows: Iterator) -> Iterator[list]:
    """Operations that run alone, and pairs."""
    group: list = []
    for row in rows:
        if group and not row.pair == group[0].pair >= 0:
            yield group
            group = []
        group.append(row)
    yield group


@pytest.mark.parametrize("p2p", first(1, [5, 1, 2]))
@pytest.mark.parametrize("name", names())
def test_hand_strategies_have_the_times_of_a_plain_simulation(name: str, p2p: int) -> None:
    """No time is 0, so that no order is left open.

    At p2p 5, Hanayo would be shorter if links took first what is needed first.
    """
    pipeline = Pipeline(
        stages=4, batches=8, forward=2, backward=4, p2p=p2p, backward_p2p=3, link_mode="exclusive"
    )
    schedule = evaluate(pipeline, name)
    assert verify(schedule) == []
    assert all(row[4] < row[5] for row in table(schedule))
    plain = Simulation(schedule)
    plain.run()
    assert {row.op: row.start for row in schedule.rows()} == plain.starts
    carried = {(*row[:3], row[7]): row[5:7] for row in transfer_table(schedule)}
    assert carried == plain.carried


# Orders, files, search, proof


@examples(15)
@given(built(EXCLUSIVE))
def test_schedules_keep_their_times_in_files_and_in_the_orders_of_their_links(built: Built) -> None:
    schedule = built.schedule
    read, _ = schedule_json.loads(schedule_json.dumps(schedule), "file")
    assert read == schedule
    queues = queues_of_schedule(schedule)
    retimed = timing.schedule(schedule.pipeline, schedule.orders, queues=queues)
    assert verify(retimed) == []
    latest = {(*row[:3], row[7]): row[6] for row in transfer_table(schedule)}
    assert all(row[6] <= latest[*row[:3], row[7]] for row in transfer_table(retimed))
    assert retimed.metrics.makespan_ticks <= schedule.metrics.makespan_ticks


SMALL = {
    "two routes": Pipeline(stages=2, batches=2, routes=2, p2p=2, link_mode="exclusive"),
    "slices": Pipeline(stages=2, batches=1, slices=2, forward=2, p2p=3, link_mode="exclusive"),
    "a ring": Pipeline(stages=2, batches=1, chunks=2, forward=2, p2p=3, link_mode="exclusive"),
    "few": replace(TWO, backward_p2p=4),
}


def test_a_bound_of_two_routes_that_is_too_high_is_refuted() -> None:
    pipeline = Pipeline(stages=2, batches=2, routes=2, p2p=1, link_mode="exclusive")
    result = solve(pipeline, time_limit=600, workers=1)
    rechecked = recheck(replace(result, bound_ticks=result.value_ticks + 1), workers=1)
    assert rechecked.verdict == "wrong"
    assert rechecked.counterexample.pipeline.link_mode is LinkMode.EXCLUSIVE
    assert verify(rechecked.counterexample) == []


def test_pytorch_runs_an_order_over_streams() -> None:
    schedule = evaluate(Pipeline(stages=3, batches=4, p2p=2, link_mode="exclusive"), "1f1b")
    rows = communication.of_schedule(schedule)
    over = communication.as_streams(schedule)
    assert posting_faults(over.pipeline, rows) == []
    assert over.pipeline.streams
    assert [order.tolist() for order in over.orders] == [
        order.tolist() for order in schedule.orders
    ]


def test_the_command_line_solves_proves_and_verifies(tmp_path: Path) -> None:
    """B0 of device 0 starts at 7 at the earliest: F, B of device 1 and two transfers before it.

    Device 0 has three F before that and 6 of work from then on: 13.
    """
    file = tmp_path / "best.json"
    line = "solve --stages 2 --batches 3 --p2p 2 --link-mode exclusive --json --quiet"
    result = done(line, "-o", file).json
    assert (result["status"], result["value"], result["link_mode"]) == ("optimal", 13, "exclusive")
    assert result["schedule"]["pipeline"]["link_mode"] == "exclusive"
    assert "verified" in done(f"verify {file}").out
    text = file.read_text(encoding="utf-8")
    assert text.count("SEND_") == 6
    earlier = json.loads(text)
    sends = [row for row in earlier["ops"] if row[0] == "SEND_F"]
    sends[1][4:6] = sends[0][4:6]
    file.write_text(json.dumps(earlier), encoding="utf-8")
    refused = run(f"verify {file}")
    assert refused.code == EXIT_VIOLATIONS
    assert "link-overlap" in refused.out + refused.err
