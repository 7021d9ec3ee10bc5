"""What a choice is: the configurations to choose from, their bounds, and which to try.

A configuration is one way to set up a pipeline, such as a placement of its stages.
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
"""What tells a configuration from the others, such as the device of every stage."""


@dataclass(eq=False)
class Configuration:
    """What is known of one configuration; values in the user's unit."""

    key: Key
    bound: Fraction
    """No schedule of it is below."""
    impossible: bool = False
    """Whether it is proved to have no schedule, or is not one to choose."""
    result: Result | None = None
    """Its best schedule."""
    level: int = -1
    """Effort of its last search: rounds of all methods; -1: not searched."""
    refined: bool = False
    """Whether the bounds of its pipeline are in `bound`."""
    bounding: SubsetBounding | None = None
    """Raises its bound by subsets of its devices; None: not begun."""

    @property
    def value(self) -> Fraction | None:
        """Objective of its best schedule."""
        return None if self.result is None else self.result.value


class UnlistedBound(NamedTuple):
    """What is known of the configurations that are not known yet."""

    bound: Fraction
    """No schedule of them is below."""
    key: Key | None = None
    """One of this bound; None: they have no order."""


class SearchedConfigurations(Protocol):
    """What a search has found of the configurations of a choice: its proof says so in words."""

    known: dict[Key, Configuration]

    @property
    def closed(self) -> bool:
        """Whether the best value is proved least, or there is proved to be no schedule."""

    @property
    def none(self) -> bool:
        """Whether there is proved to be no schedule of any configuration to choose."""

    @property
    def searched(self) -> int:
        """How many configurations were searched."""

    @property
    def examined(self) -> int:
        """How many configurations were searched, or bounded by subsets of their devices."""

    @property
    def ruled_out(self) -> int:
        """How many configurations were ruled out by their bounds, without a search."""

    @property
    def subsets_ruled_out(self) -> bool:
        """Whether one of these was bounded by subsets of its devices."""

    def is_open(self, one: Configuration) -> bool:
        """Whether it may have a better schedule than the best one."""


class Choice(ABC):
    """The configurations to choose from: what each is, and which to try."""

    name: str
    """What a configuration is called."""
    argument: Argument
    """The argument behind the bound over all of them."""

    @abstractmethod
    def pipeline(self, key: Key) -> Pipeline:
        """The pipeline of a configuration."""

    @abstractmethod
    def key(self, pipeline: Pipeline) -> Key | None:
        """The configuration whose pipeline it is; None: it is none of these."""

    @abstractmethod
    def configurations(self, keys: Sequence[Key]) -> Iterable[Configuration]:
        """Configurations with their bounds."""

    def bound(  # noqa: B027  most are bounded as they are made
        self, deadline: Deadline, ceiling: Fraction | None = None
    ) -> None:
        """Bound all configurations before any is searched, by the deadline or as well as may be.

        Those of bounds above the ceiling are of no use.
        """

    @property
    def least(self) -> Fraction:
        """No schedule of any configuration is below, by bounds alone; 0 where that is not known."""
        return Fraction(0)

    @abstractmethod
    def first(self) -> Iterable[Key]:
        """Configurations to schedule before all others; the next is asked for when it is due."""

    def required_candidates(self) -> Sequence[Key]:
        """Baselines that the result must match.

        Each is scheduled at any time left, and searched at every level of effort while it may be
        better.
        """
        return ()

    @abstractmethod
    def moves(self, key: Key) -> Iterable[Key]:
        """Configurations that differ little from one."""

    @abstractmethod
    def proof(self, search: SearchedConfigurations) -> str:
        """The argument behind the bound over all, or why there is no schedule, in words."""

    def listed(self) -> Sequence[Key]:
        """All configurations; none: there are too many, or they are found on the way."""
        return ()

    def unknown(
        self,
        known: Container[Key],  # noqa: ARG002
        ceiling: Fraction | None,  # noqa: ARG002
    ) -> UnlistedBound | None:
        """The least bound of the configurations that are not known; None: all are known.

        Where they are given in the order of their bounds, also None where the next one is not below
        the ceiling, if there is one.
        """
        return None

    def perturbed(self, key: Key, random: Random) -> Key | None:  # noqa: ARG002
        """A configuration some random moves away; None: all are tried in another way."""
        return None
