"""The keys of a configuration, checked as they are read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from math import inf
from types import MappingProxyType
from typing import Any

from ppopt.errors import InputError
from ppopt.formats.fields import abbreviated, flag, text, whole, within

MAX_DIMENSION = 2**31
"""Largest dimension that is read."""

_WITHOUT_DIMENSIONS = re.compile(
    "|".join(
        (
            "architectures|model_type|auto_map|_name_or_path|license|.*_version|.*_implementation",
            "(.*_)?dtype|.*_in_fp32|.*quantization_config|compression_config|.*_format",
            "(.*_)?token(_id|_ids|_index)?|tokenizer_class|(id2|)label(2id)?|ignore_index",
            "problem_type|finetuning_task|prefix|use_cache|gradient_checkpointing|torchscript",
            "(.*_)?m?rope(_.*)?|rotary_.*|partial_rotary_factor|(.*_)?max_position_embeddings",
            "max_sequence_length|model_max_length|seq_length|initial_context_length",
            "initializer_(range|factor)|init_(std|method)(_.*)?|rms_norm_eps",
            "(.*_)?dropout(_.*)?|.*_pdrop|.*_multiplier|logits?_scal(e|ing)|scale_(emb|depth)",
            ".*_logit_?softcapping|query_pre_attn_scalar|pretraining_tp|[et]p_size",
            "output_(router_logits|attentions|hidden_states|scores)|return_dict(_in_generate)?",
            "(.*_)?loss(_.*)?|seq_aux|router_jitter_noise|norm_topk_prob|routed_scaling_factor",
            "scoring_func|topk_(method|group)|n_group|swiglu_(limit|alpha)",
            "unsloth_.*|pruned_heads|chunk_size_feed_forward|(min|max)_length|num_beam(s|_groups)",
            "num_return_sequences|(diversity|length|repetition)_penalty|temperature|top_[kp]",
            "typical_p|do_sample|early_stopping|(encoder_)?no_repeat_ngram_size",
            "remove_invalid_values",
        )
    )
)
"""Keys that change neither dimensions nor layers: names, numbers of tokens, types, positions by
rotation, initial values, dropout, scales, losses, and generation."""

_WITHOUT_DIMENSIONS_IF: Mapping[str, tuple[Any, ...]] = {
    "hidden_act": ("silu", "swish", "swiglu"),
    "hidden_activation": ("silu", "swish", "swiglu"),
    "bias": (False,),
    "use_bias": (False,),
    "qkv_bias": (False,),
    "is_decoder": (True, False),
    "is_encoder_decoder": (False,),
    "add_cross_attention": (False,),
    "tie_encoder_decoder": (False,),
    "use_bfloat16": (True, False),
    "tf_legacy_loss": (True, False),
}
"""Values of a decoder with gated feed-forward. Another activation function is a sign of a
feed-forward network without a gate."""


class Keys:
    """The keys of a configuration, checked as they are read."""

    def __init__(
        self,
        config: Mapping[str, object],
        aliases: Mapping[str, str] = MappingProxyType({}),
        defaults: Mapping[str, int] = MappingProxyType({}),
        ignored: Iterable[str] = (),
    ) -> None:
        self._config = config
        self._aliases = aliases
        self._defaults = defaults
        self._read = set(ignored)
        self._notes: dict[str, None] = {}

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks for a reader of the derived model."""
        return tuple(self._notes)

    def note(self, sentence: str) -> None:
        """Add a remark for a reader of the derived model, once."""
        self._notes[sentence] = None

    def ignore(self, key: str, *values: object) -> None:
        """Mark a key as read if it has one of the values that change no dimensions."""
        if self._config.get(key) in values:
            self._read.add(key)

    def value(self, key: str) -> Any:
        """The value of a key; if it is missing its default, or None."""
        alias = self._aliases.get(key, key)
        name = alias if alias in self._config else key
        self._read.add(name)
        return self._config.get(name, self._defaults.get(key))

    def count(
        self,
        key: str,
        default: int | None = None,
        *,
        minimum: int = 1,
        maximum: int = MAX_DIMENSION,
    ) -> int:
        """A dimension; a missing or null key has the default, if there is one."""
        value = self.value(key)
        if value is None:
            if default is None:
                raise InputError(f"{key} is missing; the architecture cannot be derived without it")
            return default
        return within(key, whole, value, minimum, maximum)

    def switch(self, key: str, default: bool = False) -> bool:
        """A key that is true or false."""
        value = self.value(key)
        return default if value is None else within(key, flag, value)

    def number(self, key: str) -> float:
        """A number above 0."""
        value = self.value(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < inf:
            raise InputError(f"{key}: {abbreviated(value)} is not a number above 0")
        return float(value)

    def section(self, key: str, index: int | None = None) -> Keys:
        """An object of the configuration, or of a list with one for each layer."""
        value = self.value(key) if index is None else self.listed(key, index)
        if not isinstance(value, Mapping):
            raise InputError(f"{key}: {abbreviated(value)} is not an object {{...}}")
        return Keys(value)

    def of_layer(self, index: int) -> Keys:
        """The keys of a layer: an entry of its own in place of a list with one for each layer."""
        layers = self.count("num_hidden_layers")
        values = {
            key: value[index] if isinstance(value, list) and len(value) == layers else value
            for key, value in self._config.items()
        }
        keys = Keys(values, self._aliases, self._defaults)
        keys._read, keys._notes = self._read, self._notes
        return keys

    def numbers(self, key: str) -> list[int] | None:
        """A list of whole numbers; None if it is missing."""
        value = self.value(key)
        if value is None:
            return None
        if not isinstance(value, list):
            raise InputError(f"{key}: {abbreviated(value)} is not a list")
        return [within(key, whole, number, 0, MAX_DIMENSION) for number in value]

    def listed(self, key: str, index: int) -> Any:
        """The entry of a layer in a list with one per layer; None if there is no list."""
        values, layers = self.value(key), self.count("num_hidden_layers")
        if values is None:
            return None
        if not isinstance(values, list) or len(values) < layers:
            raise InputError(f"{key}: {abbreviated(values)} is not a list of {layers} layers")
        return values[index]

    def layer_kind(self, index: int, default: str) -> str:
        """The kind of a layer's attention, as `layer_types` lists them."""
        kind = self.listed("layer_types", index)
        return default if kind is None else within("layer_types", text, kind)

    def unread(self) -> list[str]:
        """Keys that have not been read and may change the dimensions."""
        return [
            key if key.isprintable() else abbreviated(key)
            for key, value in self._config.items()
            if key not in self._read
            and value not in (None, [], {}, *_WITHOUT_DIMENSIONS_IF.get(key, ()))
            and not _WITHOUT_DIMENSIONS.fullmatch(key)
        ]
