"""The partition of a model in layers, its recompute and the order, as torchtitan's configuration.

Keys of `ParallelismConfig` in torchtitan/config/configs.py (b5bcd76), module names of
`_generate_llm_fqn_per_model_part` and places of `_get_pp_rank_to_stage_indices_mapping` in
torchtitan/distributed/pipeline_parallel.py; `activation_checkpoint` of `Trainer.Config` and
`ActivationCheckpointingConfig` of torchtitan 0.3.0, and `ActivationCheckpointConfig.mode` before.
"""

from __future__ import annotations

import json
from pathlib import Path

from ppopt.errors import InputError, NotApplicableError
from ppopt.formats.loader_order import describe_loader_order
from ppopt.formats.torch_csv import order_csv
from ppopt.formats.trainer_partition import (
    Roles,
    check_no_stage_is_empty,
    named_placement,
    recompute_of,
    roles_with_ends,
)
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.schedule import Schedule


def torchtitan_files(schedule: Schedule, path: Path) -> dict[Path, str]:
    """The tables of torchtitan, and in a second file, with the suffix .csv, the order.

    Raises InputError if the tables would have that suffix, and errors as `torch_csv.order_csv` and
    `torchtitan_keys`.
    """
    order = path.with_suffix(".csv")
    if order == path:
        raise InputError(f"output: {path}: the order goes there; end the name in .toml")
    loader = describe_loader_order(schedule)
    keys = torchtitan_keys(schedule.pipeline, order.name)
    return {order: order_csv(schedule), path: keys + (loader and f"# {loader}\n")}


def torchtitan_keys(pipeline: Pipeline, order: str = "") -> str:
    """Write tables of torchtitan, as TOML, with the pipeline's partition and recompute.

    The schedule named is one with the pipeline's placement. `order` is the name of the file with
    the order, as PyTorch reads it. Raises NotApplicableError if torchtitan has no such module,
    placement or recompute, and without `order` if there are no layers.
    """
    name = f'pipeline_parallel_schedule = "{_schedule_name(pipeline)}"'
    lines = ["[parallelism]", f"pipeline_parallel_degree = {pipeline.num_devices}", name]
    if order:
        lines[-1:] = [
            "# the name places the stages; the order that runs is that of the file",
            name,
            f"pipeline_parallel_schedule_csv = {json.dumps(order)}",
        ]
    lines += [
        "# torchtitan 0.3.0 and older: pipeline_parallel_microbatch_size = "
        f"local_batch_size / {pipeline.batches}",
        f"num_pp_microbatches = {pipeline.batches}",
    ]
    if pipeline.model is not None or not order:
        lines += _model_keys(pipeline)
    return "\n".join(lines) + "\n"


def _model_keys(pipeline: Pipeline) -> list[str]:
    """The modules of every stage, and whether they recompute: torchtitan's default is selective."""
    stages = _module_names(roles_with_ends(pipeline, "torchtitan"))
    parts = ([f'"{name}"' for layer in stage for name in layer] for stage in stages)
    full = recompute_of(pipeline.model, "torchtitan")
    mode, policy = ("full", "FullAC.Config()") if full else ("none", "None")
    return [
        "module_fqns_per_model_part = [",
        *(f"    [{', '.join(part)}]," for part in parts),
        "]",
        "",
        "[activation_checkpoint]",
        f"# torchtitan 0.3.0 and newer: activation_checkpoint={policy} in place of the mode",
        f'mode = "{mode}"',
    ]


def _module_names(stages: Roles) -> list[list[tuple[str, ...]]]:
    """Modules of torchtitan's language models for every layer of every stage."""
    check_no_stage_is_empty([len(roles) for roles in stages], "torchtitan")
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


def _schedule_name(pipeline: Pipeline) -> str:
    """A schedule of torchtitan with the pipeline's placement."""
    names = {"linear": "1F1B", "interleaved": "Interleaved1F1B", "v": "ZBVZeroBubble"}
    return names[
        named_placement(pipeline, "torchtitan", ", or run this one with ppopt.torch.runtime")
    ]
