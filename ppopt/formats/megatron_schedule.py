"""The schedules of Megatron-LM: its placement and its order of operations.

With one stage per rank it runs 1F1B, with several interleaved 1F1B in groups of microbatches. If
exchanges of experts overlap, F and BW of two microbatches run as one (combined 1F1B). The
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
from ppopt.problem.training_sizes import TrainingSizes
from ppopt.schedule.orders import Orders, codes
from ppopt.schedule.schedule import Schedule
from ppopt.strategies import Options, resolve
from ppopt.strategies.interleaved import min_group_size

STRATEGIES = ("1f1b", "interleaved")
"""Strategies that Megatron-LM runs (docs/user-guide/parallelism-guide.md of NVIDIA/Megatron-LM)."""
COMBINED = ("1f1b-overlap", "interleaved-overlap")
"""Those with `OVERLAP`, which it runs in their place
(megatron/core/pipeline_parallel/combined_1f1b.py, d98e8a6)."""
OVERLAP = "--overlap-moe-expert-parallel-comm"


def overlaps(training: TrainingSizes | None) -> bool:
    """Whether costs assume that exchanges of experts overlap."""
    return training is not None and OVERLAP in (training.arguments or ())


def strategies_of(training: TrainingSizes | None) -> tuple[str, ...]:
    """Strategies that Megatron-LM runs with the arguments that costs assume."""
    return COMBINED if overlaps(training) else STRATEGIES


def strategy_of(pipeline: Pipeline) -> str:
    """The strategy that it runs on a pipeline.

    Raises NotApplicableError if it refuses to overlap exchanges there (`__post_init__` of
    megatron/core/transformer/transformer_config.py).
    """
    single = pipeline.num_stages == pipeline.num_devices
    if overlaps(pipeline.training) and single and pipeline.num_devices > 1:
        raise NotApplicableError(
            "megatron: on several ranks it overlaps exchanges of experts only with several stages "
            "per rank; solve with --chunks 2, or without dispatch in --overlap"
        )
    return strategies_of(pipeline.training)[not single]


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
    interleaves = origin.strategy in (STRATEGIES[1], COMBINED[1])
    return origin.options.get("group_size") if interleaves else None


def runs_order(schedule: Schedule) -> bool:
    """Whether Megatron-LM runs the operations of a schedule in exactly this order.

    Operations of zero duration do not count. Raises NotApplicableError as `group_size_of`.
    """
    pipeline = schedule.pipeline
    group = group_size_of(pipeline, stated_group_size(schedule))
    with suppress(NotApplicableError):
        strategy = resolve(strategy_of(pipeline))
        placed = strategy.apply(pipeline, Options(group_size=group))
        own = strategy.built(placed, Options(group_size=group))
        return _with_length(pipeline, own) == _with_length(pipeline, schedule.orders)
    return False


def _with_length(pipeline: Pipeline, orders: Orders) -> list[list[int]]:
    """Operations of every device in order, without those of zero duration; ~code ends a pair."""
    durations = Instance.of(pipeline, BackwardKind.MIXED).durations
    return [order[durations[codes(order)] > 0].tolist() for order in orders]
