"""The configurations of a plan as one choice: each with its own partitions and recompute.

Times are per microbatch, so that numbers of microbatches can be compared.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

from ppopt.problem.partition import SEARCH
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.problem import Problem
from ppopt.schedule.origin import Argument
from ppopt.solver.choices.choice import Choice
from ppopt.solver.choices.configuration import Configuration, SearchedConfigurations, by_value
from ppopt.solver.choices.enumeration import NONE_LEFT, Complete, Key, Rest, Unlisted, bounds_of_all
from ppopt.solver.choices.product import ProductChoice
from ppopt.solver.deadline import Deadline
from ppopt.studies.evaluate import peak_memory
from ppopt.studies.plan_space import PlanConfiguration


class PlanChoice(NamedTuple):
    """One configuration of a plan, with the choice of its partitions and recompute."""

    configuration: PlanConfiguration
    problem: Problem
    choice: Choice

    @property
    def batches(self) -> int:
        """Number of microbatches."""
        return self.configuration.batches


class PlanProduct(ProductChoice):
    """The partitions and recompute of every configuration of a plan."""

    name = "configuration"
    argument = Argument.SEARCH

    def __init__(self, choices: Sequence[PlanChoice], margin: Fraction = Fraction(1)) -> None:
        """Bounds are exact up to `margin` times the ceiling. Prefixes are indices of `choices`."""
        super().__init__({(index,): given.choice for index, given in enumerate(choices)})
        self._choices: Mapping[Key, PlanChoice] = dict(zip(self.inner, choices, strict=True))
        self._margin = margin
        self._ceiling: Fraction | None = None
        """Ceiling of the last bounds: configurations with bounds above it are of no use."""
        self._floors = dict.fromkeys(self.inner, Fraction(0))
        """Lower bounds of relaxations of the configurations, per microbatch."""
        wider = {given.configuration: prefix for prefix, given in self._choices.items()}
        self._wider = {
            prefix: wider[chosen]
            for prefix, given in self._choices.items()
            for chosen in [given.configuration._replace(recompute=SEARCH)]
            if chosen in wider and chosen != given.configuration
        }
        """Configurations whose recompute is chosen, by those that they include."""

    def prefixes(self, pipeline: Pipeline) -> Iterator[Key]:
        """Configurations with the layout, microbatches and recompute of a pipeline."""
        return (prefix for prefix in self.inner if self.allows(prefix, pipeline))

    def allows(self, prefix: Key, pipeline: Pipeline) -> bool:
        """Whether a configuration has the layout, microbatches and recompute of a pipeline."""
        own = self._choices[prefix].problem.pipeline
        return (own.layout, own.batches) == (pipeline.layout, pipeline.batches) and (
            own.recompute == SEARCH or pipeline.model.layers == own.model.layers
        )

    def group(self, key: Key) -> Key:
        """Configuration of the plan."""
        return key[:1]

    def words(self, key: Key) -> str:
        """Text that names a configuration of the plan."""
        return str(self._choices[key[:1]].configuration)

    def least(self, prefix: Key) -> Fraction:
        """Lower bound of a configuration, per microbatch."""
        return max(super().least(prefix) / self._choices[prefix].batches, self._floors[prefix])

    def raise_floor(self, prefix: Key, bound: Fraction) -> None:
        """Raise the bound of a configuration to that of a relaxation, per microbatch."""
        self._floors[prefix] = max(self._floors[prefix], bound)

    def configurations(self, keys: Sequence[Key]) -> Iterator[Configuration]:
        """Configurations with their bounds."""
        for configuration in super().configurations(keys):
            prefix = configuration.key[:1]
            configuration.batches = self._choices[prefix].batches
            bound = configuration.bound / configuration.batches
            configuration.bound = max(bound, self._floors[prefix])
            yield configuration

    def bound(self, deadline: Deadline, ceiling: Fraction | None = None) -> None:
        """Bound the configurations that may be below the ceiling, in turns."""
        self._ceiling = ceiling
        waiting = self._open_prefixes(ceiling)
        while waiting:
            prefix, *waiting = waiting
            batches = self._choices[prefix].batches
            useful = None if ceiling is None else ceiling * self._margin * batches
            self.inner[prefix].bound(deadline.turn(len(waiting)), useful)
            self._share_bounds()
            waiting = [prefix for prefix in waiting if self._is_open(prefix, ceiling)]

    def _share_bounds(self) -> None:
        """Raise bounds to those with chosen recompute, which hold for any of the same placement."""
        for prefix, wider in self._wider.items():
            self.raise_floor(prefix, self.least(wider))

    def _open_prefixes(self, ceiling: Fraction | None) -> list[Key]:
        """Configurations with bounds below a ceiling: by bound, then number of stages.

        Chosen recompute comes before the other modes of a placement.
        """

        def order(prefix: Key) -> tuple[Fraction, int, bool]:
            pipeline = self._choices[prefix].problem.pipeline
            return self.least(prefix), pipeline.num_stages, pipeline.recompute != SEARCH

        return sorted((key for key in self.inner if self._is_open(key, ceiling)), key=order)

    def _is_open(self, prefix: Key, ceiling: Fraction | None) -> bool:
        return ceiling is None or self.least(prefix) < ceiling

    def first(self) -> Iterator[Key]:
        """First partition of every open configuration by bound, then the second ones, and so on."""
        rows = {prefix: iter(self.inner[prefix].first()) for prefix in self._open_prefixes(None)}
        while rows:
            for prefix, keys in list(rows.items()):
                key = next(keys, None) if self._is_open(prefix, self._ceiling) else None
                if key is None:
                    del rows[prefix]
                else:
                    yield (*prefix, *key)

    def moves(self, key: Key) -> Iterator[Key]:
        """Moves within a configuration of the plan, if it is open."""
        return super().moves(key) if self._is_open(key[:1], self._ceiling) else iter(())

    def rest_of(self, prefix: Key, known: Container[Key], ceiling: Fraction | None) -> Rest:
        """Unlisted partitions and recompute of a configuration."""
        if not self._is_open(prefix, ceiling):
            return NONE_LEFT
        batches = self._choices[prefix].batches
        rest = super().rest_of(prefix, known, None if ceiling is None else ceiling * batches)
        if isinstance(rest, Complete):
            return rest
        return Unlisted(max(rest.bound / batches, self._floors[prefix]), rest.key)

    def state_of(
        self, prefix: Key, state: SearchedConfigurations, ceiling: Fraction | None
    ) -> SearchedConfigurations:
        """What a search of all knows of one configuration of the plan, under its own keys.

        `ceiling` is the best value of all: bounds above it need not be exact.
        """
        known = {
            key[1:]: configuration
            for key, configuration in state.known.items()
            if key[:1] == prefix
        }
        own = SearchedConfigurations(self.least(prefix), known)
        best = _best(known.values())
        if best is not None:
            own.take(best)
        if own.value is None and not own.open:
            rest = super().rest_of(prefix, state.known, None)
            if isinstance(rest, Complete):
                own.raise_to(own.bounds_with(rest))
        if own.none_better or not self._is_open(prefix, ceiling):
            return own
        ends = [end for end in (own.value, ceiling) if end is not None]
        rest = self.rest_of(prefix, state.known, min(ends, default=None))
        bounds = [configuration.bound for configuration in own.open]
        own.raise_to(bounds_of_all([*bounds, *ends], rest))
        return own

    def proof(self, search: SearchedConfigurations) -> str:
        """Text of the argument behind the bound over all."""
        return f"over {len(self.inner)} configurations, {search.searched} partitions were searched"


def _best(configurations: Iterable[Configuration]) -> Configuration | None:
    """Configuration of the best schedule; of several, that of the least memory."""
    return min(
        by_value(configurations),
        key=lambda configuration: (*value_and_peak(configuration), configuration.key),
        default=None,
    )


def value_and_peak(configuration: Configuration) -> tuple[Fraction, Fraction]:
    """Value and largest device peak of the best schedule of a configuration that has one."""
    result = configuration.result
    assert configuration.value is not None and result is not None and result.schedule is not None
    return configuration.value, peak_memory(result.schedule)
