"""The choices of recompute that a search chooses from."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from fractions import Fraction

from ppopt.problem.pipeline import Pipeline
from ppopt.problem.problem import Problem
from ppopt.schedule.origin import Argument
from ppopt.solver.configurations import (
    Candidates,
    Configuration,
    ConfigurationSearch,
    Key,
    UnlistedBound,
)
from ppopt.solver.recompute.space import RecomputeSpace


class RecomputeCandidates(Candidates):
    """Every choice of layers that recompute that may be best."""

    name = "recompute"
    argument = Argument.RECOMPUTE

    def __init__(self, problem: Problem) -> None:
        """Raises NotApplicableError where recompute cannot be searched."""
        self._space = RecomputeSpace(problem)
        self._none = [device for device, choices in enumerate(self._space.devices) if not choices]
        """Devices without memory for one microbatch, whatever is chosen."""
        self._listed = self._space.listed

    def pipeline(self, key: Key) -> Pipeline:
        """The pipeline in which the layers of a choice recompute."""
        return self._space.pipeline(key)

    def key(self, pipeline: Pipeline) -> Key | None:
        """The choice of every device, or one that takes no more; None: there is none."""
        return self._space.key(pipeline)

    def configurations(self, keys: Sequence[Key]) -> Iterable[Configuration]:
        """Choices with their bounds."""
        return map(self._space.configuration, keys)

    def listed(self) -> list[Key]:
        """All choices; none: there are too many."""
        return self._listed or []

    def required_candidates(self) -> list[Key]:
        """No recompute and full recompute."""
        return [] if self._none else self._space.extremes()

    def first(self) -> Iterable[Key]:
        """Full and no recompute, the bound's own choice, and levels between."""
        return () if self._none else self._space.simple()

    def unknown(
        self,
        known: Container[Key],  # noqa: ARG002
        ceiling: Fraction | None,  # noqa: ARG002
    ) -> UnlistedBound | None:
        """The bound of all choices, where not all are known."""
        return UnlistedBound(self._space.least) if self._listed is None else None

    def moves(self, key: Key) -> Iterator[Key]:
        """One device with the next choice, either way; and all of them."""
        return self._space.moves(key)

    def proof(self, search: ConfigurationSearch) -> str:
        """The argument behind the bound over all choices, in words."""
        if self._none:
            return (
                f"device {self._none[0]} has no memory for one microbatch, however many of its "
                "layers recompute"
            )
        scope = (
            f"over all {self._space.size} choices of layers that recompute (those that take more "
            "time and more memory than another left out)"
        )
        if self._listed is None:
            return (
                f"{scope}: the head, work and forced idle time of one device, with its own choice "
                f"of least bound and no recompute elsewhere, take that long; {search.searched} "
                "were searched"
            )
        return (
            f"{scope}: {search.ruled_out} are ruled out by head, work and forced idle time of a "
            f"device alone{', or of several together' if search.subsets_ruled_out else ''}, "
            f"{search.searched} were searched"
        )
