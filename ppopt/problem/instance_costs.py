"""The costs of an instance in whole ticks, which relaxations change."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from ppopt.problem import microbatches
from ppopt.problem.costs import Ticks
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.traits import Trait, Traits


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
        known: dict[str, Any] = vars(pipeline)
        if "_instance_costs" not in known:
            known["_instance_costs"] = cls(pipeline, pipeline.ticks, pipeline.factors)
        costs: InstanceCosts = known["_instance_costs"]
        return costs

    @property
    def traits(self) -> Traits:
        """Traits of the pipeline that it has."""
        return self.pipeline.traits - self.removed

    def ticks_at(self, times: Fraction, memory: Fraction) -> Ticks:
        """Costs of a microbatch with these factors."""
        if times == memory == 1:
            return self.ticks
        known: dict[tuple[Fraction, Fraction], Ticks] = vars(self).setdefault("_ticks_at", {})
        if (times, memory) not in known:
            costs = microbatches.costs_of(self.ticks.costs, times, memory, *self._allocated(memory))
            known[times, memory] = self.ticks.with_costs(costs)
        return known[times, memory]

    def _allocated(self, memory: Fraction) -> tuple[tuple[Fraction, ...] | None, bool]:
        """What the backwards of layers allocate (`Pipeline.allocated_by_backward`)."""
        if self.ticks is not self.pipeline.ticks:
            return None, False
        return self.pipeline.allocated_by_backward(memory, self.ticks.memory_per_unit)

    def without(self, *removed: Trait, **changed: object) -> InstanceCosts:
        """The same without some traits, with other values of some fields."""
        return replace(self, removed=self.removed.union(removed), **changed)  # type: ignore[arg-type]

    def with_equal_microbatches(self, times: Fraction, memory: Fraction) -> InstanceCosts:
        """The same with these factors for every microbatch."""
        equal = ((Fraction(1), Fraction(1)),) * len(self.factors)
        return self.without(Trait.MICROBATCHES, ticks=self.ticks_at(times, memory), factors=equal)
