"""Records of a run become a pipeline: medians, outliers, links, and the file that holds them."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from ppopt import Pipeline, Schedule, evaluate
from ppopt.errors import InputError
from ppopt.formats.config import pipeline_of, read_config
from ppopt.problem.operation import ONCE, Op, OpKind
from ppopt.profiles.estimate import Record, StageMemory, p2p_time, profile
from ppopt.profiles.measured_runs import measured
from ppopt.profiles.pipeline_file import dumps, notes, warnings
from tests.factories.tables import besides_of

MS = 10**6


def records(schedule: Schedule, *, steps: int = 1, skew: int = 0) -> list[Record]:
    """What a perfect run of a schedule would record: a unit is a millisecond; the clock of device
    d is d x skew ns fast."""
    unit = MS // schedule.pipeline.ticks.per_unit
    length = schedule.metrics.makespan_ticks * unit
    return [
        Record(
            *row[:4],
            row.start * unit + step * 2 * length + row.device * skew,
            row.end * unit + step * 2 * length + row.device * skew,
            step,
        )
        for step in range(steps)
        for row in schedule.rows()
    ]


UNEQUAL = Pipeline(
    stages=3, batches=5, forward=[3, 5, 4], backward=[7, 9, 8], weight=[2, 4, 3], p2p="0.5"
)


@pytest.mark.parametrize("skew", [0, 200_000, -150_000])
def test_a_perfect_run_gives_its_pipeline_back(skew: int) -> None:
    """Whatever the difference of the devices' clocks, as long as waits are longer."""
    profiled = profile(records(evaluate(UNEQUAL, "zb-h1"), steps=2, skew=skew))
    assert (profiled.hosts, profiled.batches, profiled.steps) == ((0, 1, 2), 5, 2)
    restored = Pipeline(stages=3, batches=5, **profiled.costs(MS))
    assert restored.ticks == UNEQUAL.ticks
    assert profiled.outliers == ()


def test_whole_backwards_are_halved() -> None:
    profiled = profile(records(evaluate(UNEQUAL, "1f1b")))
    costs = profiled.costs(MS)
    assert costs["backward"] == [7, 9, 8]
    assert costs["weight"] == [Fraction(7, 2), Fraction(9, 2), 4]
    assert "W and B are half of BW each, unmeasured." in notes(profiled)[1]


def test_outliers_are_told_and_do_not_count() -> None:
    """One forward of fifteen takes three times as long; the median and the rest stay."""
    ran = records(evaluate(UNEQUAL, "zb-h1"), steps=3)
    late = next(i for i, r in enumerate(ran) if r.op == Op(OpKind.F, 1, 2) and r.step == 1)
    ran[late] = ran[late]._replace(end=ran[late].start + 15 * MS)
    profiled = profile(ran)
    assert profiled.outliers == (ran[late],)
    assert profiled.times[OpKind.F, 1].median == 5 * MS
    assert notes(profiled)[-1] == "1 outliers (they do not move a median): 1F2 15.000 ms"


def test_jitter_is_no_outlier() -> None:
    """Deviations of one per cent are noise: the limit is 3.5 / 0.6745 = 5.2 such deviations."""
    ran = [Record(OpKind.F, 0, m, 0, 0, 1000 + (m % 3 - 1) * 10) for m in range(9)]
    ran += [Record(OpKind.BW, 0, m, 0, 0, 2000) for m in range(9)]
    assert profile(ran).outliers == ()
    late = [Record(OpKind.F, 0, 9, 0, 0, 1060), Record(OpKind.BW, 0, 9, 0, 0, 2000)]
    assert len(profile([*ran, *late]).outliers) == 1


NOISE = {
    "a link": ([8, 9, 10, 11, 12], 10, True),
    "scattered, but enough delays": ([5, 6, 10, 14, 15], 10, True),
    "as much noise as link": ([0, 1, 10, 19, 20], 10, False),
    "too few": ([10], 10, False),
    "clocks that disagree": ([-6, -5, -4, -5, -6], -5, False),
}
"""Delays in each of both directions between two devices, their median, and whether it is used.

The standard error is 1.2533 x 1.4826 x MAD x sqrt(1/5 + 1/5) / 2, which is 0.588 MAD. The MADs are
1, 4 (2 x 2.4 < 10), 9 (2 x 5.3 > 10), unknown, and 1 with a median below 0."""


