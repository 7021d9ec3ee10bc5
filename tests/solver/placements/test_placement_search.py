"""The search over placements, against all placements and the exact optimum of each."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from typing import Any

import pytest

from ppopt import (
    InputError,
    NotApplicableError,
    Objective,
    Pipeline,
    Result,
    Status,
    compare,
    evaluate,
    solve,
)
from ppopt.cancellation import within
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.problem import Problem
from ppopt.solver.choices.enumeration import Complete, Partial
from ppopt.solver.placements import space
from ppopt.solver.placements.space import PlacementSpace
from ppopt.verifier import verify
from tests.cli.cli_run import done, json_of
from tests.clock import SHORT, late, stepping_clock, work_clock
from tests.factories.placements import Cluster, Hosts, clusters
from tests.oracles import exhaustive
from tests.oracles.rechecked import assert_proved
from tests.tiers import slow


def optima(cluster: Cluster, objective: Objective) -> dict[Hosts, Fraction | None]:
    """The exact optimum of every placement; None where it has no schedule."""
    optima_of_hosts: dict[Hosts, Fraction | None] = {}
    for hosts in cluster.placements():
        pipeline = cluster.spelled_out(hosts)
        best = exhaustive.best(pipeline, fused=cluster.fused, objective=objective.value)
        optima_of_hosts[hosts] = None if best is None else pipeline.ticks.time(best)
    return optima_of_hosts


def searched(cluster: Cluster, goal: Objective = Objective.MAKESPAN, **more: Any) -> Result:
    """The search over all placements of a cluster's stages."""
    pipeline = cluster.pipeline(cluster.placements()[0])
    return solve(
        pipeline,
        placement="search",
        backward_kind=cluster.backward_kind,
        objective=goal,
        workers=1,
        **more,
    )


def problem(cluster: Cluster, objective: Objective) -> Problem:
    return Problem(
        cluster.pipeline(cluster.placements()[0]),
        objective,
        cluster.backward_kind,
    )


@pytest.mark.parametrize(
    ("objective", "count"),
    [("makespan", 4), ("device-span", 1), slow("makespan", 12), slow("device-span", 4)],
)
def test_agrees_with_all_placements_searched_exhaustively(objective: str, count: int) -> None:
    """Value, status and infeasibility; no bound above an optimum; the schedule keeps all rules."""
    goal = Objective(objective)
    infeasible = better = 0
    for cluster in clusters(seed=60, count=count):
        result, wanted = searched(cluster, goal), optima(cluster, goal)
        values = [value for value in wanted.values() if value is not None]
        optimum = min(values, default=None)
        assert result.value == optimum, cluster
        assert result.status is (Status.OPTIMAL if values else Status.INFEASIBLE), cluster
        if result.schedule is not None:
            assert verify(result.schedule) == []
            assert wanted[result.pipeline.hosts[0]] == optimum
        assert_proved(result)
        infeasible += not values
        linear = wanted.get(tuple(range(cluster.devices)))
        better += linear is not None and optimum is not None and optimum < linear
        check_bounds(cluster, goal, wanted)
    assert infeasible > count // 40 - 1
    assert better > count // 20 or count < 6


def check_bounds(cluster: Cluster, goal: Objective, wanted: dict[Hosts, Fraction | None]) -> None:
    """Of one placement and of all at once; what memory rules out has no schedule."""
    all_of_them = PlacementSpace(problem(cluster, goal))
    for configuration in all_of_them.configurations(wanted):
        value = wanted[configuration.key]
        value = value and value * all_of_them.pipeline(configuration.key).grid.time
        assert value is None or (configuration.bound <= value and not configuration.impossible), (
            cluster,
            configuration,
        )
        assert value is None or all_of_them.lower_bound <= value, (cluster, configuration)


def test_one_placement_stands_for_those_with_devices_exchanged_that_are_alike() -> None:
    """Those that are listed stand for every placement, and have its optimum."""
    fewer = 0
    for cluster in [*clusters(seed=61, count=6), *clusters(seed=64, count=6, equal=True)]:
        every = PlacementSpace(problem(cluster, Objective.MAKESPAN))
        wanted = optima(cluster, Objective.MAKESPAN)
        assert every.size == len(wanted)
        assert isinstance(every.listed, Complete)
        listed = list(every.listed.members)
        assert len(set(listed)) == len(listed)
        assert {every.representative(hosts) for hosts in wanted} == set(listed)
        for hosts, value in wanted.items():
            assert wanted[every.representative(hosts)] == value
        fewer += len(listed) < every.size
    assert fewer > 4


