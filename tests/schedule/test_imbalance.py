"""Imbalance by hand: what a perfect schedule could not remove, and what moving layers would."""

from __future__ import annotations

import pytest
from hypothesis import given

from ppopt.problem.pipeline import Model, Pipeline
from ppopt.schedule.idle import share
from ppopt.schedule.imbalance import Imbalance, Relief, imbalance
from ppopt.schedule.schedule import Schedule
from ppopt.studies.evaluate import evaluate
from tests.cli.cli_run import done, json_of
from tests.factories.schedules import schedules
from tests.tiers import examples

LAYERS = [{"forward": 1, "activation": 1, "count": 6}]


def test_equal_work_is_no_imbalance() -> None:
    """1F1B of two devices and two microbatches, F = 1, BW = 2: each works 6 of 9."""
    measure = imbalance(evaluate(Pipeline(stages=2, batches=2), "1f1b"))
    assert measure == Imbalance(0, (0,), 1, 0, 1 / 3, None)


def test_uneven_work() -> None:
    """GPipe, F = 1 and 2, BW = 2 and 4, two microbatches: device 1 runs from 1 to 13 without a
    break, device 0 its last BW from 13 to 15. Work 6 and 12 of 15: of 12 units of idle time 6 are
    those that device 0 would wait next to device 1 at its best."""
    measure = imbalance(evaluate(Pipeline(stages=2, batches=2, forward=[1, 2]), "gpipe"))
    assert measure == Imbalance(1, (1,), 4 / 3, 6 / 30, 12 / 30, None)


def test_one_device_is_never_idle() -> None:
    measure = imbalance(evaluate(Pipeline(stages=1, batches=3), "gpipe"))
    assert measure == Imbalance(0, (0,), 1, 0, 0, None)


def test_moving_layers() -> None:
    """Six layers of F + BW = 3, cut 1 + 5, two microbatches: device 1 works 30 where 3 + 3 layers
    would have 18 on each; two layers move. GPipe takes 1 + 30 + 2 = 33, then 3 + 18 + 6 = 27."""
    model = Model(LAYERS)
    schedule = evaluate(model.pipeline(devices=2, batches=2, partition=[1, 5]), "gpipe")
    assert imbalance(schedule) == Imbalance(
        device=1,
        stages=(1,),
        times_mean=30 / 18,
        idle_share=(60 - 36) / 66,
        of_idle_share=(66 - 36) / 66,
        relief=Relief(2, 33 / 27 - 1),
    )
    even = evaluate(model.pipeline(devices=2, batches=2), "gpipe")
    assert imbalance(even).relief is None


def test_layers_are_not_moved_over_the_memory_limit() -> None:
    """As above: GPipe holds 2 microbatches of 5 units; of 3 with 3 + 3 layers."""
    model = Model(LAYERS)
    for limits, relieved in (([6, 10], True), ([5, 10], False)):
        pipeline = model.pipeline(devices=2, batches=2, partition=[1, 5], mem_limit=limits)
        assert (imbalance(evaluate(pipeline, "gpipe")).relief is not None) == relieved
    over = model.pipeline(devices=2, batches=2, partition=[1, 5], mem_limit=5)
    assert imbalance(evaluate(over, "gpipe")).relief is not None, "the limit is exceeded either way"


@examples(15)
@given(schedules())
def test_it_is_a_part_of_all_idle_time(schedule: Schedule) -> None:
    measure = imbalance(schedule)
    assert 0 <= measure.idle_share <= measure.of_idle_share
    assert measure.of_idle_share == pytest.approx(sum(share(schedule).values()), abs=1e-12)
    assert measure.times_mean >= 1
    assert (measure.idle_share == 0) == (measure.times_mean == 1)


def test_on_the_command_line() -> None:
    line = "eval gpipe --stages 2 --batches 2 --forward-times 1,2"
    assert json_of(line)["imbalance"] == {
        "device": 1,
        "stages": [1],
        "times_mean": 4 / 3,
        "idle_share": 0.2,
        "of_idle_share": 0.4,
        "relief": None,
    }
    expected = "20 points of it from imbalance (stage 1 has 1.33x the mean work)"
    assert expected in " ".join(done(line).out.split())
    assert "imbalance" not in done("eval gpipe --stages 2 --batches 2").out
