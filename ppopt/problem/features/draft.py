"""The draft of an instance, to which every feature adds its parts."""

from __future__ import annotations

from dataclasses import dataclass, field

from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.operation_classes import (
    DispatchRule,
    Handover,
    OperationClass,
    Precedence,
)
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.resources import Resource


@dataclass
class InstanceDraft:
    """Resources, classes and precedence so far; numbers are places in these lists."""

    pipeline: Pipeline
    backward: BackwardKind
    all_resources: bool
    """Whether it has all resources; else those of compute."""
    resources: list[Resource] = field(default_factory=list)
    classes: list[OperationClass] = field(default_factory=list)
    precedence: list[Precedence] = field(default_factory=list)
    handovers: list[Handover] = field(default_factory=list)
    """What crosses from device to device: links decide what it waits for."""
    dispatch_rules: tuple[DispatchRule, ...] = ()
    """Rules by which links serve a strategy that gives no order of transfers: the best is kept."""

    @property
    def batches(self) -> int:
        """Microbatches of a route."""
        return self.pipeline.batches // self.pipeline.routes
