"""Bounds over all partitions, against bounds of each and the optimum of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import count, repeat
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ppopt import cancellation
from ppopt.cancellation import scope
from ppopt.problem.arrays import Ints
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.exact import min_known
from ppopt.problem.instance import Instance
from ppopt.problem.objective import Objective
from ppopt.solver.bounds.device_bounds import minimum_memory
from ppopt.solver.choices.enumeration import Complete
from ppopt.solver.partitions import (
    layer_run_bounds,
    partition_bounds,
    partition_program,
    partitions_in_order,
)
from ppopt.solver.partitions.partition_bounds import (
    CompleteBounds,
    ResumableBounding,
    _PerStageBounds,
    bounds_of,
    every_partition,
    quick_bound,
)
from ppopt.solver.partitions.partition_choice import PartitionOrder
from ppopt.solver.partitions.partition_program import pattern_of
from ppopt.solver.partitions.space import FOREVER, PartitionSpace
from tests.factories.partitions import draw_space, layer_costs, pipeline_of, with_step_work
from tests.oracles import exhaustive, gradient_exhaustive
from tests.oracles.bounds import by_model
from tests.solver.partitions.over_partitions import partition_bound
from tests.tiers import first, slow

OPERATIONS = 12
"""Most operations for exhaustive search."""


def by_enumeration(space: PartitionSpace) -> list[tuple[int, tuple[int, ...]]]:
    return sorted((partition_bound(space, counts), counts) for counts in every_partition(space))


@pytest.mark.parametrize("seed", first(8, range(40)))
def test_a_program_gives_every_partition_in_the_order_of_its_bound(seed: int) -> None:
    rng = Random(seed)
    space = draw_space(rng)
    space = slow_at_first(space, rng) if seed % 2 else space
    space = with_step_work(space, rng) if seed % 3 else space
    listed, bounds = by_enumeration(space), bounds_of(space)
    assert bounds.min_bound == listed[0][0]
    ceiling = listed[len(listed) // 2][0]
    if bounds.min_bound == FOREVER:
        assert list(bounds.in_order(ceiling)) == []
        assert bounds.most_even(0.05) is None
        return
    bounded = list(bounds.in_order(ceiling))
    assert [bound for bound, _ in bounded] == sorted(bound for bound, _ in bounded)
    assert sorted(bounded) == [
        listed_pair for listed_pair in listed if listed_pair[0] <= min(ceiling, FOREVER - 1)
    ]


@pytest.mark.parametrize("seed", first(5, range(24)))
@pytest.mark.parametrize("share", [None, 0.001])
def test_under_a_ceiling_the_least_bound_is_found_or_known_to_be_above(
    seed: int, share: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ceiling below, at and above the least bound, which is by enumeration.

    `share`: of the first of several programs with growing ceilings.
    """
    if share is not None:
        monkeypatch.setattr(partition_bounds, "FIRST_CEILINGS", (share, share))
    space = draw_space(Random(2000 + seed))
    listed = by_enumeration(space)
    minimum = listed[0][0]
    for ceiling in (
        (minimum - 1, minimum, minimum + 5, 4 * minimum) if minimum < FOREVER else (10**6,)
    ):
        bounds = ResumableBounding(space).run(ceiling)
        assert bounds.min_bound <= minimum
        if isinstance(bounds, CompleteBounds):
            assert bounds.min_bound == minimum
            within = [
                listed_pair
                for listed_pair in listed
                if listed_pair[0] <= min(minimum + 5, FOREVER - 1)
            ]
            assert sorted(bounds.in_order(minimum + 5)) == within
        else:
            assert bounds.min_bound > ceiling