@pytest.mark.parametrize("name", NOISE)
def test_a_link_counts_above_its_noise(name: str) -> None:
    """One microbatch a step on two devices: F to F over one delay, BW to BW over another."""
    delays, middle, counts = NOISE[name]
    profiled = profile(two_device_run(delays, 1))
    assert (profiled.p2p.median, profiled.p2p.delays) == (middle, 2 * len(delays))
    assert profiled.p2p.above_noise is counts
    assert profiled.costs(1)["p2p"] == (middle if counts else 0)
    text = "\n".join(notes(profiled))
    assert ("not above its noise" in text) is not counts
    assert f"({2 * len(delays)} delays, standard error" in text or counts
    assert "p2p is the median of 10 delays" in text or not counts


def two_device_run(delays: list[int], unit: int) -> list[Record]:
    """One microbatch a step: F to F over one delay, BW to BW over the same one."""
    ran = []
    for step, delay in enumerate(delays):
        begin, start = 1000 * unit * step, 1000 * unit * step + 100 * unit + delay
        back = start + 300 * unit + delay
        ran += [
            Record(OpKind.F, 0, 0, 0, begin, begin + 100 * unit, step),
            Record(OpKind.F, 1, 0, 1, start, start + 100 * unit, step),
            Record(OpKind.BW, 1, 0, 1, start + 100 * unit, start + 300 * unit, step),
            Record(OpKind.BW, 0, 0, 0, back, back + 200 * unit, step),
        ]
    return ran


def test_the_error_of_the_median_decides() -> None:
    """2.1 ms measured by 50 delays with a standard deviation of 1.4 ms: the standard error of the
    median is 1.2533 x 1.4 x sqrt(2/25) / 2 = 0.25 ms. Six of these delays are not enough."""
    delays = [round((2.1 + 0.16 * (n - 12)) * MS) for n in range(25)]
    p2p = profile(two_device_run(delays, MS)).p2p
    assert (p2p.delays, p2p.median) == (50, round(2.1 * MS))
    assert 1.4 * MS < p2p.deviation < 1.5 * MS
    assert p2p.time == p2p.median
    sparse = profile(two_device_run(delays[::12], MS)).p2p
    assert (sparse.delays, sparse.median, sparse.time) == (6, round(2.1 * MS), 0)


def test_a_whole_below_its_parts_stands_as_measured() -> None:
    """PyTorch's W of stage 0 runs a whole backward."""
    ran = [
        Record(OpKind.F, 0, 0, 0, 0, 1 * MS),
        Record(OpKind.F, 0, 1, 0, 1 * MS, 2 * MS),
        Record(OpKind.BW, 0, 0, 0, 2 * MS, 32 * MS),
        Record(OpKind.B, 0, 1, 0, 32 * MS, 32 * MS),
        Record(OpKind.W, 0, 1, 0, 32 * MS, 63 * MS),
    ]
    assert warnings(profile(ran)) == []
    costs = profile(ran).costs(MS)
    assert (costs["backward"], costs["weight"], costs["backward_input"]) == ([30], [31], [0])


def test_no_link_where_nobody_waits_for_one() -> None:
    schedule = evaluate(Pipeline(stages=1, batches=2), "1f1b")
    assert p2p_time(records(schedule), (0,)) is None
    assert "p2p is unmeasured" in notes(profile(records(schedule)))[-1]


def whole_step(step: int) -> list[Record]:
    return [
        Record(kind, 0, m, 0, 2 * m + index, 2 * m + index + 1, step)
        for m in range(2)
        for index, kind in enumerate((OpKind.F, OpKind.BW))
    ]


MISSING = {
    "nothing": ([], "no operation was measured"),
    "no backward": ([Record(OpKind.F, 0, 0, 0, 0, 1)], "in step 0 stage 0 ran F of microbatch 0"),
    "no weights": (
        [Record(OpKind.F, 0, 0, 0, 0, 1), Record(OpKind.B, 0, 0, 0, 1, 2)],
        "in step 0 stage 0 ran F B of microbatch 0",
    ),
    "two devices": (
        [Record(OpKind.F, 0, 0, 0, 0, 1), Record(OpKind.BW, 0, 0, 1, 1, 2)],
        "stage 0 runs on device 0 and on 1",
    ),
    "a stage": ([Record(OpKind.F, 1, 0, 0, 0, 1)], "stage 0 has no operation"),
    "a device": ([Record(OpKind.F, 0, 0, 1, 0, 1)], "device 0 has no operation"),
    "a microbatch of a step": (
        [r for s in range(2) for r in whole_step(s) if (r.step, r.microbatch) != (1, 0)],
        "in step 1 stage 0 ran nothing of microbatch 0",
    ),
    "half of a backward": (
        [*whole_step(0), *whole_step(1)[:-1], Record(OpKind.W, 0, 1, 0, 5, 6, 1)],
        "in step 1 stage 0 ran F W of microbatch 1",
    ),
    "twice": ([*whole_step(0), *whole_step(0)], "in step 0 stage 0 ran F F BW BW of microbatch 0"),
    "no time": (
        [r._replace(end=r.start) if r.kind is OpKind.F else r for r in whole_step(0)],
        "F of stage 0 took no time",
    ),
}


