"""Partitions in the files of trainers: those that exports write, and configurations by hand.

A TOML, YAML or JSON file has one of `KEYS` at any depth; any other file is text with an argument of
Megatron-LM, `--pipeline-model-parallel-layout "Et|tL"` or `--hybrid-layer-pattern "M-|M*"`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ppopt.errors import InputError
from ppopt.formats.config import SUFFIXES
from ppopt.formats.documents import label, members, read_text

KEYS = (
    "module_fqns_per_model_part",
    "pipeline_model_parallel_layout",
    "hybrid_layer_pattern",
)
"""Keys of torchtitan, and of Megatron-LM, Megatron-Bridge and Primus."""
TEXTS = (".txt", ".sh", ".args")
"""Suffixes of files with arguments."""
LARGEST_FILE = 2**24
_ARGUMENT = re.compile(
    r"--(?:pipeline-model-parallel-layout|hybrid-layer-pattern)(?:\s+|=)"
    r"(\"[^\"\n]*\"|'[^'\n]*'|[^\s\"']+)"
)


def read_partition(path: Path) -> Any:
    """The partition in a file of a trainer: a layout, a pattern, or names per stage.

    Raises InputError, naming the file, if it has none or several.
    """
    where = label(path)
    text = read_text(path, LARGEST_FILE)
    parse = SUFFIXES.get(path.suffix.lower())
    if parse is not None:
        stated = members(parse(text, where))
        partitions = [value for key, value in stated if key in KEYS and value is not None]
    else:
        partitions = [match.strip("\"'") for match in _ARGUMENT.findall(text)]
    if len(partitions) != 1:
        arguments = "--pipeline-model-parallel-layout, --hybrid-layer-pattern"
        sought = ", ".join(KEYS) if parse else arguments
        how_many = f"{len(partitions)} partitions" if partitions else "no partition"
        raise InputError(f"partition: {where} has {how_many}; give a file with one of {sought}")
    return partitions[0]
