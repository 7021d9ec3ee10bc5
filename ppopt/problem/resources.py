"""The resources of a pipeline, each of which runs one operation at a time."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from ppopt.problem.kinds import ResourceKind
from ppopt.problem.link_mode import HostLink, LinkMode
from ppopt.problem.operation import OpKind
from ppopt.problem.pipeline import Pipeline
from ppopt.problem.traits import RESOURCES, Traits


class Resource(NamedTuple):
    """Something that runs one operation at a time."""

    kind: ResourceKind
    devices: tuple[int, ...]
    """Its device; of a link, both ends."""
    one_way: bool = False
    """Of a link: whether it carries data only from the first to the second; otherwise both ways."""


def resources_of(pipeline: Pipeline, traits: Traits) -> tuple[Resource, ...]:
    """The resources of a pipeline for some of its traits, by number; devices come first."""
    devices = range(pipeline.num_devices)
    kinds = {RESOURCES[trait] for trait in traits if trait in RESOURCES}
    resources = [Resource(ResourceKind.COMPUTE, (device,)) for device in devices]
    if ResourceKind.LINK in kinds:
        one_way = pipeline.link_mode is LinkMode.EXCLUSIVE
        links = sorted(_links(pipeline, one_way=one_way))
        resources += [Resource(ResourceKind.LINK, link, one_way) for link in links]
    if ResourceKind.COLLECTIVE in kinds:
        resources += [Resource(ResourceKind.COLLECTIVE, (device,)) for device in devices]
    if ResourceKind.HOST in kinds:
        ways = 1 if pipeline.host_link is HostLink.SHARED else 2
        resources += [
            Resource(ResourceKind.HOST, (device,)) for device in devices for _ in range(ways)
        ]
    return tuple(resources)


def _links(pipeline: Pipeline, *, one_way: bool) -> set[tuple[int, int]]:
    """Devices of the links that carry data: the smaller first if they carry both ways."""
    links = set()
    for hosts in pipeline.hosts:
        for stage, (source, target) in enumerate(pairwise(hosts)):
            if source == target:
                continue
            ends = (source, target) if one_way else (min(source, target), max(source, target))
            links.add(ends)
            if one_way and pipeline.has_operations[OpKind.B][stage]:
                links.add((target, source))
    return links
