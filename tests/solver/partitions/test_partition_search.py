"""The search over partitions, against the exact optimum of every partition."""

from __future__ import annotations

import signal
from collections import deque
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from random import Random
from typing import Any

import numpy as np
import pytest

import ppopt
from ppopt import InputError, Objective, Status, stop
from ppopt.formats import schedule_json
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.problem import Problem
from ppopt.solver.choice_of_decisions import choice_of
from ppopt.solver.choices.choice import Choice
from ppopt.solver.choices.enumeration import Key
from ppopt.solver.partitions import partition_program
from ppopt.solver.partitions.partition_bounds import bounds_of, every_partition
from ppopt.solver.partitions.partition_choice import layer_moves, one_layer_moves
from ppopt.solver.partitions.space import PartitionSpace, space_of
from tests.clock import SHORT, late, work_clock
from tests.factories.interruptions import interrupted
from tests.factories.partitions import draw_space
from tests.oracles import exhaustive
from tests.solver.partitions.in_order import listed
from tests.tiers import slow

OPERATIONS = 13
"""Most operations for exhaustive search."""


def model_of(space: PartitionSpace) -> ppopt.Model:
    rows = {**space.layers, "backward": (None,) * space.num_layers}
    return ppopt.Model(
        [
            ppopt.Layer(**dict(zip(rows, costs, strict=True)), output=3 * index % 5)
            for index, costs in enumerate(zip(*rows.values(), strict=True))
        ]
    )


LINKS: tuple[dict[str, Any], ...] = (
    {},
    {"p2p": 1},
    {"p2p": 2},
    {"link": {"bandwidth": 1}},
    {"link": {"latency": 1, "bandwidth": 2, "backward": {"latency": "0.5"}}},
    {"link": {"bandwidth": 4}, "backward_p2p": 1},
)
"""Delays between devices: of one p2p time, and by what layers hand on (0, 3, 1, 4, 2, 0, ...)."""


def pipeline(space: PartitionSpace, partition: Any, **links: Any) -> ppopt.Pipeline:
    return model_of(space).pipeline(
        devices=space.num_devices,
        batches=space.batches,
        placement=space.hosts,
        partition=partition,
        **links,
        mem_limit=None if space.limits is None else list(space.limits),
    )


def small_space(rng: Random) -> PartitionSpace:
    while True:
        space = draw_space(rng, most_layers=2)
        operations = (2 if space.whole else 3) * space.num_stages * space.batches
        if operations <= OPERATIONS and space.num_devices > 1:
            return space


def layers(count: int, **costs: Any) -> ppopt.Model:
    head = ppopt.Layer(forward=3, backward=7, weight=3, activation=1)
    return ppopt.Model([ppopt.Layer(**{"forward": 1, "activation": 1, **costs}, count=count), head])


def test_one_worker_repeats_itself() -> None:
    pipe = layers(9).pipeline(devices=3, batches=6, partition="search", mem_limit=12)
    first, second = (ppopt.solve(pipe, workers=1) for _ in range(2))
    assert first.status is Status.OPTIMAL
    assert first.schedule is not None and second.schedule is not None
    assert schedule_json.dumps(first.schedule) == schedule_json.dumps(second.schedule)


def test_no_partition_fits_and_the_least_limit_that_does_is_told() -> None:
    """Four equal layers on two devices: two each need 2 x (1 + 4) in memory, whatever else."""
    model = ppopt.Model([ppopt.Layer(forward=1, activation=1, static=4, count=4)])
    result = ppopt.solve(model.pipeline(devices=2, batches=3, partition="search", mem_limit=9))
    assert result.status is Status.INFEASIBLE
    assert result.proof.endswith("the minimum feasible limit for all devices is 10")
    enough = model.pipeline(devices=2, batches=3, partition="search", mem_limit=10)
    assert ppopt.solve(enough).status is Status.OPTIMAL


def test_gathered_weights_leave_the_least_limit_open() -> None:
    """Two layers on each of two devices: 2 x (1 + 4), and 2 x 3 gathered."""
    layer = ppopt.Layer(forward=1, activation=1, static=4, unshard_memory=3, count=4)
    pipe = ppopt.Model([layer]).pipeline(devices=2, batches=3, partition="search", mem_limit=15)
    result = ppopt.solve(pipe)
    assert result.status is Status.INFEASIBLE
    assert result.proof.endswith("a limit for all devices must be at least 16")
    assert ppopt.solve(replace(pipe, mem_limit=16)).status is Status.OPTIMAL


