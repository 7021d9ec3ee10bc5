"""Interface of a choice: enumerates configurations, bounds them, and proposes which to try.

A configuration is one way to set up a pipeline: a partition, a placement or recomputed layers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from random import Random
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.origin import Argument
from ppopt.solver.deadline import Deadline
from ppopt.solver.result import Result

if TYPE_CHECKING:
    from ppopt.solver.subset_bounding import SubsetBounding

Key = tuple[int, ...]
"""Identity of a configuration, such as the device of every stage."""


@dataclass(eq=False)
class Configuration:
    """State of one configuration in a search.

    Bounds and values are in the user's unit, per microbatch if `batches` is set.
    """

    key: Key
    bound: Fraction
    """Lower bound of its schedules."""
    batches: int = 1
    """Number that divides its times: the microbatches, where numbers of them are compared."""
    impossible: bool = False
    """Whether the configuration is proved infeasible or is excluded."""
    result: Result | None = None
    """Result of the best schedule."""
    level: int = -1
    """Effort of the last search: rounds of all methods; -1: not searched."""
    refined: bool = False
    """Whether `bound` includes the one-device bounds of the pipeline."""
    bounding: SubsetBounding | None = None
    """Dynamic programs that raise the bound by subsets of devices; None: not begun."""

    @property
    def value(self) -> Fraction | None:
        """Objective of the best schedule."""
        if self.result is None or self.result.value is None:
            return None
        return self.result.value / self.batches


class UnlistedBound(NamedTuple):
    """Lower bound of the configurations that are not enumerated yet."""

    bound: Fraction
    """Lower bound of their schedules."""
    key: Key | None = None
    """Next configuration, which has this bound; None: they have no order."""


class SearchedConfigurations(Protocol):
    """State of a search over configurations, which `Choice.proof` reads."""

    known: dict[Key, Configuration]

    @property
    def closed(self) -> bool:
        """Whether the best value is proved optimal, or infeasibility is proved."""

    @property
    def infeasible(self) -> bool:
        """Whether all configurations are proved infeasible."""

    @property
    def searched(self) -> int:
        """Number of configurations that were searched."""

    @property
    def examined(self) -> int:
        """Number of configurations that were searched, or bounded by subsets of their devices."""

    @property
    def ruled_out(self) -> int:
        """Number of configurations that were ruled out by their bounds, without a search."""

    @property
    def subsets_ruled_out(self) -> bool:
        """Whether a configuration was ruled out by a bound on a subset of its devices."""

    def is_open(self, configuration: Configuration) -> bool:
        """Whether a configuration may have a better schedule than the best one."""


class Choice(ABC):
    """A set of configurations to choose from, with their bounds and neighbours."""

    name: str
    """Name of a configuration in texts."""
    argument: Argument
    """Argument behind the bound over all configurations."""

    @abstractmethod
    def pipeline(self, key: Key) -> Pipeline:
        """Pipeline of a configuration."""

    @abstractmethod
    def key(self, pipeline: Pipeline) -> Key | None:
        """Key of the configuration with this pipeline; None if there is none."""

    @abstractmethod
    def configurations(self, keys: Sequence[Key]) -> Iterable[Configuration]:
        """Configurations of some keys, with their bounds."""

    def bound(  # noqa: B027  most are bounded as they are made
        self, deadline: Deadline, ceiling: Fraction | None = None
    ) -> None:
        """Bound all configurations before any is searched, until the deadline.

        Configurations with bounds above the ceiling may be ignored.
        """

    @property
    def lower_bound(self) -> Fraction:
        """Lower bound of all configurations, from bounds alone; 0 if unknown."""
        return Fraction(0)

    @abstractmethod
    def first(self) -> Iterable[Key]:
        """Configurations to schedule before all others, generated lazily."""

    def required_candidates(self) -> Sequence[Key]:
        """Baselines that the result must match.

        Each is scheduled even if time is up, and searched at every level of effort while it is
        open.
        """
        return ()

    @abstractmethod
    def moves(self, key: Key) -> Iterable[Key]:
        """Neighbouring configurations."""

    @abstractmethod
    def proof(self, search: SearchedConfigurations) -> str:
        """Text of the argument behind the bound over all, or behind infeasibility."""

    def listed(self) -> Sequence[Key]:
        """All configurations; empty if there are too many, or if the search generates them."""
        return ()

    def unlisted_bound(
        self,
        known: Container[Key],  # noqa: ARG002
        ceiling: Fraction | None,  # noqa: ARG002
    ) -> UnlistedBound | None:
        """Lower bound of the configurations not in `known`; None if there are none.

        If configurations are generated in the order of their bounds, also None if the next one is
        not below the ceiling.
        """
        return None

    def perturbed(self, key: Key, random: Random) -> Key | None:  # noqa: ARG002
        """Configuration a few random moves away; None if the search does not need one."""
        return None
