"""The configurations of a plan as one choice: each with its own partitions and recompute.

A configuration of the plan (`linear, recompute none, 16 microbatches`) consists of many
configurations of the search: its partitions, each with the layers that recompute. The product of
all of them is one choice, so that one search serves the whole plan. Times are per microbatch, so
that numbers of microbatches can be compared.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence

from ppopt.cancellation import equal_share, part
from ppopt.problem.exact import min_known
from ppopt.problem.pipeline import Pipeline
from ppopt.solver.choices.configuration import Configuration, SearchedConfigurations
from ppopt.solver.choices.enumeration import (
    NONE_LEFT,
    Complete,
    Key,
    Rest,
    Unlisted,
    min_rest,
)
from ppopt.solver.choices.product import ProductChoice
from ppopt.studies.plan_candidate import PlanCandidate

FAR_BEHIND = 1.3
"""Multiple of the best value from which a schedule is far behind it. The partition that ends first
may begin 1.11 times as high (deepseek-v3 on 256 GPUs, V)."""
MAX_BEHIND = 2
"""Consecutive first partitions of a configuration that are far behind before it has no more."""


class PlanProduct(ProductChoice):
    """The partitions and recompute of every configuration of a plan."""

    name = "configuration"

    def __init__(self, candidates: Sequence[PlanCandidate], margin: float = 1) -> None:
        """Bounds are exact up to `margin` times the ceiling. Prefixes are indices of candidates."""
        self._candidates: dict[Key, PlanCandidate] = {
            (index,): candidate for index, candidate in enumerate(candidates)
        }
        super().__init__({key: candidate.choice for key, candidate in self._candidates.items()})
        self._margin = margin
        self._ceiling: int | None = None
        """Ceiling of the last bounds: configurations with bounds above it are not searched."""

    def prefixes(self, pipeline: Pipeline) -> Iterator[Key]:
        """Configurations with the layout, microbatches and recompute of a pipeline."""
        candidates = self._candidates.items()
        return (prefix for prefix, candidate in candidates if candidate.allows(pipeline))

    def group(self, key: Key) -> Key:
        """Configuration of the plan."""
        return key[:1]

    def describe(self, key: Key) -> str:
        """Text that names a configuration of the plan."""
        return str(self._candidates[key[:1]].configuration)

    def min_bound(self, prefix: Key) -> int:
        """Lower bound of a configuration, per microbatch."""
        return self._candidates[prefix].bound_without_search

    def configurations(self, keys: Sequence[Key]) -> Iterator[Configuration]:
        """Configurations with their bounds; each is also added to its candidate."""
        for configuration in super().configurations(keys):
            prefix, configuration.key = configuration.key[:1], configuration.key[1:]
            self._candidates[prefix].add(configuration)
            configuration.key = (*prefix, *configuration.key)
            yield configuration

    def bound(self, ceiling: int | None = None) -> None:
        """Bound the configurations that may be below the ceiling, in turns."""
        self._ceiling = ceiling
        waiting = self._open_prefixes(ceiling)
        while waiting:
            prefix, *waiting = waiting
            with part(equal_share(len(waiting))):
                self._candidates[prefix].bound_partitions(ceiling, self._margin)
            waiting = [prefix for prefix in waiting if self._is_open(prefix, ceiling)]

    def _open_prefixes(self, ceiling: int | None) -> list[Key]:
        """Configurations with bounds below a ceiling: by bound, then number of stages."""

        def order(prefix: Key) -> tuple[int, int]:
            return self.min_bound(prefix), self._candidates[prefix].problem.pipeline.num_stages

        return sorted((key for key in self.inner if self._is_open(key, ceiling)), key=order)

    def _is_open(self, prefix: Key, ceiling: int | None) -> bool:
        return self._candidates[prefix].may_be_below(ceiling)

    def first(self) -> Iterator[Key]:
        """First partition of every open configuration by bound, then the second ones, and so on.

        A configuration has no more of them if the last ones are far behind the best schedule.
        """
        rows = {prefix: iter(self.inner[prefix].first()) for prefix in self._open_prefixes(None)}
        first: dict[Key, list[Key]] = {prefix: [] for prefix in rows}
        while rows:
            for prefix, keys in list(rows.items()):
                useful = self._is_open(prefix, self._ceiling)
                key = next(keys, None) if useful and not self._is_behind(first[prefix]) else None
                if key is None:
                    del rows[prefix]
                else:
                    first[prefix].append((*prefix, *key))
                    yield first[prefix][-1]

    def _is_behind(self, keys: Sequence[Key]) -> bool:
        """Whether the last partitions of a configuration are far behind the best schedule."""
        best = min_known(candidate.state.value for candidate in self._candidates.values())
        known = [self._candidates[key[:1]].state.known.get(key[1:]) for key in dict.fromkeys(keys)]
        values = [each.value for each in known if each is not None and each.value is not None]
        latest = values[-MAX_BEHIND:]
        return best is not None and len(latest) == MAX_BEHIND and min(latest) > FAR_BEHIND * best

    def moves(self, key: Key) -> Iterator[Key]:
        """Moves within a configuration of the plan, if it is open."""
        return super().moves(key) if self._is_open(key[:1], self._ceiling) else iter(())

    def rest(self, known: Container[Key], ceiling: int | None) -> Rest:
        """Unlisted partitions of all configurations.

        A strategy whose partitions have no order of bounds does not end the order of all.
        """
        rests = [
            (self._rest_of(prefix, known, ceiling), candidate.strategy)
            for prefix, candidate in self._candidates.items()
        ]
        of_all = min_rest(rest for rest, _ in rests)
        ordered = min_rest(rest for rest, strategy in rests if not strategy or _has_key(rest))
        if isinstance(of_all, Complete) or isinstance(ordered, Complete):
            return of_all
        return Unlisted(of_all.bound, ordered.key)

    def rest_of_choice(self, prefix: Key, known: Container[Key], ceiling: int | None) -> Rest:
        """Partitions and recompute of one configuration that are not known."""
        candidate = self._candidates[prefix]
        return candidate.rest(known, ceiling) if candidate.may_be_below(ceiling) else NONE_LEFT

    def proof(self, search: SearchedConfigurations) -> str:
        """Text of the argument behind the bound over all."""
        return f"over {len(self.inner)} configurations, {search.searched} partitions were searched"


def _has_key(rest: Rest) -> bool:
    """Whether unlisted configurations have an order of bounds."""
    return isinstance(rest, Unlisted) and rest.key is not None
