"""Links that take their time between stages that sleep: an input counts as arrived only then.

PyTorch hands a tensor over as soon as it is there. Here the end of every operation is noted in a
file that all ranks of the machine map, and an operation whose input was made on another device
waits until that end plus the link's time. Its device has nothing else to do: orders are fixed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ppopt.schedule.schedule import Schedule

_WAYS = {"forward_one_chunk": -1, "backward_one_chunk": 1}
"""Method of a stage -> where its input comes from: the stage before it, or the one after it."""


class Links(NamedTuple):
    """What the ranks need to know of the links."""

    path: Path
    """File of ends in nanoseconds, by way, stage and microbatch."""
    shape: tuple[int, int, int]
    delays: tuple[tuple[int, ...], ...]
    """Nanoseconds of a transfer from stage to stage; 0 on one device."""

    def on(self, stages: Sequence[Any]) -> None:
        """Let a rank's stages wait for their inputs; wraps their methods."""
        ends = np.memmap(self.path, dtype=np.int64, mode="r+", shape=self.shape)
        for stage in stages:
            for way, (method, step) in enumerate(_WAYS.items()):
                source = stage.stage_index + step
                inside = 0 <= source < self.shape[1]
                delay = self.delays[source][stage.stage_index] if inside else 0
                made = ends[way, source] if delay else None
                mine = ends[way, stage.stage_index]
                setattr(stage, method, _linked(getattr(stage, method), mine, made, delay))


def links(schedule: Schedule, seconds_per_unit: float, path: Path) -> Links | None:
    """Prepare the links of a schedule's pipeline; None where every transfer takes no time."""
    pipeline = schedule.pipeline
    (hosts,) = pipeline.hosts
    unit = seconds_per_unit * 1e9 / pipeline.ticks.per_unit
    delays = tuple(tuple(round(pipeline.ticks.p2p[a][b] * unit) for b in hosts) for a in hosts)
    if not any(map(any, delays)):
        return None
    shape = (len(_WAYS), pipeline.num_stages, pipeline.batches)
    path.write_bytes(bytes(8 * int(np.prod(shape))))
    return Links(path, shape, delays)


def _linked(method: Callable[..., Any], mine: Any, made: Any, delay: int) -> Callable[..., Any]:
    def linked(microbatch: int, *args: Any, **options: Any) -> Any:
        if made is not None:
            wait = int(made[microbatch]) + delay - time.perf_counter_ns()
            time.sleep(max(wait, 0) / 1e9)
        found = method(microbatch, *args, **options)
        mine[microbatch] = time.perf_counter_ns()
        return found

    return linked
