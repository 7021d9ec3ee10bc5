"""Frames of pandas: a row for every row of a result."""

from __future__ import annotations

import ppopt
from tests.packages import needed

needed("pandas")


def test_a_frontier_has_a_row_per_point_and_hand_strategy() -> None:
    """1F1B on 2 x 3 of F = B = W = 1 takes 3 x 3 + 3 with two activations."""
    found = ppopt.frontier(ppopt.Pipeline(stages=2, batches=3), workers=1)
    frame = found.to_frame()
    points = frame[frame.strategy == "optimal"]
    assert [*points.memory] == [point.limit for point in found.points]
    assert [*points.value] == [point.result.value for point in found.points]
    assert [*points.lower_bound] == [point.result.lower_bound for point in found.points]
    assert [*points.status] == [point.result.status.value for point in found.points]
    hands = frame[frame.strategy != "optimal"]
    assert [*hands.strategy] == [hand.schedule.origin.strategy for hand in found.baselines]
    one = hands[hands.strategy == "1f1b"].iloc[0]
    assert (one.memory, one.value, one.placement, one.chunks) == (2, 12, "linear", 1)


def test_a_plan_has_a_row_per_configuration() -> None:
    model = ppopt.Model([{"forward": time} for time in (3, 1, 2, 1)])
    made = ppopt.plan(model, devices=2, batches=2, placement="linear,v", workers=1)
    frame = made.to_frame()
    assert len(frame) == len(made.rows) > 1
    assert [*frame.placement] == [row.configuration.placement for row in made.rows]
    assert [*frame.status] == [row.status.value for row in made.rows]
    best = frame.iloc[0]
    assert (best.value, best.peak_memory) == (made.value, made.rows[0].peak)
    assert best.partition == made.rows[0].pipeline.counts
