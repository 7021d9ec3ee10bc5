"""The parts of a step, against sums by hand."""

from __future__ import annotations

import pytest

import ppopt
from ppopt.derivation.derived_model import DerivedModel, derive_model
from ppopt.schedule.schedule import Schedule
from ppopt.studies.step_breakdown import StepBreakdown, step_breakdown
from tests.factories.configs import SMALL

MICROSECOND = 0.0011
"""Derived times are whole microseconds."""


def broken_down(model: DerivedModel, schedule: Schedule) -> StepBreakdown:
    """Parts, whose sum is the makespan."""
    parts = step_breakdown(schedule, model.layers)
    assert sum(parts) == schedule.pipeline.ticks.time(schedule.metrics.makespan_ticks)
    return parts


@pytest.mark.parametrize("strategy", ["1f1b", "zb-h1", "interleaved", "zbv", "1f1b-overlap"])
@pytest.mark.parametrize("sizes", [{}, {"tensor": 2, "data": 2, "zero": 3}, {"context": 2}])
def test_parts_add_up_to_the_step(strategy: str, sizes: dict[str, int]) -> None:
    model = derive_model(SMALL, gpu="h100", devices=2, batches=4, **sizes)
    parts = broken_down(model, ppopt.evaluate(model.pipeline, strategy))
    assert min(parts) >= 0 and parts.compute > 0 and parts.bubble > 0
    assert (parts.communication > 0) == bool(sizes)
    assert (parts.gradient_sync > 0) == bool(sizes)


def test_one_device_by_hand() -> None:
    """Three microbatches of tensor 2: F and BW of every layer, one after the other; no data
    parallel ranks, so nothing to reduce."""
    model = derive_model(SMALL, gpu="h100", devices=1, batches=3, tensor=2)
    parts = broken_down(model, ppopt.evaluate(model.pipeline, "1f1b"))
    busy = sum(3 * row.count * (row.forward + row.backward) for row in model.layers)
    exposed = (row.count * (row.communication.forward + row.communication.backward)
               for row in model.layers)  # fmt: skip
    communication = 3 * sum(exposed)
    optimizer = sum(row.count * row.step.optimizer for row in model.layers)
    assert float(parts.communication) == pytest.approx(communication, abs=MICROSECOND)
    assert float(parts.compute) == pytest.approx(busy - communication, abs=MICROSECOND)
    assert (parts.bubble, parts.gradient_sync) == (0, 0)
    assert float(parts.optimizer) == pytest.approx(optimizer, abs=MICROSECOND)


def test_split_backwards_repeat_collectives() -> None:
    """B and W gather again what BW gathers once."""
    model = derive_model(SMALL, gpu="h100", devices=2, batches=4, tensor=2)
    whole, split = (
        broken_down(model, ppopt.evaluate(model.pipeline, name)) for name in ("1f1b", "zb-h1")
    )
    per_microbatch = sum(
        row.count
        * (row.communication.input + row.communication.weight - row.communication.backward)
        for row in model.layers
    )
    assert per_microbatch > 0
    assert float(split.communication - whole.communication) == pytest.approx(
        4 * per_microbatch / 2, abs=MICROSECOND
    )


def test_recompute_repeats_the_collectives_of_f() -> None:
    """Six decoder layers on two devices, four microbatches."""
    model = derive_model(SMALL, gpu="h100", devices=2, batches=4, tensor=2)
    pipelines = [
        model.model.pipeline(recompute=mode, link=model.pipeline.link, devices=2, batches=4)
        for mode in ("none", "full")
    ]
    plain, recomputing = (
        broken_down(model, ppopt.evaluate(pipeline, "1f1b")) for pipeline in pipelines
    )
    forward = next(row for row in model.layers if row.role == "decoder").communication.forward
    assert recomputing.compute > plain.compute
    assert float(recomputing.communication - plain.communication) == pytest.approx(
        4 * 6 * forward / 2, abs=MICROSECOND
    )
