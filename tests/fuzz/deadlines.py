"""Studies of large pipelines and models at short limits: the time is kept."""

from __future__ import annotations

import time
from collections.abc import Iterator
from random import Random

import ppopt
from benchmarks.record import processor_clock
from ppopt import Pipeline, Status
from tests.fuzz.category import Case, Category, Finding

SLACK = 0.5
"""Seconds of the processor allowed beyond the promise (10 % and a second): those of a busy
processor are longer."""


class Deadlines(Category):
    """Many devices and few microbatches, or the other way round; a search has a schedule."""

    name = "deadlines"
    goal = 15
    tries = 0

    def draw(self, rng: Random) -> Case:
        """Draw the pipeline of a search."""
        devices = rng.choice((8, 16, 64, 256, 512, 1024))
        batches = rng.choice((1, 2, 4, devices // 4, 2 * devices, 4 * devices, 130_000 // devices))
        fields = {
            "stages": devices,
            "batches": min(batches, 130_000 // devices),
            "p2p": rng.choice((0, "0.5")),
            "weight": [rng.choice(("0.8", 1, "1.1")) for _ in range(devices)],
            "mem_limit": rng.choice((None, devices, "1f1b")),
        }
        if rng.random() < 0.3:
            fields |= {"placement": "v", "chunks": 2}
        return {"study": "solve", "pipeline": fields, "time_limit": rng.choice((0.5, 1.0, 2.0))}

    def check(self, case: Case) -> Iterator[Finding]:
        """Ask the study, and look at the clock of the processor."""
        pipeline, limit, began = (
            Pipeline(**case["pipeline"]),
            case["time_limit"],
            time.process_time(),
        )
        with processor_clock():
            found = getattr(ppopt, case["study"])(pipeline, time_limit=limit, workers=1)
        used = time.process_time() - began
        if used > 1.1 * limit + 1 + SLACK:
            yield Finding(f"{case['study']}-late", f"{used:.1f} s at a limit of {limit} s")
        if self.name == "deadlines" and found.status is Status.UNKNOWN:
            yield Finding("no-schedule", f"unknown after {used:.1f} s of {limit} s")


class StudyDeadlines(Deadlines):
    """Models of many layers whose partitions are searched."""

    name = "study-deadlines"

    def draw(self, rng: Random) -> Case:
        """Draw a study of a model."""
        devices = rng.choice((4, 8, 16))
        layer = {"forward": 5, "backward": 11, "activation": 2, "static": 3, "kept": "0.1"}
        count = devices * rng.choice((3, 4, 6))
        ends = {"embedding": {"forward": 1, "static": 2}, "head": {"forward": 9, "activation": 1}}
        first, last = ({"role": role} | costs for role, costs in ends.items())
        fields = {
            "stages": devices,
            "batches": devices * rng.choice((2, 4)),
            "mem_limit": rng.choice((None, 3 * count, 5 * count)),
            "model": [first, layer | {"count": count}, last],
            "partition": "search",
        }
        return {
            "study": rng.choice(("plan", "compare", "frontier", "solve")),
            "pipeline": fields | ({"recompute": "search"} if rng.random() < 0.3 else {}),
            "time_limit": rng.choice((0.5, 1.0, 2.0)),
        }
