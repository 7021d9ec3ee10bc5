"""Write derived costs as a model file in layers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

from ppopt.derivation.gpus import Gpu
from ppopt.derivation.layer_costs import DerivedLayer, DerivedModule
from ppopt.derivation.training import Training
from ppopt.problem.training_sizes import TEXTS, TrainingSizes


class ModelFile(NamedTuple):
    """The content of a model file."""

    description: str
    source: str
    training: Training
    gpu: Gpu
    layers: Sequence[DerivedLayer]
    sizes: TrainingSizes
    transfer: str
    """The line of the transfer between devices, as YAML."""
    comments: Sequence[str] = ()
    """The derivation of its figures, one line each."""
    settings: Sequence[str] = ()
    """Other settings, one line of YAML each."""

    def text(self) -> str:
        """Write the file."""
        training, peak = self.training, self.gpu.peak(self.training.precision)
        return "\n".join(
            [
                f"description: {self.description}",
                f"source: {self.source}",
                "time_unit: ms",
                "memory_unit: MiB",
                "",
                *(f"# {line}" if line else "#" for line in self.comments),
                f"stages: {training.devices}",
                f"batches: {training.batches}",
                f"training: {{{self._sizes()}}}",
                f"tokens_per_microbatch: {training.all_tokens}",
                f"flops_per_microbatch: {round(sum(row.count * row.flops for row in self.layers))}",
                f"peak_flops: {round(training.tensor * training.context * peak)}",
                self.transfer,
                *self.settings,
                "",
                "layers:",
                *map(layer_text, self.layers),
                "",
            ]
        )

    def _sizes(self) -> str:
        """Entries of the sizes on one line, those of lists of text on further lines."""
        entries = self.sizes.in_file()
        sizes = [f"{name}: {size}" for name, size in entries.items() if name not in TEXTS]
        texts = [f"{name}: {json.dumps(entries[name])}" for name in TEXTS if name in entries]
        return ",\n  ".join([", ".join(sizes), *texts])


def layer_text(layer: DerivedLayer) -> str:
    """Write a layer as an entry of the list, in YAML."""
    fields = [f"name: {layer.name}", f"role: {layer.role}", f"count: {layer.count}"]
    fields = [field for field in fields if field not in ("role: decoder", "count: 1")]
    fields += [f"forward: {layer.forward}", f"backward: {layer.backward}"]
    fields += [f"weight: {layer.weight}"]
    if layer.input != round(layer.backward - layer.weight, 3):
        fields.append(f"input: {layer.input}")
    fields += [f"activation: {layer.activation}", f"static: {layer.static}"]
    if layer.output:
        fields.append(f"output: {layer.output:g}")
    if any(layer.workspace):
        first, back = layer.workspace
        fields.append(f"workspace: {{F: {first}, B: {back}, BW: {back}}}")
    if layer.recompute != layer.forward:
        fields.append(f"recompute_time: {layer.recompute}")
    if layer.stashed:
        fields.append(f"kept: {layer.stashed}")
    if layer.modules:
        fields.append(f"modules: [{', '.join(map(_module_text, layer.modules))}]")
    fields += [f"{name}: {cost}" for name, cost in layer.step._asdict().items() if cost]
    if layer.frozen:
        fields.append("frozen: true")
    return f"  - {{{', '.join(fields)}}}"


def _module_text(module: DerivedModule) -> str:
    inside = f", inside: {module.inside}" if module.inside else ""
    return f"{{name: {module.name}, time: {module.time}, memory: {module.memory}{inside}}}"
