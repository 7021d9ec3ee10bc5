"""Strategies against their published formulas, figures and conditions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppopt import (
    Model,
    Objective,
    Options,
    Pipeline,
    PlanSpace,
    Schedule,
    best_choice,
    compare,
    evaluate,
)
from ppopt.errors import InputError, NotApplicableError
from ppopt.formats.config import pipeline_of
from ppopt.formats.models import read_settings
from ppopt.problem.operation import OpKind
from ppopt.schedule import timing
from ppopt.strategies import names, registry, resolve
from ppopt.strategies.building_block import Passes
from ppopt.strategies.one_f_one_b import within
from ppopt.strategies.one_f_one_b_v import one_f_one_b_v_block
from ppopt.studies.sweep_grid import axis
from ppopt.verifier import checked
from tests.tiers import examples, first

SIZES = [(1, 1), (1, 5), (2, 1), (4, 3), (4, 8), (5, 7)]


def figure(schedule: Schedule, objective: Objective = Objective.MAKESPAN) -> float:
    return float(schedule.pipeline.ticks.time(schedule.metrics.value_ticks(objective)))


def orders(schedule: Schedule) -> list[list[str]]:
    """The operations of every device in order."""
    return [[str(schedule.pipeline.op(code)) for code in order] for order in schedule.orders]


def peaks(schedule: Schedule) -> list[float]:
    return [
        float(schedule.pipeline.ticks.memory(peak)) for peak in schedule.metrics.peak_memory_ticks
    ]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", names())
def test_every_strategy_runs_with_defaults_alone(name: str, size: tuple[int, int]) -> None:
    pipeline = Pipeline(stages=size[0], batches=size[1])
    if reason := condition(name, *size):
        with pytest.raises(NotApplicableError, match=reason):
            evaluate(pipeline, name)
        return
    schedule = evaluate(pipeline, name)
    assert schedule.origin.strategy == name
    assert (OpKind.B not in schedule.kind) == registry()[name].fused


def condition(name: str, stages: int, batches: int) -> str | None:
    """Why a strategy does not apply; None where it does."""
    if name in ("chimera", "dualpipe") and batches % 2:
        return "batches: .* is odd"
    if name in ("chimera", "dualpipe") and stages % 2:
        return "stages: .* devices are odd"
    if name.startswith("dualpipe") and batches < 2 * stages:
        return "batches: .* do not fill"
    if name == "interleaved-zb" and batches % max(1, batches // stages):
        return "batches: .* do not divide into the .* groups"
    return None


@pytest.mark.parametrize(
    ("name", "small", "large"), [("1f1b", 33, 1581), ("gpipe", 33, 1581), ("zb-1p", 27, 1551)]
)
def test_figures_of_the_starting_systems(name: str, small: int, large: int) -> None:
    """F = 1, BW = 2 on 4 x 8 and 16 x 512: recomputed by running the starting systems."""
    assert figure(evaluate(Pipeline(stages=4, batches=8), name)) == small
    assert figure(evaluate(Pipeline(stages=16, batches=512), name)) == large


def test_interleaved_figures_of_the_starting_systems() -> None:
    small = Pipeline(stages=4, batches=8, chunks=2, forward=2, backward=4)
    assert figure(evaluate(small, "interleaved")) == 57
    large = Pipeline(stages=16, batches=512, chunks=2, forward=2, backward=4)
    assert figure(evaluate(large, "interleaved")) == 3117


PUBLISHED = {
    "zb-1.5b-m24": {"1f1b": 0.2431, "zb-h1": 0.1585, "zb-h2": 0.1083, "zb-2p": 0.0433},
    "zb-1.5b-m32": {"1f1b": 0.1985, "zb-h1": 0.1242, "zb-h2": 0.0837, "zb-2p": 0.0039},
    "zb-1.5b-m64": {"1f1b": 0.1240, "zb-h1": 0.0674, "zb-h2": 0.0444, "zb-2p": 0.0026},
}
"""Zero Bubble (arXiv 2401.10241), table 5, 1.5B on 8 devices: bubble rates of the device span."""


@pytest.mark.parametrize("model", PUBLISHED)
@pytest.mark.parametrize("name", ["1f1b", "zb-h1", "zb-h2", "zb-2p"])
def test_published_bubble_rates(model: str, name: str) -> None:
    schedule = evaluate(pipeline_of(read_settings(model)), name, Objective.DEVICE_SPAN)
    rate = schedule.metrics.bubble_rate(Objective.DEVICE_SPAN)
    assert round(float(rate), 4) == PUBLISHED[model][name]


@examples(15)
@given(st.data())
def test_zero_bubble_closed_forms(data: st.DataObject) -> None:
    """Idle of H1 and H2 with link delay, 2c <= W <= min(F, B) (table 2, and runs with c)."""
    p = data.draw(st.integers(2, 8))
    c = data.draw(st.integers(0, 3))
    w = data.draw(st.integers(max(1, 2 * c), 10))
    f, b = data.draw(st.integers(w, 20)), data.draw(st.integers(w, 20))
    for depth, idle, warm_up in (
        (1, (p - 1) * (f + b - w) + 4 * (p - 1) * c, p + 1),
        (2, (p - 1) * (f + b - 2 * w) + 2 * (p - 1) * c, 2 * p - 1),
    ):
        m = data.draw(st.integers(warm_up, warm_up + 10))
        pipe = Pipeline(stages=p, batches=m, forward=f, backward_input=b, weight=w, p2p=c)
        schedule = evaluate(pipe, f"zb-h{depth}", Objective.DEVICE_SPAN)
        assert figure(schedule, Objective.DEVICE_SPAN) == m * (f + b + w) + idle


@pytest.mark.parametrize("p", first(5, range(1, 10)))
@pytest.mark.parametrize("extra", [0, 1, 5])
def test_memory_per_worker(p: int, extra: int) -> None:
    """Workers i = 1..p; M_B = 3 held after F, M_W = 1 still held after B (2401.10241, table 2)."""
    m_b, m_w, m = 3, 1, 2 * p - 1 + extra
    pipe = Pipeline(stages=p, batches=m, activation=m_b, memory_b=m_w - m_b)
    workers = range(1, p + 1)
    assert peaks(evaluate(pipe, "1f1b")) == [min(m, p - i + 1) * m_b for i in workers]
    assert peaks(evaluate(pipe, "gpipe")) == [m * m_b] * p
    if m >= p + 1:
        assert peaks(evaluate(pipe, "zb-h1")) == [
            (p - i + 1) * m_b + (i - 1) * m_w for i in workers
        ]
    assert peaks(evaluate(pipe, "zb-h2")) == [
        (2 * p - 2 * i + 1) * m_b + (2 * i - 2) * m_w for i in workers
    ]


@pytest.mark.parametrize("p", first(4, range(1, 9)))
@pytest.mark.parametrize("v", [2, 3, 4])
def test_memory_of_interleaved_in_chunks(p: int, v: int) -> None:
    """Rank r = 0..p-1 holds (v - 1)p + 2(p - r - 1) + 1 chunks, at most all of them."""
    m = 3 * p
    schedule = evaluate(Pipeline(stages=p, batches=m, chunks=v, activation=v), "interleaved")
    assert peaks(schedule) == [min((v - 1) * p + 2 * (p - r - 1) + 1, v * m) for r in range(p)]


@pytest.mark.parametrize("v", [1, 2, 4])
def test_interleaved_time_without_delay(v: int) -> None:
    """(p - 1)(F + BW) / v idle where p divides m (Megatron-LM, arXiv 2104.04473, section 2.2.2)."""
    p, m = 4, 12
    pipe = Pipeline(stages=p, batches=m, chunks=v, forward=4, backward=8)
    assert figure(evaluate(pipe, "interleaved")) == m * 12 + (p - 1) * 12 / v


@pytest.mark.parametrize(("p", "m"), [(1, 3), (2, 4), (3, 3), (4, 12), (6, 12)])
@pytest.mark.parametrize("v", [1, 2, 4])
@pytest.mark.parametrize("times", [(1, 1, 1), (2, 3, 1)])
def test_interleaved_zero_bubble(p: int, m: int, v: int, times: tuple[int, int, int]) -> None:
    """(p - 1)(F + B - W) / v idle where W <= min(F, B) and p divides m: ZB-H1 with chunks.

    ZB-H1: Zero Bubble, arXiv 2401.10241, table 2. Device i has (v - 1)p + p - i chunks in memory
    when it begins its first B, and i more when it begins its first W.
    """
    forward, backward, weight = (v * time for time in times)
    pipe = Pipeline(
        stages=p,
        batches=m,
        chunks=v,
        forward=forward,
        backward=backward + weight,
        weight=weight,
        activation=v,
    )
    schedule = evaluate(pipe, "interleaved-zb")
    work = m * (forward + backward + weight)
    assert figure(schedule) == work + (p - 1) * (forward + backward - weight) / v
    assert peaks(schedule) == [min(v * p, v * m)] * p


@pytest.mark.parametrize(("p", "m"), [(3, 7), (4, 2), (4, 10), (5, 5)])
def test_interleaved_zero_bubble_of_one_chunk_is_zb_h1(p: int, m: int) -> None:
    if m % max(1, m // p):
        with pytest.raises(NotApplicableError, match="a multiple of 3 works"):
            evaluate(Pipeline(stages=p, batches=m, chunks=1), "interleaved-zb")
        return
    ours = evaluate(Pipeline(stages=p, batches=m, chunks=1), "interleaved-zb")
    assert orders(ours) == orders(evaluate(Pipeline(stages=p, batches=m), "zb-h1"))


def test_interleaved_zero_bubble_order_by_hand() -> None:
    """p = v = m = 2: device 1 runs one warm-up chunk, and its first W a step after its first B."""
    schedule = evaluate(Pipeline(stages=2, batches=2, chunks=2), "interleaved-zb")
    assert orders(schedule) == [
        ["0F0", "0F1", "2F0", "2F1", "2B0", "2W0", "2B1", "2W1", "0B0", "0W0", "0B1", "0W1"],
        ["1F0", "1F1", "3F0", "3B0", "3F1", "3B1", "3W0", "1B0", "3W1", "1B1", "1W0", "1W1"],
    ]


@pytest.mark.parametrize(("p", "m", "v"), [(1, 3, 2), (4, 4, 2), (4, 12, 2), (3, 7, 3), (8, 8, 4)])
def test_looped_bfs(p: int, m: int, v: int) -> None:
    """(p - 1)(F + BW) / v idle where m >= p, m activations (arXiv 2211.05953, section 4)."""
    schedule = evaluate(
        Pipeline(stages=p, batches=m, chunks=v, forward=v, backward=2 * v), "looped-bfs"
    )
    assert figure(schedule) == 3 * m * v + 3 * (p - 1)
    assert peaks(schedule) == [m] * p


def test_looped_bfs_waits_for_the_loop_with_few_microbatches() -> None:
    """m < p: a chunk's forward takes p F before the next chunk's can begin, and BW likewise.

    p = 4, m = 2, v = 2, F = 1, BW = 2 of a chunk: 4 + (4 - 1 + 2) forward, twice that backward.
    """
    schedule = evaluate(
        Pipeline(stages=4, batches=2, chunks=2, forward=2, backward=4), "looped-bfs"
    )
    assert figure(schedule) == (4 + 5) + 2 * (4 + 5)


@pytest.mark.parametrize("p", first(3, range(2, 8)))
@pytest.mark.parametrize("waves", [1, 2, 3])
def test_hanayo_idles_at_its_ends_alone(p: int, waves: int) -> None:
    """One round of m = p microbatches, in F of a chunk, BW = 2 F: 4(p - 1) idle with one wave.

    The first wave's round trip is 2p - 1 F long, of which device 0 works p: p - 1 idle before the
    first backward; its mirror with BW is 2(p - 1) at the end; and p - 1 where F meets BW. More
    waves only add meetings: the idle time stays below a chunk's F per device more.
    """
    pipe = Pipeline(stages=p, batches=p, forward=2 * waves, backward=4 * waves)
    schedule = evaluate(pipe, "hanayo", options=Options(waves=waves))
    idle = figure(schedule) - p * 6 * waves
    assert idle == 4 * (p - 1) if waves == 1 else 4 * (p - 1) <= idle < 4 * (p - 1) + p
    assert max(peaks(schedule)) <= p
    assert schedule.pipeline.num_stages == 2 * waves * p


@pytest.mark.parametrize("batches", [1, 5, 17, 40])
def test_hanayo_keeps_the_memory_of_1f1b(batches: int) -> None:
    schedule = evaluate(Pipeline(stages=4, batches=batches), "hanayo")
    assert max(peaks(schedule)) <= 4


def test_zb_1p_holds_at_most_p_activations() -> None:
    for p in range(1, 6):
        for m in (1, 2, 5, 9):
            assert max(peaks(evaluate(Pipeline(stages=p, batches=m), "zb-1p"))) <= p


@examples(15)
@given(st.data())
def test_zb_2p_on_unequal_stages(data: st.DataObject) -> None:
    """It runs, whatever the times, and holds at most 2p activations (arXiv 2401.10241, 3.1)."""
    p, m = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 9))
    drawn = st.lists(st.integers(1, 9), min_size=p, max_size=p)
    times = {name: data.draw(drawn) for name in ("forward", "backward_input", "weight")}
    delay, memory_b = data.draw(st.integers(0, 3)), data.draw(st.integers(-3, 1))
    pipe = Pipeline(stages=p, batches=m, p2p=delay, activation=3, memory_b=memory_b, **times)
    assert max(peaks(evaluate(pipe, "zb-2p"))) <= 2 * p * 3 + max(0, memory_b)


def test_zb_1p_order_by_hand() -> None:
    """p = 3, m = 4, device 1: one warm-up F; W0 once 2 forwards were done before the step."""
    schedule = evaluate(Pipeline(stages=3, batches=4), "zb-1p")
    order = [str(schedule.pipeline.op(code)) for code in schedule.orders[1]]
    assert order == [
        *("1F0", "1F1", "1B0", "1F2", "1B1", "1W0", "1F3", "1B2", "1W1"),
        *("1B3", "1W2", "1W3"),
    ]


@pytest.mark.parametrize("group", range(1, 8))
def test_group_sizes_run_or_are_refused(group: int) -> None:
    """Every group size that is accepted runs; every one refused would have deadlocked."""
    for batches in range(1, 8):
        pipe = Pipeline(stages=3, batches=batches, chunks=2)
        allowed = batches <= group or (
            group >= 3 and (batches % group == 0 or batches % group >= 3)
        )
        if allowed:
            evaluate(pipe, "interleaved", options=Options(group_size=group))
        else:
            with pytest.raises(NotApplicableError, match=f"group_size: {group} deadlocks"):
                evaluate(pipe, "interleaved", options=Options(group_size=group))


@pytest.mark.parametrize("name", ["interleaved", "interleaved-overlap"])
def test_the_default_group_is_the_least_that_works(name: str) -> None:
    """Megatron-LM's default p where p divides m; elsewhere its rule on the remainder decides."""
    for p in range(1, 4):
        for m in range(1, 8):
            schedule = evaluate(Pipeline(stages=p, batches=m), name)
            working = [
                group for group in range(p, max(p, m) + 1) if m <= group or not 0 < m % group < p
            ]
            assert schedule.origin.options == {"group_size": working[0]}
            assert m % p or working[0] == p


