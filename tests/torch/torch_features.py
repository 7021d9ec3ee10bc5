"""What surrounds stages in real jobs: each feature in a pipeline, against one process.

A feature is a module per stage and what is done around it. `ran` runs a schedule with it on this
rank and compares the gradients of the rank's stages with those of the same steps in one process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.pipelining import PipelineStage
from torch.utils.checkpoint import checkpoint

from ppopt.errors import InputError
from ppopt.schedule.schedule import Schedule

import ppopt.torch  # isort: skip

WIDTH, SAMPLES, MICROBATCHES = 8, 2, 5


class Plain(nn.Module):
    """Two layers; every stage has weights of its own."""

    def __init__(self, stage: int, stages: int) -> None:
        super().__init__()
        torch.manual_seed(stage)
        self.is_last = stage == stages - 1
        self.first, self.second = (nn.Linear(WIDTH, WIDTH, dtype=torch.float64) for _ in range(2))

    def body(self, tensor: Any) -> Any:
        return torch.tanh(self.second(torch.tanh(self.first(tensor))))

    def forward(self, tensor: Any) -> Any:
        return self.body(tensor)


class Masked(Plain):
    """Takes a mask as keyword argument."""

    def forward(self, tensor: Any, *, mask: Any) -> Any:
        return self.body(tensor) * mask


class Counting(Plain):
    """Passes on integers with the tensor."""

    def forward(self, tensor: Any, places: Any) -> Any:
        output = self.body(tensor + places.to(torch.float64)[:, None] / 10)
        return output if self.is_last else (output, places + 1)


class Scaling(Plain):
    """Passes on floats without a gradient with the tensor."""

    def forward(self, tensor: Any, scale: Any) -> Any:
        output = self.body(tensor) * scale
        return output if self.is_last else (output, (scale * 1.5).detach())


class Pair(Plain):
    """Takes and returns two tensors, also at the end."""

    def forward(self, first: Any, two: Any) -> Any:
        return self.body(first + two), self.first(two)


class Single(Plain):
    """In float32, with autocast inside the forward."""

    def __init__(self, stage: int, stages: int) -> None:
        super().__init__(stage, stages)
        self.float()

    def forward(self, tensor: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return self.body(tensor)


class Checkpointed(Plain):
    """Computes its activations again in the backward."""

    def forward(self, tensor: Any) -> Any:
        return checkpoint(self.body, tensor, use_reentrant=False)


class _DeferredLinear(torch.autograd.Function):
    """A linear layer whose backward leaves the weights for later."""

    @staticmethod
    def forward(context: Any, tensor: Any, layer: Any, queue: list[Any]) -> Any:
        context.save_for_backward(tensor)
        context.layer, context.queue = layer, queue
        return nn.functional.linear(tensor, layer.weight, layer.bias)

    @staticmethod
    def backward(context: Any, gradient: Any) -> Any:
        (tensor,), layer = context.saved_tensors, context.layer

        def weights() -> None:
            for weight, gradient_of_weight in (
                (layer.weight, gradient.T @ tensor),
                (layer.bias, gradient.sum(0)),
            ):
                weight.grad = (
                    gradient_of_weight if weight.grad is None else weight.grad + gradient_of_weight
                )

        context.queue.append(weights)
        return gradient @ layer.weight, None, None


class Deferred(Plain):
    """Collects the weight gradients of a backward for `dw_builder`."""

    def __init__(self, stage: int, stages: int) -> None:
        super().__init__(stage, stages)
        self.queue: list[Callable[[], None]] = []

    def body(self, tensor: Any) -> Any:
        if not tensor.requires_grad:
            tensor = tensor.detach().requires_grad_()
        hidden = torch.tanh(_DeferredLinear.apply(tensor, self.first, self.queue))
        return torch.tanh(_DeferredLinear.apply(hidden, self.second, self.queue))

    def build(self) -> Callable[[], None]:
        """What runs the weight gradients of the backward that just ran."""
        waiting = list(self.queue)
        self.queue.clear()
        return lambda: [run() for run in waiting] and None


class Feature:
    """A plain model; what others change."""

    module: type[Plain] = Plain
    replicas = 1
    steps = 1
    tolerance = 1e-12
    scale_grads = True

    def inputs(self, batch: Any) -> tuple[Any, ...]:
        """What the first stage takes of a batch."""
        return (batch,)

    def kwargs(self) -> dict[str, Any]:
        """What every stage takes besides."""
        return {}

    def between(self) -> Any:
        """Metadata of what one stage hands to the next."""
        return (torch.zeros(SAMPLES, WIDTH, dtype=torch.float64, requires_grad=True),)

    def returned(self) -> Any:
        """Metadata of what the last stage returns."""
        return self.between()[:1]

    def loss(self, output: Any, target: Any) -> Any:
        return nn.functional.mse_loss(output, target)

    def wrapped(self, module: Any, replicas: Any) -> Any:
        """The module as its stage has it; `replicas` is the process group of its copies."""
        return module

    def stage_options(self, module: Any) -> dict[str, Any]:
        return {}

    def after(self, modules: list[Any]) -> None:
        """What is done to the gradients after the steps."""

    def gradient(self, weight: Any) -> Any:
        return weight.grad


class Kwargs(Feature):
    module = Masked

    def kwargs(self) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(7)
        shape = (MICROBATCHES * SAMPLES, 1)
        return {"mask": torch.rand(shape, generator=generator, dtype=torch.float64)}


class Integers(Feature):
    module = Counting

    def inputs(self, batch: Any) -> tuple[Any, ...]:
        return batch, torch.arange(len(batch))

    def between(self) -> Any:
        return (*super().between(), torch.zeros(SAMPLES, dtype=torch.int64))


class Floats(Feature):
    module = Scaling

    def inputs(self, batch: Any) -> tuple[Any, ...]:
        return batch, torch.arange(1.0, 1 + len(batch), dtype=torch.float64)[:, None] / 9

    def between(self) -> Any:
        return (*super().between(), torch.zeros(SAMPLES, 1, dtype=torch.float64))


class Outputs(Feature):
    """Two outputs, and a loss of two parts."""

    module = Pair

    def inputs(self, batch: Any) -> tuple[Any, ...]:
        return batch, 2 * batch

    def between(self) -> Any:
        return super().between() * 2

    def returned(self) -> Any:
        return self.between()

    def loss(self, output: Any, target: Any) -> Any:
        first, two = output
        return super().loss(first, target) + 0.5 * two.square().mean()


class Dynamic(Feature):
    def between(self) -> Any:
        return None

    def returned(self) -> Any:
        return None


class Accumulation(Feature):
    """Three steps before the optimizer's; the loss is divided here and not by PyTorch."""

    steps = 3
    scale_grads = False

    def loss(self, output: Any, target: Any) -> Any:
        return super().loss(output, target) / MICROBATCHES


