"""The schedules of Megatron-LM: its placement and its order of operations.

With one stage per rank it runs 1F1B, with several interleaved 1F1B in groups of microbatches. The
rules are its own: `validate_args` of megatron/training/arguments.py (000c4ac) refuses one rank with
several stages, and `forward_backward_pipelining_with_interleaving` of
megatron/core/pipeline_parallel/schedules.py (megatron-core 0.16.1) the group sizes.
"""

from __future__ import annotations

from contextlib import suppress

from ppopt.errors import NotApplicableError
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.instance import Instance
from ppopt.problem.pipeline import Pipeline
from ppopt.schedule.orders import Orders, codes
from ppopt.schedule.schedule import Schedule
from ppopt.strategies import Options, resolve
from ppopt.strategies.interleaved import min_group_size

STRATEGIES = ("1f1b", "interleaved")
"""Strategies that Megatron-LM runs (docs/user-guide/parallelism-guide.md of NVIDIA/Megatron-LM)."""


def group_size_of(pipeline: Pipeline, group_size: int | None = None) -> int | None:
    """Microbatches per group with which Megatron-LM runs a pipeline; None: it does not interleave.

    `group_size` is the requested size; None: the smallest one that Megatron-LM runs. Raises
    NotApplicableError with its rule, and with a size that works, if it refuses the pipeline or the
    size.
    """
    devices, batches = pipeline.num_devices, pipeline.batches
    chunks = pipeline.num_stages // devices
    if chunks == 1:
        return None
    if devices == 1:
        raise NotApplicableError(
            f"megatron: it interleaves on 2 ranks or more, and 1 rank has {chunks} stages; solve "
            "with one stage"
        )
    if batches < devices:
        raise NotApplicableError(
            f"megatron: interleaved 1F1B needs as many microbatches as ranks, and there are "
            f"{batches} for {devices}; solve with --batches {devices} or more, or with one stage "
            "per rank"
        )
    smallest = min_group_size(devices, batches)
    group = smallest if group_size is None else group_size
    if not devices <= group <= batches:
        raise NotApplicableError(
            f"megatron: the group size is at least the ranks and at most the microbatches, "
            f"{devices} .. {batches}, and it is {group}; solve with --group-size {smallest}"
        )
    if 0 < batches % group < devices:
        raise NotApplicableError(
            f"megatron: the microbatches modulo the group size are 0 or at least the ranks, and "
            f"{batches} modulo {group} is {batches % group} with {devices} ranks; solve with "
            f"--group-size {smallest}"
        )
    return group


def stated_group_size(schedule: Schedule) -> int | None:
    """Group size of a schedule of interleaved 1F1B, as its origin states it; None: it has none."""
    origin = schedule.origin
    return origin.options.get("group_size") if origin.strategy == "interleaved" else None


def runs_order(schedule: Schedule) -> bool:
    """Whether Megatron-LM runs the operations of a schedule in exactly this order.

    Operations of zero duration do not count. Raises NotApplicableError as `group_size_of`.
    """
    pipeline = schedule.pipeline
    group = group_size_of(pipeline, stated_group_size(schedule))
    strategy = resolve("1f1b" if group is None else "interleaved")
    with suppress(NotApplicableError):
        placed = strategy.apply(pipeline, Options(group_size=group))
        own = strategy.built(placed, Options(group_size=group))
        return _with_length(pipeline, own) == _with_length(pipeline, schedule.orders)
    return False


def _with_length(pipeline: Pipeline, orders: Orders) -> list[list[int]]:
    """Operations of every device in order, without those of zero duration; ~code ends a pair."""
    durations = Instance.of(pipeline, BackwardKind.MIXED).durations
    return [order[durations[codes(order)] > 0].tolist() for order in orders]