def test_devices_that_differ_are_not_alike() -> None:
    """A stage on each of three devices: 6 placements, 3 where devices 0 and 1 are alike."""
    plain = Pipeline(stages=3, batches=1)
    counts = {}
    for name, fields in {
        "all alike": {},
        "speed": {"device_speed": [1, 1, 2]},
        "limit": {"mem_limit": [9, 9, 8]},
        "link": {"p2p": [[0, 1, 2], [1, 0, 2], [2, 2, 0]]},
        "one way": {"p2p": [[0, 1, 2], [3, 0, 2], [2, 2, 0]]},
    }.items():
        problem = Problem(replace(plain, **fields), Objective.MAKESPAN, BackwardKind.SPLIT)
        listed = PlacementSpace(problem).listed
        assert isinstance(listed, Complete)
        counts[name] = len(listed.members)
    assert counts == {"all alike": 1, "speed": 3, "limit": 3, "link": 3, "one way": 6}


@pytest.mark.slow
def test_too_many_placements_to_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound of all at once holds, what is found is a schedule, and often the best."""
    monkeypatch.setattr(space, "MAX_LISTED", 0)
    best = total = 0
    for cluster in clusters(seed=63, count=12):
        with work_clock(SHORT):
            result = searched(cluster, time_limit=0.3)
        values = [value for value in optima(cluster, Objective.MAKESPAN).values() if value]
        if result.value is None:
            assert result.status is Status.UNKNOWN
            continue
        assert result.lower_bound <= min(values) <= result.value, cluster
        total += 1
        best += result.value == min(values)
    assert total > 6
    assert best > total // 2


@pytest.mark.slow
def test_slow_devices_get_less() -> None:
    """Six equal stages on devices of speed 2 and 1: 4 and 2. Each then takes 2 + 4 = 6 per
    microbatch of B = W = 1, F = 1; the first to start is the fast one, or waits."""
    result = solve(
        Pipeline(stages=2, chunks=3, placement="search", batches=8, forward=3, device_speed=[2, 1]),
        time_limit=600,
    )
    hosts = result.pipeline.hosts[0]
    assert (hosts.count(0), hosts.count(1)) == (4, 2)
    assert result.status is Status.OPTIMAL
    assert result.value >= 8 * 6


def test_neighbours_avoid_the_slow_link() -> None:
    """Two nodes of two devices, 5 between nodes: the model crosses between nodes once, not three
    times as in the order 0, 1, 2, 3, whose neighbours are on different nodes."""
    far = [[0, 5, 0, 5], [5, 0, 5, 0], [0, 5, 0, 5], [5, 0, 5, 0]]
    pipeline = Pipeline(stages=4, batches=4, placement="search", p2p=far)
    result = solve(pipeline, workers=1)
    hosts = result.pipeline.hosts[0]
    assert sum(far[before][after] > 0 for before, after in pairwise(hosts)) == 1
    linear = solve(replace(pipeline, placement="linear"), workers=1)
    assert result.value < linear.value


def test_an_infeasible_limit_says_the_least_of_any_placement() -> None:
    """Stages of activation 1, 2, 3 on two devices: {3} and {1, 2} hold 3 each."""
    pipeline = Pipeline(stages=3, placement=[0, 1, 1], batches=2, activation=[1, 2, 3], mem_limit=2)
    result = solve(pipeline, placement="search")
    assert result.status is Status.INFEASIBLE
    assert "none of the 6 placements" in result.proof
    assert "3, with placement 0,0,1" in result.proof


def test_stops_at_the_time_limit_with_the_best_so_far() -> None:
    pipeline = Pipeline(
        stages=4, chunks=2, placement="search", batches=12, p2p=1, mem_limit=4,
        device_speed=[1, "0.9", "0.7", "0.5"],
    )  # fmt: skip
    with work_clock(SHORT):
        result = solve(pipeline, time_limit=0.5, workers=1)
    assert result.schedule is not None
    assert not late(result.solve_seconds, 0.5)
    assert 0 < result.lower_bound <= result.value


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"routes": 2}, "placement: search knows no routes above 1; give a named one"),
        ({"chunks": 2, "forward": [1, 2]}, "forward_times: chunks cut unequal shares"),
    ],
)
def test_what_cannot_be_searched_is_refused(fields: dict, message: str) -> None:
    with pytest.raises(NotApplicableError, match=message):
        solve(Pipeline(stages=2, batches=2, placement="search", **fields))


def test_other_studies_refuse_to_search_placements() -> None:
    pipeline = Pipeline(stages=2, batches=2, placement="search")
    with pytest.raises(InputError, match=r"placement: .* does not search it"):
        compare(pipeline)
    with pytest.raises(NotApplicableError, match="placement: search contradicts strategy 1f1b"):
        evaluate(pipeline, "1f1b")
    hint = evaluate(replace(pipeline, placement="linear"), "1f1b")
    with pytest.raises(InputError, match="placement: 'v' is not search"):
        solve(pipeline, placement="v")
    result = solve(pipeline, hint=hint, workers=1)
    assert result.hint is not None and result.value is not None
    assert result.value <= result.hint.value


def test_flags_search_placements_and_print_what_is_found() -> None:
    """The slow device of two goes first or last; JSON names the device of every stage."""
    line = "solve --workers 1 --stages 2 --batches 4 --forward-times 1,3 --device-speed 0.5,1"
    output = json_of(f"{line} --placement search")
    assert output["placement"] == [0, 1]
    assert output["status"] == "optimal"
    listed = json_of(f"{line} --placement 1,0")
    assert output["value"] < listed["value"]
    reverse = line.replace("1,3", "3,1") + " --placement search"
    assert json_of(reverse)["placement"] == [1, 0]
    text = done(reverse).out
    assert "4 microbatches, placement 1,0\n" in text


def test_many_devices_take_little_time_to_begin() -> None:
    """128 devices that are alike have one placement of 128 stages; too many are refused."""
    every = PlacementSpace(
        Problem(Pipeline(stages=128, batches=2), Objective.MAKESPAN, BackwardKind.SPLIT)
    )
    assert every.listed == Complete([tuple(range(128))])
    with pytest.raises(NotApplicableError, match="placement: search takes at most 128 devices"):
        solve(Pipeline(stages=129, batches=2, placement="search"))


def test_the_bound_of_all_counts_the_stages_that_fit() -> None:
    """Sixteen stages of 3 per microbatch, 16 microbatches; four devices of speed 1, four of 1/2.

    Within 144 = 3 x 3 x 16 a fast device runs three stages and a slow one one: sixteen. With less
    a fast one runs two at most and a slow one none or one: twelve at most.
    """
    pipeline = Pipeline(stages=8, chunks=2, batches=16, forward=2, device_speed=[1] * 4 + [0.5] * 4)
    space = PlacementSpace(Problem(pipeline, Objective.DEVICE_SPAN, BackwardKind.SPLIT))
    assert space.lower_bound == 144 * pipeline.grid.time
    result = solve(
        pipeline,
        placement="search",
        workers=1,
        stop=lambda state: state.value is not None and state.value < 160,
    )
    assert 144 <= result.value < 160


def test_the_bound_of_all_holds_for_overlapped_pairs() -> None:
    """An F of one stage pairs with the backward of another, so times of stages do not add up."""
    pipeline = Pipeline(
        stages=4, placement=[0, 1, 0, 1], batches=2, forward=[1, 3, 1, 3], backward=[3, 1, 3, 1],
        overlap=[3, 3, 3, 3], device_speed=[1, 2],
    )  # fmt: skip
    space = PlacementSpace(Problem(pipeline, Objective.MAKESPAN, BackwardKind.WHOLE))
    for hosts in space.listed.members[::2]:
        placed = solve(pipeline.placed(hosts), backward_kind="whole", workers=1)
        assert placed.status is Status.OPTIMAL
        value = placed.value * pipeline.grid.time
        assert space.lower_bound <= value
        assert space.configurations([hosts])[0].bound <= value


def test_too_many_placements_are_not_enumerated(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 equal devices, 256 stages: too many placements, even up to exchanges of devices."""
    pipeline = Pipeline(stages=64, chunks=4, batches=64)
    space = PlacementSpace(Problem(pipeline, Objective.MAKESPAN, BackwardKind.SPLIT))
    monkeypatch.setattr(space, "representatives", lambda: pytest.fail("they were enumerated"))
    assert space.listed == Partial()


@pytest.mark.parametrize("readings", [1, 3, 10])
def test_placements_are_enumerated_until_the_deadline(
    readings: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seven stages on seven devices that differ: 5040 placements, a reading for each."""
    pipeline = Pipeline(stages=7, batches=2, device_speed=list(range(1, 8)))
    problem = Problem(pipeline, Objective.MAKESPAN, BackwardKind.SPLIT)
    clock = stepping_clock(monkeypatch, 1.0, readings)
    with within(1.0):
        assert PlacementSpace(problem).listed == Partial()
    assert clock.readings <= readings + 1
    result = solve(pipeline, placement="search", workers=1, time_limit=1)
    assert result.schedule is not None and verify(result.schedule) == []
