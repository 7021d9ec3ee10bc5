"""Work before and after the microbatches of a step: unshard, gradient sync and optimizer.

    UNSHARD(s) -> F(s, j)                    weights are gathered before the first F (FSDP)
    W(s, j) or BW(s, j) -> GRADIENT_SYNC(s)  gradients are reduced after the last of them
    GRADIENT_SYNC(s) -> OPTIMIZER(d)         for all stages s of device d; with a barrier, for all
                                             stages of all devices

Optimizers wait for no frozen stage (`ppopt.problem.frozen`), and a device with only frozen stages
has none. Unshard and gradient sync run on the collective queue of their device, one at a time; the
optimizer of a device is one operation of its compute. Gathered weights are live from the start of
UNSHARD to the end of GRADIENT_SYNC (arXiv 2304.11277, section 3.2). If a pipeline has any unshard
time or memory, every stage has the operation; the same holds for the sync. If it has optimizer
time, every device that trains a stage has an optimizer.

If memory does not matter, UNSHARDs of one route and device run in the order of stages. This loses
nothing. Let UNSHARD(t) come before UNSHARD(s), s < t. F(s, j) comes before F(t, j), so no F of t
starts before UNSHARD(s) ends. Move UNSHARD(t) directly after UNSHARD(s): it ends when UNSHARD(s)
ended before, and all operations between the two end earlier. Memory does not matter either if a
device has one route and two stages: nothing else is live until F(s, 0) starts.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.cost_table import STEP_FIELDS, ZERO
from ppopt.problem.features.compute import ROWS
from ppopt.problem.features.draft import InstanceDraft
from ppopt.problem.instance_costs import InstanceCosts
from ppopt.problem.kinds import ResourceKind
from ppopt.problem.operation import AuxiliaryKind, OpKind
from ppopt.problem.operation_classes import Mode, OperationClass, Precedence
from ppopt.problem.pipeline import Pipeline

MAX_STAGES_IN_ORDER = 2
"""Maximum number of stages of a device whose unshards run in order whatever their memory."""
Key = tuple[int, int]
"""Route and stage."""


def add_gradient_work(draft: InstanceDraft) -> None:
    """Add the operations that a pipeline runs before and after its microbatches."""
    pipeline = draft.pipeline
    if not pipeline.has_gradient_work:
        return
    costs, queues = draft.costs.ticks.costs, draft.resource_ids(ResourceKind.COLLECTIVE)
    host = {
        (route, stage): device
        for route, hosts in enumerate(pipeline.hosts)
        for stage, device in enumerate(hosts)
    }
    has_gathered_weights, nothing = any(costs.unshard_memory), (0,) * pipeline.num_stages
    unshard, sync = (
        {
            key: _add(draft, key, queues[device,], Mode(kind, *(row[key[1]] for row in rows)))
            for key, device in host.items()
            if has_gathered_weights or any(rows[0])
        }
        for kind, *rows in (
            (AuxiliaryKind.UNSHARD, costs.unshard, costs.unshard_memory, nothing),
            (AuxiliaryKind.GRADIENT_SYNC, costs.gradient_sync, nothing, costs.unshard_memory),
        )
    )
    trained = [key for key in host if not pipeline.frozen_stages[key[1]]]
    optimizers = {}
    if any(costs.optimizer):
        for device in sorted({host[key] for key in trained}):
            own_keys = [key for key in host if host[key] == device]
            time = sum(costs.optimizer[stage] for _, stage in own_keys)
            optimizers[device] = _add(
                draft, own_keys[0], device, Mode(AuxiliaryKind.OPTIMIZER, time)
            )
    draft.precedence += _before_compute(draft, unshard, host)
    ends = {key: [sync[key]] if sync else _last_classes(draft, key) for key in host}
    draft.precedence += [
        Precedence(last, sync[key], 0) for key in sync for last in _last_classes(draft, key)
    ]
    draft.precedence += [
        Precedence(end, optimizer, 0)
        for device, optimizer in optimizers.items()
        for key in trained
        if pipeline.optimizer_barrier or host[key] == device
        for end in ends[key]
    ]


def gathered_throughout(costs: InstanceCosts) -> tuple[int, ...]:
    """Gathered weights that are live during all compute of each device, in ticks of memory.

    - If a stage of the device runs no backward: 0, because its weights are freed after its last F.
    - If the device has one stage, or one route on which only F allocates memory and retains all of
      it: the weights of all its stages. Until the last of them is gathered, no backward has run, so
      live memory is below its later level. Once the first of them is freed, no F remains, so live
      memory only falls. So a schedule within the limit stays within it if all of them are live from
      0 to the end.
    - Otherwise: the weights of its lowest stage, on two routes the smaller of both. All F and B of
      the device run between the stage's first F and last W or BW. A later W of another stage can
      only free memory; if such a W has workspace, the result is 0.
    """
    devices = range(costs.pipeline.num_devices)
    if not any(costs.ticks.costs.unshard_memory):
        return (0,) * len(devices)
    return tuple(_gathered_by(costs, device) for device in devices)


def is_gathered_exact(costs: InstanceCosts) -> bool:
    """Whether `gathered_throughout` counts all gathered weights of every device."""
    pipeline, none = costs.pipeline, not any(costs.ticks.costs.unshard_memory)
    if not all(pipeline.has_operations[OpKind.B]):
        return none
    return none or all(_holds_all(costs, device) for device in range(pipeline.num_devices))


def _holds_all(of: InstanceCosts, device: int) -> bool:
    pipeline, ticks, costs = of.pipeline, of.ticks, of.ticks.costs
    stages = [stage for hosted in pipeline.hosted for stage in hosted[device]]
    f_alone = all(
        costs.kept[stage] == costs.activation[stage]
        and costs.memory_b[stage] <= 0
        and not any(row[stage] for row in ticks.workspace)
        for stage in stages
    )
    return len(stages) == 1 or (pipeline.routes == 1 and f_alone)


def _gathered_by(costs: InstanceCosts, device: int) -> int:
    pipeline, amounts = costs.pipeline, costs.ticks.costs.unshard_memory
    per_route = [hosted[device] for hosted in pipeline.hosted]
    if any(stages and not pipeline.has_operations[OpKind.B][stages[0]] for stages in per_route):
        return 0
    if _holds_all(costs, device):
        return sum(amounts[stage] for hosted in per_route for stage in hosted)
    workspace = costs.ticks.costs.weight_workspace
    if any(workspace[stage] for hosted in per_route for stage in hosted[1:]):
        return 0
    return min(amounts[hosted[0]] if hosted else 0 for hosted in per_route)


def without_gradient_work(pipeline: Pipeline) -> Pipeline:
    """The relaxation without this work, its limits reduced by `gathered_throughout`.

    It has the same grid. Any schedule, without this work, is one of that pipeline.
    """
    if not pipeline.has_gradient_work:
        return pipeline
    gathered = map(pipeline.ticks.memory, gathered_throughout(InstanceCosts.of(pipeline)))
    limits = pipeline.limits
    remaining = None
    if limits is not None:
        remaining = tuple(
            max(ZERO, limit - amount) for limit, amount in zip(limits, gathered, strict=True)
        )
    model = pipeline.model
    fields = dict.fromkeys(STEP_FIELDS) if model is None else {"model": model.without(STEP_FIELDS)}
    return pipeline.with_layers(mem_limit=remaining, optimizer_barrier=False, **fields)


def _add(draft: InstanceDraft, key: Key, resource: int, mode: Mode) -> int:
    """Add a class of one operation; returns its number."""
    route, stage = key
    draft.classes.append(OperationClass(stage, route, 0, resource, (mode,), 1))
    return len(draft.classes) - 1


def _before_compute(
    draft: InstanceDraft, unshard: dict[Key, int], host: dict[Key, int]
) -> Iterator[Precedence]:
    """F after the unshard of its stage; unshards of a device and route in order of stages."""
    for key, class_id in unshard.items():
        for slice_index in range(draft.pipeline.num_slices):
            yield Precedence(class_id, _class_id(draft, 0, key, slice_index), 0)
    limits, memory = draft.costs.ticks.limits, draft.costs.ticks.costs.unshard_memory
    free = limits is None or not any(memory)
    for route in range(draft.pipeline.routes):
        for device in range(draft.pipeline.num_devices):
            own_keys = sorted(key for key in unshard if key[0] == route and host[key] == device)
            if free or (draft.pipeline.routes == 1 and len(own_keys) <= MAX_STAGES_IN_ORDER):
                for earlier, following in pairwise(own_keys):
                    yield Precedence(unshard[earlier], unshard[following], 0)


def _last_classes(draft: InstanceDraft, key: Key) -> list[int]:
    """Classes that may have the last operation of a stage, of all slices.

    That is W or BW; B if W may be absent or the stage has no W; F if it has no backward.
    """
    slices = range(draft.pipeline.num_slices)
    rows = [
        [_class_id(draft, row, key, slice_index) for slice_index in slices]
        for row in range(len(ROWS[draft.backward]))
        if draft.classes[_class_id(draft, row, key, 0)].size
    ]
    ends = rows[1:] if draft.backward is BackwardKind.MIXED else ()
    return [class_id for numbers in ends or rows[-1:] for class_id in numbers]


def _class_id(draft: InstanceDraft, row: int, key: Key, slice_index: int) -> int:
    """Id of a class of compute (`Instance.class_id`)."""
    pipeline, (route, stage) = draft.pipeline, key
    return (
        (row * pipeline.routes + route) * pipeline.num_slices + slice_index
    ) * pipeline.num_stages + (stage)
