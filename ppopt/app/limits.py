"""What one request may cost: the app answers anybody who reaches its port."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from ppopt import processors
from ppopt.errors import InputError
from ppopt.problem.pipeline import Pipeline


@dataclass(frozen=True)
class Limits:
    """The most that requests may ask for."""

    query: int = 60_000
    """Characters of a query; a server reads no longer line."""
    operations: int = 60_000
    """Operations of all schedules that are drawn together."""
    devices: int = 512
    """Devices, and stages, of a pipeline."""
    draw_seconds: float = 5.0
    """Seconds that baselines take together."""
    choosing_seconds: float = 1.0
    """Seconds in which they choose a partition or recompute."""
    search_seconds: float = 60.0
    """Time limit of a search."""
    searches: int = 2
    """Searches at once."""
    max_stored: int = 32
    """Schedules of searches that are kept, the latest ones."""

    @property
    def workers(self) -> int:
        """Processors of one search: all of them serve the searches at once."""
        return max(1, processors.available() // self.searches)

    def check_size(self, stages: object, batches: object, chunks: object) -> None:
        """Raise InputError if a pipeline of these would be too large, before it is made."""
        size = {"stages": stages, "batches": batches, "chunks": chunks}
        numbers = {name: n for name, n in size.items() if isinstance(n, int)}
        for name in ("stages", "chunks"):
            if numbers.get(name, 1) > self.devices:
                raise InputError(f"{name}: the app draws at most {self.devices}")
        count = 2 * prod(numbers.values())
        if count > self.operations:
            name = "batches" if "batches" in numbers else "stages"
            raise InputError(self._too_many(name, count))

    def check(self, pipeline: Pipeline, strategies: int) -> None:
        """Raise InputError if the schedules of a pipeline have too many operations."""
        count = pipeline.num_codes * max(1, strategies)
        if count > self.operations:
            raise InputError(self._too_many("batches", count))

    def _too_many(self, name: str, count: int) -> str:
        return (
            f"{name}: {count} operations in all; the app draws at most {self.operations}: use "
            "fewer microbatches or strategies, or `ppopt compare`, which has no such limit"
        )
