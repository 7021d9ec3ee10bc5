"""Read the dimensions of a model from the config.json of Hugging Face transformers.

An unknown architecture is read as the family that has all of its keys. Parts left out and
assumptions are in the notes of the result.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from ppopt.derivation import (
    config_families,
    config_gpt_families,
    config_hybrid_families,
    config_source_families,
)
from ppopt.derivation.architecture import Architecture, Decoder, Run
from ppopt.derivation.attention import LinearAttention, StateSpace
from ppopt.derivation.config_encoders import read_encoder
from ppopt.derivation.config_family import FAMILIES, Family
from ppopt.derivation.config_keys import Keys
from ppopt.errors import InputError
from ppopt.formats.documents import label, parse_json, read_text
from ppopt.formats.fields import abbreviated, within
from ppopt.problem.settings import nearest

LARGEST_FILE = 2**20
MAX_NAMED_KEYS = 5
"""Maximum number of unknown keys that a message names."""
TEXT_CONFIGS = ("text_config", "llm_config", "language_config")
"""Keys of multimodal configurations that hold the dimensions of the language model."""
NO_PARTS = ("quantization_config", "compression_config", "generation_config")
"""Keys that end like those of parts of a model, but are none."""
PARTS = re.compile(
    "(.*_)?(vision|visual|vit|image|video|audio|speech|vq|qformer|projector|aligner|talker)_config"
)
"""Keys of parts of a multimodal model, next to the dimensions of its language model."""
MAX_LAYERS = 10_000
OF_LAYERS = re.compile(".*(expert|moe|router|mamba|ssm|linear_att|hybrid|block_config).*")
"""Keys of experts and of kinds of layers: without them the model would be another one."""
READERS = (
    config_families,
    config_gpt_families,
    config_hybrid_families,
    config_source_families,
)
"""Modules that register families."""
BY_HAND = "write its layers by hand (`ppopt init`), or measure them (`ppopt profile`)"


def config_file(path: Path) -> Path:
    """The file of a model's dimensions; in the folder of a model, that is its config.json."""
    return path / "config.json" if path.is_dir() else path


def read_architecture(path: Path) -> Architecture:
    """Read a config.json, or that of a folder.

    Raises InputError, naming the file, if its model is not known.
    """
    path = config_file(path)
    where = label(path)
    document = parse_json(read_text(path, LARGEST_FILE), where)
    if not isinstance(document, dict):
        raise InputError(
            f"{where}: {abbreviated(document)} is no object; give a model's config.json"
        )
    return within(where, architecture_of, document)


def architecture_of(config: Mapping[str, object]) -> Architecture:
    """Dimensions of a parsed configuration.

    Raises InputError on an unknown architecture, and on a key that is missing, is no number, or
    enables a feature that is not derived.
    """
    key = next((key for key in TEXT_CONFIGS if config.get(key) is not None), None)
    parts = {
        name: part
        for name, part in config.items()
        if name != key and isinstance(part, dict) and _is_part(name, beside_text=key is not None)
    }
    text = config[key] if key else {k: v for k, v in config.items() if k not in parts}
    if not isinstance(text, dict):
        raise InputError(f"{key}: {abbreviated(text)} is not an object {{...}}")
    if key and config.get("tie_word_embeddings") is not None:
        text = text | {"tie_word_embeddings": config["tie_word_embeddings"]}
    family, architecture = _recognize(_names(config, text), text, key)
    encoder = None
    if family.encoder is not None and "vision_config" in parts:
        vision, out = parts.pop("vision_config"), architecture.hidden
        encoder = within("vision_config", read_encoder, family.encoder, vision, config, out)
    notes = list(architecture.notes)
    if encoder is not None:
        patches, tokens = encoder.patches, encoder.tokens
        notes.append(f"an image has {patches} patches, which become {tokens} tokens")
    for name in parts:
        printable_name = name if name.isprintable() else abbreviated(name)
        notes.append(
            f"{printable_name} is left out: only the layers of the language model are derived"
        )
    return replace(architecture, notes=tuple(notes), encoder=encoder)


def _is_part(key: str, *, beside_text: bool) -> bool:
    """Whether a key describes a part of a multimodal model other than its language model."""
    if beside_text:
        return key.endswith("_config") and key not in NO_PARTS
    return PARTS.fullmatch(key) is not None


def _names(config: Mapping[str, object], text: Mapping[str, object]) -> list[str]:
    """Architectures that a configuration names, those of its language model last."""
    named = config.get("architectures")
    if not named:
        raise InputError("architectures is missing; it names the kind of model")
    names = named if isinstance(named, list) else [named]
    inner = text.get("architectures")
    names = [*names, *(inner if isinstance(inner, list) else [])]
    if not all(isinstance(name, str) and name.isprintable() for name in names):
        raise InputError(f"architectures: {abbreviated(named)} is not a list of names")
    return list(dict.fromkeys(names))