class LossScaling(Feature):
    """The factor of torch.amp.GradScaler; `unscale_` divides by it after the step."""

    def __init__(self) -> None:
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        self.scaler.scale(torch.zeros(()))  # makes the factor on ranks without a loss too

    def loss(self, output: Any, target: Any) -> Any:
        return self.scaler.scale(super().loss(output, target))

    def after(self, modules: list[Any]) -> None:
        self.scaler.unscale_(torch.optim.SGD([w for m in modules for w in m.parameters()]))


class Autocast(Feature):
    module = Single
    tolerance = 1e-6

    def loss(self, output: Any, target: Any) -> Any:
        return super().loss(output.float(), target.float())

    def inputs(self, batch: Any) -> tuple[Any, ...]:
        return (batch.float(),)

    def between(self) -> Any:
        return (torch.zeros(SAMPLES, WIDTH, dtype=torch.bfloat16, requires_grad=True),)


class Recomputed(Feature):
    module = Checkpointed


class Compiled(Feature):
    def wrapped(self, module: Any, replicas: Any) -> Any:
        return torch.compile(module, backend="aot_eager")


class CompiledInPlace(Feature):
    def wrapped(self, module: Any, replicas: Any) -> Any:
        module.first.compile(backend="aot_eager")
        return module


class DDP(Feature):
    replicas = 2

    def wrapped(self, module: Any, replicas: Any) -> Any:
        return nn.parallel.DistributedDataParallel(module, process_group=replicas)


