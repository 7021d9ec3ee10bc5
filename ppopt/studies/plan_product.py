"""The configurations of a plan as one choice: each with its own partitions and recompute.

A configuration of the plan (`linear, recompute none, 16 microbatches`) consists of many
configurations of the search: its partitions, each with the layers that recompute. The product of
all of them is one choice, so that one search serves the whole plan. Times are per microbatch, so
that numbers of microbatches can be compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ppopt.cancellation import part, turns
from ppopt.problem.pipeline import Pipeline
from ppopt.solver.choices.configuration import (
    Configuration,
    SearchedConfigurations,
    SearchedGroups,
)
from ppopt.solver.choices.enumeration import NONE_LEFT, Key, Rest
from ppopt.solver.choices.product import ProductChoice
from ppopt.studies.plan_candidate import PlanCandidate

FAR_BEHIND = 1.3
"""Multiple of the best value from which a schedule is far behind it. The partition that ends first
may begin 1.11 times as high (deepseek-v3 on 256 GPUs, V)."""
MAX_BEHIND = 2
"""Consecutive first partitions of a configuration that are far behind before it has no more."""
INCLUDED_BOUNDING = 0.02
"""Share of the time left for the bounds of a configuration whose schedules another one has."""


class PlanProduct(ProductChoice):
    """The partitions and recompute of every configuration of a plan."""

    name = "configuration"

    def __init__(
        self,
        candidates: Sequence[PlanCandidate],
        margin: float = 1,
        included: Sequence[PlanCandidate] = (),
        missing: Rest = NONE_LEFT,
    ) -> None:
        """Bounds are exact up to `margin` times the ceiling. Prefixes are indices of candidates.

        `included`: candidates that are only bounded, because another one has their schedules;
        `missing`: configurations of the plan that have no candidate.
        """
        self._candidates: dict[Key, PlanCandidate] = {
            (index,): candidate for index, candidate in enumerate(candidates)
        }
        super().__init__({key: candidate.choice for key, candidate in self._candidates.items()})
        self.state = SearchedGroups(self._candidates, missing)
        """State of the search: a group is a configuration of the plan."""
        self._margin, self._included = margin, included
        self._ceiling: int | None = None
        """Ceiling of the last bounds: configurations with bounds above it are not searched."""

    def prefixes(self, pipeline: Pipeline) -> Iterator[Key]:
        """Configurations with the layout, microbatches and recompute of a pipeline."""
        candidates = self._candidates.items()
        return (prefix for prefix, candidate in candidates if candidate.allows(pipeline))

    def searched(self, lower_bound: int) -> SearchedGroups:  # noqa: ARG002
        """State of the search."""
        return self.state

    def describe(self, key: Key) -> str:
        """Text that names a configuration of the plan."""
        return str(self._candidates[key[:1]].configuration)

    def min_bound(self, prefix: Key) -> int:
        """Lower bound of a configuration, per microbatch."""
        return self._candidates[prefix].bound_without_search

    def configurations(self, keys: Sequence[Key]) -> Iterator[Configuration]:
        """Configurations with their bounds per microbatch."""
        for configuration in super().configurations(keys):
            configuration.weight = self._candidates[configuration.key[:1]].weight
            configuration.bound *= configuration.weight
            yield configuration

    def bound(self, ceiling: int | None = None) -> None:
        """Bound the configurations that may be below the ceiling, in turns."""
        self._ceiling = ceiling
        useful = [prefix for prefix in self.ordered() if self._is_open(prefix, ceiling)]
        for prefix, turn in turns(useful):
            with turn:
                self._candidates[prefix].bound_partitions(ceiling, self._margin)
        for candidate in self._included:
            candidate.raise_to_wider()
            if self.state.is_group_open(candidate):
                with part(INCLUDED_BOUNDING):
                    candidate.bound_partitions(ceiling, self._margin)
                candidate.raise_bound(ceiling)

    def _is_open(self, prefix: Key, ceiling: int | None) -> bool:
        return self._candidates[prefix].may_be_below(ceiling)

    def ordered(self) -> list[Key]:
        """Configurations by bound, then number of stages."""

        def order(prefix: Key) -> tuple[int, int]:
            return self.min_bound(prefix), self._candidates[prefix].problem.pipeline.num_stages

        return sorted(self.inner, key=order)

    def first_of(self, prefix: Key) -> Iterator[Key]:
        """First partitions of a configuration while it is open, and not far behind the best."""
        keys, first = super().first_of(prefix), list[Key]()
        while self._is_open(prefix, self._ceiling) and not self._is_behind(first):
            following = next(keys, None)
            if following is None:
                return
            first.append(following)
            yield following

    def _is_behind(self, keys: Sequence[Key]) -> bool:
        """Whether the last partitions of a configuration are far behind the best schedule."""
        known, best = map(self.state.find, dict.fromkeys(keys)), self.state.value
        values = [each.value for each in known if each is not None and each.value is not None]
        latest = values[-MAX_BEHIND:]
        return best is not None and len(latest) == MAX_BEHIND and min(latest) > FAR_BEHIND * best

    def moves(self, key: Key) -> Iterator[Key]:
        """Moves within a configuration of the plan, if it is open."""
        return super().moves(key) if self._is_open(key[:1], self._ceiling) else iter(())

    def proof(self, search: SearchedConfigurations) -> str:
        """Text of the argument behind the bound over all."""
        return f"over {len(self.inner)} configurations, {search.searched} partitions were searched"
