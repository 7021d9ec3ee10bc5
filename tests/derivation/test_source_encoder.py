"""Models with an encoder of words that every decoder layer reads (T5)."""

from __future__ import annotations

from typing import Any

import pytest

from ppopt import ConflictError, DerivedModel, derive_model, evaluate
from ppopt.derivation.config_json import architecture_of
from tests.factories.configs import CONFIGS, Config

SMALL: Config = {
    "architectures": ["T5ForConditionalGeneration"],
    "is_encoder_decoder": True,
    "d_model": 512,
    "d_kv": 64,
    "d_ff": 2048,
    "num_heads": 8,
    "num_layers": 6,
    "vocab_size": 32128,
}
"""The oldest config.json of t5-small: without the number of decoder layers."""
BLOCK = 512**2
"""Parameters of a projection."""


def small(**fields: Any) -> DerivedModel:
    """Two sequences of 128 tokens, which read 512 of the encoder."""
    sizes = {"sequence": 128, "encoder_sequence": 512, "microbatch": 2, "batches": 8}
    return derive_model(SMALL, gpu="a100", **(sizes | {"devices": 2} | fields))


def test_layers_are_encoder_then_decoder() -> None:
    layers = [(layer.name, layer.role, layer.count) for layer in small().layers]
    assert layers == [
        ("embedding", "embedding", 1),
        ("encoder block", "decoder", 6),
        ("decoder embedding", "embedding", 1),
        ("block", "decoder", 6),
        ("head", "head", 1),
    ]


@pytest.mark.parametrize("tensor", [1, 2])
def test_decoder_stages_pass_on_the_output_of_the_encoder(tensor: int) -> None:
    """2 x 512 tokens in front of the decoder, 2 x (128 + 512) in it, 1 KiB each."""
    outputs = [layer.output * tensor for layer in small(tensor=tensor).layers]
    assert outputs == [1, 1, 1.25, 1.25, 0]


def test_flops_of_a_decoder_layer() -> None:
    """Of 256 tokens: attention, queries and output of cross attention, feed-forward; of 1024 of the
    encoder: keys and values. A token sees 64 tokens on average, and 512 of the encoder."""
    layer = small().layers[3]
    products = 2 * 256 * (4 + 2 + 8) * BLOCK + 2 * 1024 * 2 * BLOCK
    scores = 256 * 4 * 512 * (64 + 512)
    assert layer.flops == 3 * (products + scores)


def test_stashed_memory_of_a_decoder_layer() -> None:
    """Of 256 tokens three normed inputs and their residuals, queries and outputs of both, keys and
    values, 8 x 512 of the feed-forward; of 1024 the encoder's output, keys and values."""
    layer = small().layers[3]
    elements = 256 * 512 * (3 + 3 + 4 + 2 + 8) + 1024 * 512 * 3
    assert layer.activation * 2**20 == 2 * elements
    assert layer.stashed == 2  # the input of the layer, and of the encoder, 1.25 MiB rounded up


def test_a_decoder_layer_with_scores_in_memory() -> None:
    """5 bytes a score with dropout (arXiv 2205.05198, section 4.1): 8 heads, 128 + 512 keys; masks
    of three residuals."""
    layer = small(attention="unfused", dropout=True).layers[3]
    masks = 256 * (5 * 8 * (128 + 512) + 3 * 512)
    assert layer.activation == small().layers[3].activation + -(-masks // 2**20)


def test_the_table_of_words_is_stored_once_on_one_device() -> None:
    """Adam: 18 bytes a parameter; on two devices embedding, decoder and head have a copy each."""
    table = -(-18 * 32128 * 512 // 2**20)
    stored = [[small(devices=n).layers[at].static for at in (0, 2, 4)] for n in (1, 2)]
    assert stored == [[table, 0, 0], [table] * 3]


def test_a_pipeline_of_encoder_and_decoder_runs() -> None:
    schedule = evaluate(small().pipeline, "1f1b")
    assert sum(schedule.pipeline.counts) == 15
    assert small().attention_share is None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"context": 2}, "context: 2 ranks share the sequence of a decoder alone"),
        ({"tensor": 8, "encoder_sequence": 100}, "encoder_sequence: 100 tokens cannot be shared"),
    ],
)
def test_sequences_that_cannot_be_shared(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConflictError, match=message):
        small(**fields)


def test_a_model_without_an_encoder_of_words_has_no_length_of_it() -> None:
    with pytest.raises(ConflictError, match="encoder_sequence: the model has no encoder"):
        derive_model(CONFIGS["openai-community/gpt2"], gpu="a100", encoder_sequence=512)


def test_layers_of_the_decoder_are_as_many_as_its_key_says() -> None:
    assert architecture_of(SMALL | {"num_decoder_layers": 2}).runs[0].count == 2
