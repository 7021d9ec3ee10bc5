"""A search of configurations ends at its deadline, whether or not one of them was searched."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

import ppopt
from ppopt import Pipeline, Status
from ppopt.solver.placements.placement_choice import PlacementChoice
from tests.clock import stepping_clock


@pytest.mark.parametrize("readings", [1, 100, 1000])
def test_placements_without_memory_end_at_the_deadline(
    readings: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every placement has a stage on device 0, where none fits: 12! placements are not enumerated,
    and random moves find no placement that can be searched."""
    perturbed, moves = PlacementChoice.perturbed, 0

    def counted(choice: PlacementChoice, key: Any, random: Random) -> Any:
        nonlocal moves
        moves += 1
        assert moves < 1000, "random moves go on without end"
        return perturbed(choice, key, random)

    monkeypatch.setattr(PlacementChoice, "perturbed", counted)
    clock, devices = stepping_clock(monkeypatch, 1.0, readings), 12
    pipeline = Pipeline(
        stages=devices, batches=2, forward=list(range(10, 10 + devices)), activation=1,
        mem_limit=["0.5", *range(100, 99 + devices)],
    )  # fmt: skip
    result = ppopt.solve(pipeline, placement="search", time_limit=1.0, workers=1)
    assert result.status is Status.UNKNOWN
    assert clock.readings < readings + 2000
