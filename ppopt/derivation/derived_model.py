"""A model in layers derived from a config.json, a GPU and a training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import floor, isfinite
from pathlib import Path
from typing import Any

from ppopt.derivation.architecture import Architecture
from ppopt.derivation.config_json import architecture_of, config_file, read_architecture
from ppopt.derivation.derived_layer import DerivedLayer
from ppopt.derivation.gpus import Gpu, Precision, gpu_named
from ppopt.derivation.layer_costs import AS_DERIVED, Costing, Scale
from ppopt.derivation.megatron_arguments import sizes_of
from ppopt.derivation.model_file import ModelFile
from ppopt.derivation.training import Training
from ppopt.errors import InputError
from ppopt.formats.config import model_of, pipeline_of, settings_of
from ppopt.problem.pipeline import Model, Pipeline

USABLE = 0.92
"""Share of a GPU's memory that a schedule may allocate: PyTorch reserves 1.03 to 1.09 times as much
(16 runs of Megatron-LM), and CUDA and NCCL need some."""


@dataclass(frozen=True)
class DerivedModel:
    """A model in layers whose costs are derived from its dimensions; nothing is measured.

    `pipeline` is the pipeline that trains it, `model` its layers, and `text` the model file with
    both. Raises InputError if the ranks of the training cannot share the architecture, or if it has
    too few layers for the devices.
    """

    architecture: Architecture
    training: Training
    gpu: Gpu
    efficiency: float | None = None
    """Share of the GPU's dense peak that large products of matrices reach, in 0 .. 1; None: that of
    the GPU. Those of attention and of experts scale with it."""
    scale: Scale = AS_DERIVED
    """Factors of calibration on times."""
    calibration: str = ""
    """The source of the factors."""
    partition: str | Sequence[int] | None = None
    """Layout or counts of the stages, as in a config; None: balanced."""
    link: str | None = None
    """Link between devices, as for `--link`; None: that of the GPU, in a node or between nodes."""
    origin: str = "config.json"
    """The file of the dimensions."""
    explaining_command: str = ""
    """The command that lists the kernels and collectives, for the comments of the file; empty: the
    model does not come from the command line."""

    def __post_init__(self) -> None:
        share = self.efficiency
        if share is not None and not (isfinite(share) and 0 < share <= 1):
            raise InputError(
                f"efficiency: {share:g} is not within 0 .. 1; it is the share of the GPU's peak "
                "that products of matrices reach, about 0.6"
            )
        self.gpu.peak(self.training.precision)
        self.training.check(self.architecture)
        _ = self.pipeline

    def __getstate__(self) -> dict[str, Any]:
        """What other processes need; the pipeline, which is large, is derived again."""
        large = ("pipeline", "_file_settings", "_file")
        return {name: value for name, value in vars(self).items() if name not in large}

    def __repr__(self) -> str:
        return (
            f"<DerivedModel {self.architecture.name}, {self.parameters:,} parameters, "
            f"{self.training.gpus} x {self.gpu.name}>"
        )

    @property
    def parameters(self) -> int:
        """Parameters, norms and biases included, prediction modules left out."""
        return self.architecture.parameters

    @cached_property
    def layers(self) -> tuple[DerivedLayer, ...]:
        """Costs of the layers in forward order, equal ones once."""
        return tuple(self.costing.layers(self.architecture))

    @cached_property
    def costing(self) -> Costing:
        """The costs of layers for this training and GPU."""
        return Costing.of(self.training, self._gpu, self.scale)

    @property
    def _gpu(self) -> Gpu:
        """The GPU with the requested efficiency."""
        if self.efficiency is None:
            return self.gpu
        factor = self.efficiency / self.gpu.matrix_efficiency
        names = (
            *("matrix_efficiency", "grouped_efficiency"),
            *("attention_efficiency", "attention_backward_efficiency"),
        )
        shares = {name: min(1.0, factor * getattr(self.gpu, name)) for name in names}
        return replace(self.gpu, **shares)

    @property
    def text(self) -> str:
        """The model file, which `--config` reads."""
        remarks = {
            **({} if self.link else {"link": "MiB per ms"}),
            "mem_limit": f"{USABLE:.0%} of the {self.gpu.memory:g} GiB of a {self.gpu.name}: "
            "PyTorch reserves more than it allocates",
            "attention_share": "for `microbatch_tokens`, or slices",
        }
        return replace(self._file, comments=self._comments(), remarks=remarks).text()

    @cached_property
    def _file(self) -> ModelFile:
        """The model file without its comments."""
        return ModelFile(
            description=f"{self.architecture.name}, {self.parameters:,} parameters, on "
            f"{self.training.gpus} x {self.gpu.name}",
            source=f"derived from {self.origin} by `ppopt init`, not measured",
            training=self.training,
            gpu=self.gpu,
            layers=self.layers,
            sizes=sizes_of(self.training, self.architecture),
            settings={**self._transfer(), **self._settings()},
        )

    @cached_property
    def pipeline(self) -> Pipeline:
        """The pipeline that the model file describes."""
        return pipeline_of(self._file_settings)

    @property
    def model(self) -> Model:
        """The layers that the model file describes."""
        return model_of(self._file_settings)

    @cached_property
    def _file_settings(self) -> dict[str, Any]:
        return settings_of(self._file.document, "derived model")

    def _transfer(self) -> dict[str, Any]:
        """The setting of a transfer between devices."""
        if self.link is not None:
            return {"link": self.link}
        return self.costing.transfers(layer.output for layer in self.layers[:-1])

    @cached_property
    def attention_share(self) -> float | None:
        """Share of F and BW of all layers that grows with the square of a sequence's length.

        It is half the second difference of the times of attention for one, two and three times the
        length. None: a microbatch has several sequences, so that its times are not those of one
        document, or a sequence of an encoder besides.
        """
        if self.training.microbatch != 1 or self.architecture.source:
            return None
        once, twice, thrice = (
            Costing.of(
                replace(self.training, sequence=times * self.training.sequence),
                self._gpu,
                self.scale,
            ).attention(self.architecture)
            for times in (1, 2, 3)
        )
        whole = sum(layer.count * (layer.forward + layer.backward) for layer in self.layers)
        return min(1.0, max(0.0, (thrice - 2 * twice + once) / (2 * whole)))

    def _settings(self) -> dict[str, Any]:
        """Memory limit, partition, and what microbatches with different lengths need."""
        settings: dict[str, Any] = {"mem_limit": floor(USABLE * self.gpu.memory * 1024)}
        if self.partition is not None:
            is_text = isinstance(self.partition, str)
            settings["partition"] = self.partition if is_text else list(self.partition)
        if self.attention_share is not None:
            settings["attention_share"] = round(self.attention_share, 4)
            settings["reference_tokens"] = self.training.sequence
        return settings

    def _comments(self) -> list[str]:
        training, gpu = self.training, self.costing.gpu
        peak = gpu.peak(training.precision) / 1e12
        products = f"{peak:g} TFLOP/s ({gpu.name}, {training.precision})"
        if training.precision is not Precision.BF16:
            products += f", attention at {gpu.bf16 / 1e12:g} (bf16)"
        predictions, origin = "", gpu.origins["matrix_efficiency"]
        if self.architecture.predictions:
            each = self.architecture.prediction_parameters
            predictions = f"; {each:,} more in each prediction module"
        basis = "as given" if self.efficiency is not None else f"{origin.basis}: {origin.source}"
        use = "times are scaled to measured steps" if self.calibration else "nothing was measured"
        return [
            f"All figures are computed from the dimensions; {use} on this model.",
            f"parameters: {self.parameters:,}, norms and biases included{predictions}",
            f"training: {training.gpus} GPUs, parallelism: {training.describe_parallelism()}; ZeRO "
            f"{training.zero}; {training.framework}",
            f"microbatch: {training.microbatch} x {training.sequence} tokens{self._encoder_tokens}",
            *self.architecture.notes,
            *self._origin_of_times(),
            f"efficiencies of the GPU: matrices reach {gpu.matrix_efficiency:.3g} of {products},",
            f"  attention {gpu.attention_efficiency:.3g}, experts {gpu.grouped_efficiency:.3g};",
            f"  {basis}",
            *([f"calibrated: {self.calibration}"] if self.calibration else []),
            "activation: 2 bytes for each element that the backward reads, nothing recomputed",
            *self._storage(),
            *self._imbalance(),
            f"static: {self._static()}",
            "output: 2 bytes for each output element of a layer; workspace: gradients alive at",
            "  once, and logits; kept: what a layer that recomputes keeps, its input",
            "unshard, gradient_sync, optimizer: once per step",
            *self._tied(),
        ]

    @property
    def _encoder_tokens(self) -> str:
        """A phrase on the tokens of an encoder of words."""
        each = self.training.encoder_tokens
        return f", and {each} each of the encoder" if self.architecture.source else ""

    def _origin_of_times(self) -> list[str]:
        """Lines on the times of layers, with the command that lists their parts."""
        if not self.explaining_command:
            return ["forward, backward, weight, input: kernels and exposed collectives"]
        return [
            "forward, backward, weight, input: kernels and exposed collectives, as listed by",
            f"  {self.explaining_command}",
        ]

    def _tied(self) -> list[str]:
        """Lines on a head that shares its matrix with the embedding on another stage."""
        stages_share = self.architecture.tied and self.training.devices > 1
        if not stages_share or self.layers[-1].frozen:
            return []
        return [
            "head: its matrix is that of the embedding (tied); its gradient_sync includes the",
            "  all-reduce of this gradient between the first and the last stage",
        ]

    def _imbalance(self) -> list[str]:
        """A line on the load of experts, if tokens are not spread evenly."""
        factor = self.training.imbalance
        if not self.architecture.has_experts or factor == 1:
            return []
        return [
            f"experts: the rank with the largest load has {factor:.4g} times the mean of tokens,",
            "  in time, exchange and memory",
        ]

    def _storage(self) -> list[str]:
        """A line on what products in FP8 keep, if they do not keep BF16."""
        training, layouts = self.training, self.gpu.fp8_layouts
        storage = training.storage(layouts)
        if storage == training.storage(layouts, in_bf16=True):
            return []
        name = "NVFP4" if training.precision is Precision.NVFP4 else f"FP8, {training.fp8_recipe}"
        return [
            f"{name}: {storage.element:.4g} bytes for an element of the input "
            f"of a product, {storage.parameter:.4g} for a parameter",
            "  with its copies, in place of 2; embedding, router and head stay in BF16",
        ]

    def _static(self) -> str:
        """A description of the static memory."""
        training, style = self.training, self.training.style
        shards = {3: "all", 2: "gradients and states", 1: "states"}
        text = f"{style.parameter} + {style.gradient} + {style.state} bytes a parameter"
        text += ": parameter, gradient and optimizer states"
        if training.zero and training.ranks > 1:
            text += f"; {shards[training.zero]} sharded over {training.ranks} ranks"
        if training.expert > 1:
            text += f"; experts over {training.expert}"
        return text


def derive_model(
    config: str | Path | Mapping[str, object],
    *,
    gpu: str,
    efficiency: float | None = None,
    partition: str | Sequence[int] | None = None,
    link: str | None = None,
    **training: Any,
) -> DerivedModel:
    """Derive a model in layers from the dimensions of a config.json.

    `config` is the file of a Hugging Face model, the folder of the model, or the content of the
    file. `training` are the fields of `Training`: devices, batches, tensor, context, data, expert,
    sequence, microbatch, precision, framework, zero and others. `partition` and `link` are as for
    `ppopt.Pipeline`. The formulas, each with its source, are those of `ppopt.derivation`. Raises
    InputError on an unknown architecture or GPU, on a missing key, and if the ranks cannot share
    the model.
    """
    if isinstance(config, Mapping):
        architecture, origin = architecture_of(config), "a configuration"
    else:
        architecture, origin = read_architecture(Path(config)), config_file(Path(config)).name
    return DerivedModel(
        architecture=architecture,
        training=Training(**training),
        gpu=gpu_named(gpu),
        efficiency=efficiency,
        partition=partition,
        link=link,
        origin=origin,
    )
