"""Build PyTorch's pipeline runtime from a schedule.

`_PipelineScheduleRuntime` of torch.distributed.pipelining.schedules runs any order that its
`_load_csv` reads. It is private to PyTorch; `_check_pytorch` checks that the parts used here exist.
This module corrects or refuses what fails there silently (each confirmed by a run, PyTorch 2.13):

- The stages of a rank must be in ascending order.
- Tensors between stages get no gradient if their metadata lack `requires_grad`, and the first
  forward of a stage shows whether its metadata are right.
- Losses are looked up by position, so microbatches are renumbered by the last stage's forwards
  (`ppopt.formats.torch_csv`).
- `defer_pp_recv` gives wrong gradients for V placements.
- A split backward loses gradients of weights on a path that meets no input of the stage.
- Compiled code with weights runs twice if its stage splits its backward.
- DistributedDataParallel around a stage that splits its backward gives wrong gradients.
- `fully_shard` that reshards after the forward fails if its stage splits its backward.
- `scale_grads` divides the gradients of earlier steps again, if they were not zeroed.
"""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import distributed
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining import PipelineStage, schedules
from torch.distributed.pipelining import stage as pytorch_stage
from torch.nn.parallel import DistributedDataParallel

from ppopt.errors import InputError, NotApplicableError
from ppopt.formats import torch_comms, torch_csv
from ppopt.problem.cost_table import STAGE_COSTS
from ppopt.problem.first_backward import in_weight
from ppopt.problem.operation import OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.schedule import Schedule
from ppopt.torch import TESTED, require
from ppopt.torch.backward_graph import (
    computed_twice,
    has_compiled_nodes,
    is_compiled,
    lost_by_split,
)

_RUNTIME: Any = getattr(schedules, "_PipelineScheduleRuntime", None)
DYNAMIC_METADATA = hasattr(pytorch_stage, "InferenceMode")
"""Whether stages without metadata agree on them under every placement (since PyTorch 2.12)."""
WITHOUT_GRADIENT = hasattr(PipelineStage, "_get_grad_send_meta")
"""Whether tensors between stages may be without a gradient (since PyTorch 2.13)."""
REDUCES = hasattr(PipelineStage, "perform_reduce_grad")
"""Whether gradients are scaled and reduced once, after all backwards of a stage. PyTorch 2.9 does
so after the last whole backward, though a W may follow."""


_REDUCE_CELL = re.compile(r",?\d+REDUCE_GRAD")
_PAIR_CELL = re.compile(r"\((\w+);(\w+)\)OVERLAP_F_B")
"""Cells that PyTorch 2.9 does not run in an order with transfers: reductions of gradients, which
are no operation there, and pairs, whose parts other versions run one after the other."""
_COMPILED = (
    "a compiled module cannot split its backward, PyTorch would run it twice; leave "
    "torch.compile out, or solve with --backward whole"
)
LOSS_METHOD = "loss_one_chunk"
"""Name of the method that `load` gives the last stage: it is called with the loss function and the
arguments of the loss, and returns the loss."""


def placement(schedule: Schedule) -> tuple[tuple[int, ...], ...]:
    """Stages that each rank must build, in ascending order: `placement(schedule)[rank]`.

    Raises NotApplicableError for two routes, which put a stage on two ranks.
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
    the schedule's microbatches. Raises InputError if stages, process group and schedule do not
    match, if a stage lacks static metadata, and for schedules that PyTorch cannot run.
    """
    if "defer_pp_recv" in options:
        raise InputError("defer_pp_recv: it gives wrong gradients for V placements; leave it out")
    text = order_text(schedule)
    _check_type(stages)
    ordered = sorted(stages, key=lambda stage: int(stage.stage_index))
    _check_stages(ordered, schedule)
    built = load(ordered, text, schedule.pipeline.batches, loss_fn, **options)
    if options.get("scale_grads", True):
        before(built, "step", partial(_refuse_accumulation, ordered))
    return built


def before(owner: Any, name: str, action: Callable[..., object]) -> None:
    """Let a method of an object begin with an action, which gets the same arguments."""
    method = getattr(owner, name)

    def begun(*args: Any, **options: Any) -> Any:
        action(*args, **options)
        return method(*args, **options)

    setattr(owner, name, begun)


