"""Build PyTorch's pipeline runtime from a schedule.

`_PipelineScheduleRuntime` of torch.distributed.pipelining.schedules (PyTorch 2.13) runs any order
that its `_load_csv` reads. This module corrects or refuses what fails there in silence:

- The stages of a rank must be in ascending order.
- Without static metadata (`input_args`, `output_args`), ranks exchange shapes in an order that
  does not work for arbitrary placements.
- Tensors between stages get no gradient if their metadata lack `requires_grad`.
- Losses are looked up by position, so microbatches are renumbered by the last stage's forwards
  (`ppopt.formats.torch_csv`).
- `defer_pp_recv` gives wrong gradients for V placements and is refused.
- Compiled stages cannot split their backward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

from ppopt.errors import InputError
from ppopt.formats import torch_csv
from ppopt.problem.costs import StageCosts
from ppopt.problem.operation import OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.schedule import Schedule


def placement(schedule: Schedule) -> tuple[tuple[int, ...], ...]:
    """Stages that each rank must build, in ascending order: `placement(schedule)[rank]`.

    Raises InputError for two routes, which put a stage on two ranks.
    """
    _check_one_route(schedule.pipeline)
    return schedule.pipeline.hosted[0]


def runtime(
    stages: Sequence[Any], schedule: Schedule, loss_fn: Callable[..., Any], **options: Any
) -> Any:
    """Build the runtime of this rank. Its `step` has the interface of PyTorch's schedules.

    `stages` are the rank's PipelineStage objects (see `placement`), in any order. `options` are
    those of PyTorch's PipelineScheduleMulti: `scale_grads`, `args_chunk_spec`,
    `kwargs_chunk_spec`, `output_merge_spec`, `backward_requires_autograd`. The batch is split into
    the schedule's microbatches. Raises InputError where stages, process group and schedule do not
    match, where a stage lacks static metadata, and for schedules that PyTorch cannot run.
    """
    if "defer_pp_recv" in options:
        raise InputError("defer_pp_recv: it gives wrong gradients for V placements; leave it out")
    text = torch_csv.order_csv(schedule)
    _check_type(stages)
    ordered = sorted(stages, key=lambda stage: int(stage.stage_index))
    _check_stages(ordered, schedule)
    return load(ordered, text, schedule.pipeline.batches, loss_fn, **options)


def load(
    stages: Sequence[Any], text: str, batches: int, loss_fn: Callable[..., Any], **options: Any
) -> Any:
    """Build the runtime from the text of an order, with PyTorch's own checks only."""
    made = _PipelineScheduleRuntime(
        list(stages), n_microbatches=batches, loss_fn=loss_fn, **options
    )
    with TemporaryDirectory() as folder:
        path = Path(folder) / "order.csv"
        path.write_text(text, encoding="utf-8")
        made._load_csv(str(path))
    return made


def as_run(pipeline: Pipeline) -> Pipeline:
    """Return the pipeline with the times that its operations have in PyTorch.

    On stage 0, whose inputs need no gradient, PyTorch's `backward_one_chunk(full_backward=False)`
    does nothing and `backward_weight_one_chunk` runs the whole backward (torch 2.13, stage.py).
    So B of stage 0 takes no time there, and W takes the time of BW, recompute included. An
    overlapped pair takes the sum of its parts. The result gives placement and costs per stage.
    Raises InputError for two routes.
    """
    _check_one_route(pipeline)
    costs: dict[str, Any] = {
        field: list(getattr(pipeline.costs, field)) for field in StageCosts._fields
    }
    costs["overlap"] = None
    costs["backward_input"][0] *= 0
    costs["backward"][0] += costs["recompute_time"][0]
    costs["recompute_time"][0] *= 0
    costs["weight"][0] = costs["backward"][0]
    return replace(
        pipeline,
        stages=pipeline.num_stages,
        chunks=None,
        placement=list(pipeline.hosts[0]),
        mem_limit=pipeline.limits,
        **costs,
    )


def _check_one_route(pipeline: Pipeline) -> None:
    if pipeline.routes == 2:
        raise InputError("torch: two routes put a stage on two ranks; PyTorch's runtime cannot")


def _check_type(stages: Sequence[Any]) -> None:
    if not stages:
        raise InputError("stages: none is given; build those of placement(schedule)[rank]")
    for stage in stages:
        if not isinstance(stage, PipelineStage):
            raise InputError(
                f"stages: {type(stage).__name__} is no torch.distributed.pipelining.PipelineStage"
            )


def _check_stages(stages: Sequence[Any], schedule: Schedule) -> None:
    first, pipeline = stages[0], schedule.pipeline
    if first.group_size != pipeline.num_devices:
        raise InputError(
            f"stages: the process group has {first.group_size} ranks, the schedule "
            f"{pipeline.num_devices} devices; start one process per device"
        )
    if first.num_stages != pipeline.num_stages:
        raise InputError(
            f"stages: they are of {first.num_stages} stages, the schedule of {pipeline.num_stages}"
        )
    wanted = placement(schedule)[first.group_rank]
    given = tuple(stage.stage_index for stage in stages)
    if given != wanted:
        raise InputError(
            f"stages: rank {first.group_rank} builds {_listed(given)}, the schedule places "
            f"{_listed(wanted)} there; see ppopt.torch.placement"
        )
    for stage in stages:
        _check_metadata(stage)
    if bool((schedule.kind == OpKind.B).any()):
        _check_not_compiled(stages)


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers)) or "none"


def _check_metadata(stage: Any) -> None:
    metadata = {"input_args": stage._user_meta.inputs, "output_args": stage._user_meta.outputs}
    for name, tensors in metadata.items():
        if not tensors:
            raise InputError(
                f"stage {stage.stage_index}: {name} is missing; give PipelineStage tensors of one "
                "microbatch's shape as input_args and output_args"
            )
        at_the_end = stage.is_first if name == "input_args" else stage.is_last
        if not at_the_end and not all(tensor.requires_grad for tensor in tensors):
            raise InputError(
                f"stage {stage.stage_index}: {name} need requires_grad=True, or no gradient "
                "passes between the stages"
            )


def _check_not_compiled(stages: Sequence[Any]) -> None:
    for stage in stages:
        for module in stage.submod.modules():
            in_place = module._compiled_call_impl is not None  # by module.compile()
            if in_place or isinstance(module, torch._dynamo.OptimizedModule):
                raise InputError(
                    f"stage {stage.stage_index}: a compiled module cannot split its backward; "
                    "leave torch.compile out, or solve with --backward whole"
                )
