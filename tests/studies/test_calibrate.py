"""Factors that make derived steps as long as measured ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import ppopt
from ppopt import InputError, derive_model
from ppopt.derivation.layer_costs import Scale
from ppopt.studies.calibrate import (
    MeasuredStep,
    calibrate,
    communication_share,
    few_steps,
    measured_shares,
    read_measured_steps,
    step_ms,
    unlike_measured,
)
from tests.factories.configs import LLAMA_8B

MODEL = derive_model(LLAMA_8B, gpu="h100", data=8, sequence=8192)


def test_one_step_sets_the_time_of_kernels() -> None:
    calibrated = calibrate(MODEL, 6000)
    step = ppopt.evaluate(calibrated.pipeline, "1f1b")
    assert step.makespan == pytest.approx(6000, rel=1e-4)
    assert calibrated.scale.communication == 1
    assert "one measured step took 6000 ms" in calibrated.text
    assert "nothing was measured" not in calibrated.text


def test_steps_of_known_factors_give_them_back() -> None:
    truth = replace(MODEL, scale=Scale(1.3, 1.8))
    rows = [
        MeasuredStep(1, settings={"tensor": tensor, "data": 8 // tensor}) for tensor in (1, 2, 8)
    ]
    rows.append(MeasuredStep(1, "interleaved", 2))
    rows = [replace(row, step=step_ms(row.model(truth), row)) for row in rows]
    calibrated = calibrate(MODEL, rows)
    assert calibrated.scale == Scale(pytest.approx(1.3, rel=1e-3), pytest.approx(1.8, rel=1e-3))
    assert "over 4 measured steps the error is 0.0 % on average" in calibrated.text


def test_what_remains_is_said() -> None:
    """Two steps of the same settings, 10 % apart: each is off by half of it."""
    step = step_ms(MODEL)
    calibrated = calibrate(MODEL, [MeasuredStep(step), MeasuredStep(1.1 * step)])
    assert "the error is 4.8 % on average" in calibrated.calibration


@pytest.mark.parametrize(
    ("measured", "message"),
    [
        (0, "0 ms is not above 0"),
        (float("nan"), "nan ms is not above 0"),
        (5, "5 ms is over 20 times faster than derived; check the unit"),
        (5e6, r"5e\+06 ms is over 20 times slower than derived"),
    ],
)
def test_no_factor_does(measured: float, message: str) -> None:
    with pytest.raises(InputError, match=message):
        calibrate(MODEL, measured)


def test_a_file_of_steps(tmp_path: Path) -> None:
    file = tmp_path / "steps.yaml"
    file.write_text("- {step: 843.5, tensor: 2, data: 4}\n- {step: 1e3, strategy: gpipe}\n")
    assert read_measured_steps(file) == (
        MeasuredStep(843.5, settings={"tensor": 2, "data": 4}),
        MeasuredStep(1000, "gpipe"),
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty"),
        ("[]", "no list of measured steps"),
        ("- {tensor: 2}", "step 1: {'tensor': 2} has no `step`"),
        ("- {step: 1}\n- {step: 1, tensors: 2}", "step 2: unknown key 'tensors'; did you mean"),
        ("- {step: soon}", "step 1: step: 'soon'"),
        ("- [", "steps.yaml"),
    ],
)
def test_a_file_that_is_refused(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "steps.yaml"
    file.write_text(text)
    with pytest.raises(InputError, match=message):
        read_measured_steps(file)


def test_the_share_of_communication_is_what_grows_with_it() -> None:
    """Without data parallelism and tensor parallelism there are transfers alone."""
    tensor = MeasuredStep(1, settings={"tensor": 8, "data": 1, "batches": 4})
    alone = replace(MODEL.training, data=1)
    assert communication_share(replace(MODEL, training=alone)) < 0.01
    model = tensor.model(MODEL)
    share = communication_share(model, tensor)
    longer = replace(model, scale=Scale(communication=2))
    grown = step_ms(longer, tensor) / step_ms(model, tensor) - 1
    assert share == pytest.approx(grown, abs=0.02) and share > 0.1


def test_measured_steps_state_their_shares_and_unlike_ones_are_noted() -> None:
    steps = [MeasuredStep(1, settings={"tensor": n, "data": 8 // n}) for n in (1, 8)]
    rows = [replace(row, step=step_ms(row.model(MODEL), row)) for row in steps]
    both, undivided = calibrate(MODEL, rows), calibrate(MODEL, rows[:1])
    shares = measured_shares(both, rows)
    assert few_steps(shares) is None and unlike_measured(both, shares) is None
    low, high = (f"{100 * share:.0f} %" for share in shares)
    assert both.calibration.endswith(f"communication takes {low} and {high} of them")
    few = few_steps(shares[:1])
    assert few is not None and f"takes {low} of the measured steps" in few and "3 in all" in few
    divided = rows[1].model(undivided)
    note = unlike_measured(divided, shares[:1])
    assert note is not None and f"{high} of a step of 1F1B here, and {low} of the measured" in note
