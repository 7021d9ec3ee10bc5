"""Generation of devices by appended operations and by events."""

from __future__ import annotations

import pytest

from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.instance import Instance
from ppopt.problem.operation import OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule import timing
from ppopt.schedule.generation import Generation, class_orders


def two_stages() -> Instance:
    """F = 1, BW = 2, delay 1, two microbatches."""
    return Instance(Pipeline(stages=2, batches=2, p2p=1), BackwardKind.WHOLE)


def test_an_operation_starts_when_device_and_inputs_are_ready() -> None:
    instance = two_stages()
    run = Generation(instance)
    first, second = (instance.number(OpKind.F, stage) for stage in (0, 1))
    assert run.arrival(second) is None
    assert run.append(first, 0) == 1
    assert run.arrival(second) == 2
    assert run.append(second, 2) == 3
    assert run.arrival(second) is None
    assert run.append(first, 0) == 2
    assert (run.makespan, run.span, run.idle) == (3, 2, [0, 0])


def test_idle_time_counts_from_the_first_start() -> None:
    instance = two_stages()
    run = Generation(instance)
    run.append(instance.number(OpKind.F, 1), 5)
    run.append(instance.number(OpKind.F, 1), 9)
    assert run.idle == [0, 3]
    assert run.most_idle == 3


@pytest.mark.parametrize("placement", ["linear", "v", "interleaved"])
def test_events_run_every_operation_at_its_time(placement: str) -> None:
    """Any operation whose inputs are there, backwards first: timing gives the same makespan."""
    pipeline = Pipeline(
        stages=3, batches=5, placement=placement, p2p=2, forward=[1, 2, 3], weight=[1, 1, 2]
    )
    instance = Instance(pipeline, BackwardKind.SPLIT)
    run = Generation(instance)

    def choose(device: int, now: int) -> int | None:
        for number in reversed(instance.hosted[device]):
            arrival = run.arrival(number)
            left = run.done[number] < instance.batches
            if left and arrival is not None and arrival <= now:
                return number
        return None

    run.run(choose, [(0, device) for device in range(3)])
    assert timing.schedule(pipeline, run.orders()).metrics.makespan_ticks == run.makespan


def test_microbatches_of_a_class_follow_in_order() -> None:
    instance = two_stages()
    forward, backward = (instance.number(kind, 0) for kind in (OpKind.F, OpKind.BW))
    (order,) = class_orders(instance, [[forward, backward, forward, backward]])
    assert [str(instance.pipeline.op(code)) for code in order] == ["0F0", "0BW0", "0F1", "0BW1"]
