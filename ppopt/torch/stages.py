"""Small stages to run schedules on: real layers in float64, which may sleep for set times."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import torch
from torch import nn

WIDTH = 8
"""Features of every layer."""


class Times(NamedTuple):
    """Seconds that a stage sleeps in its operations."""

    forward: float = 0.0
    backward_input: float = 0.0
    weight: float = 0.0
    backward: float = 0.0
    """The whole backward, of one piece: B's share sleeps first, the rest with the weights."""


class _SleepBackward(torch.autograd.Function):
    """The identity, whose gradient takes a while."""

    @staticmethod
    def forward(context: Any, tensor: Any, stage: Stage, part: str) -> Any:
        context.stage, context.part = stage, part
        return tensor.view_as(tensor)

    @staticmethod
    def backward(context: Any, gradient: Any) -> Any:
        context.stage.sleep(context.part)
        return gradient, None, None


class Stage(nn.Module):
    """A linear layer and a tanh; the input's and the weights' gradient sleep separately.

    PyTorch splits a backward along the graph: what leads to the input runs in I, what leads to
    the weights alone in W. So one sleep stands between the output and the layer, the other
    between the layer and its weights.
    """

    def __init__(self, stage: int, times: Times) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(stage)
        shape = (WIDTH, WIDTH)
        self.weight = nn.Parameter(
            torch.randn(shape, generator=generator, dtype=torch.float64) / WIDTH**0.5
        )
        self.bias = nn.Parameter(torch.randn(WIDTH, generator=generator, dtype=torch.float64))
        self.times = times
        self.whole = False
        """Whether the backward that runs is of one piece."""

    def sleep(self, part: str) -> None:
        """Sleep for a part of the backward: `input` or `weight`."""
        times = self.times
        rest = times.backward - times.backward_input if self.whole else times.weight
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


def loss(output: Any, target: Any) -> Any:
    """Mean of the squared error."""
    return nn.functional.mse_loss(output, target)


def batch(microbatches: int) -> tuple[Any, Any]:
    """Input and target of a training step, shape [2 x microbatches, WIDTH]: the same every time."""
    generator = torch.Generator().manual_seed(2026)
    shape = (2 * microbatches, WIDTH)
    drawn = [torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2)]
    return drawn[0], drawn[1]


class Reference(NamedTuple):
    """What one process computes without any pipeline."""

    losses: list[float]
    """One per microbatch."""
    gradients: dict[str, Any]
    """Tensor of every parameter, `<stage>.<name>`; the mean over the microbatches."""


def reference(stages: int, microbatches: int) -> Reference:
    """Train one step in this process, microbatch by microbatch."""
    modules = [Stage(stage, Times()) for stage in range(stages)]
    inputs, targets = batch(microbatches)
    losses = []
    for tensor, target in zip(inputs.chunk(microbatches), targets.chunk(microbatches), strict=True):
        for module in modules:
            tensor = module(tensor)  # noqa: PLW2901  the microbatch moves through the stages
        value = loss(tensor, target)
        (value / microbatches).backward()
        losses.append(value.item())
    return Reference(
        losses,
        {
            f"{stage}.{name}": weight.grad
            for stage, module in enumerate(modules)
            for name, weight in module.named_parameters()
        },
    )
