"""Schedules of two chunks in a V: published peaks, idle time, and what real times change."""

from __future__ import annotations

from statistics import median_low

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppopt import Pipeline, Schedule, evaluate, verify
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.instance import Instance
from ppopt.problem.objective import Objective
from ppopt.problem.operation import OpKind
from ppopt.schedule import timing
from ppopt.schedule.generation import class_orders
from ppopt.strategies import one_f_one_b_v, v_half, v_min
from ppopt.strategies.building_block import INTERVAL
from ppopt.strategies.v_min import paced_sequences
from tests.tiers import examples, first, slow

NAMES = ("v-min", "v-half", "zbv")


def in_chunks(devices: int, batches: int, **costs: object) -> Pipeline:
    """Times and activation of one per chunk: a device's share has two of them."""
    split = {} if "backward" in costs else {"backward_input": 2, "weight": 2}
    fields = {"forward": 2, "activation": 2} | split | costs
    return Pipeline(stages=devices, batches=batches, **fields)


def idle(schedule: Schedule) -> float:
    """Device span less the work of the busiest device, in the user's unit."""
    figures = schedule.metrics
    return float(schedule.pipeline.ticks.time(figures.device_span_ticks - max(figures.busy_ticks)))


def peak(schedule: Schedule) -> float:
    return float(schedule.pipeline.ticks.memory(max(schedule.metrics.peak_memory_ticks)))


