"""Streams in what asks for many searches: configurations, frontiers, plans, random times."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path
from random import Random

import numpy as np
import pytest

from ppopt import (
    Layer,
    Model,
    Objective,
    Pipeline,
    Result,
    compare,
    frontier,
    plan,
    recheck,
    solve,
    verify,
)
from ppopt.problem.traits import Trait
from ppopt.schedule.order_columns import OrderColumns
from ppopt.solver.bounds.proof_scope import DELAYED
from ppopt.studies.robustness import jitter, random_times
from tests.cli.cli_run import done
from tests.clock import SHORT, work_clock
from tests.factories.streams import Built, _machines, _needs, _parts, append_all
from tests.factories.tables import transfer_table
from tests.oracles.streams_exhaustive import least_makespan

LAYERS = Model(
    layers=[
        Layer(forward=1, backward=3, weight=1, activation=1),
        Layer(forward=2, backward=3, weight=1, activation=2),
        Layer(forward=1, backward=4, weight=2, activation=1),
    ]
)
"""Three layers, so that two stages have two partitions."""


def slow_links(partition: object, **fields: object) -> Pipeline:
    """Two devices, two microbatches, transfers as long as operations."""
    return LAYERS.pipeline(
        devices=2, batches=2, p2p=2, partition=partition, link_mode="streams", **fields
    )


def holds(result: Result) -> Result:
    """A result over streams whose schedule is verified and whose bound is not above its value."""
    assert result.schedule.pipeline.streams
    assert verify(result.schedule) == []
    assert (
        result.lower_bound
        <= result.value
        == result.schedule.metrics.makespan_ticks / (result.pipeline.ticks.per_unit)
    )
    assert DELAYED[Trait.LINKS] in result.proof
    return result


def test_partitions_against_every_order_of_every_partition() -> None:
    optimum = min(
        least_makespan(pipeline, whole=True) / pipeline.ticks.per_unit
        for pipeline in map(slow_links, ((1, 2), (2, 1)))
    )
    with work_clock(SHORT):
        result = solve(slow_links("search"), backward_kind="whole", time_limit=1, workers=1)
    assert holds(result).value == optimum
    assert recheck(result).verdict in ("confirmed", "undecided")


def test_placements_against_every_placement() -> None:
    """Every order of every placement of three unequal stages on two devices that are alike."""
    pipeline = Pipeline(
        stages=3, placement=(0, 0, 1), batches=2, forward=(1, 2, 1), p2p=1, link_mode="streams"
    )
    optima = [
        least_makespan(replace(pipeline, placement=hosts), whole=True)
        for hosts in ((0, 0, 1), (0, 1, 0), (0, 1, 1))
    ]
    with work_clock(SHORT):
        result = solve(pipeline, placement="search", backward_kind="whole", time_limit=1, workers=1)
    assert holds(result).value == min(filter(None, optima)) / pipeline.ticks.per_unit


def test_recompute_is_chosen_over_streams() -> None:
    layers = tuple(
        Layer(forward=1, activation=1, count=1, recompute={"activation": 0, "time": 1})
        for _ in range(4)
    )
    pipeline = Model(layers=layers).pipeline(
        devices=2, batches=4, p2p=2, recompute="search", mem_limit=3, link_mode="streams"
    )
    with work_clock(SHORT):
        over = solve(replace(pipeline, link_mode="delay"), time_limit=0.25, workers=1)
        result = holds(solve(pipeline, time_limit=0.25, workers=1))
    assert over.lower_bound <= result.value
    assert any(result.pipeline.recomputed)


def test_a_frontier_has_the_values_of_streams() -> None:
    pipeline = Pipeline(stages=2, batches=3, p2p=3, forward=[1, 2], link_mode="streams")
    with work_clock(SHORT):
        over_links = frontier(pipeline, time_limit=0.3, workers=1)
        delays = frontier(replace(pipeline, link_mode="delay"), time_limit=0.3, workers=1)
    assert over_links.points
    for point in over_links.points:
        assert holds(point.result).proof.count(DELAYED[Trait.LINKS]) == 1
        same = delays.at(point.limit)
        assert same.result.lower_bound <= point.result.value
    values = [point.result.value for point in over_links.points]
    assert all(before > after for before, after in pairwise(values))
    assert all(baseline.schedule.pipeline.streams for baseline in over_links.baselines)


def test_a_plan_over_streams() -> None:
    space = {"devices": 2, "batches": 4, "p2p": 3, "workers": 1, "time_limit": 1}
    with work_clock(SHORT):
        over_links = plan(LAYERS, link_mode="streams", placement="linear", chunks=1, **space)
        over = plan(LAYERS, placement="linear", chunks=1, **space)
    assert over_links.best is not None
    assert over_links.schedule.pipeline.streams
    assert verify(over_links.schedule) == []
    assert over.lower_bound <= over_links.lower_bound <= over_links.value
    assert over_links.proof.endswith(DELAYED[Trait.LINKS])


def test_a_comparison_over_streams() -> None:
    pipeline = Pipeline(stages=3, batches=4, p2p=2, link_mode="streams")
    with work_clock(SHORT):
        comparison = compare(pipeline, time_limit=0.05, workers=1, jitter=0.1)
    assert all(row.schedule.pipeline.streams for row in comparison.rows)
    assert all(row.jitter is not None for row in comparison.rows)
    assert {"dualpipe", "seq-1f1b"} <= {name for name, _ in comparison.skipped}


def slowly(built: Built, times: dict[object, float]) -> float:
    """Makespan in plain Python: every job in the order in which the schedule was appended."""
    pipeline = built.schedule.pipeline
    split = {
        (row.stage, row.microbatch, row.slice): row.kind.name == "B"
        for row in built.schedule.rows()
        if row.kind.name in ("B", "BW")
    }
    release = dict(enumerate(built.schedule.metrics.first_ticks))
    free: dict[object, float] = {}
    ends: dict[object, float] = {}
    for job in built.sequence:
        (machine,) = _machines(pipeline, job)
        needs = [need for part in _parts(job) for need in _needs(pipeline, split, part)]
        begin = max([free.get(machine, release.get(machine, 0)), *(ends[need] for need in needs)])
        end = free[machine] = begin + times[job]
        ends |= {job: end} if isinstance(job[0], str) else dict.fromkeys(job, end)
    return max(end for machine, end in free.items() if isinstance(machine, int))


@pytest.mark.parametrize("seed", range(12))
def test_random_times_over_streams_agree_with_plain_python(seed: int) -> None:
    """No time is 0: of operations at one instant the order would not be told by their times."""
    random = Random(seed)
    placed = {"placement": random.choice(("interleaved", "v")), "chunks": 2} if seed % 2 else {}
    pipeline = Pipeline(stages=3, batches=3, p2p=seed % 5 + 1, link_mode="streams", **placed)
    built = append_all(pipeline, random, ("split", "whole", "mixed")[seed % 3])
    run = OrderColumns.of_schedule(built.schedule)
    planned = run.duration[:, None].astype(float)
    assert run.values(planned.copy(), Objective.MAKESPAN) == [built.schedule.metrics.makespan_ticks]
    drawn = planned.copy()
    computed = run.row[: run.net.computed]
    drawn[computed, 0] = [random.randint(0, 9) for _ in computed]
    net = run.net
    lengths = {
        built.schedule.pipeline.op(code): drawn[run.row[position], 0]
        for code, position in zip(net.ops.tolist(), net.positions.tolist(), strict=True)
        if position < run.net.computed
    }
    carried = {
        ("F" if kind == 0 else "B", stage, microbatch, slice_index): end - start
        for kind, stage, microbatch, _, _, start, end, slice_index in transfer_table(built.schedule)
    }
    times = {
        job: carried[job] if isinstance(job[0], str) else lengths[min(job)]
        for job in built.sequence
    }
    assert run.values(drawn, Objective.MAKESPAN) == [slowly(built, times)]


def test_operations_have_the_luck_that_they_have_over_delays() -> None:
    pipeline = Pipeline(stages=3, batches=4, p2p=1, link_mode="streams")
    schedule = append_all(pipeline, Random(1), "split").schedule
    over = replace(schedule, pipeline=replace(pipeline, link_mode="delay"))
    orders = [OrderColumns.of_schedule(timed) for timed in (schedule, over)]
    drawn = [random_times(order, 0.2, 3, 0, 4) for order in orders]
    rows = [order.row for order in orders]
    assert (drawn[0][rows[0][: len(rows[1])]] == drawn[1][rows[1]]).all()
    assert (jitter(schedule, 0.2, samples=20).values >= jitter(over, 0.2, samples=20).values).all()
    assert np.isfinite(jitter(schedule, 0.2, Objective.DEVICE_SPAN, samples=20).values).all()


@pytest.mark.parametrize("backward", ["split", "whole"])
def test_no_bound_over_partitions_is_above_a_schedule(backward: str) -> None:
    """Bounds of delays hold: no random schedule over streams is below them."""
    with work_clock(SHORT):
        result = solve(slow_links("search"), backward_kind=backward, time_limit=0.5, workers=1)
    for counts, seed in product(((1, 2), (2, 1)), range(30)):
        schedule = append_all(slow_links(counts), Random(seed), backward).schedule
        assert schedule.metrics.makespan_ticks >= result.value * schedule.pipeline.ticks.per_unit


def test_a_bound_over_links_is_never_called_one_of_delays(tmp_path: Path) -> None:
    """Three transfers of 4, one behind the other: no bound of delays reaches the optimum."""
    pipeline = Pipeline(stages=2, batches=3, p2p=4, link_mode="streams")
    points = frontier(pipeline, backward_kind="whole", time_limit=600, workers=1).points
    over_links = [point.result for point in points if "and their transfers" in point.result.proof]
    assert over_links
    for result in over_links:
        assert DELAYED[Trait.LINKS] not in result.proof
        assert result.proof.count("backwards are all whole") == 1
        assert recheck(result, workers=1).verdict == "confirmed"
    storage = f"sqlite:///{tmp_path}/one.db"
    line = "solve --stages 2 --batches 3 --p2p-time 4 --link-mode streams --backward whole"
    line += f" --workers 1 --storage {storage}"
    first = done(f"{line} --json").json
    repeated = done(f"{line} --json").json
    assert first["proof"] == repeated["proof"] and "and their transfers" in repeated["proof"]
