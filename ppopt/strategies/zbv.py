"""ZB-V: zero bubble over two chunks in a V, within the memory of 1F1B."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, cycle

from ppopt.problem.instance import Instance
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.orders import Orders
from ppopt.strategies import weight_filling
from ppopt.strategies.base import Options, register
from ppopt.strategies.building_block import class_sequences

F_DOWN, F_UP, B_DOWN, B_UP = range(4)


@register(
    name="zbv",
    summary="zero bubble in a V, within the memory of 1F1B",
    source="Zero Bubble, arXiv 2401.10241, section 6",
    placement="v",
    chunks=2,
    adaptive=True,
    pytorch_name="ZBVZeroBubble",
)
def build(pipeline: Pipeline, _: Options) -> Orders:
    """F and B in the order of the paper's picture, W by the real times (see `weight_filling`).

    No idle time within the device span, and 2p chunks on every device, on equal stages with
    F = B = W, no link delay and m >= 2p - 1 (arXiv 2401.10241, section 6).
    """
    return weight_filling.best(pipeline, [_backbone], [], max_in_flight=2 * pipeline.num_devices)


def _backbone(instance: Instance) -> list[list[int]]:
    devices = instance.pipeline.num_devices
    passes = [_existing(_passes(device, devices), instance.batches) for device in range(devices)]
    return class_sequences(instance, passes)


def _passes(device: int, devices: int) -> Iterator[int]:
    """What a device runs but W, without end: warm-up in three parts, then the steady phase.

    Section 6 of the paper; the picture's parts are: first chunks alone; first and second chunks
    in turn; second chunks forward and backward in turn; and all four passes in turn.
    """
    return chain(
        [F_DOWN] * (2 * (devices - device) - 1),
        [F_UP, F_DOWN] * device,
        [F_UP, B_DOWN] * (devices - device),
        cycle((F_DOWN, B_UP, F_UP, B_DOWN)),
    )


def _existing(passes: Iterator[int], batches: int) -> list[int]:
    """The passes without those of microbatches that do not exist."""
    remaining = [batches] * 4
    order = []
    while any(remaining):
        pass_index = next(passes)
        if remaining[pass_index]:
            remaining[pass_index] -= 1
            order.append(pass_index)
    return order
