"""Synthetic stages and transfers: small float64 layers that sleep for given times.

PyTorch delivers a tensor as soon as it is there. To simulate slower transfers, the end of every
operation is written to a file that all ranks on the machine map. An operation with an input from
another device waits until the end of the operation that produced it plus the p2p time. The device
has nothing else to run meanwhile, because the order of its operations is fixed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from ppopt.schedule.schedule import Schedule

WIDTH = 8
"""Features of every layer."""


class SleepTimes(NamedTuple):
    """Seconds that a stage sleeps in its operations."""

    forward: float = 0.0
    backward_input: float = 0.0
    weight: float = 0.0
    backward: float = 0.0
    """BW: it sleeps for `backward_input` first, and for the rest with the weights."""


class _SleepBackward(torch.autograd.Function):
    """The identity, with a backward that sleeps."""

    @staticmethod
    def forward(context: Any, tensor: Any, stage: Stage, part: str) -> Any:
        context.stage, context.part = stage, part
        return tensor.view_as(tensor)

    @staticmethod
    def backward(context: Any, gradient: Any) -> Any:
        context.stage.sleep(context.part)
        return gradient, None, None


class Stage(nn.Module):
    """A linear layer and a tanh, with separate sleeps for the gradients of input and weights.

    PyTorch splits a backward along the graph: nodes that lead to the input run in I, nodes that
    lead only to the weights run in W. So one sleep is between the output and the layer, the other
    between the layer and its weights. The weights of a frozen stage need no gradient.
    """

    def __init__(self, stage: int, times: SleepTimes, *, frozen: bool = False) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(stage)
        shape = (WIDTH, WIDTH)
        self.weight = nn.Parameter(
            torch.randn(shape, generator=generator, dtype=torch.float64) / WIDTH**0.5
        )
        self.bias = nn.Parameter(torch.randn(WIDTH, generator=generator, dtype=torch.float64))
        self.requires_grad_(not frozen)
        self.times = times
        self.full_backward = False
        """Whether the running backward is BW."""

    def sleep(self, part: str) -> None:
        """Sleep for a part of the backward: `input` or `weight`."""
        times = self.times
        rest = times.backward - times.backward_input if self.full_backward else times.weight
        _sleep(times.backward_input if part == "input" else rest)

    def forward(self, tensor: Any) -> Any:
        """Run the layer on a microbatch, shape [samples, WIDTH]."""
        _sleep(self.times.forward)
        weight = _SleepBackward.apply(self.weight, self, "weight")
        hidden = nn.functional.linear(tensor, weight, self.bias)
        return torch.tanh(_SleepBackward.apply(hidden, self, "input"))


def _sleep(seconds: float) -> None:
    if seconds > 0:
        time.sleep(seconds)


def sleep_until(nanoseconds: int) -> None:
    """Sleep until a time of `time.perf_counter_ns`."""
    _sleep((nanoseconds - time.perf_counter_ns()) / 1e9)


def loss(output: Any, target: Any) -> Any:
    """Mean squared error."""
    return nn.functional.mse_loss(output, target)


def batch(microbatches: int) -> tuple[Any, Any]:
    """Input and target of a training step, shape [2 x microbatches, WIDTH]; always the same."""
    generator = torch.Generator().manual_seed(2026)
    shape = (2 * microbatches, WIDTH)
    drawn = [torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2)]
    return drawn[0], drawn[1]


class Reference(NamedTuple):
    """Results of one training step in a single process without a pipeline."""

    losses: list[float]
    """One per microbatch."""
    gradients: dict[str, Any]
    """Tensor of every parameter that is trained, `<stage>.<name>`; the mean over the
    microbatches."""


def reference(stages: int, microbatches: int, frozen: Collection[int] = ()) -> Reference:
    """Compute one training step in this process, microbatch by microbatch."""
    modules = [Stage(stage, SleepTimes(), frozen=stage in frozen) for stage in range(stages)]
    inputs, targets = batch(microbatches)
    losses = []
    for tensor, target in zip(inputs.chunk(microbatches), targets.chunk(microbatches), strict=True):
        for module in modules:
            tensor = module(tensor)  # noqa: PLW2901  the microbatch moves through the stages
        value = loss(tensor, target)
        if value.requires_grad:
            (value / microbatches).backward()
        losses.append(value.item())
    return Reference(
        losses,
        {
            f"{stage}.{name}": weight.grad
            for stage, module in enumerate(modules)
            for name, weight in module.named_parameters()
            if weight.requires_grad
        },
    )


_SOURCES = {"forward_one_chunk": -1, "backward_one_chunk": 1}
"""Method of a stage -> offset of the stage that produces its input."""


class P2PDelays(NamedTuple):
    """Simulated p2p times between stages, shared by all ranks."""

    path: Path
    """File with the ends of operations in nanoseconds, by direction, stage and microbatch."""
    shape: tuple[int, int, int]
    delays: tuple[tuple[int, ...], ...]
    """Nanoseconds of a transfer from stage to stage; 0 on the same device."""

    def apply_to(self, stages: Sequence[Any]) -> None:
        """Wrap the methods of a rank's stages so that they wait for their inputs."""
        ends = np.memmap(self.path, dtype=np.int64, mode="r+", shape=self.shape)
        for stage in stages:
            for direction, (method, offset) in enumerate(_SOURCES.items()):
                source = stage.stage_index + offset
                inside = 0 <= source < self.shape[1]
                delay = self.delays[source][stage.stage_index] if inside else 0
                ready = ends[direction, source] if delay else None
                own = ends[direction, stage.stage_index]
                setattr(stage, method, _delayed(getattr(stage, method), own, ready, delay))


def p2p_delays(schedule: Schedule, seconds_per_unit: float, path: Path) -> P2PDelays | None:
    """Create the delays of a schedule's pipeline; None if every p2p time is 0."""
    pipeline = schedule.pipeline
    unit = seconds_per_unit * 1e9 / pipeline.ticks.per_unit
    (down,), (up,) = pipeline.ticks.down, pipeline.ticks.up
    table = np.diag(down, 1) + np.diag(up, -1) if down else np.zeros((1, 1))
    delays = tuple(tuple(round(time * unit) for time in row) for row in table.tolist())
    if not any(map(any, delays)):
        return None
    shape = (len(_SOURCES), pipeline.num_stages, pipeline.batches)
    path.write_bytes(bytes(8 * int(np.prod(shape))))
    return P2PDelays(path, shape, delays)


def _delayed(method: Callable[..., Any], own: Any, ready: Any, delay: int) -> Callable[..., Any]:
    def delayed(microbatch: int, *args: Any, **options: Any) -> Any:
        if ready is not None:
            sleep_until(int(ready[microbatch]) + delay)
        found = method(microbatch, *args, **options)
        own[microbatch] = time.perf_counter_ns()
        return found

    return delayed
