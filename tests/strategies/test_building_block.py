"""Passes of a building block, moved to the front: the room counted is the room there is."""

from __future__ import annotations

import numpy as np
import pytest

from ppopt.strategies.building_block import Passes
from ppopt.strategies.one_f_one_b_v import one_f_one_b_v_block


@pytest.mark.parametrize("devices", [2, 3, 4, 6])
@pytest.mark.parametrize("batches", [2, 5, 12])
def test_what_is_in_flight_after_all_moves_is_counted_anew_alike(
    devices: int, batches: int
) -> None:
    """A device holds a chunk from its F to the end of its BW."""
    passes = Passes(one_f_one_b_v_block(devices), batches)
    held = np.zeros_like(passes.in_flight)
    for device in range(devices):
        for number in range(4):
            for slot in passes.at[number, device].tolist():
                if number < 2:
                    held[device, slot:] += 1
                else:
                    held[device, slot + 1 :] -= 1
    assert np.array_equal(passes.in_flight, held)
    assert held.max() <= passes.peak
