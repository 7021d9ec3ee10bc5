"""Read the dimensions of a model from the config.json of Hugging Face transformers.

Each family has its keys and defaults, those of `configuration_*.py` of its model type in
github.com/huggingface/transformers. What a family does not derive (sliding windows, layers of other
kinds) is refused if a configuration switches it on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from ppopt.derivation.architecture import (
    Architecture,
    Decoder,
    Experts,
    FeedForward,
    GroupedQueryAttention,
    LatentAttention,
    Run,
)
from ppopt.errors import InputError
from ppopt.formats.documents import label, parse_json, read_text
from ppopt.formats.fields import flag, shown, whole, within

LARGEST_FILE = 2**20
MOST = 2**31
"""Largest dimension that is read."""


def config_file(path: Path) -> Path:
    """The file of a model's dimensions; in the folder of a model, that is its config.json."""
    return path / "config.json" if path.is_dir() else path


def read_architecture(path: Path) -> Architecture:
    """Read a config.json, or that of a folder.

    Raises InputError, naming the file, if its model is not known.
    """
    path = config_file(path)
    return parse_architecture(read_text(path, LARGEST_FILE), label(path))


def parse_architecture(text: str, where: str) -> Architecture:
    """Read the text of a config.json; see `read_architecture`."""
    document = parse_json(text, where)
    if not isinstance(document, dict):
        raise InputError(f"{where}: {shown(document)} is no object; give a model's config.json")
    return within(where, architecture_of, document)


def architecture_of(config: Mapping[str, Any]) -> Architecture:
    """Dimensions of a configuration, parsed.

    Raises InputError on an architecture that is not known, and on a key that is missing, is no
    number, or switches on what is not derived.
    """
    keys = _Keys(config)
    name, layer = _family(config)
    keys.refuse_windows()
    kinds = [layer(keys, index) for index in range(keys.count("num_hidden_layers"))]
    mixed = any(isinstance(kind.feed_forward, Experts) for kind in kinds)
    return Architecture(
        name=name,
        hidden=keys.count("hidden_size"),
        vocabulary=keys.count("vocab_size"),
        runs=tuple(
            Run(_name(decoder, mixed=mixed), decoder, len(list(equal)))
            for decoder, equal in groupby(kinds)
        ),
        tied=keys.switch("tie_word_embeddings"),
        predictions=keys.count("num_nextn_predict_layers", 0, least=0),
    )


def _name(decoder: Decoder, *, mixed: bool) -> str:
    if not mixed:
        return "block"
    return "expert block" if isinstance(decoder.feed_forward, Experts) else "dense block"


