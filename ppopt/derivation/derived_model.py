"""A model in layers derived from a config.json, a GPU and a training."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from pathlib import Path
from typing import Any

from ppopt.derivation.architecture import Architecture
from ppopt.derivation.config_json import architecture_of, config_file, read_architecture
from ppopt.derivation.gpus import Gpu, Precision, gpu_named
from ppopt.derivation.layer_costs import EFFICIENCY, Costing, LayerCosts
from ppopt.derivation.model_file import LINK, ModelFile
from ppopt.derivation.training import Training
from ppopt.errors import InputError
from ppopt.formats.config import model_of, parse_config, pipeline_of
from ppopt.problem.pipeline import Model, Pipeline

ASSUMED = "Llama 3 reports 0.38 to 0.43 (arXiv 2407.21783, Table 4); --calibrate sets your own"
GIVEN = "as given"


@dataclass(frozen=True)
class DerivedModel:
    """A model in layers whose costs are derived from its dimensions; nothing is measured.

    `pipeline` is the pipeline that trains it, `model` its layers, and `text` the model file that
    holds both. Raises InputError if the ranks of the training cannot share the architecture, or
    if it has too few layers for the devices.
    """

    architecture: Architecture
    training: Training
    gpu: Gpu
    efficiency: float = EFFICIENCY
    """Share of the GPU's dense peak that the work runs at, in 0 .. 1."""
    reason: str = ASSUMED
    """Where the efficiency comes from."""
    partition: str | Sequence[int] | None = None
    """Layout or counts of the stages, as a config has them; None: balanced."""
    link: str | None = None
    """Link between devices, as `--link` takes it; None: `LINK`."""
    origin: str = "config.json"
    """The file of the dimensions."""

    def __post_init__(self) -> None:
        if not (isfinite(self.efficiency) and 0 < self.efficiency <= 1):
            raise InputError(
                f"efficiency: {self.efficiency:g} is not within 0 .. 1; it is the share of the "
                "GPU's peak, about 0.4"
            )
        self.gpu.peak(self.training.precision)
        self.training.check(self.architecture)
        _ = self.pipeline

    def __repr__(self) -> str:
        return (
            f"<DerivedModel {self.architecture.name}, {self.parameters:,} parameters, "
            f"{self.training.gpus} x {self.gpu.name} at {self.efficiency:g} of the peak>"
        )

    @property
    def parameters(self) -> int:
        """Parameters, norms and biases included, prediction modules left out."""
        return self.architecture.parameters

    @cached_property
    def layers(self) -> tuple[LayerCosts, ...]:
        """Costs of the layers in forward order, equal ones once."""
        costing = Costing(self.training, self.gpu, self.efficiency)
        return tuple(costing.layers(self.architecture))

    @cached_property
    def text(self) -> str:
        """The model file, which `--config` reads."""
        return ModelFile(
            description=json.dumps(self._description()),
            source=json.dumps(f"derived from {self.origin} by `ppopt init`, not measured"),
            training=self.training,
            gpu=self.gpu,
            layers=self.layers,
            comments=self._comments(),
            settings=self._settings(),
            link=LINK if self.link is None else json.dumps(self.link),
        ).text()

    @cached_property
    def pipeline(self) -> Pipeline:
        """The pipeline that the model file describes."""
        return pipeline_of(self._parsed)

    @property
    def model(self) -> Model:
        """The layers that the model file describes."""
        return model_of(self._parsed)

    @cached_property
    def _parsed(self) -> dict[str, Any]:
        return parse_config(self.text, ".yaml", "derived model")

    def _description(self) -> str:
        training = self.training
        return (
            f"{self.architecture.name}, {self.parameters:,} parameters, on {training.gpus} x "
            f"{self.gpu.name}"
        )

    def _settings(self) -> list[str]:
        limit = f"mem_limit: {self.gpu.memory * 1024}  # {self.gpu.memory} GiB, all that a"
        return [
            f"{limit} {self.gpu.name} has; lower it by what the framework takes",
            *([] if self.partition is None else [f"partition: {json.dumps(self.partition)}"]),
        ]

    def _comments(self) -> list[str]:
        training, gpu = self.training, self.gpu
        peak = gpu.peak(training.precision) / 1e12
        products = f"{peak:g} TFLOP/s ({gpu.name}, {training.precision})"
        if training.precision is not Precision.BF16:
            products += f", attention at {gpu.bf16 / 1e12:g} (bf16)"
        return [
            "Every figure below is derived from published dimensions, none is measured.",
            f"parameters: {self.parameters:,}, norms and biases included{self._predictions()}",
            f"training: {training.gpus} GPUs, parallelism: {training.words()}",
            f"microbatch: {training.microbatch} x {training.sequence} tokens",
            f"forward, backward, weight: FLOPs / (peak x {self.efficiency:g}); the peak is",
            f"  {products}. Per token and parameter 2 FLOPs in F, in B and in W;",
            "  attention beside them, 2.5 times as much in B. Of the embedding: memory traffic.",
            f"  {self.efficiency:g}: {self.reason}",
            f"  peak: {gpu.origins['bf16'].source}",
            "activation: 2 bytes for each element that the backward reads, nothing recomputed",
            f"static: 6 + 12 / {training.ranks} bytes a parameter: parameters in BF16, gradients",
            f"  in FP32, optimizer states sharded over {training.ranks} ranks"
            + (f"; experts over {training.expert}" if training.expert > 1 else ""),
            "output: 2 bytes for each output element of a layer; workspace: gradients alive at",
            "  once, and logits; kept: what a layer that recomputes keeps, its input",
            "Not in it: norms, activation functions, communication but for `link`, the optimizer.",
        ]

    def _predictions(self) -> str:
        architecture = self.architecture
        if not architecture.predictions:
            return ""
        return f"; {architecture.prediction_parameters:,} more in each prediction module"


def derive_model(
    config: str | Path | Mapping[str, Any],
    *,
    gpu: str,
    efficiency: float | None = None,
    partition: str | Sequence[int] | None = None,
    link: str | None = None,
    **training: Any,
) -> DerivedModel:
    """Derive a model in layers from the dimensions of a config.json.

    `config` is the file of a Hugging Face model, the folder of the model, or what the file holds.
    `training` are the fields of `Training`: devices, batches, tensor, context, data, expert,
    sequence, microbatch, precision. `partition` and `link` are as `ppopt.Pipeline` takes them. The
    formulas, each with its source, are those of `ppopt.derivation`. Raises InputError on an unknown
    architecture or GPU, on a key that is missing, and where the ranks cannot share the model.
    """
    if isinstance(config, Mapping):
        architecture, origin = architecture_of(config), "a configuration"
    else:
        architecture, origin = read_architecture(Path(config)), config_file(Path(config)).name
    return DerivedModel(
        architecture=architecture,
        training=Training(**training),
        gpu=gpu_named(gpu),
        efficiency=EFFICIENCY if efficiency is None else efficiency,
        reason=ASSUMED if efficiency is None else GIVEN,
        partition=partition,
        link=link,
        origin=origin,
    )
