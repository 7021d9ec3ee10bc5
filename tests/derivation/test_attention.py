"""Attention and feed-forward networks: matrices, windows and counts, against enumeration."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ppopt.derivation.architecture import Decoder, Experts, FeedForward
from ppopt.derivation.attention import (
    GroupedQueryAttention,
    Indexer,
    LatentAttention,
    LinearAttention,
    Matrix,
    Shard,
    mean_keys,
    parameters_of,
)
from ppopt.derivation.config_json import architecture_of
from tests.factories.configs import CONFIGS, LLAMA_8B, Config


@pytest.mark.parametrize("window", [None, 1, 3, 8, 100])
@pytest.mark.parametrize("chunked", [False, True])
def test_mean_keys_are_those_of_a_mask(window: int | None, chunked: bool) -> None:
    """A token counts half of itself: the mask is a triangle with half of its diagonal."""
    context = 8
    size = window or context
    seen = 0.0
    for query in range(context):
        first = query // size * size if chunked else max(0, query - size)
        half = 0.5 if chunked or query < size else 0.0
        seen += query - first + half
    assert mean_keys(context, window, chunked=chunked) == pytest.approx(seen / context)


def test_without_a_mask_a_query_sees_all_keys() -> None:
    assert mean_keys(64, causal=False) == 64
    assert mean_keys(64, 16, causal=False) == 16


def windows(config: Config) -> list[int | None]:
    runs = architecture_of(config).runs
    return [run.decoder.attention.window for run in runs for _ in range(run.count)]


def without(config: Config, key: str) -> Config:
    return {name: value for name, value in config.items() if name != key}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (LLAMA_8B, [None] * 32),
        (CONFIGS["mistralai/Mistral-7B-v0.1"], [4096] * 32),
        (LLAMA_8B | {"sliding_window": 9, "max_window_layers": 30}, [None] * 30 + [9] * 2),
        (LLAMA_8B | {"sliding_window": 9, "use_sliding_window": False}, [None] * 32),
        (CONFIGS["Qwen/Qwen2.5-7B"], [None] * 28),
        (
            CONFIGS["Qwen/Qwen2.5-7B"] | {"use_sliding_window": True, "max_window_layers": 20},
            [None] * 20 + [131072] * 8,
        ),
        (CONFIGS["openai/gpt-oss-20b"], [128, None] * 12),
        (CONFIGS["openai/gpt-oss-20b"] | {"layer_types": None}, [128, None] * 12),
        (CONFIGS["google/gemma-2-9b"], [4096, None] * 21),
        (CONFIGS["google/gemma-3-12b-it"], ([1024] * 5 + [None]) * 8),
        (CONFIGS["meta-llama/Llama-4-Scout-17B-16E"], ([8192] * 3 + [None]) * 12),
        (
            {**CONFIGS["meta-llama/Llama-4-Scout-17B-16E"]["text_config"]}
            | {"architectures": ["Llama4ForCausalLM"], "attention_chunk_size": None},
            [None] * 48,
        ),
        (
            {**CONFIGS["meta-llama/Llama-4-Scout-17B-16E"]["text_config"]}
            | {"architectures": ["Llama4ForCausalLM"], "no_rope_layers": [1] * 47 + [0]},
            [8192] * 47 + [None],
        ),
        (CONFIGS["openai/gpt-oss-20b"] | {"sliding_window": None}, [None] * 24),
        (without(CONFIGS["openai/gpt-oss-20b"], "sliding_window"), [128, None] * 12),
        (CONFIGS["deepseek-ai/DeepSeek-V3.2"], [2048] * 61),
    ],
)
def test_windows_of_layers(config: Config, expected: list[int | None]) -> None:
    assert windows(config) == expected


def test_a_window_saves_scores_and_no_parameters() -> None:
    full = GroupedQueryAttention(8, 2, 64)
    window = GroupedQueryAttention(8, 2, 64, window=1024)
    assert window.scores(1024) == full.scores(1024)
    assert window.scores(8192) == pytest.approx(full.scores(8192) * (1024 - 64) / 4096)
    assert window.matrices(512) == full.matrices(512)


def test_matrices_in_order_and_how_ranks_divide_them() -> None:
    attention = GroupedQueryAttention(8, 2, 64, gated=True)
    assert [(m.name, m.inputs, m.outputs, m.shard) for m in attention.matrices(256)] == [
        ("query", 256, 512, Shard.COLUMNS),
        ("gate", 256, 512, Shard.COLUMNS),
        ("key", 256, 128, Shard.COLUMNS),
        ("value", 256, 128, Shard.COLUMNS),
        ("output", 512, 256, Shard.ROWS),
    ]
    latent = LatentAttention(8, query_latent=48, latent=32, plain=16, position=8, value=20)
    assert [(m.name, m.inputs, m.outputs, m.shard) for m in latent.matrices(256)] == [
        ("query down", 256, 48, Shard.NONE),
        ("query up", 48, 8 * 24, Shard.COLUMNS),
        ("key-value down", 256, 32 + 8, Shard.NONE),
        ("key-value up", 32, 8 * (16 + 20), Shard.COLUMNS),
        ("output", 8 * 20, 256, Shard.ROWS),
    ]
    assert Experts(5, 3, chosen=2).router(4) == Matrix("router", 4, 3, Shard.NONE)
    assert [m.name for m in FeedForward(64).matrices(16)] == ["gate", "up", "down"]
    assert [m.name for m in FeedForward(64, gated=False).matrices(16)] == ["up", "down"]


def test_a_layer_of_gpt_by_hand() -> None:
    """12 h^2 in matrices, 13 h in biases and norms: 3 h, h, 4 h, h, and 4 h (arXiv 2104.04473)."""
    decoder = Decoder(
        GroupedQueryAttention(4, 4, 16, bias=True, output_bias=True),
        FeedForward(256, bias=True, gated=False),
        layer_norm=True,
    )
    assert decoder.stored(64) == 12 * 64**2
    assert decoder.parameters(64) == 12 * 64**2 + 13 * 64


def test_vectors_of_attention_by_hand() -> None:
    """8 heads and 2 groups of 64: norms of heads, norms over all heads, sinks, bias of a gate."""
    assert GroupedQueryAttention(8, 2, 64, normed=True).vectors(256) == 2 * 64
    together = GroupedQueryAttention(8, 2, 64, normed=True, normed_together=True)
    assert together.vectors(256) == (8 + 2) * 64
    assert GroupedQueryAttention(8, 2, 64, sinks=True).vectors(256) == 8
    gated = GroupedQueryAttention(8, 2, 64, bias=True, output_bias=True, gated=True)
    assert gated.vectors(256) == (8 + 8 + 2 + 2) * 64 + 256


def test_experts_with_biases_by_hand() -> None:
    """3 experts of 5 on hidden 4: router 12 + 3, each 60 in matrices and 14 in biases."""
    experts = Experts(5, 3, chosen=2, routing_bias=True, bias=True)
    assert (experts.stored(4), experts.vectors(4)) == (12 + 3 * 60, 3 + 3 * 14)
    assert experts.passed(4) == 12 + 2 * 60
    shared = Experts(5, 3, chosen=2, shared=7, shared_gate=True)
    assert parameters_of(shared.shared_matrices(4)) == 4 + 3 * 4 * 7


def test_an_indexer_scores_all_keys_and_attention_sees_those_it_chooses() -> None:
    """Of 8192 keys 1024; 4 heads of 16 score them, 2 FLOPs an element."""
    attention = LatentAttention(
        8, query_latent=48, latent=32, plain=16, position=8, value=20, indexer=Indexer(4, 16, 1024)
    )
    scores = 2 * 4096 * 4 * 16 + 2 * (1024 - 64) * 8 * (24 + 20)
    assert attention.scores(8192) == scores
    assert parameters_of(attention.matrices(256)) - parameters_of(
        LatentAttention(8, 48, 32, 16, 8, 20).matrices(256)
    ) == 48 * 64 + 256 * (16 + 4)


def test_what_attention_keeps_by_hand() -> None:
    """Elements per token: 8 heads and 2 groups of 64, latents of 48 and 32, 4 index heads of 16."""
    plain = GroupedQueryAttention(8, 2, 64)
    assert plain.stashed == (8 + 2 + 2 + 8) * 64  # queries, keys, values, output
    assert replace(plain, normed=True).stashed == plain.stashed + (8 + 2) * 64  # before their norms
    assert replace(plain, gated=True).stashed == plain.stashed + 8 * 64  # the gate
    latent = LatentAttention(8, query_latent=48, latent=32, plain=16, position=8, value=20)
    assert latent.stashed == 48 + 32 + 8 + 8 * (24 + 24 + 20 + 20)
    indexer = Indexer(4, 16, 1024)
    assert replace(latent, indexer=indexer).stashed == latent.stashed + 4 * 16 + 2 * 16 + 4
    assert replace(latent, indexer=replace(indexer, shared=True)).stashed == latent.stashed
    assert (FeedForward(64).stashed(16), FeedForward(64, gated=False).stashed(16)) == (
        3 * 64,
        2 * 64,
    )


def test_linear_attention_takes_as_long_for_every_token() -> None:
    linear = LinearAttention(32, 16, 128, 128, kernel=4)
    assert linear.scores(4096) == linear.scores(2**20)
    names = [matrix.name for matrix in linear.matrices(2048)]
    assert names == ["query", "key", "value", "gate", "rates", "output"]


def test_linear_attention_by_hand() -> None:
    """Qwen3-Next: qkvz 2048 x 12288, ba 2048 x 64, out 4096 x 2048 (modeling_qwen3_next.py)."""
    linear = LinearAttention(32, 16, 128, 128, kernel=4)
    assert parameters_of(linear.matrices(2048)) == 2048 * 12288 + 2048 * 64 + 4096 * 2048
    assert linear.vectors(2048) == 4 * 8192 + 2 * 32 + 128
    assert linear.stashed == 2 * 8192 + 2 * 4096  # q, k, v, before the convolution; gate, output


def test_flops_of_linear_attention_by_hand() -> None:
    """A head of 128 in chunks of 64, half of them under the mask, 2 FLOPs an element.

    Without the delta rule: scores and values, the update of the state and its reading. With it also
    scores of keys, the system's inverse (64^3 / 3 a chunk), its products with keys and values, and
    the reading of the state for them.
    """
    plain = 2 * 32 * (128 + 128) + 2 * 2 * 128 * 128
    assert LinearAttention(1, 1, 128, 128, delta=False).scores(4096) == plain
    delta = 2 * 32 * (128 + 128 + 128) + 64 * 64 // 3 + 2 * 128 * 128
    assert LinearAttention(2, 1, 128, 128).scores(4096) == 2 * (plain + delta)


def test_chunks_of_llama_4_do_not_slide() -> None:
    attention = architecture_of(CONFIGS["meta-llama/Llama-4-Scout-17B-16E"]).runs[0].decoder
    assert isinstance(attention.attention, GroupedQueryAttention)
    assert attention.attention.keys(2 * 8192) == 8192 / 2