@pytest.mark.parametrize("name", MISSING)
def test_refused(name: str) -> None:
    ran, message = MISSING[name]
    with pytest.raises(InputError) as caught:
        profile(ran)
    assert message in str(caught.value)


@pytest.mark.parametrize("hosts", [[0, 1, 2], [0, 1, 1, 0]])
def test_the_file_is_a_config(hosts: list[int], tmp_path: Path) -> None:
    pipeline = Pipeline(
        stages=len(hosts),
        batches=3,
        placement=hosts,
        forward=[3 + stage for stage in range(len(hosts))],
        backward=9,
        weight="3.25",
        p2p="0.125",
        activation="1.5",
        memory_b="0.25",
        static=7,
    )
    from random import Random  # noqa: PLC0415

    from tests.factories.schedules import build  # noqa: PLC0415

    ran = records(build(pipeline, Random(1), "split"), steps=1)
    memory = {stage: StageMemory(3 * 2**19, 4 * 2**20, 2**20, 2**18) for stage in range(len(hosts))}
    whole = records(build(pipeline, Random(2), "fused"))
    profiled = profile([*ran, *(record._replace(step=1) for record in whole)], memory)
    text = dumps(profiled, description='a "test"', source="tests")
    path = tmp_path / "p.yaml"
    path.write_text(text)
    settings = read_config(path)
    assert date.fromisoformat(settings["about"].pop("date"))
    assert settings["about"] == {"description": 'a "test"', "source": "tests"}
    assert (settings["time_unit"], settings["memory_unit"]) == ("ms", "MiB")
    restored = pipeline_of(settings)
    assert restored.hosts == pipeline.hosts
    restored_costs, measured = dict(restored.costs), dict(pipeline.costs)
    del restored_costs["static"], measured["static"]
    assert restored_costs == measured
    assert restored.ticks.static == pipeline.ticks.static


def test_a_measured_step_has_what_ran_around_its_microbatches() -> None:
    """A step as predicted: the times of the pipeline are found again."""
    work: dict[str, Any] = {"unshard": 2, "gradient_sync": (3, 5, 4), "optimizer": 1}
    schedule = evaluate(replace(UNEQUAL, **work, optimizer_barrier=True), "1f1b")
    tick = MS // schedule.pipeline.ticks.per_unit
    around = [
        Record(row.kind, row.stage, ONCE, row.device, row.start * tick, row.end * tick)
        for row in besides_of(schedule).rows()
    ]
    step = measured([*records(schedule), *around], schedule.pipeline, MS)
    for field in work:
        assert getattr(step.pipeline.costs, field) == getattr(schedule.pipeline.costs, field)
    assert step.pipeline.optimizer_barrier
    tables = [
        [*map(str, besides_of(step_or_schedule).rows())] for step_or_schedule in (step, schedule)
    ]
    assert tables[0] == tables[1]
    assert step.metrics.makespan_ticks * schedule.pipeline.ticks.per_unit == (
        schedule.metrics.makespan_ticks * step.pipeline.ticks.per_unit
    )


def test_a_measured_step_is_the_median_one() -> None:
    schedule = evaluate(UNEQUAL, "1f1b")
    ran = records(schedule, steps=3)
    slow = [r._replace(end=r.end + 9 * MS) if r.step == 1 and r.microbatch == 4 else r for r in ran]
    step = measured(slow, schedule.pipeline, MS)
    assert step.origin.strategy == "measured"
    assert step.makespan == schedule.makespan
    with pytest.raises(InputError, match="other stages, devices or microbatches"):
        measured(ran, Pipeline(stages=3, batches=6), MS)