class _Keys:
    """The keys of a configuration, checked as they are read."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = config

    def count(self, key: str, default: int | None = None, *, least: int = 1) -> int:
        """A dimension; null and a key that is not there are the default, if there is one."""
        value = self._config.get(key)
        if value is None:
            if default is None:
                raise InputError(f"{key} is missing; the architecture cannot be derived without it")
            return default
        return within(key, whole, value, least, MOST)

    def switch(self, key: str, default: bool = False) -> bool:
        """A key that is true or false."""
        value = self._config.get(key)
        return default if value is None else within(key, flag, value)

    def numbers(self, key: str) -> list[int]:
        """A list of layers."""
        value = self._config.get(key) or []
        if not isinstance(value, list):
            raise InputError(f"{key}: {shown(value)} is not a list")
        return [within(key, whole, number, 0, MOST) for number in value]

    def refuse_windows(self) -> None:
        """Refuse attention that does not see the whole sequence."""
        window = self._config.get("sliding_window")
        if window is not None and self._config.get("use_sliding_window", True):
            raise InputError(
                f"sliding_window: {shown(window)}: attention in windows is not derived; set it to "
                "null where the sequences are no longer than the window"
            )
        kinds = self._config.get("layer_types") or []
        if isinstance(kinds, list) and set(map(str, kinds)) <= {"full_attention"}:
            return
        raise InputError(f"layer_types: {shown(kinds)}: only full_attention is derived")


def _grouped(keys: _Keys, *, bias: bool, output_bias: bool, normed: bool) -> GroupedQueryAttention:
    hidden, heads = keys.count("hidden_size"), keys.count("num_attention_heads")
    groups = keys.count("num_key_value_heads", heads)
    if heads % groups:
        raise InputError(f"num_key_value_heads: {heads} heads cannot share {groups}")
    return GroupedQueryAttention(
        heads=heads,
        groups=groups,
        width=keys.count("head_dim", hidden // heads),
        bias=bias,
        output_bias=output_bias,
        normed=normed,
    )


def _llama(keys: _Keys, _: int) -> Decoder:
    bias = keys.switch("attention_bias")
    attention = _grouped(keys, bias=bias, output_bias=bias, normed=False)
    return Decoder(attention, FeedForward(keys.count("intermediate_size"), keys.switch("mlp_bias")))


def _mixtral(keys: _Keys, _: int) -> Decoder:
    return Decoder(
        _grouped(keys, bias=False, output_bias=False, normed=False),
        Experts(
            width=keys.count("intermediate_size"),
            number=keys.count("num_local_experts"),
            chosen=keys.count("num_experts_per_tok"),
        ),
    )


def _qwen2(keys: _Keys, index: int) -> Decoder:
    """Biases of queries, keys and values; feed-forward or experts."""
    attention = _grouped(keys, bias=True, output_bias=False, normed=False)
    return Decoder(attention, _qwen_feed_forward(keys, index, shared=True))


def _qwen3(keys: _Keys, index: int) -> Decoder:
    """Norms of heads; feed-forward or experts."""
    bias = keys.switch("attention_bias")
    attention = _grouped(keys, bias=bias, output_bias=bias, normed=True)
    return Decoder(attention, _qwen_feed_forward(keys, index, shared=False))


def _qwen_feed_forward(keys: _Keys, index: int, *, shared: bool) -> FeedForward | Experts:
    number = keys.count("num_experts", 0, least=0)
    sparse = (index + 1) % keys.count("decoder_sparse_step", 1) == 0
    if not number or not sparse or index in keys.numbers("mlp_only_layers"):
        return FeedForward(keys.count("intermediate_size"))
    return Experts(
        width=keys.count("moe_intermediate_size"),
        number=number,
        chosen=keys.count("num_experts_per_tok"),
        shared=keys.count("shared_expert_intermediate_size") if shared else 0,
        shared_gate=shared,
    )


def _deepseek2(keys: _Keys, index: int) -> Decoder:
    return Decoder(_latent(keys), _deepseek_feed_forward(keys, index, routing_bias=False))


def _deepseek3(keys: _Keys, index: int) -> Decoder:
    return Decoder(_latent(keys), _deepseek_feed_forward(keys, index, routing_bias=True))


def _latent(keys: _Keys) -> LatentAttention:
    return LatentAttention(
        heads=keys.count("num_attention_heads"),
        query_latent=keys.count("q_lora_rank", 0),
        latent=keys.count("kv_lora_rank"),
        plain=keys.count("qk_nope_head_dim"),
        position=keys.count("qk_rope_head_dim"),
        value=keys.count("v_head_dim"),
    )


def _deepseek_feed_forward(keys: _Keys, index: int, *, routing_bias: bool) -> FeedForward | Experts:
    dense = index < keys.count("first_k_dense_replace", least=0)
    if dense or index % keys.count("moe_layer_freq", 1):
        return FeedForward(keys.count("intermediate_size"))
    width = keys.count("moe_intermediate_size")
    return Experts(
        width=width,
        number=keys.count("n_routed_experts"),
        chosen=keys.count("num_experts_per_tok"),
        shared=width * keys.count("n_shared_experts", 0, least=0),
        routing_bias=routing_bias,
    )


Layer = Callable[[_Keys, int], Decoder]
FAMILIES: Mapping[str, Layer] = {
    "LlamaForCausalLM": _llama,
    "MistralForCausalLM": _llama,
    "MixtralForCausalLM": _mixtral,
    "Qwen2ForCausalLM": _qwen2,
    "Qwen2MoeForCausalLM": _qwen2,
    "Qwen3ForCausalLM": _qwen3,
    "Qwen3MoeForCausalLM": _qwen3,
    "DeepseekV2ForCausalLM": _deepseek2,
    "DeepseekV3ForCausalLM": _deepseek3,
}
"""Architecture, as configurations name it under `architectures` -> the decoder layer by its index.
Other models that have one of these architectures have its keys, too."""


def _family(config: Mapping[str, Any]) -> tuple[str, Layer]:
    named = config.get("architectures")
    if named is None:
        raise InputError("architectures is missing; it names the kind of model")
    names = named if isinstance(named, list) else [named]
    for name in names:
        if isinstance(name, str) and name in FAMILIES:
            return name, FAMILIES[name]
    raise InputError(
        f"architectures: {shown(named)} is not known; known are {', '.join(FAMILIES)}; write its "
        "layers by hand (`ppopt init`), or measure them (`ppopt profile`)"
    )