def order_text(schedule: Schedule) -> str:
    """The order for PyTorch, with sends and receives if links are resources.

    They are also stated if some stages run no backward: PyTorch would send these gradients. Raises
    InputError for schedules that PyTorch cannot run.
    """
    if schedule.pipeline.has_links or not all(schedule.pipeline.has_operations[OpKind.BW]):
        return torch_comms.communication_csv(schedule)
    return torch_csv.order_csv(schedule)


def load(
    stages: Sequence[Any], text: str, batches: int, loss_fn: Callable[..., Any], **options: Any
) -> Any:
    """Build the runtime from the text of an order, with PyTorch's own checks only.

    Text with sends is used unchanged; without sends, PyTorch adds its own. If PyTorch would scale
    gradients too early (`REDUCES`), they are scaled after the step.
    """
    scaled = bool(options.pop("scale_grads", True))
    for stage in stages:
        if not DYNAMIC_METADATA and distributed.get_backend(stage.group) == "gloo":
            stage._get_init_p2p_neighbors_ops = list  # 8 bytes into buffers of 4: gloo refuses
        if stage.is_last:
            setattr(stage, LOSS_METHOD, getattr(stage, LOSS_METHOD, _call))
            loss_fn = partial(_loss_by, stage, loss_fn)
    built = _RUNTIME(
        list(stages),
        n_microbatches=batches,
        loss_fn=loss_fn,
        scale_grads=scaled and REDUCES,
        **options,
    )
    if scaled and not REDUCES:
        _scale_after_step(built, stages)
    if not REDUCES:
        text = _PAIR_CELL.sub(r"\1,\2", _REDUCE_CELL.sub("", text))
    with TemporaryDirectory() as folder:
        path = Path(folder) / "order.csv"
        path.write_text(text, encoding="utf-8")
        built._load_csv(str(path), format="compute_comms" if "SEND_" in text else "compute_only")
    return built


def _scale_after_step(built: Any, stages: Sequence[Any]) -> None:
    """Let `step` divide gradients by the number of microbatches at its end."""
    step = built.step

    def scaling(*args: Any, **options: Any) -> Any:
        result = step(*args, **options)
        for stage in stages:
            stage.scale_grads(built._n_microbatches)
        return result

    built.step = scaling


