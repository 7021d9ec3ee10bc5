"""Interleaved schedules exported to Megatron-LM: it runs the order promised, or the export fails.

Its rules and its order are written out again, from `forward_backward_pipelining_with_interleaving`
of megatron/core/pipeline_parallel/schedules.py (megatron-core 0.16.1).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from tests.cli.cli_run import run
from tests.fuzz.category import Case, Category, Finding, SkippedError

Order = list[list[Any]]
"""Kind, stage and microbatch of the operations of a device."""


class GroupSizes(Category):
    """Devices, chunks, microbatches and group sizes, whether Megatron-LM runs them or not."""

    name = "group-sizes"
    goal = 60

    def draw(self, rng: Random) -> Case:
        """Draw sizes; about half of them Megatron-LM does not run."""
        return {
            "devices": rng.randint(1, 4),
            "chunks": rng.randint(2, 3),
            "batches": rng.randint(1, 10),
            "group": rng.choice((None, rng.randint(1, 10))),
            "more_layers": rng.randint(0, 3),
        }

    def check(self, case: Case) -> Iterator[Finding]:
        """Export the schedule, and run what the arguments say."""
        devices, chunks, batches = case["devices"], case["chunks"], case["batches"]
        with TemporaryDirectory() as where:
            names = ("model.json", "made.json", "out.txt")
            model, schedule, out = (Path(where) / name for name in names)
            layers = [{"forward": 1, "count": devices * chunks + case["more_layers"]}]
            fields = {"stages": devices, "batches": batches, "layers": layers}
            model.write_text(json.dumps(fields), encoding="utf-8")
            command = ["interleaved", "--chunks", chunks, "--config", model, "-o", schedule]
            if case["group"] is not None:
                command += ["--group-size", case["group"]]
            if run("", "eval", *command, "--quiet").code:
                raise SkippedError("the strategy refuses the group size")
            rows = json.loads(schedule.read_text(encoding="utf-8"))
            code, _, err = run("", "export", schedule, "--to", "megatron-arguments", "-o", out)
            text = "" if code else out.read_text(encoding="utf-8")
        stated = re.search(r"--microbatch-group-size-per-virtual-pipeline-stage (\d+)", text)
        group = int(stated[1]) if stated else case["group"] if code else None
        runs = _runs(devices, batches, devices if group is None else group)
        if code and runs and case["group"] is not None:
            yield Finding("megatron-refused", err)
        if not code and not runs:
            yield Finding("megatron-stops", text)
        if not code and runs:
            promised = _promised(rows, devices)
            own = [_own(devices, chunks, batches, group or devices, d) for d in range(devices)]
            if own != promised:
                yield Finding("megatron-order", f"{own}, promised {promised}")


def _runs(devices: int, batches: int, group: int) -> bool:
    """Whether Megatron-LM runs interleaved 1F1B in groups of so many."""
    rest = batches % group
    return devices > 1 and devices <= group <= batches and (rest == 0 or rest >= devices)


def _own(devices: int, chunks: int, batches: int, group: int, device: int) -> Order:
    """Operations of a device in the order of Megatron-LM."""
    table = [
        (microbatch, chunk)
        for first in range(0, batches, group)
        for chunk in range(chunks)
        for microbatch in range(first, min(batches, first + group))
    ]
    forward = [["F", chunk * devices + device, microbatch] for microbatch, chunk in table]
    last = chunks - 1
    backward = [["BW", (last - chunk) * devices + device, mb] for mb, chunk in table]
    warm_up = min(len(table), 2 * (devices - device - 1) + last * group)
    order = forward[:warm_up]
    for index in range(len(table) - warm_up):
        order += [forward[warm_up + index], backward[index]]
    return order + backward[len(table) - warm_up :]


def _promised(file: dict[str, Any], devices: int) -> list[Order]:
    """Operations of every device in the order of a schedule file."""
    orders: list[Order] = [[] for _ in range(devices)]
    for kind, stage, microbatch, device, *_ in file["ops"]:
        orders[device].append([kind, stage, microbatch])
    return orders