class FSDP(Feature):
    replicas = 2
    reshard = False

    def wrapped(self, module: Any, replicas: Any) -> Any:
        from torch.distributed.device_mesh import DeviceMesh  # noqa: PLC0415  not all need it
        from torch.distributed.fsdp import fully_shard  # noqa: PLC0415

        mesh = DeviceMesh.from_group(replicas, "cpu")
        for part in (module.first, module):
            fully_shard(part, mesh=mesh, reshard_after_forward=self.reshard)
        return module

    def gradient(self, weight: Any) -> Any:
        return weight.grad.full_tensor()


class FSDPResharding(FSDP):
    reshard = True


class DWBuilder(Feature):
    module = Deferred

    def stage_options(self, module: Any) -> dict[str, Any]:
        return {"dw_builder": module.build}

    def after(self, modules: list[Any]) -> None:
        for module in modules:
            module.build()()


class ScaledAccumulation(Kwargs, LossScaling, Accumulation):
    """Masks, loss scaling and three steps of accumulation."""


class RecomputedFSDP(FSDP):
    module = Checkpointed


class ShardedTraining(Kwargs, LossScaling, Accumulation, FSDP):
    """Masks, loss scaling, three steps of accumulation, weights sharded."""


class CompiledMasked(Kwargs, Compiled):
    """Masks through compiled stages."""


class CompiledFSDP(FSDP):
    """Sharded first, then compiled."""

    def wrapped(self, module: Any, replicas: Any) -> Any:
        return torch.compile(super().wrapped(module, replicas), backend="aot_eager")


class MaskedDDP(Kwargs, DDP):
    """Masks through replicated stages."""


TOGETHER: dict[str, type[Feature]] = {
    feature.__name__: feature
    for feature in (
        ScaledAccumulation,
        RecomputedFSDP,
        ShardedTraining,
        CompiledMasked,
        CompiledFSDP,
        MaskedDDP,
    )
}
"""Features together, by the names of their classes."""
FEATURES: dict[str, type[Feature]] = {
    "one tensor between stages": Feature,
    "masks and other keyword arguments": Kwargs,
    "integers between stages": Integers,
    "floats without a gradient between stages": Floats,
    "several tensors, outputs and losses": Outputs,
    "no `input_args` and `output_args`": Dynamic,
    "gradient accumulation, `scale_grads=False`": Accumulation,
    "`torch.amp.GradScaler`": LossScaling,
    "`torch.autocast` in the modules": Autocast,
    "activation checkpointing": Recomputed,
    "`torch.compile(module)`": Compiled,
    "`module.compile()`": CompiledInPlace,
    "DistributedDataParallel": DDP,
    "`fully_shard`, `reshard_after_forward=False`": FSDP,
    "`fully_shard`, `reshard_after_forward=True`": FSDPResharding,
    "`dw_builder`": DWBuilder,
}


