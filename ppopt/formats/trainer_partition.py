"""The partition of a model in layers, as Megatron-LM's arguments and as torchtitan's keys.

Both build embedding and head themselves: where a model has no layer of that role, it is named in
the first and in the last stage.

Megatron-LM (d98e8a6): `--pipeline-model-parallel-layout`, and what is checked of it, from
`validate_layer_layout` in megatron/core/transformer/pipeline_parallel_layer_layout.py. torchtitan
(b5bcd76): keys of `ParallelismConfig` in torchtitan/config/configs.py, module names of
`_generate_llm_fqn_per_model_part` and places of `_get_pp_rank_to_stage_indices_mapping` in
torchtitan/distributed/pipeline_parallel.py. Arguments of recompute: `_add_training_args` in
megatron/training/arguments.py of Megatron-LM.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import accumulate

from ppopt.errors import NotApplicableError
from ppopt.problem import layout, placement
from ppopt.problem.pipeline import Model, Pipeline

_ROLES = Sequence[Sequence[str]]
"""The role of every layer, stage by stage: the costs of layers play no part here."""
_ENDS = ("embedding", "head")


def megatron_arguments(pipeline: Pipeline) -> str:
    """Write the arguments of Megatron-LM that cut its model as the pipeline is cut, one a line.

    Where all of its layers recompute, so do these arguments say. Raises NotApplicableError where
    there are no layers, where Megatron-LM takes no such partition, or where only some layers
    recompute.
    """
    stages = _with_ends(pipeline, "Megatron-LM")
    devices = pipeline.num_devices
    if pipeline.hosts[0] != placement.named("interleaved", devices, len(stages) // devices):
        raise NotApplicableError(
            "megatron: it puts stage s on rank s mod ranks; solve with placement linear or "
            "interleaved"
        )
    mtp = _mtp_layers(stages, devices)
    decoders = sum(roles.count("decoder") for roles in stages)
    lines = [f"--num-layers {decoders}"]
    lines += [f"--mtp-num-layers {mtp}"] * (mtp > 0)
    lines.append(f"--pipeline-model-parallel-size {devices}")
    lines.append(f'--pipeline-model-parallel-layout "{layout.write_roles(stages)}"')
    lines += _megatron_recompute(pipeline.model)
    return "\n".join(lines) + "\n"


def _megatron_recompute(model: Model) -> list[str]:
    """Arguments of recompute; raises NotApplicableError where only some layers recompute."""
    recompute = [layer.recompute for layer in model.layers if layer.role not in _ENDS]
    if all(recompute):
        flags = "granularity full", "method uniform", "num-layers 1"
        return [f"--recompute-{flag}" for flag in flags]
    if any(layer.recompute for layer in model.layers):
        raise NotApplicableError(
            f"megatron: {recompute_words(model)}, and it has one choice for all of them; take "
            "recompute none or full"
        )
    return []


def recompute_words(model: Model) -> str:
    """How many layers recompute, in words; empty: none does."""
    number = sum(layer.recompute for layer in model.layers)
    if not number:
        return ""
    return f"{number} of {len(model.layers)} layers recompute"


def _mtp_layers(stages: _ROLES, devices: int) -> int:
    """Number of MTP layers; raises NotApplicableError where Megatron-LM refuses their place."""
    with_mtp = [stage for stage, roles in enumerate(stages) if "mtp" in roles]
    if not with_mtp:
        return 0
    roles = [role for stage in stages for role in stage]
    if "decoder" in roles[roles.index("mtp") :]:
        raise NotApplicableError("megatron: MTP layers come after all decoder layers")
    first_of_last = len(stages) - devices
    if len(with_mtp) > 1 or with_mtp[0] < first_of_last:
        raise NotApplicableError(
            f"megatron: MTP layers are in stages {', '.join(map(str, with_mtp))}; it takes them in "
            f"one stage, the last of its rank: one of {first_of_last} .. {len(stages) - 1}"
        )
    return roles.count("mtp")


def torchtitan_keys(pipeline: Pipeline, order: str = "") -> str:
    """Write the table `parallelism` of torchtitan, as TOML, that cuts its model as the pipeline is.

    The schedule named is one whose stages sit as the pipeline's do. `order` is the name of the file
    with the order, as PyTorch reads it. Raises NotApplicableError where torchtitan has no such
    module or place, and without `order` where there are no layers.
    """
    parts: list[list[str]] = []
    if pipeline.model is not None or not order:
        stages = _with_ends(pipeline, "torchtitan")
        parts = [[name for layer in stage for name in layer] for stage in _module_names(stages)]
    lines = [
        "[parallelism]",
        f"pipeline_parallel_degree = {pipeline.num_devices}",
        f'pipeline_parallel_schedule = "{_torchtitan_schedule(pipeline)}"',
    ]
    if order:
        lines += [f"pipeline_parallel_schedule_csv = {json.dumps(order)}"]
    lines += [
        "# torchtitan 0.3.0 and older: pipeline_parallel_microbatch_size = "
        f"local_batch_size / {pipeline.batches}",
        f"num_pp_microbatches = {pipeline.batches}",
    ]
    if pipeline.model is not None and recompute_words(pipeline.model):
        lines += [f"# {recompute_words(pipeline.model)}: set it as activation checkpointing"]
    if parts:
        lines += ["module_fqns_per_model_part = ["]
        lines += [f"    [{', '.join(map(_quoted, part))}]," for part in parts] + ["]"]
    return "\n".join(lines) + "\n"


def deepspeed_module(pipeline: Pipeline) -> str:
    """Write the subclass of DeepSpeed's PipelineModule that cuts its layers as the pipeline is cut.

    No `partition_method` of DeepSpeed takes counts of layers: `uniform`, `parameters` and
    `type:REGEX` balance weights. So the class sets the bounds that `_partition_layers` sets, for
    one layer spec per layer of the model, in its order (deepspeed/runtime/pipe/module.py of
    deepspeedai/DeepSpeed, 12e65a6). Raises NotApplicableError where there are no layers, or a
    rank would have more than one stage.
    """
    if pipeline.model is None:
        raise NotApplicableError("deepspeed cuts layers, and this schedule knows stages alone")
    devices = pipeline.num_devices
    if pipeline.routes > 1 or pipeline.hosts[0] != placement.named("linear", devices, 1):
        raise NotApplicableError(
            "deepspeed: it puts stage s on rank s; solve with placement linear"
        )
    parts = [0, *accumulate(pipeline.counts)]
    return (
        "from deepspeed.pipe import PipelineModule\n\n\n"
        "class PartitionedPipeline(PipelineModule):\n"
        f'    """{parts[-1]} layer specs over {devices} stages."""\n\n'
        "    def _partition_layers(self, method=None):\n"
        f"        self.parts = {parts}\n"
        "        self._set_bounds(self.parts[self.stage_id], self.parts[self.stage_id + 1])\n"
    )


def _quoted(name: str) -> str:
    return f'"{name}"'


def _module_names(stages: _ROLES) -> list[list[tuple[str, ...]]]:
    """Modules of torchtitan's language models for every layer of every stage."""
    number = iter(range(sum(map(len, stages))))
    names = []
    for roles in stages:
        if "mtp" in roles:
            raise NotApplicableError("torchtitan: its models have no MTP layers")
        names.append(
            [
                {"embedding": ("tok_embeddings",), "head": ("norm", "lm_head")}.get(role)
                or (f"layers.{next(number)}",)
                for role in roles
            ]
        )
    return names


