"""What the ranks of a world do with torchtitan's own functions."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

WIDTH, SAMPLES = 8, 2


class Decoder(nn.Module):
    """A model as torchtitan cuts them: it runs without the parts that were taken out."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.tok_embeddings: Any = nn.Linear(WIDTH, WIDTH, dtype=torch.float64)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, WIDTH, dtype=torch.float64), nn.Tanh())
            for _ in range(layers)
        )
        self.norm: Any = nn.Linear(WIDTH, WIDTH, dtype=torch.float64)
        self.lm_head: Any = nn.Linear(WIDTH, WIDTH, dtype=torch.float64)

    def forward(self, tensor: Any) -> Any:
        for part in (self.tok_embeddings, *self.layers, self.norm, self.lm_head):
            tensor = tensor if part is None else part(tensor)
        return tensor


def loss(output: Any, target: Any) -> tuple[Any, Any]:
    """As torchtitan's losses: the value, and more."""
    return nn.functional.mse_loss(output, target), None


def trained(rank: int, config: Path, layers: int, name: str | None) -> float:
    """Largest difference of a gradient from one process, after torchtitan built and ran all.

    `name` takes the place of the schedule that the configuration names.
    """
    from torchtitan.config import ParallelismConfig  # noqa: PLC0415  not installed everywhere
    from torchtitan.distributed.pipeline_parallel import (  # noqa: PLC0415
        _build_pipeline_schedule,
        _pipeline_module_split,
    )

    keys = tomllib.loads(config.read_text(encoding="utf-8"))["parallelism"]
    microbatches = keys.pop("num_pp_microbatches")  # 0.3.0 has the size instead
    keys["pipeline_parallel_schedule_csv"] = str(
        config.with_name(keys["pipeline_parallel_schedule_csv"])
    )
    keys["pipeline_parallel_schedule"] = name or keys["pipeline_parallel_schedule"]
    parallelism = ParallelismConfig(**keys, pipeline_parallel_microbatch_size=SAMPLES)
    ranks = parallelism.pipeline_parallel_degree
    size = torch.distributed.get_world_size()
    mesh = init_device_mesh("cpu", (size // ranks, ranks), mesh_dim_names=("dp", "pp"))["pp"]
    stages, modules = _pipeline_module_split(
        Decoder(layers),
        mesh,
        parallelism.pipeline_parallel_schedule,
        torch.device("cpu"),
        parallelism.module_fqns_per_model_part,
    )
    schedule = _build_pipeline_schedule(
        parallelism=parallelism,
        local_batch_size=microbatches * SAMPLES,
        stages=stages,
        loss_fn=loss,
    )
    torch.manual_seed(2)
    inputs, target = torch.randn((2, microbatches * SAMPLES, WIDTH), dtype=torch.float64)
    arguments = (inputs,) if any(stage.is_first for stage in stages) else ()
    last = any(stage.is_last for stage in stages)
    schedule.step(*arguments, target=target if last else None, losses=[] if last else None)
    return _difference(stages, modules, layers, keys, inputs, target, microbatches)


def _difference(
    stages: Any, modules: Any, layers: int, keys: Any, inputs: Any, target: Any, microbatches: int
) -> float:
    whole = Decoder(layers)
    for part, right in zip(inputs.chunk(microbatches), target.chunk(microbatches), strict=True):
        loss(whole(part), right)[0].backward()
    wanted = {name: weight.grad for name, weight in whole.named_parameters()}
    differences = []
    for stage, module in zip(stages, modules, strict=True):
        names = keys["module_fqns_per_model_part"][stage.stage_index]
        numbers = [name.split(".")[1] for name in names if name.startswith("layers.")]
        for name, weight in module.named_parameters():
            head, _, rest = name.partition(".")
            if head == "layers":
                index, _, rest = rest.partition(".")
                name = f"layers.{numbers[int(index)]}.{rest}"  # noqa: PLW2901  as in the whole
            differences.append((weight.grad - wanted[name]).abs().max().item())
    return max(differences)
