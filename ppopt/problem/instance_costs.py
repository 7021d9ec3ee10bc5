"""The costs of an instance in whole ticks, which relaxations change."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

from ppopt.problem import microbatches
from ppopt.problem.costs import Ticks
from ppopt.problem.link_mode import HostLink
from ppopt.problem.operation import OpKind
from ppopt.problem.operation_classes import Mode
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.traits import Trait, Traits

COSTS = "_instance_costs"
"""Attribute of a pipeline in which its costs are cached."""


@dataclass(frozen=True, eq=False)
class InstanceCosts:
    """Costs and limits of the stages of a pipeline, or of a relaxation of it, in its ticks."""

    pipeline: Pipeline
    ticks: Ticks
    """Those of a microbatch with factors of 1."""
    factors: tuple[tuple[Fraction, Fraction], ...]
    """Factors on the times and on the memory of every microbatch."""
    removed: Traits = frozenset()
    """Traits of the pipeline that the relaxation lacks."""

    @classmethod
    def of(cls, pipeline: Pipeline) -> InstanceCosts:
        """The costs of a pipeline itself, cached with it."""
        known: dict[str, InstanceCosts] = vars(pipeline)
        if COSTS not in known:
            known[COSTS] = cls(pipeline, pipeline.ticks, pipeline.factors)
        return known[COSTS]

    @property
    def traits(self) -> Traits:
        """Traits of the pipeline that it has."""
        return self.pipeline.traits - self.removed

    @property
    def shares_host_link(self) -> bool:
        """Whether moves to the host and back take turns on one link."""
        return self.pipeline.host_link is HostLink.SHARED

    def modes(self, kind: OpKind, *, with_host: bool) -> list[Mode]:
        """The mode of an operation of each stage (`Ticks.amounts`)."""
        key = kind, with_host
        if key not in self._modes:
            rows = self.ticks.amounts(kind, with_host=with_host)
            self._modes[key] = [Mode(kind, *row) for row in rows]
        return self._modes[key]

    @cached_property
    def _modes(self) -> dict[tuple[OpKind, bool], list[Mode]]:
        return {}

    def ticks_at(self, times: Fraction, memory: Fraction) -> Ticks:
        """Costs of a microbatch with these factors."""
        if times == memory == 1:
            return self.ticks
        if self.ticks is self.pipeline.ticks:
            return self.ticks.with_costs(self.pipeline.costs_at(times, memory))
        costs = microbatches.costs_of(self.ticks.costs, times, memory, None, in_weight=False)
        return self.ticks.with_costs(costs)

    def without(self, *removed: Trait, **changed: object) -> InstanceCosts:
        """The same without some traits, with other values of some fields."""
        return replace(self, removed=self.removed.union(removed), **changed)  # type: ignore[arg-type]