def ran(rank: int, name: str, schedule: Schedule) -> tuple[int, float] | str:
    """Number of gradients compared on this rank and their largest difference; or the refusal."""
    feature = (FEATURES | TOGETHER)[name]()
    stages_of_all = schedule.pipeline.num_stages
    pipe, copies, replica, pipe_rank = _groups(rank, feature.replicas)
    modules = [
        feature.module(stage, stages_of_all) for stage in ppopt.torch.placement(schedule)[pipe_rank]
    ]
    stages = [
        _stage(feature, module, stage, schedule, pipe, copies)
        for module, stage in zip(modules, ppopt.torch.placement(schedule)[pipe_rank], strict=True)
    ]
    runtime, refusal = None, ""
    try:
        runtime = ppopt.torch.runtime(
            stages, schedule, feature.loss, scale_grads=feature.scale_grads
        )
    except InputError as error:
        refusal = str(error)
    if refused := _of_any_rank(refusal):
        return refused
    for step in range(feature.steps):
        values, target = batch(10 * step + replica)
        inputs = feature.inputs(values) if stages[0].is_first else ()
        final = {"target": target, "losses": []} if stages[-1].is_last else {}
        runtime.step(*inputs, **final, **feature.kwargs())
    feature.after(modules)
    wanted = _reference(feature, stages_of_all)
    gradients = {
        f"{stage.stage_index}.{key}": feature.gradient(weight)
        for stage, module in zip(stages, modules, strict=True)
        for key, weight in module.named_parameters()
    }
    return len(gradients), max(
        (gradients[key] - wanted[key]).abs().max().item() for key in gradients
    )


def _stage(
    feature: Feature, module: Any, index: int, schedule: Schedule, pipe: Any, copies: Any
) -> PipelineStage:
    last = schedule.pipeline.num_stages - 1
    first = tuple(part[:SAMPLES] for part in feature.inputs(batch(0)[0]))
    static = feature.between() is not None
    return PipelineStage(
        feature.wrapped(module, copies),
        index,
        last + 1,
        torch.device("cpu"),
        input_args=(feature.between() if index else first) if static else None,
        output_args=feature.returned() if index == last else feature.between(),
        group=pipe,
        **feature.stage_options(module),
    )


def _groups(rank: int, replicas: int) -> tuple[Any, Any, int, int]:
    """Group of the pipeline, group of its copies, number of this copy, and rank in the pipeline."""
    if replicas == 1:
        return None, None, 0, rank
    size = distributed.get_world_size() // replicas
    pipes = [list(range(n * size, (n + 1) * size)) for n in range(replicas)]
    pipe, _ = distributed.new_subgroups_by_enumeration(pipes)
    copies, _ = distributed.new_subgroups_by_enumeration(
        [list(r) for r in zip(*pipes, strict=True)]
    )
    return pipe, copies, rank // size, rank % size


def _of_any_rank(refusal: str) -> str:
    """The first refusal of any rank: a rank without one must not wait for the others' tensors."""
    refusals: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(refusals, refusal)
    return next(filter(None, refusals), "")


def batch(seed: int) -> tuple[Any, Any]:
    """Inputs and targets of a step."""
    generator = torch.Generator().manual_seed(seed)
    shape = (MICROBATCHES * SAMPLES, WIDTH)
    drawn = [torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2)]
    return drawn[0], drawn[1]


def _reference(feature: Feature, stages: int) -> dict[str, Any]:
    """The gradients of the same steps in this process: means over microbatches and replicas."""
    feature = type(feature)()
    modules = [feature.module(stage, stages) for stage in range(stages)]
    kwargs = {name: value.chunk(MICROBATCHES) for name, value in feature.kwargs().items()}
    for step in range(feature.steps):
        for replica in range(feature.replicas):
            values, target = batch(10 * step + replica)
            parts = zip(*(p.chunk(MICROBATCHES) for p in feature.inputs(values)), strict=True)
            for index, tensors in enumerate(parts):
                outputs: Any = tensors
                for module in modules:
                    given_too = {name: value[index] for name, value in kwargs.items()}
                    outputs = module(
                        *(outputs if isinstance(outputs, tuple) else (outputs,)), **given_too
                    )
                loss = feature.loss(outputs, target.chunk(MICROBATCHES)[index])
                (loss / feature.replicas).backward()
    feature.after(modules)
    if feature.scale_grads:
        for weight in (weight for module in modules for weight in module.parameters()):
            weight.grad /= MICROBATCHES
    return {
        f"{stage}.{name}": weight.grad
        for stage, module in enumerate(modules)
        for name, weight in module.named_parameters()
    }
