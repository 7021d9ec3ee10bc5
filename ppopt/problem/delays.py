"""Delays between devices in ticks, as one array for each way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ppopt.problem.costs import flat, is_matrix
from ppopt.problem.distinct import map_distinct

if TYPE_CHECKING:
    from ppopt.problem.pipeline import Pipeline


def delay_arrays(pipeline: Pipeline, per_unit: int) -> tuple[Any, Any]:
    """Delays down and up: `[boundary, device before it, device after it]`.

    An axis on which nothing depends has one entry. Integers are Python's.
    """
    back = pipeline.p2p if pipeline.backward_p2p is None else pipeline.backward_p2p
    down, up = (_array(delays, per_unit) for delays in (pipeline.p2p, back))
    return down, up.swapaxes(1, 2)


def _array(delays: Any, per_unit: int) -> Any:
    """A number, a list with an entry per boundary, or a matrix [from device][to device]."""
    ticks = map_distinct(lambda delay: int(delay * per_unit), flat(delays))
    shape = (1, len(delays), -1) if is_matrix(delays) else (-1, 1, 1)
    return np.array(ticks, dtype=object).reshape(shape)


def delays_of(pipeline: Pipeline, per_unit: int) -> Any:
    """Delays between stages: `[way, route, boundary]`.

    They are 0 on one device, and count also where nothing goes up, as a stage has no backward.
    """
    hosts = np.array(pipeline.hosts)
    before, after = hosts[:, :-1], hosts[:, 1:]
    boundary = np.arange(pipeline.num_stages - 1)
    shape = (len(boundary), pipeline.num_devices, pipeline.num_devices)
    return np.stack(
        [
            np.broadcast_to(delays, shape)[boundary, before, after] * (before != after)
            for delays in delay_arrays(pipeline, per_unit)
        ]
    )