def _torchtitan_schedule(pipeline: Pipeline) -> str:
    """A schedule of torchtitan whose stages sit where the pipeline's do."""
    devices, chunks = pipeline.num_devices, pipeline.num_stages // pipeline.num_devices
    looped, v = (placement.named(name, devices, chunks) for name in ("interleaved", "v"))
    if pipeline.hosts[0] == looped:
        return "1F1B" if chunks == 1 else "Interleaved1F1B"
    if pipeline.hosts[0] == v and chunks == 2:
        return "ZBVZeroBubble"
    raise NotApplicableError(
        "torchtitan: stage s sits on rank s mod ranks, or in a V of two per rank; solve with "
        "placement linear, interleaved or v, or run this one with ppopt.torch.runtime"
    )


def _with_ends(pipeline: Pipeline, trainer: str) -> _ROLES:
    """Roles of the layers of every stage, embedding first and head last."""
    if pipeline.model is None:
        raise NotApplicableError(
            f"{trainer} cuts layers, and this schedule knows stages alone; solve a model in layers"
        )
    if pipeline.routes > 1:
        raise NotApplicableError(f"{trainer} runs one route; solve with --routes 1")
    layers = pipeline.model.stage_layers(pipeline.counts)
    stages = [[layer.role for layer in stage] for stage in layers]
    roles = [role for stage in stages for role in stage]
    for role, place in zip(_ENDS, (0, len(roles) - 1), strict=True):
        at = [index for index, one in enumerate(roles) if one == role]
        if at not in ([], [place]):
            end = "first" if place == 0 else "last"
            raise NotApplicableError(f"{trainer}: the {role} is one layer, the {end}; it is {at}")
    stages[0][:0] = ["embedding"] * (roles[0] != "embedding")
    stages[-1] += ["head"] * (roles[-1] != "head")
    return stages
