"""The share of attention in derived times: factors of packed documents without a user's share."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from ppopt.derivation.derived_model import DerivedModel, derive_model
from ppopt.formats.config import parse_config, pipeline_of
from ppopt.problem.pipeline import Pipeline
from tests.factories.configs import CONFIGS


def derived(sequence: int, **training: int) -> DerivedModel:
    return derive_model(
        CONFIGS["Qwen/Qwen3-8B"], gpu="H100", devices=4, batches=2, sequence=sequence, **training
    )


def of_documents(model: DerivedModel, lengths: list[list[int]]) -> Pipeline:
    """The pipeline of the model file with one more line: the lengths of documents."""
    text = f"{model.text}\nmicrobatch_tokens: {lengths}\n"
    return pipeline_of(parse_config(text, ".yaml", "model"))


def test_file_gives_the_factors_of_documents() -> None:
    model = derived(32768, tensor=8)
    pipeline = of_documents(model, [[32768], [16384, 16384]])
    share = Fraction(f"{model.attention_share:.4f}")
    assert 0 < share < 1
    assert pipeline.microbatch_times[0] == 1
    assert abs(pipeline.microbatch_times[1] - (1 - share / 2)) <= Fraction(1, 10**4)
    assert pipeline.microbatch_memory == (1, 1)


@pytest.mark.parametrize("documents", [2, 4])
def test_factor_is_that_of_the_cost_model(documents: int) -> None:
    """Of several equal documents, against the times derived for so many short sequences.

    Not exactly: kernels of short sequences wait for launches.
    """
    whole, length = derived(65536, tensor=8), 65536 // documents
    parts = derived(length, tensor=8, microbatch=documents)
    times = [
        sum(layer.count * (layer.forward + layer.backward) for layer in model.layers)
        for model in (whole, parts)
    ]
    factor = of_documents(whole, [[65536], [length] * documents]).microbatch_times[1]
    assert float(factor) == pytest.approx(times[1] / times[0], rel=0.05)


def test_share_grows_with_the_length() -> None:
    shares = [derived(sequence, tensor=8).attention_share for sequence in (8192, 32768, 131072)]
    assert shares == sorted(shares)
    assert shares[0] > 0


def test_share_of_several_sequences_is_not_known() -> None:
    model = derived(8192, microbatch=2)
    assert model.attention_share is None
    assert "attention_share" not in model.text


def test_share_and_reference_are_without_effect_alone() -> None:
    pipeline = derived(8192).pipeline
    assert pipeline.attention_share is pipeline.reference_tokens is None
    assert pipeline.slice_times is None
    sliced = Pipeline(stages=2, batches=2, slices=2, attention_share="0.5")
    assert sliced.slice_times == (Fraction(3, 4), Fraction(5, 4))
    assert replace(sliced, slices=2) == sliced
