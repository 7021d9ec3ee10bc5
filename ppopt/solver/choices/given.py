"""The choice of a pipeline that leaves nothing open: one configuration."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction

from ppopt.problem.pipeline import Pipeline
from ppopt.problem.problem import Problem
from ppopt.solver.bounds import device_bounds
from ppopt.solver.choices.choice import Choice
from ppopt.solver.choices.configuration import Configuration, Key, SearchedConfigurations

ONLY: Key = ()
"""Key of the one configuration."""


class GivenPipeline(Choice):
    """One pipeline."""

    name = "pipeline"

    def __init__(self, problem: Problem) -> None:
        self._pipeline = problem.pipeline
        reduced = problem.reduced
        self._impossible = device_bounds.infeasibility(reduced.instance) is not None
        bound = device_bounds.known_bound(reduced)
        self._bound = problem.pipeline.ticks.time(bound.value)
        self.argument, self._proof = bound.certificate.argument, bound.proof

    def pipeline(self, key: Key) -> Pipeline:  # noqa: ARG002
        """The pipeline."""
        return self._pipeline

    def key(self, pipeline: Pipeline) -> Key | None:
        """The one key, if the pipeline has the same layers in every stage; else None."""
        return ONLY if pipeline.counts == self._pipeline.counts else None

    def configurations(self, keys: Sequence[Key]) -> Iterator[Configuration]:
        """The configuration with its one-device bound."""
        return (Configuration(key, self._bound, self._impossible) for key in keys)

    @property
    def lower_bound(self) -> Fraction:
        """One-device bound."""
        return self._bound

    def first(self) -> list[Key]:
        """The one configuration."""
        return [ONLY]

    def listed(self) -> list[Key]:
        """The one configuration."""
        return [ONLY]

    def moves(self, key: Key) -> list[Key]:  # noqa: ARG002
        """None."""
        return []

    def proof(self, search: SearchedConfigurations) -> str:  # noqa: ARG002
        """Text of the argument behind the one-device bound."""
        return self._proof