@pytest.mark.parametrize("seed", first(6, range(30)))
def test_the_most_even_partition_is_of_least_squares_within_the_ceiling(seed: int) -> None:
    """Squares of the work of a stage; of its number of layers where partitions are enumerated."""
    space = draw_space(Random(1000 + seed))
    bounds = bounds_of(space)
    if bounds.min_bound == FOREVER:
        return
    ceiling = int(bounds.min_bound * 1.05)
    layers = space.layers
    each = list(map(sum, zip(layers["forward"], layers["backward"], strict=True)))
    if pattern_of(space) is None:
        each = [1] * len(each)

    def squares(counts: tuple[int, ...]) -> int:
        ends = [sum(counts[: stage + 1]) for stage in range(len(counts))]
        return sum(sum(each[end - n : end]) ** 2 for end, n in zip(ends, counts, strict=True))

    chosen = bounds.most_even(0.05)
    assert chosen is not None and partition_bound(space, chosen) <= ceiling
    minimum = min(squares(counts) for bound, counts in by_enumeration(space) if bound <= ceiling)
    assert squares(chosen) == minimum


def test_no_bound_is_above_the_optimum() -> None:
    """Every partition of small spaces, against exhaustive search of its schedules."""
    rng, looked, tight = Random(5), 0, 0
    while looked < 30:
        space = draw_space(rng, most_layers=2)
        kinds = 2 if space.whole else 3
        if kinds * space.num_stages * space.batches > OPERATIONS:
            continue
        for counts in every_partition(space):
            objective = "device-span" if space.span else "makespan"
            pipeline = pipeline_of(space, counts)
            best = exhaustive.best(pipeline, fused=space.whole, objective=objective)  # type: ignore[arg-type]
            bound = partition_bound(space, counts)
            assert best is None or bound <= best, (space, counts, bound, best)
            looked, tight = looked + 1, tight + (bound == best)
    assert tight > looked / 4


def where_memory_recurs(rng: Random) -> PartitionSpace | None:
    """Several stages on a device, within limits."""
    space = draw_space(rng, most_layers=1, span=False, batches=3)
    return None if space.limits is None or space.num_stages == space.num_devices else space