def _recognize(
    names: Sequence[str], config: Mapping[str, object], where: str | None
) -> tuple[Family, Architecture]:
    """The family of an architecture, by its name or else by its keys, and its dimensions."""
    known = next((FAMILIES[name] for name in names if name in FAMILIES), None)
    if config.get("is_encoder_decoder") and (known is None or known.source is None):
        raise InputError(
            f"architectures: {abbreviated(names[0])} has an encoder whose output every decoder "
            "layer reads; of such models T5 is derived; measure it (`ppopt profile`)"
        )
    if known is not None:
        keys = known.keys(config, named=True)
        if where is None:
            return known, _read(names[0], known, keys)
        return known, within(where, _read, names[0], known, keys)
    similar = _similar(names[0], config)
    if similar is None:
        raise InputError(
            f"architectures: {abbreviated(names[0])} is not known; did you mean "
            f"{nearest(names[0], FAMILIES)}? docs/how-to/derive.md lists all that are known; "
            f"{BY_HAND}"
        )
    if similar.unknown:
        unknown = ", ".join(similar.unknown[:MAX_NAMED_KEYS])
        describe_layers = any(map(OF_LAYERS.fullmatch, similar.unknown))
        advice = "" if describe_layers else "remove keys that do not change the dimensions, or "
        raise InputError(
            f"architectures: {abbreviated(names[0])} is not known; its keys are those of "
            f"{similar.family.name}, but not {unknown}: {advice}{BY_HAND}"
        )
    note = f"{names[0]} is not known; its keys are those of {similar.family.name}"
    architecture = similar.architecture
    return similar.family, replace(architecture, notes=(note, *architecture.notes))


class _Similar(NamedTuple):
    """A configuration read as that of another family."""

    family: Family
    architecture: Architecture
    unknown: list[str]
    """Keys that the family does not have and that may change the dimensions."""


def _similar(name: str, config: Mapping[str, object]) -> _Similar | None:
    """Read a configuration as the family for which the fewest of its keys are unknown.

    Of several, the family of its `model_type` is first, then the earliest of `FAMILIES`.
    """
    kind = config.get("model_type")
    families = [family for name, family in FAMILIES.items() if name == family.name]
    readings = []
    for family in sorted(families, key=lambda family: kind not in family.model_types):
        keys = family.keys(config, named=False)
        try:
            architecture = _read(name, family, keys)
        except InputError:
            continue
        readings.append(_Similar(family, architecture, keys.unread()))
    return min(readings, key=lambda reading: len(reading.unknown), default=None)


def _read(name: str, family: Family, keys: Keys) -> Architecture:
    depth = keys.count("num_layers", 0, minimum=0) if family.source else 0
    layers = keys.count("num_hidden_layers", depth or None, maximum=MAX_LAYERS)
    decoders = [family.layer(keys, index) for index in range(layers)]
    if empty := sum(decoder.is_empty for decoder in decoders):
        keys.note(f"{empty} layers without attention and feed-forward are left out")
        decoders = [decoder for decoder in decoders if not decoder.is_empty]
    predictions = keys.count("num_nextn_predict_layers", 0, minimum=0)
    return Architecture(
        name=name,
        hidden=keys.count("hidden_size"),
        vocabulary=keys.count("vocab_size"),
        runs=tuple(
            Run(_layer_name(decoder, decoders), decoder, len(list(equal)))
            for decoder, equal in groupby(decoders)
        ),
        tied=keys.switch("tie_word_embeddings", family.tied),
        predictions=predictions,
        prediction=family.prediction(keys) if predictions and family.prediction else None,
        positions=family.positions(keys) if family.positions else 0,
        embedding_norm=family.embedding_norm,
        source=family.source(keys) if family.source else None,
        notes=keys.notes,
    )


def _layer_name(decoder: Decoder, decoders: Iterable[Decoder]) -> str:
    """The kinds of attention and feed-forward in which a layer differs from others, and `block`."""
    kinds = (_attention_kind, _feed_forward_kind)
    differing = [kind(decoder) for kind in kinds if len(set(map(kind, decoders))) > 1]
    return " ".join([*filter(None, differing), "block"])


def _attention_kind(decoder: Decoder) -> str:
    """The kind of attention; empty if there is none."""
    attention = decoder.attention
    if attention is None:
        return ""
    if isinstance(attention, StateSpace):
        return "mamba"
    if isinstance(attention, LinearAttention):
        return "linear"
    return "window" if attention.window else "full"


def _feed_forward_kind(decoder: Decoder) -> str:
    """The kind of feed-forward; empty if there is none."""
    if not decoder.feed_forwards:
        return ""
    return "expert" if decoder.has_experts else "dense"
