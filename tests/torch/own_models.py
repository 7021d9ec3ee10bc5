"""Build functions for `--stages-from`: one that works with all that a job may have, and wrong ones.

Every function takes the number of microbatches.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

import ppopt.torch

WIDTH, SAMPLES = 8, 2


class Layer(nn.Module):
    """Takes a tensor and places, a mask as keyword, and hands both on."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, tensor: Any, places: Any, *, mask: Any, factor: float) -> Any:
        return torch.tanh(self.linear(tensor + factor * places[:, None])) * mask, places + 1


class Last(Layer):
    """Two outputs."""

    def forward(self, tensor: Any, places: Any, **kwargs: Any) -> Any:
        output, _ = super().forward(tensor, places, **kwargs)
        return output, self.linear(tensor)


class Plain(Layer):
    """Maps one tensor to one tensor."""

    def forward(self, tensor: Any, *, mask: Any, factor: float) -> Any:
        return torch.tanh(self.linear(factor * tensor)) * mask


class PlainLast(Plain):
    """Two outputs."""

    def forward(self, tensor: Any, **kwargs: Any) -> Any:
        return super().forward(tensor, **kwargs), self.linear(tensor)


class Weight(Plain):
    """Passes on the tensor and a value that no input reaches."""

    def forward(self, tensor: Any, **kwargs: Any) -> Any:
        return super().forward(tensor, **kwargs), self.linear.weight[:SAMPLES] * 2


class Sum(Plain):
    """Takes two tensors."""

    def forward(self, tensor: Any, more: Any, **kwargs: Any) -> Any:
        return super().forward(tensor + more, **kwargs)


class Random(Plain):
    """Another result in every process."""

    def forward(self, tensor: Any, **kwargs: Any) -> Any:
        return nn.functional.dropout(super().forward(tensor, **kwargs))


def two_losses(outputs: Any, target: Any) -> Any:
    first, two = outputs
    return nn.functional.mse_loss(first, target) + two.abs().mean()


def good(microbatches: int) -> ppopt.torch.Job:
    """Five modules, made by functions or given as they are."""
    size = microbatches * SAMPLES
    return ppopt.torch.Job(
        modules=[Layer, partial(Layer), Layer(), Layer, Last],
        inputs=(torch.randn(size, WIDTH), torch.arange(size)),
        target=torch.randn(size, WIDTH),
        loss=two_losses,
        kwargs={"mask": torch.rand(size, 1), "factor": 0.1},
    )


def plain(microbatches: int) -> ppopt.torch.Job:
    """The same without integers between stages, which PyTorch before 2.13 cannot hand on."""
    job = good(microbatches)
    layers = [Plain, partial(Plain), Plain(), Plain, PlainLast]
    return replace(job, modules=layers, inputs=job.arguments[0])


def lost_gradient(microbatches: int) -> ppopt.torch.Job:
    """A split backward would lose a part of the gradient of module 1."""
    return replace(plain(microbatches), modules=[Plain, Weight, Sum, Plain, PlainLast])


def dropout(microbatches: int) -> ppopt.torch.Job:
    return replace(plain(microbatches), modules=[Plain, Random, Plain, Plain, PlainLast])


def number(microbatches: int) -> int:
    return microbatches


def nothing() -> None:
    """Takes no microbatches."""


def broken(microbatches: int) -> ppopt.torch.Job:
    raise ValueError("no data")


def empty(microbatches: int) -> ppopt.torch.Job:
    return replace(good(microbatches), modules=[])


def one_module(microbatches: int) -> ppopt.torch.Job:
    return replace(good(microbatches), modules=Layer())  # type: ignore[arg-type]


def no_modules(microbatches: int) -> ppopt.torch.Job:
    return replace(good(microbatches), modules=[Layer, 3])  # type: ignore[list-item]


def no_target(microbatches: int) -> ppopt.torch.Job:
    return replace(good(microbatches), target=None)


def ragged(microbatches: int) -> ppopt.torch.Job:
    return replace(good(microbatches), target=torch.zeros(microbatches * SAMPLES + 1, WIDTH))


def ragged_mask(microbatches: int) -> ppopt.torch.Job:
    return replace(good(microbatches), kwargs={"mask": torch.zeros(())})


def wrong_shape(microbatches: int) -> ppopt.torch.Job:
    return replace(good(microbatches), modules=[Layer, partial(nn.Linear, 3, 3)])


def no_module_made(microbatches: int) -> ppopt.torch.Job:
    return replace(good(microbatches), modules=[dict])


def no_tensor(microbatches: int) -> ppopt.torch.Job:
    class Tokens(Layer):
        def forward(self, *_: Any, **__: Any) -> Any:
            return "words"

    return replace(good(microbatches), modules=[Tokens])


def one_of_tokens(microbatches: int) -> ppopt.torch.Job:
    job = no_tensor(microbatches)
    return replace(job, modules=[*job.modules, Layer, Layer, Layer])


def no_gradient(microbatches: int) -> ppopt.torch.Job:
    class Cut(Layer):
        def forward(self, tensor: Any, places: Any, **_: Any) -> Any:
            return tensor.detach(), places

    return replace(good(microbatches), modules=[Cut])


def broken_loss(microbatches: int) -> ppopt.torch.Job:
    return replace(good(microbatches), loss=nn.functional.mse_loss)


def no_scalar(microbatches: int) -> ppopt.torch.Job:
    return replace(good(microbatches), loss=lambda outputs, _: outputs[0])
