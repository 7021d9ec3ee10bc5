"""Dimensions that every config.json of huggingface.co has."""

from __future__ import annotations

from typing import Any

Config = dict[str, Any]


def config_of(architecture: str, hidden: int, layers: int, heads: int, **more: Any) -> Config:
    """A configuration with these dimensions and further keys."""
    return {
        "architectures": [architecture],
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "tie_word_embeddings": False,
        **more,
    }


def latent_attention() -> Config:
    """Widths of heads of latent attention, which DeepSeek and its kin share."""
    return {"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
