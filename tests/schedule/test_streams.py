"""Links as streams: times against a plain simulation, queues, communication orders."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations, product
from random import Random

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ppopt import Objective, Pipeline, evaluate, verify
from ppopt.errors import DeadlockError, InputError
from ppopt.problem.features.transfers import DISPATCH_RULES
from ppopt.problem.operation_classes import Criterion, DispatchRule
from ppopt.schedule import communication, timing
from ppopt.schedule.actions import Action, ActionKind, ActionRow
from ppopt.schedule.link_queues import LinkQueues, queues_of_orders
from ppopt.schedule.schedule import Schedule
from ppopt.verifier.posting import posting_faults
from tests.factories.schedules import BW, F, table
from tests.factories.streams import Built, append_all, built
from tests.factories.tables import transfer_table, transfers_of
from tests.oracles.streams import simulate
from tests.tiers import examples

SMALL = Pipeline(stages=2, batches=2, forward=2, backward=4, p2p=1, link_mode="streams")
INSTANTS = Pipeline(
    stages=3, batches=4, placement="v", backward_input=0, weight=0, link_mode="streams"
)
"""All backwards and transfers of two devices may share an instant."""


def rows_of(*lines: str) -> tuple[ActionRow, ...]:
    """Rows of cells such as `0F0 0SEND_F0`."""

    def action(text: str) -> Action:
        stage, rest = int(text[0]), text[1:]
        return Action(ActionKind(rest[:-1]), stage, int(rest[-1]))

    return tuple(tuple((action(cell),) for cell in line.split()) for line in lines)


def timed(schedule: Schedule) -> set[tuple[int, ...]]:
    """Operations and transfers with start and end, whatever the order of those of no length."""
    carried = {(7, row[7], *row[:7]) for row in transfer_table(schedule)}
    return {row[:6] for row in table(schedule)} | carried


def test_a_receive_behind_computation_holds_up_its_queue() -> None:
    """Device 0 posts the receive of gradient 0 behind F1: that of 2..4 starts it no earlier.

    F0 0..2, its transfer 2..3, F0 of device 1 3..5, BW0 5..9; F1 2..4 meanwhile. The gradient goes
    9..10, and behind it in the queue the activation of F1, which has been there since 4.
    """
    rows = rows_of(
        "0F0 0SEND_F0 0F1 0RECV_B0 0SEND_F1 0BW0 0RECV_B1 0BW1",
        "1RECV_F0 1F0 1BW0 1SEND_B0 1RECV_F1 1F1 1BW1 1SEND_B1",
    )
    schedule = communication.schedule_of(SMALL, rows)
    assert verify(schedule) == []
    times = [(row.start, row.end) for row in transfers_of(schedule).rows()]
    assert times == [(2, 3), (9, 10), (10, 11), (17, 18)]
    assert schedule.metrics.makespan_ticks == 22
    # the other way about, F1 of device 1 need not wait for the gradient
    better = rows_of(
        "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0BW0 0RECV_B1 0BW1",
        "1RECV_F0 1RECV_F1 1F0 1BW0 1SEND_B0 1F1 1BW1 1SEND_B1",
    )
    assert communication.schedule_of(SMALL, better).metrics.makespan_ticks == 20


@examples(15)
@given(built())
def test_times_are_those_of_a_plain_simulation(drawn: Built) -> None:
    pipeline = drawn.schedule.pipeline
    for rows in (drawn.rows, communication.of_schedule(drawn.schedule)):
        known = simulate(pipeline, rows)
        timed = communication.schedule_of(pipeline, rows)
        assert verify(timed) == []
        times = {
            Action(ActionKind[row.kind.name], row.stage, row.microbatch): (row.start, row.end)
            for row in timed.rows()
        }
        assert times == known.operations
        carried = {
            Action(ActionKind(f"SEND_{'F' if kind == 0 else 'B'}"), stage, microbatch): (begin, end)
            for kind, stage, microbatch, _, _, begin, end, _ in transfer_table(timed)
        }
        assert carried == known.transfers


@examples(15)
@given(built())
@example(append_all(INSTANTS, Random(0), "split"))
def test_posting_early_in_the_order_of_the_times_keeps_the_times(drawn: Built) -> None:
    """The times given are the earliest of their orders, so those of the derived order are equal.

    Where operations of no length share an instant, their order is not in the times.
    """
    retimed = communication.schedule_of(
        drawn.schedule.pipeline, communication.of_schedule(drawn.schedule)
    )
    original, derived = timed(drawn.schedule), timed(retimed)
    if all(row[-2] < row[-1] for row in original):
        assert derived == original
    latest = {row[:-2]: row[-1] for row in original}
    assert all(row[-1] <= latest[row[:-2]] for row in derived)


@examples(15)
@given(built(), st.sampled_from(Objective))
def test_streams_only_delay_more(drawn: Built, objective: Objective) -> None:
    schedule = drawn.schedule
    delays = replace(schedule.pipeline, link_mode="delay")
    best = timing.schedule(delays, schedule.orders, objective).metrics.value_ticks(objective)
    for queues in timing.own_queues(schedule.pipeline, schedule.orders):
        retimed = timing.schedule(schedule.pipeline, schedule.orders, objective, queues=queues)
        assert verify(retimed) == []
        assert retimed.metrics.value_ticks(objective) >= best
    # without transfers, it is a schedule of the pipeline of delays
    assert verify(Schedule.from_columns(delays, *schedule.compute.columns)) == []


@examples(15)
@given(built())
def test_the_lowering_of_pytorch_keeps_all_rules(drawn: Built) -> None:
    schedule = drawn.schedule
    rows = communication.torch_lowering(schedule.pipeline, schedule.orders)
    assert posting_faults(schedule.pipeline, rows) == []
    known = simulate(schedule.pipeline, rows)
    assert known is not None
    lowered = communication.schedule_of(schedule.pipeline, rows).metrics.makespan_ticks
    assert lowered == max(end for _, end in known.operations.values())


def test_first_come_or_first_needed_is_the_best_order_of_small_queues() -> None:
    """Of all orders of the two links of 1F1B, none is better than the one chosen."""
    pipeline = Pipeline(stages=3, batches=2, p2p="0.5", link_mode="streams")
    schedule = evaluate(pipeline, "1f1b")
    links = LinkQueues(schedule.pipeline)
    per_link = [links.numbers[links.link[links.numbers] == link] for link in range(2)]
    schedules = []
    for order in product(*map(permutations, per_link)):
        queues = queues_of_orders(links, [np.array(queue) for queue in order])
        try:
            schedules.append(timing.schedule(schedule.pipeline, schedule.orders, queues=queues))
        except DeadlockError:
            continue
    assert len(schedules) > 10
    assert schedule.metrics.makespan_ticks == min(
        candidate.metrics.makespan_ticks for candidate in schedules
    )


@pytest.mark.parametrize(
    ("rule", "carried"),
    [
        ((Criterion.ARRIVAL,), "0SEND_F2 1SEND_B0"),
        ((Criterion.ARRIVAL, Criterion.MICROBATCH), "1SEND_B0 0SEND_F2"),
        ((Criterion.NEED,), "1SEND_B0 0SEND_F2"),
    ],
)
def test_a_dispatch_rule_says_which_transfer_goes_first(
    rule: DispatchRule, carried: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F2 of device 0 and BW0 of device 1 end at 9. Over delays BW0 of device 0 starts at 10, F2 of
    device 1 later."""
    pipeline = Pipeline(stages=2, batches=3, forward=(3, 2), backward=3, p2p=1, link_mode="streams")
    code = pipeline.code
    orders = [
        np.array([*(code(F, 0, j) for j in range(3)), *(code(BW, 0, j) for j in range(3))]),
        np.array([code(kind, 1, j) for j in range(3) for kind in (F, BW)]),
    ]
    monkeypatch.setitem(DISPATCH_RULES, pipeline.link_mode, (rule,))
    (queues,) = timing.own_queues(pipeline, orders)
    names = [str(queues.links.transfer(class_id)) for class_id in queues.carried]
    assert " ".join(names[2:4]) == carried


def test_a_circle_through_a_link_is_named() -> None:
    """The gradient before the activation that it comes from."""
    links = LinkQueues(SMALL)
    orders = evaluate(SMALL, "1f1b").orders
    (order,) = (links.numbers[::-1],)
    queues = queues_of_orders(links, [order])
    with pytest.raises(DeadlockError, match=r"SEND_"):
        timing.schedule(SMALL, orders, queues=queues)


def test_ends_that_differ_are_refused() -> None:
    rows = rows_of("0F0 0SEND_F0 0F1 0SEND_F1", "1RECV_F1 1RECV_F0 1F0 1F1")
    with pytest.raises(InputError, match=r"devices 0 and 1: transfer 0 of their queue is 0SEND_F0"):
        communication.queues_of(SMALL, rows)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"routes": 2}, "no two routes"),
        ({"slices": 2}, "no slices"),
        (
            {"link_mode": "shared"},
            "'shared' is unknown; use delay or streams or exclusive or bl",
        ),
    ],
)
def test_what_streams_are_not(fields: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=f"link_mode: .*{message}"):
        Pipeline(**({"stages": 2, "batches": 2, "link_mode": "streams"} | fields))
