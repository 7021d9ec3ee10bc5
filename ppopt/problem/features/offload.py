"""Offload: activations move to the host after F, and back before the backward.

    F(s, j) -> OFFLOAD(s, j) -> RELOAD(s, j) -> X(s, j)      X is B or BW

OFFLOAD frees its memory at its end, and RELOAD allocates it at its start. Each direction between a
device and its host moves one activation at a time; on a shared link, both directions together do.

Compute alone is a relaxation: the memory is freed as soon as F ends, and allocated when the
backward starts (`ppopt.problem.costs.Ticks.workspace`).
"""

from __future__ import annotations

from operator import add, sub

from ppopt.problem.cost_fields import of_slice
from ppopt.problem.cost_table import OffloadFields, costs_in
from ppopt.problem.costs import Ticks
from ppopt.problem.features.draft import InstanceDraft
from ppopt.problem.grid import numbers_at_speed_1
from ppopt.problem.kinds import ResourceKind
from ppopt.problem.link_mode import HostLink
from ppopt.problem.microbatches import rounded_down
from ppopt.problem.operation import AuxiliaryKind
from ppopt.problem.operation_classes import Mode, OperationClass, Precedence
from ppopt.problem.pipeline import Pipeline


def add_offload(draft: InstanceDraft) -> None:
    """Add the moves between every device and its host."""
    pipeline = draft.pipeline
    if not pipeline.has_offload:
        return
    shared, hosts = pipeline.host_link is HostLink.SHARED, draft.resource_ids(ResourceKind.HOST)
    for class_id in range(draft.num_positions):
        forward = draft.classes[class_id]
        if not draft.costs.ticks.costs.offload_memory[forward.stage]:
            continue
        kinds = (AuxiliaryKind.OFFLOAD, AuxiliaryKind.RELOAD)
        modes = [move_mode(draft.costs.ticks, kind, forward.stage) for kind in kinds]
        before = class_id
        for way, mode in enumerate(modes):
            resource = hosts[forward.resource,] + (0 if shared else way)
            position = (forward.stage, forward.route, forward.slice)
            draft.classes.append(OperationClass(*position, resource, (mode,), forward.size))
            draft.precedence.append(Precedence(before, len(draft.classes) - 1, 0))
            before = len(draft.classes) - 1
        draft.precedence.append(Precedence(before, class_id + draft.num_positions, 0))


def move_mode(ticks: Ticks, kind: AuxiliaryKind, stage: int) -> Mode:
    """The mode of a move to the host or back."""
    time, amount = (row[stage] for row in (ticks.costs.offload_time, ticks.costs.offload_memory))
    out = kind is AuxiliaryKind.OFFLOAD
    return Mode(kind, time, allocates=0 if out else amount, frees=amount if out else 0)


def without_offload(pipeline: Pipeline) -> Pipeline:
    """The relaxation without moves: F frees the offloaded memory, and the backward allocates it.

    The offloaded memory counts as workspace of F, with the factor of the smallest microbatch.
    """
    if not pipeline.has_offload:
        return pipeline
    stages = pipeline.by_stages(pipeline.hosts[0])
    per_unit = numbers_at_speed_1(pipeline).grid.memory
    costs = stages.costs
    offloaded = costs.offload_memory
    smallest = min(memory for _, memory in stages.factors)
    in_workspace = (rounded_down(smallest * memory, per_unit) for memory in offloaded)
    changed = {
        "kept": tuple(map(sub, costs.kept, offloaded)),
        "recompute_memory": tuple(map(add, costs.recompute_memory, offloaded)),
        "forward_workspace": tuple(map(add, costs.forward_workspace, in_workspace)),
        **{cost.field: () for cost in costs_in(OffloadFields)},
    }
    fields = of_slice(changed, stages.num_slices)
    return stages.having(**fields, host_link=HostLink.DUPLEX, mem_limit=pipeline.limits)
