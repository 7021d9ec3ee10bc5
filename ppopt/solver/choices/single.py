"""The choice for a pipeline without open decisions: a single configuration."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ppopt.problem.pipeline import Pipeline
from ppopt.problem.problem import Problem
from ppopt.schedule.origin import Argument, Certificate
from ppopt.solver.bounds import device_bounds
from ppopt.solver.choices.choice import Choice
from ppopt.solver.choices.configuration import Configuration, SearchedConfigurations
from ppopt.solver.choices.enumeration import Complete, Key

ONLY: Key = ()
"""Key of the single configuration."""
SEARCHED = "a search of the pipeline, or of some of its devices, found nothing faster than this"
"""Proof of a bound above the one-device bound."""


class SinglePipeline(Choice):
    """A single pipeline."""

    name = "pipeline"

    def __init__(self, problem: Problem, *, any_order: bool = False) -> None:
        """With `any_order` the bound holds for every order of microbatches that differ."""
        self._pipeline, reduced = problem.pipeline, problem.reduced
        self._impossible = device_bounds.infeasibility(reduced.instance)
        """Why no schedule is within the memory limits; None if one may exist."""
        self._known = device_bounds.known_bound(reduced, any_order=any_order)
        """One-device bound."""
        self._bound = self._known.value

    def pipeline(self, key: Key) -> Pipeline:  # noqa: ARG002
        """The pipeline."""
        return self._pipeline

    def key(self, pipeline: Pipeline) -> Key | None:
        """The single key if the pipeline has the same layers in every stage, else None."""
        return ONLY if pipeline.counts == self._pipeline.counts else None

    def configurations(self, keys: Sequence[Key]) -> Iterator[Configuration]:
        """The single configuration with its one-device bound."""
        return (Configuration(key, self._bound, self._impossible is not None) for key in keys)

    @property
    def lower_bound(self) -> int:
        """One-device bound."""
        return self._bound

    def first(self) -> list[Key]:
        """The single configuration."""
        return [ONLY]

    def listed(self) -> Complete[Key]:
        """The single configuration."""
        return Complete([ONLY])

    def moves(self, key: Key) -> list[Key]:  # noqa: ARG002
        """None."""
        return []

    def certificate(self, search: SearchedConfigurations) -> Certificate:
        """Certificate of the bound: known before the search, or proved by a search."""
        if search.infeasible and self._impossible is not None:
            return Certificate(Argument.MEMORY)
        return super().certificate(search) if self._is_raised(search) else self._known.certificate

    def proof(self, search: SearchedConfigurations) -> str:
        """Text of the argument behind the bound, or behind infeasibility."""
        if search.infeasible and self._impossible is not None:
            return self._impossible
        return SEARCHED if self._is_raised(search) else self._known.proof

    def _is_raised(self, search: SearchedConfigurations) -> bool:
        """Whether a search has raised the bound."""
        weight = search.known[ONLY].weight if ONLY in search.known else 1
        return search.infeasible or search.lower_bound > self._bound * weight
