"""The search over recompute, against every choice of layers of tiny models."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from ppopt import InputError, Model, Objective, Pipeline, Result, Status, evaluate, solve
from ppopt.cancellation import within
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.problem import Problem
from ppopt.solver.choices.enumeration import Complete
from ppopt.solver.partitions import one_partition
from ppopt.solver.partitions.partition_option_choice import PartitionOptionChoice
from ppopt.solver.partitions.space import STEP_COSTS
from ppopt.solver.recompute.stage_options import stage_options
from ppopt.verifier import verify
from tests.clock import SHORT, stepping_clock, work_clock
from tests.oracles import exhaustive
from tests.oracles.bounds import by_model
from tests.oracles.configurations import least_value
from tests.tiers import slow


def draw(rng: Random, *, step_work: bool = False) -> tuple[Pipeline, bool]:
    """Up to 4 layers on 2 devices, with limits at which recompute matters."""
    count = rng.randint(2, 4)
    layers = [
        {
            "forward": rng.randint(1, 2),
            "backward": 2 * rng.randint(1, 2),
            "activation": rng.randint(1, 4),
            "workspace": rng.choice((0, 0, 1)),
            "recompute": {"time": rng.randint(0, 2), "activation": rng.randint(0, 1)},
            **{name: rng.randint(0, 3) for name in STEP_COSTS if step_work},
        }
        for _ in range(count)
    ]
    cut = rng.randint(1, count - 1)
    whole = max(sum(layer["activation"] for layer in part) for part in (layers[:cut], layers[cut:]))  # type: ignore[misc]
    pipeline = Pipeline(
        stages=2, batches=rng.randint(1, 3), model=layers, partition=[cut, count - cut],
        p2p=rng.choice((0, 1)), mem_limit=rng.randint(whole, 2 * whole), recompute="search",
    )  # fmt: skip
    return pipeline, rng.random() < 0.5


def test_bounds_hold_for_every_choice() -> None:
    rng = Random(52)
    for _ in range(12):
        pipeline, fused = draw(rng)
        problem = Problem(pipeline, Objective.MAKESPAN, BackwardKind.uniform(fused=fused))
        space = PartitionOptionChoice(problem)
        every = space.listed()
        assert isinstance(every, Complete)
        if not every.members:
            assert least_value(pipeline, fused=fused) is None
            continue
        for key in every.members:
            chosen = space.pipeline(key)
            value = exhaustive.best(chosen, fused=fused, objective="makespan")
            if value is not None:
                (configuration,) = space.configurations([key])
                assert space.lower_bound <= configuration.bound <= value


def test_bounds_with_step_work_hold_for_every_choice() -> None:
    """Unshard of device 0, and what follows the last operations, raise the bound."""
    rng, tight = Random(53), 0
    for _ in range(12):
        pipeline, fused = draw(rng, step_work=True)
        choice = PartitionOptionChoice(
            Problem(pipeline, Objective.MAKESPAN, BackwardKind.uniform(fused=fused))
        )
        every = choice.listed()
        assert isinstance(every, Complete)
        for configuration in choice.configurations(every.members):
            value = by_model(choice.pipeline(configuration.key), fused=fused)
            assert value is None or choice.lower_bound <= configuration.bound <= value
            tight += configuration.bound == value
    assert tight > 12


def test_only_counts_of_alike_layers_matter() -> None:
    """Three alike, and one that takes more time and saves less: 4 + 4 choices less the bettered."""
    model = Model(
        [  # type: ignore[arg-type]
            {"forward": 1, "activation": 4, "count": 3, "recompute": {"time": 1}},
            {"forward": 2, "activation": 1},
        ]
    )
    table = Pipeline(stages=1, batches=1, model=model).partitions.layers
    choices = stage_options(model.with_recompute("none").layers, table)
    assert choices is not None
    assert [(option.time, option.stashed) for option in choices] == [
        (0, 13), (1, 9), (2, 5), (3, 1), (5, 0),
    ]  # fmt: skip


MODEL: dict[str, Any] = {
    "stages": 4,
    "batches": 8,
    "layers": [{"forward": 1, "activation": 1, "count": 16, "recompute": {"activation": "0.1"}}],
}


@pytest.mark.parametrize("limit", [16, 8, slow(12), slow(5)])
def test_chosen_is_never_worse_than_none_or_full(limit: int) -> None:
    """Four layers a stage; 1F1B holds 16, with full recompute 1.6 and 3.6 in the backward."""

    def result(mode: str) -> Result:
        pipeline = Pipeline(**MODEL, mem_limit=limit, recompute=mode)
        with work_clock(SHORT):
            return solve(pipeline, backward_kind="whole", time_limit=0.5, workers=1)

    chosen = result("search")
    assert chosen.value is not None
    assert chosen.lower_bound is not None
    for mode in ("none", "full"):
        reference = result(mode)
        assert reference.value is None or chosen.value <= reference.value
        assert reference.value is None or chosen.lower_bound <= reference.value
    assert sum(chosen.pipeline.recomputed) <= 16


def test_none_and_full_are_scheduled_however_little_time_there_is() -> None:
    """A search that is stopped at once has what those of none and of full have then."""
    rng, infeasible = Random(53), 0
    for _ in range(12):
        pipeline, fused = draw(rng)
        fields = {
            "backward_kind": BackwardKind.uniform(fused=fused),
            "workers": 1,
            "stop": lambda _: True,
        }
        chosen = solve(pipeline, **fields)
        references = [
            solve(replace(pipeline, recompute=mode), **fields) for mode in ("none", "full")
        ]
        values = [reference.value for reference in references if reference.value is not None]
        infeasible += len(values) < 2
        if values:
            assert chosen.value <= min(values)
            assert chosen.schedule is not None
            assert verify(chosen.schedule) == []
    assert 0 < infeasible < 12


@pytest.mark.parametrize("partition", [None, "search"])
@pytest.mark.parametrize("last", [1, 2])
def test_a_hint_may_recompute_other_layers_that_save_as_much(
    partition: str | None, last: int
) -> None:
    """Of layers that are alike the first ones are searched; with the hint it is as with these."""
    layer = {"forward": 1, "activation": 2, "recompute": {"activation": 1}}
    model = Model([layer] * 6).recomputing(lambda _: False)
    pipeline = Pipeline(
        stages=2, batches=4, model=model, partition=partition, recompute="search", mem_limit=11
    )
    chosen = tuple(
        replace(layer, recompute=index % 3 >= last) for index, layer in enumerate(model.layers)
    )
    hint = evaluate(
        replace(pipeline, model=replace(model, layers=chosen), partition=None, recompute=None),
        "1f1b",
    )
    result = solve(pipeline, hint=hint, workers=1, time_limit=600)
    value = hint.pipeline.ticks.time(hint.metrics.makespan_ticks)
    assert result.hint is not None and result.hint.value == value
    assert result.value is not None and result.value <= value


def test_without_a_limit_nothing_recomputes() -> None:
    result = solve(Pipeline(**MODEL, recompute="search"), backward_kind="whole", time_limit=600)
    assert result.status is Status.OPTIMAL
    assert result.pipeline.recomputed == (0, 0, 0, 0)


def test_what_does_not_search_it_says_so() -> None:
    pipeline = Pipeline(**MODEL, recompute="search")
    with pytest.raises(InputError, match="recompute: "):
        evaluate(pipeline, "1f1b")


@pytest.mark.parametrize("readings", [1, 2, 4, 7])
def test_options_are_bounded_until_the_deadline(
    readings: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every reading of the clock takes a part of the limit; the rest has the bound over all."""
    pipeline = Pipeline(**MODEL, recompute="search", mem_limit=24)
    problem = Problem(pipeline, Objective.MAKESPAN, BackwardKind.WHOLE)
    full = PartitionOptionChoice(problem)
    bounds = {each.key: each.bound for each in full.configurations(list(full.listed().members))}
    bounded = []
    bound = one_partition.one_device_bound

    def counted(*arguments: Any) -> Any:
        bounded.append(arguments)
        return bound(*arguments)

    monkeypatch.setattr(one_partition, "one_device_bound", counted)
    stepping_clock(monkeypatch, 1.0, readings)
    with within(1.0):
        cut = PartitionOptionChoice(problem)
        configurations = list(cut.configurations(list(bounds)))
    assert len(bounded) < readings + pipeline.num_devices
    assert cut.lower_bound <= full.lower_bound
    assert all(each.bound <= bounds[each.key] for each in configurations)
    result = solve(pipeline, backward_kind="whole", workers=1, time_limit=1)
    assert result.schedule is not None and verify(result.schedule) == []
    assert result.schedule.fits_limits


def test_static_memory_alone_above_a_limit_is_infeasible() -> None:
    """Device 1 allocates no activation: a schedule that waits for memory does not help."""
    layers = [
        {"forward": 3, "backward": 2, "activation": 1, "static": 1, "frozen": True},
        {"forward": 3, "static": 1, "memory_b": 1, "recompute": True, "activation": 0},
        {"forward": 1, "backward": 5, "activation": 1, "static": 1, "frozen": True},
    ]
    pipeline = Pipeline(
        stages=3, batches=1, model=layers, partition="search", recompute="search",
        mem_limit=[6, 0, 9],
    )  # fmt: skip
    result = solve(pipeline, objective="device-span", workers=1, time_limit=60)
    assert result.status is Status.INFEASIBLE
