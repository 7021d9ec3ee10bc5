"""The bound by the host link, by hand and against the schedules of `solve`."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

import ppopt
from ppopt import Pipeline, Status, Verdict
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.instance_costs import InstanceCosts
from ppopt.problem.objective import Objective
from ppopt.problem.problem import Problem
from ppopt.solver.bounds.host_link_bound import host_link_bound
from ppopt.solver.partitions.partition_option_choice import PartitionOptionChoice
from ppopt.solver.relaxation.route_times import RouteTimes


def bound_of(objective: Objective = Objective.MAKESPAN, device: int = 0, **fields: Any) -> Fraction:
    """The bound of a device, in the user's unit."""
    pipeline = Pipeline(**fields)
    problem = Problem(pipeline, objective, BackwardKind.WHOLE)
    route = RouteTimes(problem.relaxed.instance)
    bound = host_link_bound(InstanceCosts.of(pipeline), route, device, objective)
    return Fraction(bound, pipeline.ticks.per_unit)


STAGE = {"stages": 1, "forward": 1, "backward": 2, "activation": 3, "offload_memory": 2}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, 1 + 4 * 10 + 10 + 2),
        ({"host_link": "shared"}, 1 + 2 * 4 * 10 + 2),
        ({"slices": 2}, Fraction(1, 2) + 4 * 10 + 5 + 1),
        ({"microbatch_memory": [1, 1, 2, 2]}, 1 + 6 * 10 + 10 + 2),
        ({"offload_memory": 0, "offload_time": 0}, 0),
    ],
)
def test_the_bound_by_hand(fields: dict[str, Any], expected: Fraction) -> None:
    """Four moves of 10 out, one back, after F of 1 and before BW of 2."""
    assert bound_of(**STAGE | {"batches": 4, "offload_time": 10} | fields) == expected


@pytest.mark.parametrize(
    ("limit", "makespan", "span"), [(30, 4 + 4 * 10 + 10 + 2 + 6, 1 + 4 * 10 + 10 + 2),
                                    (3, 3 + 4 * 23 + 6, 4 * 23)]
)  # fmt: skip
def test_the_span_of_a_device_and_its_memory_by_hand(limit: int, makespan: int, span: int) -> None:
    """Three stages before that take 1 and 2; one activation is live during 1 + 2 x 10 + 2."""
    fields = STAGE | {"stages": 4, "batches": 4, "offload_time": 10, "mem_limit": limit}
    assert bound_of(device=3, **fields) == makespan
    assert bound_of(Objective.DEVICE_SPAN, 3, **fields) == span


@pytest.mark.parametrize("objective", Objective)
@pytest.mark.parametrize("link", ["duplex", "shared"])
def test_a_schedule_with_moves_is_bounded_by_them(link: str, objective: Objective) -> None:
    """Compute alone needs 51; the re-checker confirms what the moves need."""
    pipeline = Pipeline(
        stages=4, batches=16, mem_limit=3, offload_memory=1, offload_time=6, host_link=link
    )
    result = ppopt.solve(pipeline, objective=objective, workers=1, time_limit=1)
    assert result.lower_bound >= 6 * 16
    assert ppopt.recheck(result, workers=1).verdict is Verdict.CONFIRMED


def test_a_search_of_offload_is_bounded_by_its_moves() -> None:
    """Two microbatches need 6 without offload; with moves one after the other 2 x 23."""
    layer = {
        "forward": 1, "backward": 2, "activation": 4, "offload_time": 10, "offload_memory": 3
    }  # fmt: skip
    fits = Pipeline(stages=1, batches=2, model=[layer], mem_limit=4, offload="search")
    choice = PartitionOptionChoice(Problem(fits, Objective.MAKESPAN, BackwardKind.WHOLE))
    configurations = choice.configurations([(1, 0), (1, 1)])
    bounds = [each.bound / fits.grid.time for each in configurations]
    assert bounds == [6, 46]
    result = ppopt.solve(fits, workers=1, time_limit=60)
    assert (result.status, result.value) == (Status.OPTIMAL, 6)


@pytest.mark.parametrize(("link", "expected"), [("duplex", 40), ("shared", 80)])
def test_a_partition_is_bounded_by_the_moves_of_a_device(link: str, expected: int) -> None:
    """Two layers on one device, of which one or both offload: two moves of 10 for each."""
    layer = {
        "forward": 1, "backward": 2, "activation": 4, "offload_time": 10, "offload_memory": 3,
        "count": 2,
    }  # fmt: skip
    pipeline = Pipeline(
        stages=1, batches=2, model=[layer], mem_limit=40, offload="search", partition="search",
        host_link=link,
    )  # fmt: skip
    problem = Problem(pipeline, Objective.MAKESPAN, BackwardKind.WHOLE)
    choice = PartitionOptionChoice(problem)
    keys = [(2, number) for number in range(3)]
    bounds = [each.bound / pipeline.grid.time for each in choice.configurations(keys)]
    assert bounds == [12, expected / 2, expected]
