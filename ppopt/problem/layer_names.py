"""Partitions as trainers' configurations have them, turned into layouts.

Lists of names per stage: of layer types, as `pipeline_model_parallel_layout` of Megatron-LM and of
the recipes of Megatron-Bridge, or of modules, as `module_fqns_per_model_part` of torchtitan.
Patterns of hybrid models, `M-M-|M-M*-/MM`: a letter per decoder layer, `|` between stages, and a
pattern per MTP module behind `/` (`hybrid_layer_pattern`: Symbols in
megatron/core/models/hybrid/hybrid_layer_allocation.py of NVIDIA/Megatron-LM, d98e8a6).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ppopt.errors import InputError

_LETTERS = {
    "embedding": "E",
    "tok_embeddings": "E",
    "decoder": "t",
    "mtp": "m",
    "head": "L",
    "loss": "L",
    "lm_head": "L",
    "output": "L",
    "norm": "",
}
"""Name of a layer or module -> its letter in a layout; torchtitan's norm belongs to the head."""
_NUMBERED = re.compile(r"layers\.([0-9]{1,6})")
_HYBRID = re.compile(r"[MGD*+\-E|]+(?:/[MGD*+\-E]+)*")
_ONLY_HYBRID = frozenset("MGD+-/")
"""Letters that no layout has."""


def layout_of_names(stages: Sequence[object]) -> str:
    """The layout of a list of names per stage.

    Raises InputError on an unknown name, and on numbered layers that are not in order.
    """
    letters: list[str] = []
    decoders = 0
    for stage, names in enumerate(stages):
        if isinstance(names, str) or not isinstance(names, Sequence):
            raise InputError(f"partition: stage {stage}: {names!r} is not a list of names")
        letters.append("")
        for name in names:
            text = str(name).strip()
            if (number := _NUMBERED.fullmatch(text)) is None:
                letters[-1] += _letter(text, stage)
                continue
            if int(number[1]) != decoders:
                raise InputError(
                    f"partition: stage {stage}: {text} is not the next layer, layers.{decoders}; "
                    "list every layer once, in order"
                )
            letters[-1] += "t"
            decoders += 1
    return "|".join(letters)


def _letter(name: str, stage: int) -> str:
    if name in {"E", "t", "m", "L"}:
        return name
    if name.lower() not in _LETTERS:
        raise InputError(
            f"partition: stage {stage}: {name!r} is no layer; use {', '.join(_LETTERS)} or layers.N"
        )
    return _LETTERS[name.lower()]


def layout_of_hybrid(text: str) -> str | None:
    """The layout of a pattern of a hybrid model, with its embedding and head; None: it is none."""
    if not _HYBRID.fullmatch(text) or _ONLY_HYBRID.isdisjoint(text):
        return None
    pattern, *predictions = text.split("/")
    stages = "|".join("t" * len(stage) for stage in pattern.split("|"))
    return f"E{stages}{'m' * len(predictions)}L"
