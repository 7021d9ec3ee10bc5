"""One configuration of a choice, and the state of a search over all configurations.

A configuration is one way to set up a pipeline: a partition, a placement or recomputed layers.
Bounds and values are in ticks of the grid, which all pipelines share, times the weight of the
configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from math import inf
from typing import TYPE_CHECKING, Protocol

from ppopt.problem.exact import min_known
from ppopt.schedule.schedule import Schedule
from ppopt.solver.choices.enumeration import (
    NONE_LEFT,
    Complete,
    Key,
    Rest,
    Unlisted,
    bounds_of_all,
    lower_bound_of,
    min_rest,
)
from ppopt.solver.result import Result

if TYPE_CHECKING:
    from ppopt.solver.subset_bounding import SubsetBounding


EVALUATED = 2**31
"""Level of a configuration that was evaluated: no search has more effort."""


class Evaluator(Protocol):
    """Values configurations in place of a search."""

    def evaluate(self, configuration: Configuration) -> None:
        """Set the value of a configuration, and its bound; it may evaluate others at once.

        The last entries of its key are its key for the evaluator (`ProductChoice`).
        """


@dataclass(eq=False)
class Configuration:
    """State of one configuration in a search."""

    key: Key
    bound: int
    """Lower bound of its schedules."""
    impossible: bool = False
    """Whether the configuration is proved infeasible or is excluded."""
    weight: int = 1
    """Factor on its times. If different numbers of microbatches are compared, they become times of
    the least common multiple of these numbers."""
    result: Result | None = None
    """Result of the best schedule."""
    value: int | None = None
    """Objective of the best schedule, or value by an evaluator without a schedule."""
    level: int = -1
    """Effort of the last search, in rounds of all methods; -1: not searched."""
    refined: bool = False
    """Whether `bound` includes the one-device bounds of the pipeline."""
    evaluator: Evaluator | None = None
    """None: the configuration is searched."""
    bounding: SubsetBounding | None = None
    """Dynamic programs that raise the bound by subsets of devices; None: not begun."""

    @property
    def searched(self) -> bool:
        """Whether the configuration was searched."""
        return self.level >= 0

    @property
    def schedule(self) -> Schedule | None:
        """Best schedule."""
        return None if self.result is None else self.result.schedule

    @property
    def rank(self) -> tuple[float, float]:
        """Value and largest device peak of the best schedule, in ticks; smaller is better."""
        schedule = self.schedule
        peak = inf if schedule is None else max(schedule.metrics.peak_memory_ticks)
        return inf if self.value is None else self.value, peak

    def raise_bound(self, bound: int) -> None:
        """Raise the bound to one of its schedules, in ticks."""
        self.bound = max(self.bound, bound * self.weight)

    def weighted(self, value: int | None) -> int | None:
        """The value of one of its schedules in ticks, times the weight."""
        return None if value is None else value * self.weight

    def in_ticks(self, time: int) -> int:
        """The smallest number of ticks that, times the weight, is no less than a time."""
        return -(-time // self.weight)


RestOf = Callable[[Container[Key], int | None], Rest]
"""Function that bounds the configurations that are not known; see `Choice.rest`."""


@dataclass(eq=False)
class SearchedConfigurations:
    """State of a search over the configurations of a choice."""

    open_bound: int
    """Lower bound of the configurations that are not excluded."""
    rest_of: RestOf | None = None
    """None: nothing but the bound is known of the configurations that are not enumerated."""
    known: dict[Key, Configuration] = field(default_factory=dict)
    """Configurations that are enumerated, but for those of groups."""
    best: Configuration | None = None
    """Configuration of the best schedule."""
    cutoff: int | None = None
    """Values at or above it are useless; None: all are useful."""
    rest: Rest = field(init=False)
    """Configurations not enumerated that may be better."""
    all_excluded: bool = field(default=False, init=False)
    """Whether every other configuration is proved to be no better."""
    groups: Mapping[Key, SearchedConfigurations] = field(init=False)
    """State of every group of configurations, by the prefix of their keys."""

    def __post_init__(self) -> None:
        self.rest, self.groups, self._width = Unlisted(self.open_bound), {(): self}, 0

    def _of(self, key: Key) -> tuple[SearchedConfigurations, Key]:
        """Group of a configuration, and the key in it."""
        return self.groups[key[: self._width]], key[self._width :]

    def add(self, configuration: Configuration) -> None:
        """Add a configuration that is not enumerated yet."""
        group, key = self._of(configuration.key)
        group.known[key] = configuration

    def find(self, key: Key) -> Configuration | None:
        """The configuration of a key, if it is enumerated."""
        group, own = self._of(key)
        return group.known.get(own)

    @property
    def every(self) -> Iterator[Configuration]:
        """All configurations that are enumerated."""
        return (each for group in self.groups.values() for each in group.known.values())

    @property
    def value(self) -> int | None:
        """Best value found."""
        return None if self.best is None else self.best.value

    @property
    def best_weight(self) -> int:
        """Weight of a configuration with the best value or, without one, of any."""
        bests = (own.best for own in self.groups.values() if own.best and own.value == self.value)
        first = next(chain(bests, self.every), None)
        return 1 if first is None else first.weight

    @property
    def end(self) -> int | None:
        """Best value or the cutoff: a configuration with this bound is useless."""
        return min_known((self.value, self.cutoff))

    def offer(self, configuration: Configuration) -> None:
        """Record a configuration if it is better than the best one, or needs less memory."""
        if configuration.value is None:
            return
        if self.best is None or configuration.rank < self.best.rank:
            self.best = configuration
            self.raise_open_bound(self.open_bound)

    def raise_bound(self, ceiling: int | None = None) -> None:
        """Raise the bound over all to the minimum over the configurations that may be better.

        Bounds above a ceiling need not be exact, if a configuration may be feasible.
        """
        ends = [each.bound for each in self.every if not each.impossible]
        if ends or self.value is not None:
            ends += [end for end in (self.end, ceiling) if end is not None]
        self.rest = Unlisted(self.open_bound)
        if self.rest_of is not None:
            self.rest = self.rest_of(self.known, min(ends, default=None))
        self.raise_to(bounds_of_all(ends, self.rest))

    def raise_to(self, bounds: Complete[int]) -> None:
        """Raise the bound of all configurations to the minimum of the bounds that cover them."""
        bound = lower_bound_of(bounds)
        if bound is None:
            self.all_excluded = True
        else:
            self.raise_open_bound(bound)

    def raise_open_bound(self, bound: int) -> None:
        """Raise the lower bound of all configurations that may be better."""
        self.open_bound = max(self.open_bound, bound)
        self.all_excluded |= self.value is not None and self.open_bound >= self.value

    @property
    def lower_bound(self) -> int:
        """Lower bound of the schedules of all configurations."""
        if self.value is None:
            return self.open_bound
        return self.value if self.all_excluded else min(self.open_bound, self.value)

    @property
    def closed(self) -> bool:
        """Whether the best value is proved optimal, or infeasibility is proved."""
        return self.all_excluded or self.value == self.lower_bound

    @property
    def infeasible(self) -> bool:
        """Whether all configurations are proved infeasible."""
        return self.all_excluded and self.value is None

    def is_open(self, configuration: Configuration) -> bool:
        """Whether a configuration may have a schedule that is better than the best, and useful."""
        return not (configuration.impossible or self.is_beaten(configuration.bound))

    def is_beaten(self, bound: int) -> bool:
        """Whether no configuration with this bound is useful."""
        end = self.end
        return end is not None and bound >= end

    def is_group_open(self, group: SearchedConfigurations) -> bool:
        """Whether a group may have a schedule that is better than the best, and useful."""
        return not (group.infeasible or self.is_beaten(group.open_bound))

    @property
    def finished(self) -> bool:
        """Whether nothing better than the best schedule, or below the cutoff, remains."""
        return self.closed or self.is_beaten(self.lower_bound)

    @property
    def open(self) -> list[Configuration]:
        """Configurations that may have a schedule that is better than the best, and useful."""
        end = self.end
        return [
            configuration
            for configuration in self.every
            if not configuration.impossible and (end is None or configuration.bound < end)
        ]

    @property
    def next_key(self) -> Key | None:
        """Next configuration in the order of bounds; None: there is no order, or none is left."""
        return self.rest.key if isinstance(self.rest, Unlisted) else None

    @property
    def searched(self) -> int:
        """Number of configurations that were searched."""
        return sum(configuration.searched for configuration in self.every)

    @property
    def examined(self) -> int:
        """Number of configurations that were searched, or bounded by subsets of their devices."""
        return sum(
            configuration.searched or configuration.bounding is not None
            for configuration in self.every
        )

    @property
    def _ruled_out(self) -> list[Configuration]:
        return [
            configuration
            for configuration in self.every
            if not configuration.searched and not self.is_open(configuration)
        ]

    @property
    def ruled_out(self) -> int:
        """Number of configurations that were ruled out by their bounds, without a search."""
        return len(self._ruled_out)

    @property
    def subsets_ruled_out(self) -> bool:
        """Whether a configuration was ruled out by a bound on a subset of its devices."""
        return any(configuration.bounding is not None for configuration in self._ruled_out)


class SearchedGroups(SearchedConfigurations):
    """State of a search over groups of configurations, each of which has a state of its own.

    The keys of the configurations of a group begin with its prefix, which the group itself omits.
    """

    def __init__(
        self, groups: Mapping[Key, SearchedConfigurations], missing: Rest = NONE_LEFT
    ) -> None:
        """`missing`: further groups, of which only a bound is known."""
        super().__init__(0)
        self.groups, self._width = groups, len(min(groups, default=()))
        self._missing = missing

    @property
    def value(self) -> int | None:
        """Best value of any group."""
        return min_known(group.value for group in self.groups.values())

    def offer(self, configuration: Configuration) -> None:
        """Record a configuration if it is the best one of its group, or of all."""
        self._of(configuration.key)[0].offer(configuration)
        super().offer(configuration)

    def raise_bound(self, ceiling: int | None = None) -> None:
        """Raise the bounds of the groups, and the bound over all to their minimum."""
        groups, end = self.groups.values(), min_known((self.end, ceiling))
        for group in groups:
            group.raise_bound(end)
        bounds = [group.open_bound for group in groups if not group.infeasible]
        self.raise_to(bounds_of_all(bounds, self._missing))
        lowest = min_known((end, *(configuration.bound for configuration in self.open)))
        rests = ((prefix, group.rest) for prefix, group in self.groups.items())
        self.rest = min_rest(
            rest.under(prefix)
            for prefix, rest in rests
            if isinstance(rest, Unlisted) and (lowest is None or rest.bound < lowest)
        )


def by_bound(configurations: Iterable[Configuration]) -> list[Configuration]:
    """Configurations by their bounds."""
    return sorted(
        configurations, key=lambda configuration: (configuration.bound, configuration.key)
    )


def by_value(configurations: Iterable[Configuration]) -> list[Configuration]:
    """Configurations with schedules, by their values."""
    valued = [configuration for configuration in configurations if configuration.value is not None]
    return sorted(valued, key=lambda configuration: (configuration.value, configuration.key))
