"""The rules of ZB-2p's heuristic, one at a time."""

from __future__ import annotations

import pytest

from ppopt import Pipeline
from ppopt.strategies.zb_2p import Choices, _Run


@pytest.mark.parametrize(("p2p", "wanted"), [(1, False), (2, True)])
def test_a_forward_is_skipped_that_would_end_after_the_next_stage_hands_back(
    p2p: int, *, wanted: bool
) -> None:
    """Stage 1 is free at 15, runs F and B in 7, and its gradient arrives at 22 + p2p. Stage 0 is
    free at 20: its F of 4 fits before that from p2p = 2 on. Skipping it costs no idle time."""
    pipeline = Pipeline(stages=2, batches=9, forward=4, backward_input=3, weight=2, p2p=p2p)
    run = _Run(pipeline, Choices(False, True, False))
    run.done[:] = [[5, 3, 3], [3, 3, 3]]
    run.pending[:], run.live[:] = [0, 0], [0, 0]
    run.run.free[:], run.run.idle[:], run.run.max_idle = [20, 15], [0, 10], 10
    assert run._wants_forward(0) is wanted
