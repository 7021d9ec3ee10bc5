"""Dispatch over links gives the orders that the event loop of generations gives."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest

from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.features.transfers import DISPATCH_RULES
from ppopt.problem.instance import Instance
from ppopt.problem.kinds import RECORDS
from ppopt.problem.link_mode import LinkMode
from ppopt.problem.operation import OpKind
from ppopt.problem.operation_classes import Criterion, DispatchRule
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule import timing
from ppopt.schedule.generation import EventSimulation, class_orders
from ppopt.schedule.link_queues import LinkQueues, receiving_stage
from ppopt.schedule.orders import Orders
from tests.factories.streams import LINK_MODES


def drawn(seed: int, link_mode: LinkMode) -> tuple[Pipeline, Orders]:
    """A pipeline, some of its operations without length, and random orders of split backwards."""
    rng = Random(seed)
    stages = rng.randint(2, 5)
    forward, partial, weight = ([rng.randint(0, 3) for _ in range(stages)] for _ in range(3))
    pipeline = Pipeline(
        stages=stages,
        batches=rng.randint(1, 6),
        p2p=rng.randint(0, 9),
        forward=[1 + time for time in forward],
        backward_input=partial,
        weight=[1 + time for time in weight],
        placement=rng.choice(("linear", [k % 2 for k in range(stages)])),
        link_mode=link_mode,
    )
    run = EventSimulation(Instance(pipeline, BackwardKind.SPLIT))
    while not run.complete:
        classes = range(len(run.instance.classes))
        class_id = rng.choice(
            [class_id for class_id in classes if run.arrival(class_id) is not None]
        )
        run.append(class_id, 0)
    return pipeline, run.orders()


def needs(links: LinkQueues, orders: Orders) -> dict[int, int]:
    """When what receives each transfer starts where links are delays, by its number."""
    timed = timing.schedule(replace(links.pipeline, link_mode="delay"), orders)
    columns = (timed.kind, timed.stage, timed.microbatch, timed.start)
    begins = {tuple(row): start for *row, start in np.stack(columns, axis=1).tolist()}
    arrivals = {}
    for class_id in links.numbers.tolist():
        kind, stage, microbatch, *_ = links.transfer(class_id)
        carried = RECORDS[kind].carries
        assert carried is not None
        arrivals[class_id] = begins[carried, receiving_stage(carried, stage), microbatch]
    return arrivals


def generated(links: LinkQueues, orders: Orders, rule: DispatchRule) -> list[list[int]]:
    """The transfers of every link, by a generation whose devices follow their orders."""
    instance, need = links.instance, needs(links, orders)
    run = EventSimulation(instance)
    class_of = {
        code: class_id for class_id, codes in enumerate(instance.codes) for code in codes.tolist()
    }
    devices = [[class_of[code] for code in order.tolist()] for order in orders]

    def choose(resource: int, now: int) -> int | None:
        """The first by the rule, of a link; the next of the order, of a device."""
        if resource < len(devices):
            left = devices[resource][len(run.sequence[resource]) :]
            arrival = run.arrival(left[0]) if left else None
            return left[0] if arrival is not None and arrival <= now else None
        waiting = []
        for class_id in instance.hosted[resource]:
            arrival = run.arrival(class_id)
            if arrival is not None and arrival <= now:
                microbatch = run.done[class_id]
                code = int(instance.codes[class_id][microbatch])
                by = {
                    Criterion.ARRIVAL: arrival,
                    Criterion.NEED: need[code],
                    Criterion.MICROBATCH: microbatch,
                }
                waiting.append(([*(by[criterion] for criterion in rule), code], class_id))
        return min(waiting)[1] if waiting else None

    run.run(choose, [(0, device) for device in range(len(devices))])
    assert run.complete
    return [order.tolist() for order in run.orders()[len(devices) :]]


@pytest.mark.parametrize("link_mode", LINK_MODES)
def test_dispatch_has_the_orders_of_a_generation(link_mode: LinkMode) -> None:
    waits = 0
    for seed in range(15):
        pipeline, orders = drawn(seed, link_mode)
        links, queues_of_links = LinkQueues(pipeline), timing.own_queues(pipeline, orders)
        rules = DISPATCH_RULES[link_mode]
        assert len(queues_of_links) == len(rules)
        for queues, rule in zip(queues_of_links, rules, strict=True):
            assert [order.tolist() for order in queues.order] == generated(links, orders, rule)
            delayed = timing.schedule(replace(pipeline, link_mode="delay"), orders)
            linked = timing.schedule(pipeline, orders, queues=queues)
            waits += linked.metrics.makespan_ticks > delayed.metrics.makespan_ticks
    assert waits > 2


# Generation of devices by appended operations and by events.


def two_stages() -> Instance:
    """F = 1, BW = 2, delay 1, two microbatches."""
    return Instance(Pipeline(stages=2, batches=2, p2p=1), BackwardKind.WHOLE)


def test_an_operation_starts_when_device_and_inputs_are_ready() -> None:
    instance = two_stages()
    run = EventSimulation(instance)
    first, second = (instance.class_id(OpKind.F, stage) for stage in (0, 1))
    assert run.arrival(second) is None
    assert run.append(first, 0) == 1
    assert run.arrival(second) == 2
    assert run.append(second, 2) == 3
    assert run.arrival(second) is None
    assert run.append(first, 0) == 2
    assert (run.makespan, run.span, run.idle) == (3, 2, [0, 0])


def test_idle_time_counts_from_the_first_start() -> None:
    instance = two_stages()
    run = EventSimulation(instance)
    run.append(instance.class_id(OpKind.F, 1), 5)
    run.append(instance.class_id(OpKind.F, 1), 9)
    assert run.idle == [0, 3]
    assert run.max_idle == 3


@pytest.mark.parametrize("placement", ["linear", "v", "interleaved"])
def test_events_run_every_operation_at_its_time(placement: str) -> None:
    """Any operation whose inputs are there, backwards first: timing gives the same makespan."""
    pipeline = Pipeline(
        stages=3, batches=5, placement=placement, p2p=2, forward=[1, 2, 3], weight=[1, 1, 2]
    )
    instance = Instance(pipeline, BackwardKind.SPLIT)
    run = EventSimulation(instance)

    def choose(device: int, now: int) -> int | None:
        for class_id in reversed(instance.hosted[device]):
            arrival = run.arrival(class_id)
            left = run.done[class_id] < instance.batches
            if left and arrival is not None and arrival <= now:
                return class_id
        return None

    run.run(choose, [(0, device) for device in range(3)])
    assert timing.schedule(pipeline, run.orders()).metrics.makespan_ticks == run.makespan


def test_microbatches_of_a_class_follow_in_order() -> None:
    instance = two_stages()
    forward, backward = (instance.class_id(kind, 0) for kind in (OpKind.F, OpKind.BW))
    (order,) = class_orders(instance, [[forward, backward, forward, backward]])
    assert [str(instance.pipeline.op(code)) for code in order] == ["0F0", "0BW0", "0F1", "0BW1"]