@pytest.mark.parametrize(
    ("max_choices", "status"),
    [(partition_program.MAX_CHOICES, Status.OPTIMAL), (0, Status.FEASIBLE)],
)
def test_balanced_does_not_fit_but_another_partition_does(
    max_choices: int, status: Status, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Balanced is (2, 2) with 8 on device 0; (1, 3) has 4 and 6.

    A program that is too large ends the order of partitions, but not their search.
    """
    monkeypatch.setattr(partition_program, "MAX_CHOICES", max_choices)
    heavy = ppopt.Layer(forward=2, activation=1, static=3)
    light = ppopt.Layer(forward=2, activation=1, static=1)
    model = ppopt.Model([heavy, heavy, light, light])
    pipe = model.pipeline(devices=2, batches=1, mem_limit=[6, 8], partition="search")
    result = ppopt.solve(pipe)
    assert result.status is status and result.pipeline.counts == (1, 3)


def test_the_bound_of_a_search_that_is_stopped_covers_all_partitions() -> None:
    pipe = layers(11).pipeline(
        devices=4, batches=6, placement="v", partition="search", mem_limit=12
    )
    result = ppopt.solve(pipe, workers=1, stop=stop.FirstSchedule())
    assert result.status is Status.FEASIBLE
    best = ppopt.solve(pipe, workers=1)
    assert best.status is Status.OPTIMAL
    assert best.value is not None and result.lower_bound is not None
    assert result.lower_bound <= best.value


@pytest.mark.parametrize(
    ("few", "message"),
    [(True, "may still find a faster one"), (False, "a search proved it for")],
)
def test_the_proof_claims_of_the_searched_ones_only_what_was_found(
    *, few: bool, message: str
) -> None:
    pipeline = layers(6, activation=1).pipeline(
        devices=2, batches=4, partition="search", mem_limit=7
    )
    result = ppopt.solve(
        pipeline, workers=1, time_limit=600, stop=lambda state: few and bool(state.value)
    )
    assert (result.status is Status.FEASIBLE) == few
    assert message in result.proof


def test_progress_shows_the_bound_over_all_partitions_and_the_best_value() -> None:
    seen: list[ppopt.Progress] = []
    pipe = layers(9).pipeline(devices=3, batches=6, partition="search", mem_limit=12)
    result = ppopt.solve(pipe, workers=1, progress=seen.append)
    values = [state.value for state in seen if state.value is not None]
    bounds = [state.lower_bound for state in seen]
    assert values == sorted(values, reverse=True) and bounds == sorted(bounds)
    assert result.value is not None and max(bounds) <= result.value
    assert any(state.phase.startswith("partition ") for state in seen)


def test_a_tiny_time_limit_still_gives_a_schedule() -> None:
    pipe = layers(40).pipeline(
        devices=8, batches=32, placement="interleaved", partition="search", mem_limit=400
    )
    with work_clock(SHORT):
        result = ppopt.solve(pipe, workers=1, time_limit=0.05)
    assert result.status is Status.FEASIBLE
    assert not late(result.solve_seconds, 0.05)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"routes": 2, "batches": 2}, "partition: search knows no routes"),
        ({"slices": 2}, "partition: search knows no slices"),
    ],
)
def test_what_it_does_not_search_is_refused(fields: dict[str, Any], message: str) -> None:
    settings = {"devices": 2, "batches": 3, "partition": "search", **fields}
    with pytest.raises(ppopt.NotApplicableError, match=message):
        ppopt.solve(layers(4).pipeline(**settings))


def test_the_result_is_never_worse_than_a_hint() -> None:
    """A hint of another partition than the first, and no time to find anything else."""
    base = layers(24).pipeline(devices=4, batches=16, partition="balanced", mem_limit=200)
    pipe = replace(base, partition="search", mem_limit=base.limits)
    with work_clock(SHORT):
        best = ppopt.solve(replace(base, partition=(7, 6, 7, 5)), workers=1, time_limit=0.2)
        assert best.value is not None
        result = ppopt.solve(pipe, hint=best.schedule, workers=1, time_limit=0.01)
    assert result.value is not None and result.value <= best.value
    assert result.hint is not None and result.hint.value == best.value


def test_a_hint_of_other_layers_is_refused() -> None:
    pipe = layers(4).pipeline(devices=2, batches=3, partition="search")
    hint = ppopt.evaluate(layers(5).pipeline(devices=2, batches=3), "1f1b")
    with pytest.raises(InputError, match="hint: its partition is none of those searched"):
        ppopt.solve(pipe, hint=hint)
    with pytest.raises(InputError, match="hint: its stages have no layers"):
        ppopt.solve(pipe, hint=ppopt.evaluate(ppopt.Pipeline(stages=2, batches=3), "1f1b"))


def test_ctrl_c_keeps_the_best_with_its_bound() -> None:
    pipe = layers(30).pipeline(
        devices=6, batches=24, placement="v", partition="search", mem_limit=40
    )

    def press(state: ppopt.Progress) -> None:
        if state.value is not None and not pressed:
            pressed.append(state)
            signal.raise_signal(signal.SIGINT)

    pressed: list[ppopt.Progress] = []
    with work_clock(SHORT):
        result = ppopt.solve(pipe, workers=1, time_limit=600, progress=press)
    assert result.interrupted and result.status is Status.FEASIBLE
    assert result.schedule is not None and ppopt.verify(result.schedule) == []
    assert result.lower_bound is not None and result.value is not None
    assert result.lower_bound <= result.value
    assert not late(result.solve_seconds, pressed[0].seconds)


@pytest.mark.parametrize("seed", range(6))
def test_mixed_backwards_are_bounded_too(seed: int) -> None:
    """A bound of schedules that may split a backward or not is above neither kind's optimum."""
    rng = Random(7000 + seed)
    space = small_space(rng)
    objective = "device-span" if space.span else "makespan"
    space = replace(space, delays=np.zeros_like(space.delays))
    mixed = bounds_of(replace(space, split=True, whole=True))
    for counts in every_partition(space):
        cut = pipeline(space, list(counts))
        for fused in (False, True):
            best = exhaustive.best(cut, fused=fused, objective=objective)  # type: ignore[arg-type]
            if best is not None:
                assert mixed.min_bound <= best


def test_moves_of_a_layer_come_near_ones_first_and_far_ones_while_there_are_few() -> None:
    near = [(1, 2, 2), (3, 0, 2), (2, 0, 3), (2, 2, 1)]
    far = [(1, 1, 3), (3, 1, 1)]
    assert list(layer_moves((2, 1, 2))) == [counts for counts in (*near, *far) if min(counts) > 0]
    many = (2,) * 33
    assert list(layer_moves(many)) == list(one_layer_moves(many))
    assert len(list(one_layer_moves(many))) == 64


@pytest.mark.parametrize("recompute", [None, "search"])
@pytest.mark.parametrize("step", [97, slow(13)])
@pytest.mark.parametrize("file", ["partition_choice", "partition_bounds"])
def test_ctrl_c_hides_no_partition(file: str, step: int, recompute: str | None) -> None:
    """At whatever call it comes: what is not listed after that has the bound that is told."""
    model = ppopt.Model([{"forward": size, "activation": 2, "kept": 1} for size in (1, 3, 2, 1)])
    pipeline = model.pipeline(
        devices=2, batches=3, partition="search", recompute=recompute, mem_limit=9
    )
    problem = Problem(pipeline, Objective.MAKESPAN, BackwardKind.WHOLE)
    every: dict[Key, Fraction] = {}
    choice = chosen(problem)
    deque(listed(choice, every), maxlen=0)
    ceiling, choice = max(every.values()) + 1, chosen(problem)
    with interrupted(None, f"solver/partitions/{file}") as calls:
        deque(listed(choice, {}, ceiling), maxlen=0)
    for at in range(1, calls.number + 1, step):
        known: dict[Key, Fraction] = {}
        choice = chosen(problem)
        with suppress(KeyboardInterrupt), interrupted(at, f"solver/partitions/{file}"):
            deque(listed(choice, known, ceiling), maxlen=0)
        left = next((rest for rest in listed(choice, known, ceiling) if rest.key is None), None)
        missed = [bound for key, bound in every.items() if key not in known]
        assert not missed or (left is not None and left.bound <= min(missed)), at


def chosen(problem: Problem) -> Choice:
    choice = choice_of(problem)
    assert choice is not None
    return choice


def test_a_device_of_three_times_the_speed_takes_three_times_the_layers() -> None:
    """Eight equal layers (F 1, B 1, W 1) on devices of speeds 3 and 1: six and two layers.

    Both then work 6 a microbatch; device 1 begins after 2: 2 + 20 x 6.
    """
    model = [{"forward": 1, "backward": 2, "count": 8}]
    pipeline = ppopt.Pipeline(
        stages=2, batches=20, model=model, partition="search", device_speed=[3, 1]
    )
    result = ppopt.solve(pipeline, workers=1)
    assert result.status is Status.OPTIMAL and result.pipeline.counts == (6, 2)
    assert result.value == 122


@pytest.mark.parametrize("speeds", [[2, 2], ["1.5", "1.5"]])
def test_bounds_count_whole_delays_whatever_the_speeds(speeds: list[Any]) -> None:
    """Layers of as many times the work on devices of that speed, with the same delays."""
    bounds = set()
    for own in ([1, 1], speeds):
        layer = {name: 3 * Fraction(own[0]) for name in ("forward", "backward_input", "weight")}
        pipeline = ppopt.Pipeline(
            stages=2, batches=2, model=[layer] * 4, device_speed=own, p2p=5, partition="search"
        )
        space = space_of(Problem(pipeline, Objective.MAKESPAN, BackwardKind.SPLIT))
        bounds.add(Fraction(bounds_of(space).min_bound, space.grid.time))
    assert len(bounds) == 1


def test_limits_of_layers_with_phases_count_their_phases_on_links() -> None:
    """The peak of 1F1B is that of the balanced partition: of 1 and 3 layers, not of 2 and 2."""
    link = {"on": "link", "time": 4}

    def layer(activation: int, *own: dict[str, Any]) -> ppopt.Layer:
        backward = {"on": "compute", "time": 2, "weight": 1}
        phases = {"F": [{"on": "compute", "time": 1}, *own], "B": [*own, backward]}
        return ppopt.Layer(activation=activation, phases=phases)

    model = ppopt.Model([layer(1, link), layer(1), layer(3), layer(3)])
    pipeline = model.pipeline(devices=2, batches=4, partition="search", mem_limit="1f1b")
    space = space_of(Problem(pipeline, Objective.MAKESPAN, BackwardKind.SPLIT))
    assert pipeline.limits == (7, 7)
    assert space.limits == (7 * space.grid.memory,) * 2
