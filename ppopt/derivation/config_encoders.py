"""Encoders of multimodal models, each a function from the keys of its configuration.

Keys and defaults are those of `configuration_*.py` of the model type in
github.com/huggingface/transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ppopt.derivation.architecture import (
    Decoder,
    Encoder,
    FeedForward,
    Run,
)
from ppopt.derivation.attention import GroupedQueryAttention, Matrix, Shard
from ppopt.derivation.config_keys import Keys
from ppopt.errors import InputError

EncoderReader = Callable[[Keys, Keys, int], Encoder]
"""The encoder by the keys of `vision_config`, by those of the whole configuration, and by the
hidden size of the language model."""


def read_encoder(
    reader: EncoderReader, vision: Mapping[str, object], config: Mapping[str, object], out: int
) -> Encoder:
    """Read a `vision_config`; InputError if its patches cannot be merged to tokens."""
    encoder = reader(Keys(vision), Keys(config), out)
    if not encoder.patches or encoder.patches % encoder.merge:
        raise InputError(
            f"an image has {encoder.patches} patches, which cannot be merged by {encoder.merge}"
        )
    return encoder


def _vision_block(hidden: int, heads: int, width: int, layers: int) -> Run:
    """Layers of a vision transformer (arXiv 2010.11929): no mask, LayerNorm, biases, no gate."""
    if hidden % heads:
        raise InputError(f"hidden_size: {hidden} cannot be divided by {heads} heads")
    attention = GroupedQueryAttention(
        heads, heads, hidden // heads, bias=True, output_bias=True, causal=False
    )
    feed_forward = FeedForward(width, bias=True, gated=False)
    return Run("vision block", Decoder(attention, feed_forward, layer_norm=True), layers)


def qwen3_vision(vision: Keys, _: Keys, out: int) -> Encoder:
    """Qwen3-VL and Qwen3.5: mergers behind the last and behind some inner layers (DeepStack).

    An image has as many patches as there are learned positions.
    """
    if vision.count("out_hidden_size", out) != out:
        raise InputError(f"out_hidden_size: the hidden_size of the language model is {out}")
    hidden = vision.count("hidden_size")
    patches = vision.count("num_position_embeddings", 2304)
    merge = vision.count("spatial_merge_size", 2) ** 2
    pixels = vision.count("temporal_patch_size", 2) * vision.count("patch_size", 16) ** 2
    listed = vision.numbers("deepstack_visual_indexes")
    inner = 3 if listed is None else len(listed)
    merged = merge * hidden
    merger = (
        Matrix("merger up", merged, merged, Shard.COLUMNS),
        Matrix("merger down", merged, out, Shard.ROWS, "merged"),
    )
    vectors = (1 + inner) * (merged + out) + 2 * hidden + inner * 2 * merged
    blocks = _vision_block(
        hidden,
        vision.count("num_heads"),
        vision.count("intermediate_size"),
        vision.count("depth"),
    )
    return Encoder(
        hidden=hidden,
        runs=(blocks,),
        patch=Matrix("patch", vision.count("in_channels", 3) * pixels, hidden, Shard.NONE),
        projections=(1 + inner) * (merger,),
        patches=patches,
        merge=merge,
        vectors=vectors + hidden + patches * hidden,
    )


def siglip(vision: Keys, config: Keys, out: int) -> Encoder:
    """Gemma 3: SigLIP (arXiv 2303.15343), whose patches are averaged to tokens."""
    hidden, patches = vision.count("hidden_size"), _patches(vision, 896)
    tokens = config.count("mm_tokens_per_image", 256)
    if patches % tokens:
        raise InputError(f"mm_tokens_per_image: {tokens} does not divide {patches} patches")
    return Encoder(
        hidden=hidden,
        runs=(_listed_blocks(vision),),
        patch=Matrix("patch", _pixels(vision), hidden, Shard.NONE),
        projections=((Matrix("projection", hidden, out, Shard.NONE),),),
        patches=patches,
        merge=patches // tokens,
        vectors=hidden + patches * hidden + 3 * hidden,
    )


def llama4_vision(vision: Keys, _: Keys, out: int) -> Encoder:
    """Llama 4: a class vector in addition to the patches of a tile, four of which are merged."""
    hidden, patches = vision.count("hidden_size"), _patches(vision, 448)
    inputs, outputs = vision.count("projector_input_dim"), vision.count("projector_output_dim")
    adapter = (
        Matrix("adapter up", vision.count("intermediate_size"), inputs, Shard.COLUMNS),
        Matrix("adapter down", outputs, outputs, Shard.ROWS, "adapted"),
        Matrix("projection", vision.count("vision_output_dim"), out, Shard.NONE, "adapter output"),
    )
    return Encoder(
        hidden=hidden,
        runs=(_listed_blocks(vision),),
        patch=Matrix("patch", _pixels(vision), hidden, Shard.NONE),
        projections=(adapter,),
        patches=patches,
        merge=4,
        vectors=(patches + 2) * hidden + 4 * hidden,
    )


def _listed_blocks(vision: Keys) -> Run:
    return _vision_block(
        vision.count("hidden_size"),
        vision.count("num_attention_heads"),
        vision.count("intermediate_size"),
        vision.count("num_hidden_layers"),
    )


def _pixels(vision: Keys) -> int:
    """Values of a patch."""
    return vision.count("num_channels", 3) * vision.count("patch_size", 14) ** 2


def _patches(vision: Keys, default: int) -> int:
    """Patches of an image of `image_size`."""
    return (vision.count("image_size", default) // vision.count("patch_size", 14)) ** 2
