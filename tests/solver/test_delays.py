"""How many microbatches may be between their F and their backward on a stage."""

from __future__ import annotations

import pytest

from ppopt import Pipeline
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.instance import Instance
from ppopt.solver.relaxation.delays import Delays


@pytest.mark.parametrize(("limit", "most"), [(1, 0), (2, 0), (3, 1), (4, 2), (5, 3)])
def test_the_first_backward_starts_beside_all_of_them(limit: int, most: int) -> None:
    """F keeps 1, and B takes 2: n microbatches and a B that starts need n + 2."""
    pipeline = Pipeline(stages=1, batches=4, activation=1, memory_b=2, mem_limit=limit)
    delays = Delays(Instance(pipeline, BackwardKind.SPLIT))
    assert delays.most_until_b == [most]
