"""Sets the efficiency of a derived model from one measured step."""

from __future__ import annotations

from dataclasses import replace

from ppopt.derivation.derived_model import DerivedModel
from ppopt.errors import InputError
from ppopt.studies.evaluate import evaluate

STRATEGY = "1f1b"
"""The schedule of the measured step: Megatron-LM's own."""
DIGITS = 6
"""Significant digits of an efficiency."""
STEPS = 20
"""Most iterations; times fall almost as 1 / efficiency, so that three suffice."""
CLOSE = 1e-4
"""Relative distance to the measured time that is reached: times are whole microseconds."""


def calibrate(model: DerivedModel, measured_ms: float) -> DerivedModel:
    """Set the efficiency at which 1F1B takes as long as a measured step.

    `measured_ms` is one step of 1F1B in milliseconds, on the devices, microbatches and partition of
    the model. If gradient reduction and optimizer were measured too, the efficiency absorbs them.
    Raises InputError if the measured step is faster than the model at efficiency 1, or if no
    efficiency reaches it.
    """
    if not measured_ms > 0:
        raise InputError(f"calibrate: {measured_ms:g} ms is not above 0; give a measured step")
    fastest = step_ms(replace(model, efficiency=1.0))
    if fastest > measured_ms:
        raise InputError(
            f"calibrate: {measured_ms:g} ms is faster than {model.gpu.name} at its peak, "
            f"{fastest:g} ms; check the unit (ms), --gpu, and how the model was trained"
        )
    efficiency = model.efficiency
    for _ in range(STEPS):
        modelled_ms = step_ms(replace(model, efficiency=efficiency))
        if abs(modelled_ms / measured_ms - 1) < CLOSE:
            reason = (
                f"1F1B then takes {modelled_ms:.6g} ms; one measured step took {measured_ms:g} ms"
            )
            return replace(model, efficiency=efficiency, reason=reason)
        efficiency = min(1.0, float(f"{efficiency * modelled_ms / measured_ms:.{DIGITS}g}"))
    raise InputError(
        f"calibrate: {measured_ms:g} ms is mostly transfers and memory traffic, which no "
        "efficiency changes; check --link and the measured step"
    )


def step_ms(model: DerivedModel) -> float:
    """Makespan of 1F1B on a derived model, in ms."""
    schedule = evaluate(model.pipeline, STRATEGY)
    return float(schedule.pipeline.ticks.time(schedule.metrics.makespan_ticks))
