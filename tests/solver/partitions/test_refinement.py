"""Bounds of partitions by merged states, against the optimum of every partition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import numpy as np
import pytest

from ppopt import Objective
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.problem import Problem
from ppopt.solver.dynamic_programming.layered import LayeredDP
from ppopt.solver.partitions.device_runs import hosted_by
from ppopt.solver.partitions.layer_run_bounds import device_numbers, first_stage_tail
from ppopt.solver.partitions.merged_runs import RunClasses, merged_bound
from ppopt.solver.partitions.partition_bounds import every_partition, partition_bound
from ppopt.solver.partitions.partition_program import PartitionProgram, StageZeroContext, pattern_of
from ppopt.solver.partitions.refinement import ProvedNumbers, Refinement, _OptionBounds
from ppopt.solver.partitions.space import PartitionSpace, space_of
from tests.factories.partitions import draw_space, pipeline_of
from tests.oracles import exhaustive
from tests.oracles.bounds import by_model
from tests.oracles.configurations import least_value
from tests.solver.partitions.test_over_partitions import SMALL, draw
from tests.tiers import first

OPERATIONS = 12
"""Maximum number of operations for exhaustive search."""
NEVER = 10**6
"""Later than every schedule; the bound of a device whose memory is too small."""


def limited_space(rng: Random) -> PartitionSpace:
    """A space with limits whose backwards are split, whole or either."""
    while True:
        space = draw_space(rng, most_layers=2, span=False, has_all_backwards=True)
        mixed = rng.random() < 0.3
        if mixed:
            costs = space.layers
            longest = map(sum, zip(costs["backward_input"], costs["weight"], strict=True))
            backward = [rng.randint(1, max(1, time)) for time in longest]
            space = replace(
                space, layers={**space.layers, "backward": backward}, split=True, whole=True
            )
        kinds = 2 if space.whole and not mixed else 3
        operations = kinds * space.num_stages * space.batches
        if space.limits is not None and operations <= OPERATIONS:
            return space


def optimum(space: PartitionSpace, counts: tuple[int, ...]) -> int | None:
    """Minimum makespan of a partition by exhaustive search; None: it exceeds the limits."""
    pipeline = pipeline_of(space, counts)
    if space.split and space.whole:
        return exhaustive.best_mixed(pipeline, objective="makespan")
    return exhaustive.best(pipeline, fused=space.whole, objective="makespan")


def merged_bounds(space: PartitionSpace, counts: tuple[int, ...], below: int) -> list[int]:
    """Bounds of the devices of a partition by merged states, at most `below`."""
    tail = int(first_stage_tail(space, np.array(counts[0])))
    numbers = (
        device_numbers(space, device, hosted, tail)[:, 0].tolist()
        for device, hosted in enumerate(hosted_by(space, [counts]))
    )
    bounds = (merged_bound(own, space.batches, below) for own in numbers)
    return [bound for bound in bounds if bound is not None]


def check_space(space: PartitionSpace) -> tuple[int, int, int]:
    """Compare all bounds of a space; count partitions, equal bounds, raised bounds."""
    optima = {counts: optimum(space, counts) for counts in every_partition(space)}
    feasible = [best for best in optima.values() if best is not None]
    tight = raised = 0
    for counts, best in optima.items():
        if best is None:
            continue
        bounds = merged_bounds(space, counts, best + 1)
        assert max(bounds, default=0) <= best, (space, counts, bounds, best)
        tight += best in bounds
        raised += max(bounds, default=0) > partition_bound(space, counts)
    pattern = pattern_of(space)
    if pattern is not None and feasible:
        ceiling = min(feasible) + 5
        program = PartitionProgram(space, pattern, ceiling)
        refinement = Refinement(program)
        refinement.run()
        assert refinement.ended and program.min_bound <= min(feasible), (space, min(feasible))
        for bound, counts in program.in_order():
            best = optima[counts]
            assert best is None or bound <= best, (space, counts, bound, best)
    return len(feasible), tight, raised


@pytest.mark.parametrize("seed", first(12, range(60)))
def test_no_bound_by_merged_states_is_above_the_optimum(seed: int) -> None:
    check_space(limited_space(Random(seed)))


def check_options(seed: int) -> bool:
    """Compare the bound over all partitions and recompute; return whether it was raised."""
    pipeline, whole = draw(Random(seed))
    raised = False
    for kind in (BackwardKind.uniform(fused=whole), BackwardKind.MIXED):
        fused = None if kind is BackwardKind.MIXED else whole
        best = least_value(pipeline, fused=fused)
        space = space_of(Problem(pipeline, Objective.MAKESPAN, kind))
        pattern = pattern_of(space)
        if best is None or pattern is None:
            continue
        ceiling = int(best * space.per_unit * 2)
        program = PartitionProgram(space, pattern, ceiling)
        before = program.min_bound
        refinement = Refinement(program)
        refinement.run()
        assert before <= refinement.proved <= best * space.per_unit, (seed, kind)
        raised |= refinement.proved > before
    return raised


@pytest.mark.parametrize("seed", first(3, SMALL))
def test_no_bound_over_recompute_is_above_the_optimum(seed: int) -> None:
    check_options(seed)


@pytest.mark.parametrize("seed", first(4, range(40)))
def test_waits_for_memory_are_no_longer_than_in_an_optimum(seed: int) -> None:
    """Five microbatches, of which two or three fit: the later ones wait for the earlier ones."""
    rng = Random(seed)
    space = draw_space(rng, most_layers=1, span=False, batches=5)
    costs, hosts = space.layers, len(set(space.hosts))
    everything = sum(costs["activation"])
    space = replace(space, limits=(sum(costs["static"]) + rng.randint(1, 2) * everything,) * hosts)
    counts = next(every_partition(space))
    best = by_model(pipeline_of(space, counts), fused=space.whole)
    assert best is None or max(merged_bounds(space, counts, best + 1)) <= best


def exact_makespan(numbers: Sequence[int], batches: int) -> int:
    """Minimum makespan of a device alone, without merging."""
    program = LayeredDP(RunClasses(numbers, batches), NEVER)
    while not program.ended:
        program.advance()
    return program.lower_bound


@pytest.mark.parametrize("seed", first(4, range(40)))
def test_proofs_raise_only_the_bounds_of_devices_that_need_as_long(seed: int) -> None:
    """Proofs of half of the devices of all partitions, against every device without merging."""
    rng = Random(seed)
    pipeline, _ = draw(rng)
    space = space_of(Problem(pipeline, Objective.MAKESPAN, BackwardKind.SPLIT))
    space = replace(space, batches=rng.randint(2, 4))
    choices, exact = [], {}
    for counts in every_partition(space):
        tail = int(first_stage_tail(space, np.array(counts[0])))
        for device, hosted in enumerate(hosted_by(space, [counts])):
            options = _OptionBounds(space, device, hosted, StageZeroContext(tail, 0))
            keys = [tuple(numbers[:, 0].tolist()) for numbers in options.numbers]
            choices.append((options, keys))
            exact |= {key: exact_makespan(key, space.batches) for key in keys}
    proved = rng.sample(sorted(exact), len(exact) // 2)
    proofs = [
        ProvedNumbers(
            np.array(key), merged_bound(key, space.batches, min(exact[key] + 1, NEVER)) or 0
        )
        for key in proved
    ]
    assert all(proof.bound <= exact[tuple(proof.numbers.tolist())] for proof in proofs)
    for options, keys in choices:
        closed = options.bounds[:, 0].tolist()
        upper = min(max(bound, exact[key]) for bound, key in zip(closed, keys, strict=True))
        assert min(closed) <= options.raised(proofs)[0] <= upper