def _call(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    return function(*args, **options)


def _loss_by(stage: Any, loss_fn: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Compute the loss through the method of the last stage, which a profiler may have wrapped."""
    return getattr(stage, LOSS_METHOD)(loss_fn, *args, **options)


def as_run(pipeline: Pipeline) -> Pipeline:
    """Return the pipeline with the times that its operations have in PyTorch.

    On stage 0, whose inputs need no gradient, PyTorch's `backward_one_chunk(full_backward=False)`
    does nothing and `backward_weight_one_chunk` runs the whole backward (torch 2.13, stage.py).
    So B of stage 0 takes no time there, and W takes the time of BW, recompute included. An
    overlapped pair takes the sum of its parts. The result has placement and costs per stage, also
    for a model in layers. In the search, `first_backward` of a model in layers has the same effect.
    Raises NotApplicableError for two routes.
    """
    _check_one_route(pipeline)
    costs = in_weight(
        {cost.field: list(pipeline.costs[cost.field]) for cost in STAGE_COSTS if not cost.of_pairs},
        layer_by_layer=True,
    )
    return replace(
        pipeline.without_model(),
        stages=pipeline.num_stages,
        chunks=None,
        placement=list(pipeline.hosts[0]),
        mem_limit=pipeline.limits,
        overlap=None,
        overlap_input=None,
        **costs,
    )


def _check_one_route(pipeline: Pipeline) -> None:
    if pipeline.routes == 2:
        raise NotApplicableError(
            "torch: two routes put a stage on two ranks; PyTorch's runtime cannot"
        )


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
    indices = tuple(stage.stage_index for stage in stages)
    if indices != wanted:
        raise InputError(
            f"stages: rank {first.group_rank} builds {_listed(indices)}, the schedule places "
            f"{_listed(wanted)} there; see ppopt.torch.placement"
        )
    for stage in stages:
        _check_metadata(stage, pipeline)
    split = set(schedule.stage[schedule.kind == OpKind.B].tolist())
    for stage in stages:
        in_two = stage.stage_index in split
        if in_two and (stage.stage_index or isinstance(stage.submod, DistributedDataParallel)):
            _check_split(stage)  # the B of stage 0 does nothing, and its W is a whole backward
        _check_first_forward(stage, split=in_two and stage.stage_index > 0)


def _fault(stage: Any, text: str) -> InputError:
    """An error that names a stage."""
    return InputError(f"stage {stage.stage_index}: {text}")


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers)) or "none"


def _metadata(stage: Any) -> dict[str, Any]:
    """The static metadata of a stage, by the name of its argument; None if there is none."""
    if hasattr(stage, "_user_meta"):
        return {"input_args": stage._user_meta.inputs, "output_args": stage._user_meta.outputs}
    return {"input_args": stage.inputs_meta, "output_args": stage._outputs_meta}  # before 2.12


def first_announced(hosts: Sequence[int], first: int) -> int:
    """First stage whose outputs need a gradient by its metadata; `first` has the first backward.

    On one rank PyTorch passes a stage the gradient of its output directly, and the metadata must
    announce it.
    """
    local = 0 < first < len(hosts) and hosts[first - 1] == hosts[first]
    return first - local


def _check_metadata(stage: Any, pipeline: Pipeline) -> None:
    """Check the static metadata of a stage."""
    first = pipeline.num_stages - sum(pipeline.has_operations[OpKind.BW])
    announced = first_announced(pipeline.hosts[0], first)
    for name, tensors in _metadata(stage).items():
        if not tensors and not DYNAMIC_METADATA:
            raise _fault(
                stage,
                f"{name} is missing; give PipelineStage tensors of one "
                "microbatch's shape as input_args and output_args",
            )
        frozen = stage.stage_index < (first if name == "input_args" else announced)
        at_the_end = frozen or (stage.is_first if name == "input_args" else stage.is_last)
        if frozen and tensors and any(tensor.requires_grad for tensor in tensors):
            raise _fault(
                stage,
                f"{name} must not have requires_grad=True: all up to it "
                "is frozen, and it would wait for gradients that nobody sends",
            )
        if tensors and not (
            at_the_end or WITHOUT_GRADIENT or all(t.requires_grad for t in tensors)
        ):
            raise _fault(
                stage,
                f"{name}: this PyTorch wants a gradient of every tensor "
                "between stages; give all requires_grad=True, or take 2.13 for integers",
            )
        if tensors and not at_the_end and not any(tensor.requires_grad for tensor in tensors):
            raise _fault(
                stage, f"{name} need requires_grad=True, or no gradient passes between the stages"
            )


def _check_split(stage: Any) -> None:
    """Refuse a stage whose backward PyTorch cannot split."""
    if is_compiled(stage.submod):
        raise _fault(stage, _COMPILED)
    if isinstance(stage.submod, DistributedDataParallel):
        raise _fault(
            stage,
            "DistributedDataParallel does not see a split backward, and its gradients "
            "would be wrong; wrap the module in fully_shard, or solve with --backward whole",
        )
    if isinstance(stage.submod, FSDPModule) and not REDUCES:
        raise _fault(
            stage,
            "this PyTorch reduces gradients before the last W, so they would be wrong; "
            "take a newer one, or solve with --backward whole",
        )
    if any(map(_reshards_after_forward, stage.submod.modules())):
        raise _fault(
            stage,
            "W does not find the weights that were resharded after the forward; use "
            "fully_shard(..., reshard_after_forward=False), or solve with --backward whole",
        )


def _reshards_after_forward(module: Any) -> bool:
    if not isinstance(module, FSDPModule):
        return False
    state = module._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None) or [
        getattr(state, "_fsdp_param_group", None)
    ]
    return any(
        group is not None and getattr(group, "post_forward_mesh_info", None) is not None
        for group in groups
    )


def _check_first_forward(stage: Any, *, split: bool) -> None:
    """Check the output of a stage's first forward, and its graph, before it is sent."""
    forward = stage.forward_one_chunk
    unchecked = True

    def checked(*args: Any, **options: Any) -> Any:
        nonlocal unchecked
        output = forward(*args, **options)
        if unchecked:
            unchecked = False
            _check_output(stage, output)
            if split and stage.dw_builder is None:
                _check_graph(stage, output, _input_tensors(stage, *args, **options))
        return output

    stage.forward_one_chunk = checked


def _check_output(stage: Any, output: Any) -> None:
    """Raise InputError unless the output agrees with the stage's metadata.

    A tensor that requires a gradient against the metadata would get none, silently.
    """
    wanted = _metadata(stage)["output_args"]
    tensors = tuple(output) if isinstance(output, tuple | list) else (output,)
    if stage.is_last or not wanted:
        return
    if len(wanted) != len(tensors):
        raise _fault(stage, f"returns {len(tensors)} tensors, output_args has {len(wanted)}")
    for index, (meta, tensor) in enumerate(zip(wanted, tensors, strict=True)):
        if _kind(meta) != _kind(tensor) or tensor.requires_grad > meta.requires_grad:
            raise _fault(
                stage,
                f"output {index} is {_described(tensor)}, output_args says {_described(meta)}",
            )


def _kind(tensor: Any) -> tuple[Any, Any]:
    return tuple(tensor.shape), tensor.dtype


def _described(tensor: Any) -> str:
    shape, dtype = _kind(tensor)
    needs = "with" if tensor.requires_grad else "without"
    return f"{dtype} {list(shape)} {needs} a gradient"


def _input_tensors(stage: Any, microbatch: int, *_: Any, **__: Any) -> list[Any]:
    """The input tensors of a forward."""
    _, inputs = stage.fwd_cache[microbatch]
    return [tensor for tensor in inputs if isinstance(tensor, torch.Tensor)]


def _check_graph(stage: Any, output: Any, inputs: Sequence[Any]) -> None:
    """Refuse what a split backward would lose or run twice; warn of a Function that runs twice."""
    lost = lost_by_split(output, inputs, stage.submod.named_parameters())
    if lost is not None and not stage.is_last:  # the loss joins the outputs of the last stage
        raise _fault(
            stage,
            f"PyTorch would lose gradients of {lost} in a split backward: an output "
            "depends on it and on no input with a gradient; make that output in the first stage, "
            "or solve with --backward whole",
        )
    twice = computed_twice(output, stage.submod.parameters())
    if twice is None:
        return
    if has_compiled_nodes(output):
        raise _fault(stage, _COMPILED)
    warnings.warn(
        f"stage {stage.stage_index}: {twice} computes the gradients of inputs and weights at once, "
        "so a split backward runs it twice: in B and in W",
        stacklevel=2,
    )


def _refuse_accumulation(stages: Sequence[Any], *_: Any, **__: Any) -> None:
    """Refuse gradients of an earlier step, which `scale_grads` would divide again."""
    for stage in stages:
        if any(_has_gradient(weight) for weight in stage.submod.parameters()):
            raise _fault(
                stage,
                "gradients of an earlier step are there, and "
                "PyTorch would divide them by the microbatches again: call zero_grad, or to "
                "accumulate give runtime scale_grads=False and divide the loss yourself",
            )


def _has_gradient(weight: Any) -> bool:
    """Whether this rank's part of the weight has a gradient other than 0."""
    gradient = getattr(weight.grad, "_local_tensor", weight.grad)
    return gradient is not None and bool(gradient.any())


def _check_pytorch() -> None:
    """Raise InputError if this PyTorch lacks the private parts that run schedules."""
    backward = getattr(PipelineStage, "backward_one_chunk", None)
    missing = [
        name
        for name, exists in (
            ("_PipelineScheduleRuntime._load_csv", hasattr(_RUNTIME, "_load_csv")),
            ("PipelineStage.backward_weight_one_chunk", _splits(backward)),
        )
        if not exists
    ]
    if missing:
        raise InputError(
            f"torch: version {require()} has no {' and no '.join(missing)}; schedules run through "
            f"it. Tested: {TESTED}"
        )


def _splits(backward: Any) -> bool:
    """Whether a stage can run B and W separately."""
    return (
        hasattr(PipelineStage, "backward_weight_one_chunk")
        and backward is not None
        and "full_backward" in inspect.signature(backward).parameters
    )


_check_pytorch()