def test_options_given_are_kept() -> None:
    pipe = Pipeline(stages=2, batches=6)
    schedule = evaluate(pipe, "interleaved", options=Options(group_size=3))
    assert schedule.origin.options == {"group_size": 3}
    assert evaluate(pipe, "hanayo").origin.options == {"waves": 2}
    assert evaluate(pipe, "1f1b").origin.options == {}


def test_a_permuted_explicit_placement_runs_linear_strategies() -> None:
    pipe = Pipeline(stages=3, batches=6, placement=[2, 0, 1])
    assert figure(evaluate(pipe, "1f1b")) == figure(evaluate(Pipeline(stages=3, batches=6), "1f1b"))


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("1f1b", {"chunks": 2}, "chunks: 2 contradicts strategy 1f1b"),
        ("1f1b", {"placement": "v"}, "placement: v contradicts strategy 1f1b"),
        ("interleaved", {"placement": "v"}, "placement: v contradicts strategy interleaved"),
        ("zb-h1", {"placement": [0, 1, 1, 0]}, "placement: the list contradicts"),
        ("hanayo", {"chunks": 8}, "chunks: 8 contradicts strategy hanayo, which has 4"),
        ("v-half", {"chunks": 3}, "chunks: 3 contradicts strategy v-half, which has 2"),
        ("zbv", {"placement": "interleaved"}, "placement: interleaved contradicts strategy"),
        ("zbv", {"p2p": [1, 1, 1]}, "p2p: has 3 entries for 8 stages"),
        ("chimera", {"batches": 7}, "batches: 7 is odd; two routes need an even number"),
        ("chimera", {"device_speed": [1, 1, 1, 2]}, "device_speed: two routes run a stage on"),
        ("dualpipe", {"link_mode": "streams"}, "link_mode: streams are PyTorch's"),
    ],
)
def test_a_strategy_that_does_not_apply_says_why(name: str, fields: dict, message: str) -> None:
    """The pipeline itself is right, so this is no fault of the input."""
    pipeline = Pipeline(**{"stages": 4, "batches": 8, **fields})
    with pytest.raises(NotApplicableError) as caught:
        evaluate(pipeline, name)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("1f1b", {"group_size": 2}, "group_size: strategy 1f1b takes no group_size"),
        ("interleaved", {"group_size": 0}, "group_size: 0 is below 1"),
        ("1f1b", {"waves": 2}, "waves: strategy 1f1b takes no waves"),
        ("hanayo", {"waves": 0}, "waves: 0 is below 1"),
        ("1f2b", {}, "strategy: '1f2b' is unknown; did you mean 1f1b"),
    ],
)
def test_wrong_names_and_options_are_refused(name: str, options: dict, message: str) -> None:
    with pytest.raises(InputError) as caught:
        evaluate(Pipeline(stages=4, batches=8), name, options=Options(**options))
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("names_", "name"),
    [
        ("GPipe ScheduleGPipe gpipe", "gpipe"),
        ("1F1B Schedule1F1B schedule1f1b", "1f1b"),
        ("Interleaved1F1B ScheduleInterleaved1F1B", "interleaved"),
        ("LoopedBFS ScheduleLoopedBFS", "looped-bfs"),
        ("InterleavedZeroBubble ScheduleInterleavedZeroBubble", "interleaved-zb"),
        ("ZBVZeroBubble ScheduleZBVZeroBubble ZBV", "zbv"),
        ("DualPipeV ScheduleDualPipeV", "dualpipe-v"),
    ],
)
def test_names_of_pytorch_are_understood(names_: str, name: str) -> None:
    for alias in names_.split():
        assert resolve(alias).name == name
    assert evaluate(Pipeline(stages=2, batches=4), alias).origin.strategy == name


