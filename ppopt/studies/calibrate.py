"""Fits the times of a derived model to measured steps.

There are at most two factors: one on the time of kernels, one on that of communication. They
minimize the sum of squared logarithms of predicted / measured (Gauss-Newton on the logarithms of
the factors).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from math import exp, log
from pathlib import Path
from typing import Any

import numpy as np

from ppopt.derivation.derived_model import DerivedModel
from ppopt.derivation.layer_costs import Scale
from ppopt.derivation.training import Training
from ppopt.errors import InputError
from ppopt.formats.documents import label, read_text
from ppopt.formats.fields import abbreviated, unknown_key, within
from ppopt.formats.yaml_text import parse_yaml
from ppopt.problem import exact
from ppopt.studies.evaluate import evaluate

STRATEGY = "1f1b"
"""Default schedule of a measured step: Megatron-LM's own."""
MAX_ITERATIONS = 8
"""Maximum number of iterations; times are almost linear in both factors, so that few suffice."""
TOLERANCE = 1e-4
"""Largest error, or change of the logarithm of a factor, that ends the iterations."""
DIFFERENCE_STEP = 0.01
"""Change of the logarithm of a factor for numerical derivatives."""
MAX_FACTOR = 20
"""Factors are within 1 / MAX_FACTOR .. MAX_FACTOR."""
LARGEST_FILE = 2**20
MIN_SENSITIVITY = 0.02
"""Derivative of a logarithm below which a factor is left at 1: no step depends on it."""
ENOUGH_STEPS = 3
"""Measured steps that determine both factors well, if they differ in communication."""
DIFFERENT = 0.05
"""Difference of shares of communication from which steps determine the factor on it."""
FAR = 0.1
"""Difference of shares of communication from which a step is unlike the measured ones."""


