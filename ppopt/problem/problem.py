"""The search problem: a pipeline with its limits, an objective, and whole or split backwards."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ppopt.problem.instance import Instance
from ppopt.problem.objective import Objective
from ppopt.problem.pipeline import Pipeline


@dataclass(frozen=True)
class Problem:
    """A pipeline, an objective, and whether backwards are whole or split."""

    pipeline: Pipeline
    objective: Objective
    fused: bool
    """Whether every backward is whole (BW); else every one is split (B and W)."""

    @cached_property
    def instance(self) -> Instance:
        """The operations of the problem."""
        return Instance.uniform(self.pipeline, fused=self.fused)

    @property
    def operations(self) -> int:
        """Number of operations of every schedule."""
        pieces = self.pipeline.batches * self.pipeline.num_slices
        return (2 if self.fused else 3) * self.pipeline.num_stages * pieces