@pytest.mark.parametrize(
    ("name", "stages", "batches", "rest"),
    [
        ("circular", 4, 9, "needs a multiple of 4 devices, and got 9"),
        ("Schedule1F1B", 4, 3, "needs as many as stages, 4, and got 3"),
        ("ScheduleInterleaved1F1B", 4, 9, "9 do not divide into the 2 rounds"),
        ("Interleaved1F1B", 4, 9, "9 do not divide into the 2 rounds"),
    ],
)
def test_names_of_pytorch_have_its_rules(name: str, stages: int, batches: int, rest: str) -> None:
    """Under its own name the strategy runs."""
    pipeline = Pipeline(stages=stages, batches=batches)
    with pytest.raises(NotApplicableError, match=f"^batches: .*{rest}"):
        evaluate(pipeline, name)
    assert evaluate(pipeline, resolve(name).name).makespan
    assert evaluate(pipeline, resolve(name).name.upper()).makespan


def test_a_round_of_pytorch_has_fewer_microbatches_than_ranks() -> None:
    """Two microbatches on four ranks are a round of two: the last rank warms up with two F.

    `_get_warmup_ops` of PyTorch: (v - 1) x 2 there, one F more before its first backward.
    """
    pipeline = Pipeline(stages=4, batches=2, chunks=2)
    assert evaluate(pipeline, "interleaved").peak_memory == (2, 2, 2, 2)
    assert evaluate(pipeline, "Interleaved1F1B").peak_memory == (2, 2, 2, 1.5)