@dataclass(frozen=True)
class MeasuredStep:
    """A measured step, and the settings in which it differs from the model."""

    step: float
    """ms."""
    strategy: str = STRATEGY
    chunks: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `Training`, and `partition`."""

    def model(self, base: DerivedModel) -> DerivedModel:
        """The derived model of the measured step."""
        settings = dict(self.settings)
        partition = settings.pop("partition", base.partition)
        return replace(
            base, training=replace(base.training, **settings), partition=partition, link=base.link
        )


OWN_KEYS = ("step", "strategy", "chunks", "partition")
KEYS = (*OWN_KEYS, *(item.name for item in fields(Training)))
"""Keys of a measured step in a file."""


def read_measured_steps(path: Path) -> tuple[MeasuredStep, ...]:
    """Read the YAML list of measured steps: `{step: 843, tensor: 2, batches: 8}`, in ms.

    Raises InputError, naming the file and the entry.
    """
    where = label(path)
    text = read_text(path, LARGEST_FILE)
    rows = parse_yaml(text, where)
    if isinstance(rows, dict):
        rows = rows.get("steps")
    if not isinstance(rows, list) or not rows:
        raise InputError(f"{where}: no list of measured steps; write `- {{step: 843, tensor: 2}}`")
    return tuple(
        within(f"{where}: step {index}", _measured_step, row) for index, row in enumerate(rows, 1)
    )


def _measured_step(row: object) -> MeasuredStep:
    if not isinstance(row, dict) or "step" not in row:
        raise InputError(f"{abbreviated(row)} has no `step`, the time that was measured in ms")
    for key in row:
        if key not in KEYS:
            unknown_key(str(key), KEYS)
    settings = {key: row[key] for key in row if key not in ("step", "strategy", "chunks")}
    return MeasuredStep(
        step=float(exact.read(row["step"], "step").value),
        strategy=str(row.get("strategy", STRATEGY)),
        chunks=row.get("chunks"),
        settings=settings,
    )


def calibrate(model: DerivedModel, measured: float | Sequence[MeasuredStep]) -> DerivedModel:
    """Fit the factors on times so that derived steps are as long as measured ones.

    `measured` is one step of 1F1B in milliseconds, on the devices, microbatches and partition of
    the model; it determines the factor on kernels. Several `MeasuredStep` also determine the factor
    on communication, if they differ in it. `calibration` of the result states the remaining errors.
    Raises InputError if a step is not above 0, or if no factor within 1 / 20 .. 20 reaches it.
    """
    rows = (MeasuredStep(measured),) if isinstance(measured, int | float) else tuple(measured)
    for row in rows:
        if not row.step > 0:
            raise InputError(f"calibrate: {row.step:g} ms is not above 0; give a measured step")
    models = [row.model(model) for row in rows]
    factors = _fitted(models, rows)
    scale = Scale(*(float(f"{exp(value):.6g}") for value in factors))
    errors = _logs(models, rows, factors)
    shares = measured_shares(replace(model, scale=scale), rows)
    return replace(model, scale=scale, calibration=_describe(scale, rows, errors, shares))


def communication_share(model: DerivedModel, measured: MeasuredStep = MeasuredStep(1)) -> float:
    """The share of a step that grows with the time of communication, in 0 .. 1."""
    scale = model.scale
    longer = scale._replace(communication=exp(DIFFERENCE_STEP) * scale.communication)
    steps = [step_ms(replace(model, scale=each), measured) for each in (scale, longer)]
    return log(steps[1] / steps[0]) / DIFFERENCE_STEP


def measured_shares(model: DerivedModel, rows: Sequence[MeasuredStep]) -> list[float]:
    """The share of communication of every measured step under the factors of a model."""
    return [communication_share(row.model(model), row) for row in rows]


def few_steps(shares: Sequence[float]) -> str | None:
    """A note if measured steps hardly determine the factor on communication."""
    if len(shares) > 1 and max(shares) - min(shares) >= DIFFERENT:
        return None
    return (
        f"calibrate: communication takes {_percent(shares)} of the measured steps, which hardly "
        f"determines its factor; add steps with more of it, {ENOUGH_STEPS} in all"
    )


def unlike_measured(model: DerivedModel, shares: Sequence[float]) -> str | None:
    """A note if a model has another share of communication than the measured steps."""
    share = communication_share(model)
    if min(shares) - FAR <= share <= max(shares) + FAR:
        return None
    return (
        f"calibrate: communication takes {100 * share:.0f} % of a step of 1F1B here, and "
        f"{_percent(shares)} of the measured steps; measure a step like this one"
    )


def _percent(shares: Sequence[float]) -> str:
    """Shares as a list."""
    *texts, last = (f"{100 * share:.0f} %" for share in shares)
    return f"{', '.join(texts)} and {last}" if texts else last


def _fitted(models: Sequence[DerivedModel], rows: Sequence[MeasuredStep]) -> np.ndarray:
    """Logarithms of the factors."""
    factors = np.zeros(2)
    columns = 1 if len(rows) == 1 else 2
    for _ in range(MAX_ITERATIONS):
        errors = _logs(models, rows, factors)
        if abs(errors).max() < TOLERANCE:
            break
        nudged = (factors + nudge for nudge in DIFFERENCE_STEP * np.eye(2)[:columns])
        slopes = np.stack(
            [(_logs(models, rows, each) - errors) / DIFFERENCE_STEP for each in nudged], axis=1
        )
        free = [
            column for column in range(columns) if abs(slopes[:, column]).max() > MIN_SENSITIVITY
        ]
        change = np.zeros(2)
        change[free] = np.linalg.lstsq(slopes[:, free], -errors, rcond=1e-3)[0]
        factors = np.clip(factors + change, -log(MAX_FACTOR), log(MAX_FACTOR))
        if abs(change).max() < TOLERANCE:
            break
    if abs(factors[0]) >= log(MAX_FACTOR):
        slower = "slower" if factors[0] > 0 else "faster"
        raise InputError(
            f"calibrate: {rows[0].step:g} ms is over {MAX_FACTOR} times {slower} than derived; "
            "check the unit (ms), --gpu, and how the model was trained"
        )
    return factors


def _logs(
    models: Sequence[DerivedModel], rows: Sequence[MeasuredStep], factors: np.ndarray
) -> np.ndarray:
    """Logarithm of predicted / measured of every step."""
    scale = Scale(*map(exp, factors))
    steps = [
        step_ms(replace(model, scale=scale), row) for model, row in zip(models, rows, strict=True)
    ]
    return np.log(np.array(steps) / [row.step for row in rows])


def _describe(
    scale: Scale, rows: Sequence[MeasuredStep], errors: np.ndarray, shares: Sequence[float]
) -> str:
    """Text with the factors, the remaining errors and the shares of communication."""
    text = f"kernels take {scale.compute:.4g} times"
    if scale.communication != 1:
        text += f", communication {scale.communication:.4g} times"
    text += " as long as derived"
    if len(rows) == 1:
        took = f"{text}; one measured step took {rows[0].step:g} ms"
        return f"{took}, of which communication takes {_percent(shares)}"
    percent = 100 * np.expm1(errors)
    return (
        f"{text}; over {len(rows)} measured steps the error is {abs(percent).mean():.1f} % on "
        f"average, {max(percent, key=abs):+.1f} % at worst; communication takes "
        f"{_percent(shares)} of them"
    )


def step_ms(model: DerivedModel, measured: MeasuredStep = MeasuredStep(1)) -> float:
    """Time of a step on a derived model, in ms."""
    pipeline = model.pipeline.unlimited
    if measured.chunks is not None:
        pipeline = replace(pipeline, chunks=measured.chunks)
    schedule = evaluate(pipeline, measured.strategy)
    return float(schedule.pipeline.ticks.time(schedule.metrics.makespan_ticks))
