"""Interface of a choice: enumerates configurations, bounds them, and proposes which to try."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Container, Iterable, Sequence
from random import Random

from ppopt.problem.decisions import Decisions
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.origin import Argument, Certificate
from ppopt.solver.choices.configuration import Configuration, SearchedConfigurations
from ppopt.solver.choices.enumeration import (
    NONE_LEFT,
    Complete,
    Enumeration,
    Key,
    Partial,
    Rest,
    Unlisted,
)


class Choice(ABC):
    """A set of configurations to choose from, with their bounds and neighbours."""

    name: str
    """Name of a configuration in texts."""
    decisions = Decisions.NONE
    """Decisions of which the bound over all configurations covers every combination."""

    @abstractmethod
    def pipeline(self, key: Key) -> Pipeline:
        """Pipeline of a configuration."""

    @abstractmethod
    def key(self, pipeline: Pipeline) -> Key | None:
        """Key of the configuration with this pipeline; None if there is none."""

    @abstractmethod
    def configurations(self, keys: Sequence[Key]) -> Iterable[Configuration]:
        """Configurations of some keys, with their bounds."""

    def bound(  # noqa: B027  most choices bound configurations on creation
        self, ceiling: int | None = None
    ) -> None:
        """Bound all configurations before any is searched, in the time left.

        Configurations with bounds above the ceiling may be ignored.
        """

    @property
    def lower_bound(self) -> int:
        """Lower bound of all configurations that is known without a search; 0 if unknown."""
        return 0

    @abstractmethod
    def first(self) -> Iterable[Key]:
        """Configurations to schedule first, generated lazily."""

    def required_candidates(self) -> Sequence[Key]:
        """Baselines that the result must match.

        Each is scheduled even if time is up, and searched at every level of effort while it is
        open.
        """
        return ()

    def searched(self, lower_bound: int) -> SearchedConfigurations:
        """State of a search, of whose configurations a lower bound was proved earlier.

        Moves are tried from the best configuration of every group of the state.
        """
        return SearchedConfigurations(lower_bound)

    @abstractmethod
    def moves(self, key: Key) -> Iterable[Key]:
        """Neighbouring configurations."""

    @abstractmethod
    def proof(self, search: SearchedConfigurations) -> str:
        """Text of the argument behind the bound over all, or behind infeasibility."""

    def describe(self, key: Key) -> str:
        """Describe a configuration in a text."""
        return f"{self.name} {','.join(map(str, key))}"

    def certificate(self, search: SearchedConfigurations) -> Certificate:  # noqa: ARG002
        """Certificate of the bound over all."""
        return Certificate(Argument.SEARCH, decisions=self.decisions)

    def listed(self) -> Enumeration[Key]:
        """All configurations; partial if there are too many, or if the search generates them."""
        return Partial()

    def rest(
        self,
        known: Container[Key],
        ceiling: int | None,  # noqa: ARG002
    ) -> Rest:
        """Configurations that are not in `known`.

        If configurations are generated in the order of their bounds, those at or above the ceiling
        do not count.
        """
        listed = self.listed()
        is_complete = isinstance(listed, Complete) and all(key in known for key in listed.members)
        return NONE_LEFT if is_complete else Unlisted(self.lower_bound)

    def perturbed(self, key: Key, random: Random) -> Key | None:  # noqa: ARG002
        """Configuration a few random moves away; None if the search does not need one."""
        return None