def test_results_have_the_names_of_strategies() -> None:
    """Whatever name was given: of a comparison, a sweep, a plan and a search of the partition."""
    compared = compare(Pipeline(stages=2, batches=2), strategies=["GPipe", "gpipe"], workers=1)
    assert [row.schedule.origin.strategy for row in compared.baselines] == ["gpipe"]
    points = axis("strategy", ["Schedule1F1B", "1f1b", "searched", "optimal"]).points
    assert [point.json_form for point in points] == ["1f1b", "searched"]
    model = Model([{"forward": time} for time in (3, 1, 2, 1)])
    space = PlanSpace(model, 2, (2,), placements=("v",), strategies=("ZBVZeroBubble", "zbv"))
    assert space.strategies == ("zbv",)
    earlier = PlanSpace(model, 2, (2,), strategies=("optimal", "Searched"))
    assert earlier.strategies == ("searched",)
    choice = best_choice(model.pipeline(devices=2, batches=2, partition="search"), "1F1B")
    assert choice.schedule.origin.strategy == "1f1b"


def test_every_strategy_cites_its_source() -> None:
    for strategy in registry().values():
        assert strategy.summary
        assert "arXiv" in strategy.source
        assert resolve(strategy.name) is strategy


# Passes of a building block, moved to the front: the room counted is the room there is.


