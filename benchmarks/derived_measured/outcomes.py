"""A run against its prediction: errors of step and memory, and whether aims apply to them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import mean, median
from typing import NamedTuple

import numpy as np

from benchmarks.derived_measured.predict import Prediction, predict, predicted, setup_of
from benchmarks.derived_measured.runs import (
    BIGSCIENCE,
    LLAMA_3,
    SC21,
    NotPredictedError,
    Run,
    time_apart,
)
from ppopt.derivation.layer_costs import Scale
from ppopt.studies.calibrate import DIFFERENT

NUDGE = 0.1
"""Of the factor on kernels, by which the derivative of a step is taken."""
GIB = 1024
"""MiB."""
LARGE = 4096 * 4096
"""Tokens x hidden of a microbatch from which steps are set against the aims."""


class MeasuredMemory(NamedTuple):
    """A measured peak in MiB, whether PyTorch allocated it, and of which pipeline ranks it is."""

    size: float
    allocated: bool
    ranks: slice


@dataclass(frozen=True)
class Outcome:
    """A run, its prediction or the reason that there is none, and what was measured."""

    run: Run
    prediction: Prediction | None = None
    reason: str = ""
    measured: float | None = None
    """ms of a step."""

    @property
    def error(self) -> float | None:
        """Predicted / measured step - 1."""
        if self.prediction is None or self.measured is None:
            return None
        return self.prediction.step / self.measured - 1

    @cached_property
    def slope(self) -> float:
        """By how many ms the step grows with the factor on kernels."""
        return self._slope(Scale(compute=1 + NUDGE))

    @cached_property
    def communication_slope(self) -> float:
        """The same of the factor on communication."""
        return self._slope(Scale(communication=1 + NUDGE))

    def _slope(self, scale: Scale) -> float:
        assert self.prediction is not None
        slower = replace(setup_of(self.run), scale=scale)
        return (predicted(slower).step - self.prediction.step) / NUDGE

    @property
    def communication_share(self) -> float:
        """The share of the step that grows with the factor on communication."""
        assert self.prediction is not None
        return self.communication_slope / self.prediction.step

    @property
    def memory(self) -> MeasuredMemory | None:
        """The measured memory; None if the run is not predicted."""
        return None if self.prediction is None else measured_memory(self.run)

    @property
    def predicted_memory(self) -> float | None:
        """The predicted peak in MiB of the ranks that were measured."""
        if self.prediction is None or self.memory is None:
            return None
        return max(self.prediction.memory[self.memory.ranks])

    @property
    def memory_error(self) -> float | None:
        """Predicted / measured memory - 1."""
        if self.memory is None or self.predicted_memory is None:
            return None
        return self.predicted_memory / self.memory.size - 1

    @property
    def apart(self) -> str | None:
        """Why its step is listed apart."""
        return time_apart(self.run)

    @property
    def compared(self) -> bool:
        """Whether its step counts in the errors of its source."""
        return self.error is not None and self.apart is None

    @property
    def aimed(self) -> bool:
        """Whether the aims are about its step: BF16 or FP16, a large microbatch, no FSDP."""
        return self.compared and self.large

    @cached_property
    def has_experts(self) -> bool:
        """Whether the model has experts; False if the run is not predicted."""
        return self.prediction is not None and setup_of(self.run).architecture.has_experts

    @property
    def large(self) -> bool:
        """Whether it trains in BF16 or FP16, without FSDP, and with a large microbatch."""
        run, prediction = self.run, self.prediction
        if prediction is None or run.precision != "bf16" or run.shards_weights:
            return False
        return run.sequence * run.microbatch * prediction.hidden >= LARGE


def outcome_of(run: Run) -> Outcome:
    """Predict a run and read what was measured."""
    try:
        prediction = predict(run)
    except NotPredictedError as error:
        return Outcome(run, reason=str(error))
    return Outcome(run, prediction, measured=measured_step(run, prediction))


def measured_step(run: Run, prediction: Prediction) -> float | None:
    """A measured step in ms, as published or from what was published."""
    row = run.row
    if row.get("step_ms"):
        return float(row["step_ms"])
    if row.get("tflops_gpu"):
        if run.source in (BIGSCIENCE, SC21):
            flops = hardware_flops(run)
        elif run.source == LLAMA_3:
            flops = prediction.flops * run.data
        else:
            return None
        return flops / (run.gpus * float(row["tflops_gpu"]) * 1e9)
    if row.get("tokens_s_gpu"):
        tokens = run.data * run.batches * run.microbatch * run.sequence
        return 1000 * tokens / (run.gpus * float(row["tokens_s_gpu"]))
    return None


def hardware_flops(run: Run) -> float:
    """FLOPs of a step with full recompute, as both sources count (arXiv 2104.04473, equation 3)."""
    row, length = run.row, run.sequence
    layers, hidden, vocabulary = int(row["layers"]), int(row["hidden"]), int(row["vocab"])
    batch = run.data * run.batches * run.microbatch
    matrices = 96 * batch * length * layers * hidden**2
    return matrices * (1 + length / (6 * hidden) + vocabulary / (16 * layers * hidden))


def measured_memory(run: Run) -> MeasuredMemory | None:
    """The measured memory of a run; None if there is none."""
    size, kind = run.row.get("mem_gib"), str(run.row.get("mem_kind") or "")
    if not size:
        return None
    ranks = slice(-1, None) if "LAST" in kind else slice(None)
    if "first and last" in kind and run.count("pp") > 1:
        ranks = slice(0, None, run.count("pp") - 1)
    return MeasuredMemory(GIB * float(size), "allocated" in kind, ranks)


class Errors(NamedTuple):
    """Errors of several runs, as shares."""

    mean_absolute: float
    median_absolute: float
    signed: float


def errors_of(values: Iterable[float]) -> Errors | None:
    """Mean and median of absolute errors, and their mean with sign; None of none."""
    errors = list(values)
    if not errors:
        return None
    absolute = [abs(error) for error in errors]
    return Errors(mean(absolute), median(absolute), mean(errors))


def percent(share: float, *, sign: bool = False) -> str:
    """A share in per cent."""
    return f"{100 * share:+.1f} %" if sign else f"{100 * share:.1f} %"


def calibrated(outcomes: Sequence[Outcome], reference: Outcome) -> list[float]:
    """Errors of all others if the reference sets the factor on kernels, as `--calibrate` does."""
    assert reference.prediction is not None and reference.measured is not None
    factor = (reference.measured - reference.prediction.step) / reference.slope
    return [
        (outcome.prediction.step + factor * outcome.slope) / outcome.measured - 1
        for outcome in outcomes
        if outcome is not reference and outcome.prediction and outcome.measured
    ]


def calibrated_by_three(outcomes: Sequence[Outcome]) -> list[float]:
    """Errors of all but three, which set the factors on kernels and on communication.

    They are those with the smallest, the median and the largest share of communication, as
    `--calibrate FILE` asks for; if these hardly differ, the factor on communication is 1.
    """
    rows = sorted(
        (outcome for outcome in outcomes if outcome.prediction and outcome.measured),
        key=lambda outcome: outcome.communication_share,
    )
    references = [rows[0], rows[len(rows) // 2], rows[-1]]
    differ = references[-1].communication_share - references[0].communication_share >= DIFFERENT
    slopes = np.array([_slopes(row) for row in references])[:, : 2 if differ else 1]
    wanted = [-(row.error or 0) for row in references]
    factors = np.linalg.lstsq(slopes, np.array(wanted), rcond=1e-3)[0]
    return [
        (row.error or 0) + float(_slopes(row)[: len(factors)] @ factors)
        for row in rows
        if all(row is not reference for reference in references)
    ]


def _slopes(outcome: Outcome) -> np.ndarray:
    """By how much the predicted step grows with each factor, relative to the measured one."""
    return np.array([outcome.slope, outcome.communication_slope]) / (outcome.measured or 1)
