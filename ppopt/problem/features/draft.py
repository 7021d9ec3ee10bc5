"""The draft of an instance, to which every feature adds its parts."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.instance_costs import InstanceCosts
from ppopt.problem.kinds import ResourceKind
from ppopt.problem.operation_classes import (
    OperationClass,
    Precedence,
)
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.resources import Resource, resources_of


@dataclass
class InstanceDraft:
    """Classes and precedence so far; ids are indices into these lists."""

    costs: InstanceCosts
    backward: BackwardKind
    all_resources: bool
    """Whether the draft has all resources; otherwise only compute."""
    classes: list[OperationClass] = field(default_factory=list)
    precedence: list[Precedence] = field(default_factory=list)

    @property
    def pipeline(self) -> Pipeline:
        """The pipeline whose layout the instance has."""
        return self.costs.pipeline

    @cached_property
    def resources(self) -> tuple[Resource, ...]:
        """The resources, by number; devices come first."""
        resources = resources_of(self.pipeline, self.costs.traits)
        return resources if self.all_resources else resources[: self.pipeline.num_devices]

    @cached_property
    def links(self) -> dict[tuple[int, ...], int]:
        """Ids of the links that are resources, by sender and receiver."""
        return self.resource_ids(ResourceKind.LINK)

    def resource_ids(self, kind: ResourceKind) -> dict[tuple[int, ...], int]:
        """Ids of the resources of a kind by their devices: the first of two, links by direction."""
        numbers: dict[tuple[int, ...], int] = {}
        for resource_id, resource in enumerate(self.resources):
            if resource.kind is kind:
                numbers.setdefault(resource.devices, resource_id)
                if not resource.one_way:
                    numbers.setdefault(resource.devices[::-1], resource_id)
        return numbers

    @property
    def num_positions(self) -> int:
        """Routes x slices x stages: the distance between rows of classes of compute."""
        return self.pipeline.routes * self.pipeline.num_slices * self.pipeline.num_stages

    @property
    def batches(self) -> int:
        """Microbatches of a route."""
        return self.pipeline.batches // self.pipeline.routes