@pytest.mark.parametrize("devices", [2, 3, 4, 6])
@pytest.mark.parametrize("batches", [2, 5, 12])
def test_what_is_in_flight_after_all_moves_is_counted_anew_alike(
    devices: int, batches: int
) -> None:
    """A device holds a chunk from its F to the end of its BW."""
    passes = Passes(one_f_one_b_v_block(devices), batches)
    counted = np.zeros_like(passes.in_flight)
    for device in range(devices):
        for index in range(4):
            for slot in passes.at[index, device].tolist():
                if index < 2:
                    counted[device, slot:] += 1
                else:
                    counted[device, slot + 1 :] -= 1
    assert np.array_equal(passes.in_flight, counted)
    assert counted.max() <= passes.peak


@given(st.data())
def test_1f1b_within_memory_never_exceeds_it(data: st.DataObject) -> None:
    p, m = data.draw(st.integers(1, 7)), data.draw(st.integers(1, 12))
    limits = data.draw(st.lists(st.integers(1, 8), min_size=p, max_size=p))
    pipeline = Pipeline(stages=p, batches=m)
    schedule = checked(timing.schedule(pipeline, within(pipeline, limits)))
    usual = range(p, 0, -1)
    assert (np.array(peaks(schedule)) <= np.minimum(limits, usual)).all()


@pytest.mark.parametrize("devices", [8, 32])
def test_1f1b_in_half_of_its_memory_takes_twice_as_long(devices: int) -> None:
    """A round trip of p (F + BW) then has p / 2 microbatches; equal warm-ups take far longer."""
    pipeline = Pipeline(stages=devices, batches=4 * devices)
    schedule = timing.schedule(pipeline, within(pipeline, [devices // 2] * devices))
    assert figure(schedule) <= 2 * figure(evaluate(pipeline, "1f1b"))