def check_raised(
    spaces: Iterable[PartitionSpace],
    without: tuple[Any, str, Any],
    count: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Compare bounds with schedules, where they are lower without an argument.

    `without` replaces an attribute by one that leaves the argument out.
    """
    raised, tight, remaining = 0, 0, iter(spaces)
    while raised < count:
        space = next(remaining)
        for counts in every_partition(space):
            bound = partition_bound(space, counts)
            with monkeypatch.context() as patch:
                patch.setattr(*without)
                if bound in (FOREVER, partition_bound(space, counts)):
                    continue
            best = by_model(pipeline_of(space, counts), fused=space.whole)
            assert best is None or bound <= best, (space, counts, bound, best)
            raised, tight = raised + 1, tight + (bound == best)
    assert tight > raised / 8


@pytest.mark.parametrize("count", [3, slow(20)])
def test_no_bound_that_the_recurrence_raises_is_above_the_optimum(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = Random(11)
    spaces = (where_memory_recurs(rng) for _ in repeat(None))
    without = layer_run_bounds._Device, "_repetitions", lambda *_: iter(())
    check_raised(filter(None, spaces), without, count, monkeypatch)


@pytest.mark.parametrize("count", [6, slow(60)])
def test_no_bound_that_arrivals_raise_is_above_the_optimum(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long first stage, and at least three microbatches."""
    rng = Random(12)
    spaces = (slow_at_first(draw_space(rng, most_layers=2, span=False), rng) for _ in repeat(None))
    without = partition_bounds, "with_longest_before", lambda _, devices: [*devices]
    check_raised(spaces, without, count, monkeypatch)


@pytest.mark.parametrize("count", [12, slow(300)])
def test_no_bound_that_step_work_raises_is_above_the_optimum(count: int) -> None:
    """With and without unshard, gathered weights, sync and optimizer; for both objectives."""
    rng, raised, tight = Random(13), 0, 0
    while raised < count:
        bare = draw_space(rng, most_layers=2)
        space = with_step_work(bare, rng)
        objective = Objective.DEVICE_SPAN if space.span else Objective.MAKESPAN
        for counts in every_partition(space):
            bound, without = (partition_bound(own, counts) for own in (space, bare))
            assert bound >= without
            if bound in (without, FOREVER):
                continue
            pipeline = pipeline_of(space, counts)
            best = by_model(pipeline, fused=space.whole, objective=objective)
            assert best is None or bound <= best, (space, counts, bound, best)
            raised, tight = raised + 1, tight + (bound == best)
    assert tight > raised / 8


def test_step_work_by_hand() -> None:
    """A layer on each of two devices, two microbatches, F = B = W = 1.

    Device 1 waits for unshard 3 of device 0 and F; it works 6; then sync 4 and optimizer 5.
    Device 0 waits 3, works 6, and is idle for 1 after two F: B waits for F and B of device 1. With
    a sync of 9 and an optimizer of 1 it ends at 20.
    """
    ones = (1, 1)
    layers = layer_costs(ones, ones, ones, (2, 2), ones, (0, 0), (0, 0))
    layers |= {"unshard": (3, 2), "gradient_sync": (1, 4), "optimizer": (1, 5)}
    space = PartitionSpace(layers, (0, 1), 2, np.zeros((2, 1, 3), np.int64))
    assert bounds_of(space).min_bound == 3 + 1 + 6 + 4 + 5
    devices = (replace(space, layers={**layers, "gradient_sync": (own, 0)}) for own in (0, 9))
    assert [bounds_of(own).min_bound for own in devices] == [3 + 1 + 6 + 5, 3 + 7 + 9 + 1]
    assert gradient_exhaustive.least_value(pipeline_of(space, (1, 1)), whole=False) == 19


def test_gathered_weights_count_where_they_are_live() -> None:
    """Two stages on one device, and a limit of 7: an activation of 2 + 2, and 4 for stage 0.

    With 3 gathered it fits. Of stage 1 alone, 6 gathered and an activation of 2 do not.
    """
    ones, zeros = (1, 1), (0, 0)
    layers = layer_costs(ones, ones, ones, (2, 2), (2, 2), zeros, zeros)
    for gathered, fits in (((4, 0), False), ((3, 0), True), ((0, 6), False), ((0, 3), True)):
        own = {**layers, "unshard_memory": gathered}
        space = PartitionSpace(own, (0, 0), 1, np.zeros((2, 1, 3), np.int64), limits=(7,))
        assert (bounds_of(space).min_bound < FOREVER) == fits
        best = gradient_exhaustive.least_value(pipeline_of(space, (1, 1)), whole=False)
        assert (best is not None) == fits


@pytest.mark.parametrize("seed", first(5, range(40)))
def test_a_minimum_bound_after_few_nodes_is_not_above_any_partition(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partitions_in_order, "MAX_BOUNDED", 1)
    rng = Random(seed)
    space = slow_at_first(draw_space(rng), rng)
    listed, bounds = by_enumeration(space), bounds_of(space)
    assert bounds.min_bound <= listed[0][0]
    if pattern_of(space) is not None and bounds.min_bound < FOREVER:
        assert next(bounds.in_order(listed[-1][0]))[0] == listed[0][0]


def test_many_stages_on_a_device_have_few_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten stages on each of two devices: a window per first F and last arrival of each stage."""
    stages, counted, real = 20, count(), layer_run_bounds.max_work

    def watched(*arguments: Any) -> Ints:
        next(counted)
        return real(*arguments)

    monkeypatch.setattr(layer_run_bounds, "max_work", watched)
    ones, zeros = (1,) * stages, (0,) * stages
    forward = [1 + layer % 3 for layer in range(stages)]
    layers = layer_costs(forward, ones, ones, (2,) * stages, ones, zeros, zeros)
    delays = np.zeros((2, stages - 1, stages + 1), np.int64)
    assert bounds_of(PartitionSpace(layers, (0, 1) * 10, 3, delays)).min_bound > 0
    assert next(counted) < stages**2


def slow_at_first(space: PartitionSpace, rng: Random) -> PartitionSpace:
    first, *rest = space.layers["forward"]
    layers = {**space.layers, "forward": (first + rng.randint(3, 9), *rest)}
    return replace(space, layers=layers, batches=3)


@pytest.mark.parametrize("seed", first(5, range(30)))
def test_the_least_limit_is_that_of_the_best_partition(seed: int) -> None:
    space = draw_space(Random(2000 + seed))
    kind = BackwardKind.uniform(fused=space.whole)
    needs = (
        max(minimum_memory(Instance(replace(pipeline_of(space, counts), mem_limit=None), kind)))
        for counts in every_partition(space)
    )
    assert bounds_of(space).min_limit == min(needs)


@pytest.mark.parametrize("seed", first(5, range(30)))
def test_bounds_of_stages_alone_are_not_above_the_optimum_of_any_partition(seed: int) -> None:
    space = draw_space(Random(3000 + seed), most_layers=2, span=False)
    alone = _PerStageBounds(space)
    pipelines = (pipeline_of(space, counts) for counts in every_partition(space))
    best = min_known(by_model(pipeline, fused=space.whole) for pipeline in pipelines)
    assert best is None or alone.min_bound <= best
    assert alone.min_limit <= bounds_of(space).min_limit


def test_links_by_size_count_at_their_cuts_alone() -> None:
    """Two devices, one microbatch: all work in a chain, and the cheapest of the three cuts."""
    zeros = (0, 0, 0, 0)
    layers = layer_costs((1, 1, 1, 1), (1, 1, 1, 1), zeros, (1, 1, 1, 1), zeros, zeros, zeros)
    delays = ((0, 9, 2, 7, 0),)
    space = PartitionSpace(layers, (0, 1), 1, np.array((delays, delays)))
    assert bounds_of(space).min_bound == 4 + 4 + 2 * 2
    assert next(bounds_of(space).in_order(12)) == (12, (2, 2))


def test_a_bound_closes_equal_layers_by_hand() -> None:
    """Two devices, four equal layers (F = B = W = 1), three microbatches, no limit.

    Device 1 begins after 2 and works 3 x 6; device 0 works 18 and, before its last backward's W of
    2, must have waited: F of 3 microbatches take 6, the round trip from F0 to B0 2 + 2 + 2 = 6.
    The least bound is 20, of two layers each; (1, 3) and (3, 1) need 27 on one device alone.
    """
    ones, zeros = (1, 1, 1, 1), (0, 0, 0, 0)
    layers = layer_costs(ones, ones, ones, (2, 2, 2, 2), ones, zeros, zeros)
    none = ((0,) * 5,)
    space = PartitionSpace(layers, (0, 1), 3, np.array((none, none)))
    assert bounds_of(space).min_bound == 20
    assert list(bounds_of(space).in_order(26)) == [(20, (2, 2))]


def clock_at(monkeypatch: pytest.MonkeyPatch, tick: Callable[[], float]) -> None:
    """Plant a clock for the bounds of partitions."""
    monkeypatch.setattr(cancellation, "time", SimpleNamespace(monotonic=tick))


@pytest.mark.parametrize("seed", first(4, range(12)))
def test_after_the_moment_the_quick_bound_alone_is_left(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = draw_space(Random(4000 + seed))
    clock_at(monkeypatch, lambda: 10.0)
    with scope(5.0):
        bounds = ResumableBounding(space).run()
    assert not isinstance(bounds, CompleteBounds)
    assert bounds.min_bound == quick_bound(space)
    assert bounds.most_even(0.05) is None


@pytest.mark.parametrize("seed", first(4, range(12)))
def test_turns_go_on_where_the_last_one_ended(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn ends when the clock was read a few times; no device is bounded twice."""
    space = draw_space(Random(6000 + seed))
    listed = by_enumeration(space)
    bounded: list[tuple[Any, int]] = []
    real = partition_program.PartitionProgram._bounded_choices

    def watched(program: Any, level: int) -> Any:
        bounds = real(program, level)
        bounded.append((program, level))
        return bounds

    monkeypatch.setattr(partition_program.PartitionProgram, "_bounded_choices", watched)
    ticks = count(1)
    clock_at(monkeypatch, lambda: float(next(ticks)))
    turns, ceiling = ResumableBounding(space), min(listed[0][0] + 5, FOREVER - 1)
    for _ in range(1000):
        with scope(next(ticks) + 8.0):
            bounds = turns.run(ceiling)
        assert bounds.min_bound <= listed[0][0]
        if isinstance(bounds, CompleteBounds) or bounds.min_bound > ceiling:
            break
    assert bounds.min_bound == listed[0][0] or bounds.min_bound > ceiling
    assert len(set(bounded)) == len(bounded)
    assert bounded or pattern_of(space) is None


@pytest.mark.parametrize("seed", first(3, (0, 2, 6, 1, 3, 5)))
def test_whenever_a_turn_ends_the_next_one_finds_the_least_bound(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock ticks when it is read: the first turn ends at every reading."""
    space = draw_space(Random(6000 + seed))
    minimum, ticks = by_enumeration(space)[0][0], count(1)
    clock_at(monkeypatch, lambda: float(next(ticks)))
    for moment in (*range(1, 12), *range(12, 60, 8)):
        ticks, turns = count(1), ResumableBounding(space)
        with scope(float(moment)):
            turns.run()
        bounds = turns.run()
        assert isinstance(bounds, CompleteBounds) and bounds.min_bound == minimum


@pytest.mark.parametrize("seed", first(4, range(12)))
def test_partitions_in_order_stop_at_the_deadline(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = draw_space(Random(5000 + seed))
    bounds = bounds_of(space)
    if pattern_of(space) is None or bounds.min_bound == FOREVER:
        return
    order = PartitionOrder(bounds)
    monkeypatch.setattr(partition_program, "LOOK", 1)
    clock_at(monkeypatch, lambda: 10.0)
    known = next(bounds.in_order(bounds.min_bound))
    for _ in range(2):
        with scope(5.0) as entered:
            order.peek({known[1]}, None)
        assert entered.ended
    following = order.peek((), bounds.min_bound)
    assert not isinstance(following, Complete) and following[0] == bounds.min_bound


@pytest.mark.parametrize("seed", first(4, range(12)))
def test_an_order_continues_after_a_larger_program_was_made(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = draw_space(Random(5000 + seed))
    bounds = bounds_of(space)
    if pattern_of(space) is None or bounds.min_bound == FOREVER:
        return
    monkeypatch.setattr(partition_program, "LOOK", 1)
    order, known = PartitionOrder(bounds), set[tuple[int, ...]]()
    bounds.most_even(1.0)
    while not isinstance(following := order.peek(known, None), Complete):
        known.add(following[1])
    assert known == {counts for bound, counts in by_enumeration(space) if bound < FOREVER}


def test_partitions_without_a_program_are_bounded_until_the_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The clock ticks when it is read: the fourth batch is not begun."""
    space = next(
        drawn for seed in range(300) if pattern_of(drawn := draw_space(Random(seed))) is None
        and drawn.size > 4
    )  # fmt: skip
    bounded: list[int] = []
    real = partition_bounds._bounds_of_equal_first
    monkeypatch.setattr(partition_bounds, "TOGETHER", 1)

    def watched(space: PartitionSpace, members: Sequence[tuple[int, ...]]) -> Ints:
        bounded.append(len(members))
        return real(space, members)

    monkeypatch.setattr(partition_bounds, "_bounds_of_equal_first", watched)
    ticks = count(1)
    clock_at(monkeypatch, lambda: float(next(ticks)))
    bounds = bounds_of(space)
    with scope(3.5):
        _ = bounds.min_bound
    assert bounded == [1, 1, 1]
    assert bounds.min_bound == by_enumeration(space)[0][0]
