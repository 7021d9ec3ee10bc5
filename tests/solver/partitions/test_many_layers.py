"""Models of hundreds and thousands of layers: little work lies between two looks at the clock."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from ppopt import Model
from ppopt.cancellation import within
from ppopt.problem import partition
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.objective import Objective
from ppopt.problem.problem import Problem
from ppopt.solver.partitions import layer_run_bounds, option_bounds, partition_program
from ppopt.solver.partitions.option_bounds import Tradeoff
from ppopt.solver.partitions.partition_bounds import ResumableBounding, quick_bound
from ppopt.solver.partitions.partition_program import MAX_GRID, pattern_of
from ppopt.solver.partitions.space import PartitionSpace, space_of
from tests.clock import WorkBetweenReadings
from tests.tiers import slow

LOOKS = 40


def space(layers: int, placement: str, **fields: Any) -> PartitionSpace:
    """Partitions of many layers, the head four times as long as the others."""
    model = Model([{"forward": 1, "activation": 1, "count": layers - 1}, {"forward": 4}])
    chunks = 1 if placement == "linear" else 2
    pipeline = model.pipeline(devices=4, batches=4, placement=placement, chunks=chunks, **fields)
    return space_of(Problem(pipeline, Objective.MAKESPAN, BackwardKind.MIXED))


@contextmanager
def counted(clock: WorkBetweenReadings, patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Count the choices of devices that are bounded, and those that are looked at."""
    init, parts = layer_run_bounds._Device.__init__, partition_program.PartitionProgram._parts

    def of_device(self: Any, own: Any, device: int, hosted: Any, *more: Any, **named: Any) -> None:
        clock.work += hosted[0].low.size
        init(self, own, device, hosted, *more, **named)

    def of_program(self: Any, hosted: Any) -> Any:
        clock.work += sum(stage.low.size for stage in hosted)
        return parts(self, hosted)

    with patch.context() as inner:
        inner.setattr(layer_run_bounds._Device, "__init__", of_device)
        inner.setattr(partition_program.PartitionProgram, "_parts", of_program)
        yield


@pytest.mark.parametrize(
    ("layers", "placement", "limit"),
    [
        (400, "v", None),
        (200, "interleaved", 1000),
        (1500, "linear", 1000),
        (1500, "v", 1000),
        slow(4000, "linear", None),
        slow(4000, "v", 3000),
    ],
)
def test_bounds_look_at_the_clock_after_little_work(
    layers: int, placement: str, limit: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the number of layers; after the deadline the quick bound is left."""
    own = space(layers, placement, mem_limit=limit)
    clock = WorkBetweenReadings(monkeypatch, LOOKS)
    with counted(clock, monkeypatch), within(1.0):
        bounds = ResumableBounding(own).run(int(1.5 * quick_bound(own)))
        bound = bounds.min_bound
    assert bound >= quick_bound(own)
    assert clock.max_work <= 2 * MAX_GRID
    assert clock.readings <= 3 * LOOKS


def test_programs_of_too_many_states_are_not_begun() -> None:
    """Two runs of layers per device: states are the positions of both, and perhaps a middle cut."""
    assert pattern_of(space(4000, "linear")) is not None
    assert pattern_of(space(1000, "v")) is not None
    assert pattern_of(space(1100, "v")) is None
    assert pattern_of(space(400, "interleaved")) is None


@pytest.mark.parametrize("speeds", [(1, 1, 1, 1), (1, 2, 2, 1)])
@pytest.mark.parametrize("head", [1, 2000])
def test_a_balanced_partition_takes_work_in_proportion_to_the_layers(
    head: int, speeds: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not to their square, though stages may end at a thousand layers: 4 x 4000 x 12 at most."""
    totals = 0
    total = partition._Squares.total

    def watched(self: Any, start: int, end: int) -> int:
        nonlocal totals
        totals += 1
        return total(self, start, end)

    monkeypatch.setattr(partition._Squares, "total", watched)
    sums = (*range(4000), 3999 + head)
    counts = partition._flattest.__wrapped__(sums, speeds)
    assert sum(counts) == 4000 and len(counts) == 4
    assert totals <= 4 * 4000 * 12


def test_options_of_stages_read_the_clock_at_every_layer_and_are_resumed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Twelve layers that differ are in 78 stages; those before the deadline are known after it.

    No other test has them, so that none of their stages is known before.
    """
    layers = tuple(((index, 5),) for index in range(9001, 9013))
    clock, undominated = WorkBetweenReadings(monkeypatch, LOOKS), option_bounds.undominated
    stages: list[list[Tradeoff]] = []

    def counted_stage(points: list[Tradeoff]) -> list[Tradeoff]:
        clock.work += 1
        stages.append(points)
        return undominated(points)

    monkeypatch.setattr(option_bounds, "undominated", counted_stage)
    with within(1.0) as limited:
        option_bounds._table(layers, 12, 4)
    assert limited.ended and clock.max_work == 1
    assert LOOKS / 2 < len(stages) < LOOKS
    option_bounds._table(layers, 12, 4)
    assert len(stages) == 78
