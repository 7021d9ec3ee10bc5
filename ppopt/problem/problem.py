"""The search problem: a pipeline with its limits, an objective, and the kind of its backwards."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, reduce

from ppopt.problem.backward_choice import BackwardChoice
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.instance import Instance
from ppopt.problem.objective import Objective
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.relaxations import (
    Relaxation,
    fastest_pairs,
    smallest_microbatches,
    without_limits,
)
from ppopt.problem.traits import Trait, Traits


@dataclass(frozen=True)
class Problem:
    """A pipeline, an objective, and whether backwards are split, whole or either."""

    pipeline: Pipeline
    objective: Objective
    backward_kind: BackwardKind
    """That of the pipeline itself, if the problem is a relaxation of it."""
    relaxations: tuple[Relaxation, ...] = ()
    """Relaxations that make the instance from that of the pipeline, in their order."""

    @cached_property
    def instance(self) -> Instance:
        """The operations of the problem: if backwards are mixed, those of both kinds."""
        return self._relax(Instance.of(self.pipeline, self.backward_kind))

    @cached_property
    def full_instance(self) -> Instance:
        """The same with all other resources and operations; `instance` if there are none."""
        instance = Instance.of(self.pipeline, self.backward_kind, all_resources=True)
        instance = self._relax(instance)
        return instance if len(instance.classes) > len(self.instance.classes) else self.instance

    def _relax(self, instance: Instance) -> Instance:
        return reduce(lambda relaxed, relaxation: relaxation(relaxed), self.relaxations, instance)

    def relaxed_by(self, relaxation: Relaxation) -> Problem:
        """A relaxation of the problem."""
        return replace(self, relaxations=(*self.relaxations, relaxation))

    def of_batches(self, batches: int) -> Problem:
        """The problem with another number of microbatches, which are equal."""
        return replace(self, pipeline=self.pipeline.having(batches=batches))

    @cached_property
    def traits(self) -> Traits:
        """The traits that a method or an argument must handle to apply to this problem."""
        span = self.objective is Objective.DEVICE_SPAN
        return self.instance.traits | ({Trait.SPAN} if span else set())

    @property
    def mixed(self) -> bool:
        """Whether a backward may be split or whole."""
        return self.instance.mixed

    @property
    def fused(self) -> bool:
        """Whether every backward is whole."""
        return self.instance.fused

    @property
    def num_operations(self) -> int:
        """Number of operations of every schedule; the maximum number if backwards are mixed."""
        return self.instance.num_operations

    @cached_property
    def choice(self) -> BackwardChoice:
        """Gain and loss of splitting a backward, per stage."""
        return BackwardChoice(self.instance)

    @cached_property
    def reduced(self) -> Problem:
        """The problem with the same optimum and the fewest schedules.

        A mixed problem becomes that of split backwards if splitting loses nothing at any stage, and
        that of whole ones if splitting gains nothing at any stage.
        """
        uniform = self.choice.uniform if self.mixed else None
        return self if uniform is None else replace(self, backward_kind=uniform)

    @cached_property
    def relaxed(self) -> Problem:
        """A problem of one kind of backward and equal microbatches whose bounds hold for this one.

        No pair of it is shorter than one of its operations. It is this problem itself if that is
        such a problem.
        """
        if Trait.MICROBATCHES in self.traits:
            return self.relaxed_by(smallest_microbatches).relaxed
        return self._with_one_kind

    @cached_property
    def relaxed_memory(self) -> Problem:
        """A problem of one kind of backward and unlimited memory whose bounds hold for this one.

        Its microbatches differ in their times as those of this problem do.
        """
        return self.relaxed_by(without_limits)._with_one_kind

    @cached_property
    def _with_one_kind(self) -> Problem:
        """The relaxation, if backwards are mixed or a pair is shorter than an operation of it."""
        if not (self.mixed or self.instance.short_pairs.exist):
            return self
        return self.relaxed_by(fastest_pairs)

    @cached_property
    def restrictions(self) -> tuple[Problem, ...]:
        """The problems of one kind of backward whose schedules are schedules of this one."""
        if not self.mixed:
            return (self,)
        kinds = (BackwardKind.SPLIT, BackwardKind.WHOLE)
        return tuple(replace(self, backward_kind=kind) for kind in kinds)
