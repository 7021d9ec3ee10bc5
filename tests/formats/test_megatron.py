"""Megatron's order lists: its own documented example, and what the lists cannot say."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from ppopt import Pipeline, evaluate
from ppopt.errors import InputError
from ppopt.formats.megatron import megatron_lists
from ppopt.schedule.schedule import Schedule
from ppopt.strategies import Options
from tests.verifier.verify_fixtures import one_f_one_b, schedule_of


def lists(schedule: Schedule) -> list[list[int]]:
    text = megatron_lists(schedule)
    assert text.count("\n") == schedule.pipeline.num_devices + 2
    read = json.loads(text)
    assert isinstance(read, list)
    return read


def test_the_example_of_its_source() -> None:
    """PP2 N3M5 with VP2, in the docstring of megatron-core's convert_schedule_table_to_order:
    chunks run forward 1,1,1,2,2,2,1,1,2,2 and backward 2,2,2,1,1,1,2,2,1,1; rank 0 warms up with
    (2 - 0 - 1) x 2 + (2 - 1) x 3 = 5 forwards, rank 1 with 3."""
    forward = [1, 1, 1, 2, 2, 2, 1, 1, 2, 2]
    backward = [-2, -2, -2, -1, -1, -1, -2, -2, -1, -1]
    made = evaluate(Pipeline(stages=2, batches=5), "interleaved", options=Options(group_size=3))
    for warmup, order in zip((5, 3), lists(made), strict=True):
        steady = [c for pair in zip(forward[warmup:], backward, strict=False) for c in pair]
        assert order == forward[:warmup] + steady + backward[-warmup:]


def test_one_chunk() -> None:
    assert lists(one_f_one_b()) == [[1, 1, -1, -1], [1, -1, 1, -1]]


@pytest.mark.parametrize(("stages", "batches"), [(1, 1), (2, 6), (4, 8)])
def test_what_its_own_tests_ask(stages: int, batches: int) -> None:
    """test_get_pipeline_parallel_order of Megatron-LM: no backward before its forward, no more
    forwards in flight than were begun, as many of the one as of the other."""
    made = evaluate(Pipeline(stages=stages, batches=batches), "interleaved")
    for order in lists(made):
        assert max(order) == 2
        assert len(order) == 2 * batches * 2
        running = 0
        for place, chunk in enumerate(order):
            running += chunk
            assert running >= 0
            assert order[: place + 1].count(-abs(chunk)) <= order[: place + 1].count(abs(chunk))
        assert running == 0


REFUSED = {
    "split": (
        evaluate(Pipeline(stages=2, batches=2), "zb-h1"),
        "0B0: its lists know whole backwards only",
    ),
    "v": (
        schedule_of(
            Pipeline(stages=2, batches=1, placement=[0, 0]), "0: 0F0@0..1 1F0@1..2 1BW0@2..4"
        ),
        "not a schedule of its pipeline",
    ),
    "placement": (
        schedule_of(
            Pipeline(stages=2, batches=1, placement=[1, 0]),
            "0: 1F0@1..2 1BW0@2..4",
            "1: 0F0@0..1 0BW0@4..6",
        ),
        "the placement is neither linear nor interleaved",
    ),
    "order of microbatches": (
        schedule_of(
            Pipeline(stages=1, batches=2), "0: 0F0@0..1 0F1@1..2 0BW1@2..4 0BW0@4..6"
        ),
        "0BW1 is out of order",
    ),
    "routes": (replace(one_f_one_b(), pipeline=Pipeline(stages=2, batches=2, routes=2)), "neither"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_it_cannot_say(name: str) -> None:
    schedule, told = REFUSED[name]
    with pytest.raises(InputError) as caught:
        megatron_lists(schedule)
    assert f"megatron: {told}" in str(caught.value) or told in str(caught.value)
