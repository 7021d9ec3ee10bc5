"""Layers that sleep for stated times, between small real tensors in float64."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from ppopt.torch.pipeline_runtime import before

WIDTH = 8
"""Features of every layer."""


class _SleepBackward(torch.autograd.Function):
    """The identity, with a backward that sleeps."""

    @staticmethod
    def forward(context: Any, tensor: Any, layer: SleepingLayer, phase: str, position: int) -> Any:
        context.sleep = partial(layer.sleep, phase, position)
        return tensor.view_as(tensor)

    @staticmethod
    def backward(context: Any, gradient: Any) -> Any:
        context.sleep()
        return gradient, None, None, None


class SleepingLayer(nn.Module):
    """A linear layer and a tanh, with separate sleeps for the gradients of input and weights.

    PyTorch splits a backward along the graph: nodes that lead to the input run in I, nodes that
    lead only to the weights run in W. So one sleep is between the output and the layer, the other
    between the layer and its weights. The weights of a frozen layer need no gradient.
    """

    def __init__(self, seconds: Sequence[Sequence[float]], *, frozen: bool) -> None:
        """`seconds` are per kind of operation and microbatch."""
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH, dtype=torch.float64)
        self.requires_grad_(not frozen)
        self.seconds = seconds
        self.full_backward: bool | None = None
        """Whether the running backward is BW; None: not a measured run, so nothing sleeps."""

    def sleep(self, phase: str, position: int) -> None:
        """Sleep for a phase of an operation: its `forward`, `input` or `weight`."""
        if self.full_backward is None:
            return
        forward, b, weight, full = (float(row[position]) for row in self.seconds)
        rest = full - b if self.full_backward else weight
        seconds = {"forward": forward, "input": b, "weight": rest}[phase]
        if seconds > 0:
            time.sleep(seconds)

    def forward(self, tensor: Any, *, position: Any) -> Any:
        """Run the layer on a microbatch, shape [samples, WIDTH], at this position of the list."""
        microbatch = int(position[0])
        self.sleep("forward", microbatch)
        weight = _SleepBackward.apply(self.linear.weight, self, "weight", microbatch)
        hidden = nn.functional.linear(tensor, weight, self.linear.bias)
        return torch.tanh(_SleepBackward.apply(hidden, self, "input", microbatch))


def announce_backwards(stage: Any) -> None:
    """Wrap the backwards of a stage so that its sleeping layers know whether BW runs."""
    layers = [module for module in stage.submod.modules() if isinstance(module, SleepingLayer)]

    def announce(*_: Any, full_backward: bool = True, **__: Any) -> None:
        for layer in layers:
            layer.full_backward = full_backward

    before(stage, "backward_one_chunk", announce)
    before(
        stage, "backward_weight_one_chunk", lambda *_, **__: announce(full_backward=stage.is_first)
    )
    announce(full_backward=False)
