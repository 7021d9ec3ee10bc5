"""Memory of stages: checks of the input, and the peak of 1F1B in closed form."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import accumulate

from ppopt.errors import InputError
from ppopt.problem import exact
from ppopt.problem.cost_table import ZERO
from ppopt.problem.costs import StageCosts
from ppopt.problem.distinct import map_distinct
from ppopt.problem.layers import Layers

Values = Sequence[Fraction]


def check_memory(activation: Values, memory_b: Values, retained: Values | None) -> None:
    """Raise InputError if B frees more than is live, or F retains more than it allocates."""
    for stage, (taken, change) in enumerate(zip(activation, memory_b, strict=True)):
        if change < -taken:
            raise InputError(
                f"memory_b: stage {stage}: {exact.plain(change)} frees more than the "
                f"activation {exact.plain(taken)}"
            )
    for stage, (taken, keeps) in enumerate(zip(activation, retained or (), strict=False)):
        if keeps > taken:
            raise InputError(
                f"kept: stage {stage}: {exact.plain(keeps)} is more than the activation "
                f"{exact.plain(taken)}"
            )


def check_moves(memory: Values | None, time: Values | None, retained: Values) -> None:
    """Raise InputError if a stage offloads more than F retains, or memory without time."""
    nothing = (ZERO,) * len(retained)
    rows = zip(memory or nothing, time or nothing, retained, strict=True)
    for stage, (offloaded, duration, available) in enumerate(rows):
        if offloaded > available:
            raise InputError(
                f"offload_memory: stage {stage}: {exact.plain(offloaded)} is more than F keeps, "
                f"{exact.plain(available)}"
            )
        if bool(offloaded) != bool(duration):
            what, counterpart = ("time", "memory") if offloaded else ("memory", "time")
            raise InputError(
                f"offload_{what}: stage {stage}: 0, but offload_{counterpart} is above 0; give both"
            )


def check_limit(limit: object, model: Layers | None) -> None:
    """Raise InputError if memory is limited, and no layer of the model states its activation."""
    if limit is not None and model is not None and not model.has_activation:
        raise InputError(
            "mem_limit: no layer gives its activation; give `activation` in the layers, or "
            "leave the limit out"
        )


def peak_of_1f1b(
    each: Sequence[StageCosts[int]], hosted: Sequence[Sequence[int]], slices: int
) -> int:
    """Largest device peak of 1F1B in ticks, on any placement; all microbatches run on one route.

    `each` has the costs of one slice of every microbatch, in their order, and `hosted` the stages
    of every device. On device d of P, min(M, P - d) consecutive microbatches are live (Megatron-LM,
    arXiv 2104.04473, section 2.2), and so are the gathered weights of its stages. While F or BW of
    a stage runs, what that operation allocates is live, too: its workspace, and in BW of the first
    of these microbatches `recompute_memory`.
    """
    return max(
        sum(each[0].static[stage] + each[0].unshard_memory[stage] for stage in stages)
        + _of_microbatches(each, stages, min(len(each), len(hosted) - device), slices)
        for device, stages in enumerate(hosted)
    )


def _of_microbatches(
    each: Sequence[StageCosts[int]], stages: Sequence[int], count: int, slices: int
) -> int:
    """Maximum memory that the stages of a device allocate for `count` consecutive microbatches.

    After the last F there are fewer.
    """
    equal = len(set(map(id, each))) == 1
    first = each[:count] if equal else each
    retained = map_distinct(
        lambda costs: sum(costs.kept[stage] for stage in stages) * slices, first
    )
    sums = tuple(accumulate(retained, initial=0))
    return max(
        sums[min(start + count, len(first))]
        - sums[start]
        + max(_besides(costs, stage) for stage in stages)
        for start, costs in enumerate(each[:1] if equal else each)
    )


def _besides(costs: StageCosts[int], stage: int) -> int:
    """Maximum memory that F or BW of a stage needs in addition to the retained activation."""
    allocated = costs.recompute_memory[stage] + costs.backward_workspace[stage]
    return max(costs.forward_workspace[stage], allocated)
