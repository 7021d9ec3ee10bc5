"""The part of order literals: the memory limit of a device by the order of its operations alone."""

from __future__ import annotations

from typing import Any

import pytest

from ppopt import Objective, Pipeline
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.problem import Problem
from ppopt.solver.cp_sat.device_scope import DeviceScope
from ppopt.solver.cp_sat.no_overlap import NoOverlap, Operations
from ppopt.solver.cp_sat.order_literals import OrderLiterals
from ppopt.solver.cp_sat.parts import Precedence
from ppopt.solver.cp_sat.variables import Variables
from tests.solver.cp_sat.models import solved

ENOUGH = 30


@pytest.mark.parametrize("kind", BackwardKind)
@pytest.mark.parametrize(("room", "fits"), [(2, True), (1, False)])
def test_two_forwards_need_room_for_both(kind: BackwardKind, room: int, fits: bool) -> None:
    """All backwards come after both forwards, by a constraint of the test."""
    fields: dict[str, Any] = {"backward_input": 1, "weight": 1, "backward": 1, "memory_b": 0}
    problem = Problem(Pipeline(stages=1, batches=2, **fields), Objective.MAKESPAN, kind)
    scope = DeviceScope(problem, frozenset({0}), ENOUGH)
    forwards = [task.code for task in scope.tasks if "F" in task.name]
    others = [task.code for task in scope.tasks if "F" not in task.name]
    parts = [
        Operations(scope.tasks),
        NoOverlap(0),
        Precedence([(one, other, 0) for one in forwards for other in others]),
        OrderLiterals(problem.instance, {0: room}, ENOUGH),
    ]
    made = Variables.create(scope.tasks, ENOUGH, (0, ENOUGH))
    assert (solved(made, parts) is not None) is fits
