"""Derived costs as a model file in layers: its settings, and its text with comments."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import starmap
from typing import Any

from ppopt.derivation.derived_layer import DerivedLayer, DerivedModule
from ppopt.derivation.gpus import Gpu
from ppopt.derivation.training import Training
from ppopt.problem.layer_settings import DECODER
from ppopt.problem.training_sizes import TEXTS, TrainingSizes

QUOTED = ("description", "source", "link", "partition", *TEXTS)
"""Settings whose text is in quotes."""
UNITS = {"time_unit": "ms", "memory_unit": "MiB"}


@dataclass(frozen=True)
class ModelFile:
    """The content of a model file."""

    description: str
    source: str
    training: Training
    gpu: Gpu
    layers: Sequence[DerivedLayer]
    sizes: TrainingSizes
    settings: Mapping[str, Any]
    """Other settings: the transfer between devices, and further ones."""
    remarks: Mapping[str, str] = field(default_factory=dict)
    """Comments behind settings."""
    comments: Sequence[str] = ()
    """The derivation of its figures, one line each."""

    @cached_property
    def document(self) -> dict[str, Any]:
        """The settings of the file."""
        training, peak = self.training, self.gpu.peak(self.training.precision)
        return {
            "description": self.description,
            "source": self.source,
            **UNITS,
            "stages": training.devices,
            "batches": training.batches,
            "training": self.sizes.in_file(),
            "tokens_per_microbatch": training.all_tokens,
            "flops_per_microbatch": round(sum(row.count * row.flops for row in self.layers)),
            "peak_flops": round(training.tensor * training.context * peak),
            **self.settings,
            "layers": list(map(layer_settings, self.layers)),
        }

    def text(self) -> str:
        """Write the file."""
        lines = [
            _entry(key, value) + (f"  # {self.remarks[key]}" if key in self.remarks else "")
            for key, value in self.document.items()
            if key != "layers"
        ]
        head = 2 + len(UNITS)
        return "\n".join(
            [
                *lines[:head],
                "",
                *(f"# {line}" if line else "#" for line in self.comments),
                *lines[head:],
                "",
                "layers:",
                *(f"  - {_text(layer)}" for layer in self.document["layers"]),
                "",
            ]
        )


def _entry(key: str, value: object) -> str:
    is_quoted = key in QUOTED and not isinstance(value, Mapping)
    return f"{key}: {json.dumps(value) if is_quoted else _text(value)}"


def _text(value: object) -> str:
    """A value in YAML; texts of a training are on lines of their own."""
    if isinstance(value, Mapping):
        separators = (",\n  " if key in TEXTS else ", " for key in value)
        entries = map("".join, zip(separators, starmap(_entry, value.items()), strict=True))
        return f"{{{''.join(entries)[2:]}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_text, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def layer_settings(layer: DerivedLayer) -> dict[str, Any]:
    """A layer as an entry of the list in a file."""
    settings: dict[str, Any] = {"name": layer.name}
    if layer.role != DECODER:
        settings["role"] = layer.role
    if layer.count > 1:
        settings["count"] = layer.count
    settings |= _times(layer)
    settings |= {"activation": layer.activation, "static": layer.static}
    if layer.output:
        settings["output"] = layer.output
    if any(layer.workspace):
        first, back = layer.workspace
        settings["workspace"] = {"F": first, "B": back, "BW": back}
    if layer.recompute != layer.forward:
        settings["recompute_time"] = layer.recompute
    optional = {"kept": layer.stashed, "offload_time": layer.offload}
    settings |= {name: amount for name, amount in optional.items() if amount}
    if layer.modules:
        settings["modules"] = list(map(_module_settings, layer.modules))
    settings |= {name: cost for name, cost in layer.step._asdict().items() if cost}
    return settings | ({"frozen": True} if layer.frozen else {})


def _times(layer: DerivedLayer) -> dict[str, Any]:
    """The times of F, B, W and BW, or the phases that they follow from."""
    if layer.phases:
        return {"phases": layer.phases.in_file}
    times = {name: getattr(layer, name) for name in ("forward", "backward", "weight")}
    is_sum = layer.input == round(layer.backward - layer.weight, 3)
    return times if is_sum else times | {"input": layer.input}


def _module_settings(module: DerivedModule) -> dict[str, Any]:
    settings: dict[str, Any] = {"name": module.name}
    if module.time is not None:
        settings |= {"time": module.time, "memory": module.memory}
    if module.offload_time:
        moves = {"offload_time": module.offload_time, "offload_memory": module.offload_memory}
        settings |= moves
    return settings | ({"inside": module.inside} if module.inside else {})