@pytest.mark.parametrize("p", first(5, range(2, 13)))
def test_peaks_by_formula(p: int) -> None:
    """Chunks held by the fullest device (arXiv 2405.15362, section 3; 2401.10241, section 6)."""
    formula = {"v-min": 2 * ((p + 4) // 3), "v-half": 2 * ((p + 2) // 2), "zbv": 2 * p}
    for name, expected in formula.items():
        assert peak(evaluate(in_chunks(p, 3 * p), name)) == expected, name


@pytest.mark.parametrize("p", first(3, range(3, 13)))
def test_idle_time_of_equal_passes(p: int) -> None:
    """Idle chunks of time on the longest device, whatever m >= 2p.

    What the authors' own code gives (github.com/sail-sg/zero-bubble-pipeline-parallelism,
    zbv_greedy.py and zbv.py, run for p = 2..12), close to the 2p/3 and p/2 microbatches of 6
    chunks of time in the paper.
    """
    formula = {
        "v-min": 4 * p - (7 if p % 3 == 0 else 5),
        "v-half": 3 * p - (7 if p % 2 == 0 else 4),
        "zbv": 0,
    }
    for name, expected in formula.items():
        for m in (2 * p, 3 * p):
            assert idle(evaluate(in_chunks(p, m), name, "device-span")) == expected, (name, m)


@pytest.mark.parametrize(
    ("p", "expected"),
    [
        *((2, 4), (3, 8), (4, 15), (5, 18), (6, 22)),
        *(slow(*row) for row in ((7, 30), (8, 33), (9, 36), (12, 52))),
    ],
)
def test_whole_backwards(p: int, expected: int) -> None:
    """Idle time and peak of 1F1B-V in chunks, F = 1, BW = 2.

    Idle as the authors' code gives it (zero-bubble-pipeline-parallelism, v1f1b.py, run at
    m = 3p); the peak is two thirds of 1F1B's 2p chunks and one pair more.
    """
    schedule = evaluate(in_chunks(p, 3 * p, backward=4), "1f1b-v")
    assert idle(schedule) == expected
    assert peak(schedule) == 2 * (2 * p // 3 + 1)


@pytest.mark.parametrize("p", range(1, 13))
@pytest.mark.parametrize(
    "block", [v_min.v_min_block, v_half.v_half_block, one_f_one_b_v.one_f_one_b_v_block]
)
def test_passes_of_a_block_share_no_slot(block, p: int) -> None:
    """Repeated every 6 slots, the passes of a device never meet; W or BW fills what they leave."""
    passes = block(p)
    for row in passes.slots:
        slots = [*row, *(slot + 1 for slot in row[2:] if passes.back == 2)]
        assert len({slot % INTERVAL for slot in slots}) == len(slots)


def unequal(data: st.DataObject, longest: int) -> tuple[int, int, dict[str, list[int]]]:
    """Devices, microbatches, and times of every device's share."""
    p, m = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 14))
    kinds = ("forward", "backward_input", "weight")
    times = st.lists(st.integers(1, longest), min_size=p, max_size=p)
    return p, m, {kind: data.draw(times) for kind in kinds}


@pytest.mark.slow
@examples(30)
@given(st.data())
def test_memory_is_kept_on_unequal_stages(data: st.DataObject) -> None:
    """Evaluation verifies every rule; the peak stays whatever the times and microbatches."""
    p, m, times = unequal(data, longest=9)
    pipe = in_chunks(p, m, p2p=data.draw(st.integers(0, 3)), **times)
    for name, share in zip(NAMES, ((p + 4) // 3, (p + 2) // 2, p), strict=True):
        schedule = evaluate(pipe, name)
        assert peak(schedule) <= 2 * share
        assert set(schedule.kind) == {OpKind.F, OpKind.B, OpKind.W}


def test_memory_is_kept_by_a_run_longer_than_the_sample() -> None:
    """Of nine microbatches the first eight choose the rule, and that rule needs more for nine."""
    times = {"forward": [1, 2], "backward_input": [3, 1], "weight": [1, 1]}
    assert peak(evaluate(in_chunks(2, 9, p2p=3, **times), "v-min")) == 4


@pytest.mark.parametrize(
    "times",
    [
        {"forward": [6, 9, 5, 8], "backward_input": [9, 8, 7, 10], "weight": [3, 8, 4, 6]},
        slow({"forward": [9, 8, 9, 12], "backward_input": [10, 9, 14, 11], "weight": 8, "p2p": 1}),
        {"forward": 3, "backward_input": 4, "weight": 2},
    ],
)
def test_real_times_are_used(times: dict) -> None:
    """Against the order that equal times lead to, as peers use it: shorter here for some strategy,
    and longer for none."""
    shorter = 0
    for name in NAMES:
        real = evaluate(in_chunks(4, 12, **times), name, "device-span")
        peers = timing.schedule(
            real.pipeline, evaluate(in_chunks(4, 12), name).orders, Objective.DEVICE_SPAN
        )
        assert real.metrics.device_span_ticks <= peers.metrics.device_span_ticks
        shorter += real.metrics.device_span_ticks < peers.metrics.device_span_ticks
    assert shorter


@pytest.mark.slow
@examples(10)
@given(st.data())
def test_real_times_never_cost_more_than_simpler_ones(data: st.DataObject) -> None:
    """The orders that equal times and medians lead to are never shorter under the real times."""
    p, m, times = unequal(data, longest=30)
    memory = {"activation": 6, "memory_b": data.draw(st.integers(-6, 3))}
    delay = data.draw(st.integers(0, 3))
    peers = {kind: median_low(values) for kind, values in times.items()} | {"p2p": delay}
    for name in (*NAMES, "zb-2p"):
        for objective in Objective:
            real = evaluate(
                Pipeline(stages=p, batches=m, p2p=delay, **times, **memory), name, objective
            )
            for simpler in ({}, peers):
                pipeline = Pipeline(stages=p, batches=m, **simpler, **memory)
                retimed = timing.schedule(
                    real.pipeline, evaluate(pipeline, name, objective).orders, objective
                )
                values = [schedule.metrics.value_ticks(objective) for schedule in (real, retimed)]
                assert values[0] <= values[1], name


@pytest.mark.parametrize(("p", "block"), [(3, 66), (4, 106), slow(6, 162), slow(8, 231)])
def test_v_min_of_unequal_passes_stalls_less_than_its_block(p: int, block: int) -> None:
    """F/B/W = 3/4/2: idle time of the fixed block by the authors' code, m = 3p, same memory."""
    pipe = in_chunks(p, 3 * p, forward=6, backward_input=8, weight=4)
    schedule = evaluate(pipe, "v-min", "device-span")
    assert idle(schedule) < block
    assert peak(schedule) <= 2 * ((p + 4) // 3)


@examples(15)
@given(st.data())
def test_paced_orders_never_wait_in_a_circle(data: st.DataObject) -> None:
    p, m = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 10))
    drawn = st.lists(st.integers(1, 9), min_size=p, max_size=p)
    times = {name: data.draw(drawn) for name in ("forward", "backward_input", "weight")}
    pipe = in_chunks(p, m, placement="v", p2p=data.draw(st.integers(0, 3)), **times)
    limit, pace = data.draw(st.integers(1, 2 * p)), data.draw(st.integers(20, 150))
    instance = Instance(pipe, BackwardKind.SPLIT)
    orders = class_orders(instance, paced_sequences(instance, limit, pace))
    assert verify(timing.schedule(pipe, orders)) == []


def test_order_of_zbv_by_hand() -> None:
    """p = 2, m = 3, device 1, from the picture's rule: F0; F1 F0; F1 B1; then F0 B0 F1 B1.

    Stage 1 is its first chunk, stage 2 its second.
    """
    schedule = evaluate(in_chunks(2, 3), "zbv")
    order = [str(schedule.pipeline.op(code)) for code in schedule.orders[1]]
    without_w = [op for op in order if "W" not in op]
    assert without_w == [
        "1F0",
        "2F0",
        "1F1",
        "2F1",
        "2B0",
        "1F2",
        "1B0",
        "2F2",
        "2B1",
        "1B1",
        "2B2",
        "1B2",
    ]


@pytest.mark.parametrize("strategy", ["zbv", "v-half", "v-min"])
def test_long_runs_of_microbatches_that_differ(strategy: str) -> None:
    """The rule is chosen on the first microbatches; the chosen order of the others stays."""
    factors = {"microbatch_times": [1, 2, 3] * 4, "microbatch_memory": [1, 1, 2] * 4}
    pipeline = Pipeline(stages=2, batches=12, **factors)
    for listed in (pipeline, pipeline.reordered(range(11, -1, -1))):
        assert verify(evaluate(listed, strategy)) == []
