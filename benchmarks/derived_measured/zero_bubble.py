"""Gain of ZB-H1 over 1F1B: predicted against what two projects measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from benchmarks.derived_measured.architectures import INTERNLM2_7B, LLAMA_7B
from benchmarks.derived_measured.outcomes import percent
from benchmarks.derived_measured.predict import Setup, pipeline_of
from benchmarks.record import table
from ppopt import evaluate
from ppopt.derivation.gpus import gpu_named
from ppopt.derivation.training import Training

WITHIN = 0.04
"""Points between a predicted and a measured gain."""
PRECISE = 0.005


class Comparison(NamedTuple):
    """A run of both strategies, and the gain that was measured."""

    source: str
    setup: Setup
    gain: float
    assumed: str
    """What the source does not say."""


COMPARISONS = (
    Comparison(
        "InternLM/InternEvo pull request 282: 7B, data 2, pipeline 4, 8 microbatches, "
        "2590 and 2886 tokens/s a GPU",
        Setup(
            INTERNLM2_7B,
            Training(devices=4, batches=8, data=2, sequence=2048, microbatch=1),
            gpu_named("a800"),
        ),
        2886 / 2590 - 1,
        "A800 and InternLM2 7B as in its pull request 357; sequences and microbatch of "
        "configs/7B_internlm2.py",
    ),
    Comparison(
        "sail-sg/zero-bubble-pipeline-parallelism issue 10: Llama 7B, pipeline 8, batch 256, "
        "microbatch 4, no gain",
        Setup(
            LLAMA_7B,
            Training(devices=8, batches=64, sequence=2048, microbatch=4),
            gpu_named("a100"),
        ),
        0.0,
        "A100, sequences of 2048 tokens",
    ),
)


def zero_bubble_table() -> Iterator[str]:
    """Every comparison: measured and predicted gain, and what was assumed."""
    columns = (
        *("run", "measured", "predicted", "difference", "verdict"),
        *("B + W / BW that explains it", "assumed"),
    )
    yield from table(columns, map(_row, COMPARISONS))


def gain(setup: Setup, split: float = 1.0) -> float:
    """Step of 1F1B / step of ZB-H1 - 1, if B and W take `split` times as long as derived."""
    pipeline = pipeline_of(setup)
    layers = [
        replace(
            layer,
            weight=round(split * float(layer.weight), 3),
            backward_input=round(split * float(layer.backward_input), 3),
        )
        for layer in pipeline.model.layers
    ]
    longer = replace(pipeline, model=replace(pipeline.model, layers=layers))
    return float(evaluate(pipeline, "1f1b").makespan / evaluate(longer, "zb-h1").makespan) - 1


def explaining_split(comparison: Comparison) -> float:
    """The factor on B and W at which the predicted gain is the measured one, by bisection."""
    low, high = 0.5, 2.0
    while high - low > PRECISE:
        middle = (low + high) / 2
        longer = gain(comparison.setup, middle) > comparison.gain
        low, high = (middle, high) if longer else (low, middle)
    return (low + high) / 2


def _row(comparison: Comparison) -> list[object]:
    predicted = gain(comparison.setup)
    difference = predicted - comparison.gain
    return [
        comparison.source,
        *(percent(share, sign=True) for share in (comparison.gain, predicted, difference)),
        "pass" if abs(difference) <= WITHIN else "FAIL",
        f"{explaining_split(comparison):.2f}",
        comparison.assumed,
    ]
