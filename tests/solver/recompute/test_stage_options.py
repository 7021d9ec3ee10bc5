"""Options of stages with many unequal layers: the work, the relaxed options and the bounds."""

from __future__ import annotations

from fractions import Fraction
from math import inf
from random import Random

import numpy as np
import pytest

from ppopt import Objective, Pipeline, interrupts
from ppopt.cancellation import scope, within
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.backward_memory import RecomputeUnit
from ppopt.problem.decisions import SEARCH, Decisions
from ppopt.problem.layer import Layer
from ppopt.problem.layer_table import LayerTable
from ppopt.problem.problem import Problem
from ppopt.solver.choices.enumeration import Partial
from ppopt.solver.partitions import one_partition, partition_option_choice
from ppopt.solver.partitions.partition_option_choice import PartitionOptionChoice
from ppopt.solver.recompute import option_front
from ppopt.solver.recompute.stage_options import (
    StageOptions,
    greedy_options,
    merged_options,
    stage_options,
    thinned,
)
from tests.clock import stepping_clock
from tests.oracles.offload_choices import least_of_all

DECISIONS = (Decisions.RECOMPUTE, Decisions.OFFLOAD, Decisions.OF_LAYERS)


def table(unit: RecomputeUnit = RecomputeUnit.LAYER) -> LayerTable:
    """One tick per unit."""
    return LayerTable({}, {}, dict.fromkeys(("recompute_time", "kept"), Fraction(1)), unit)


def unequal_layers(count: int, seed: int = 0) -> list[Layer]:
    """Layers that differ in every cost, all of which may recompute or offload."""
    rng = Random(seed)
    return [
        Layer(
            forward=rng.randint(1, 999),
            activation=(activation := rng.randint(2, 99)),
            workspace=rng.randint(0, 9),
            recompute_time=rng.randint(0, 99),
            kept=rng.randint(0, activation - 1),
            offload_time=rng.randint(1, 99),
            offload_memory=rng.randint(1, activation),
        )
        for _ in range(count)
    ]


@pytest.mark.parametrize("decisions", DECISIONS)
def test_the_work_of_an_enumeration_is_bounded(
    decisions: Decisions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stage of 128 unequal layers has thousands of options; a few layers are enumerated."""
    compared: list[int] = []

    def counted(costs: option_front.Ints) -> option_front.Ints:
        compared.append(len(costs))
        return non_dominated(costs)

    non_dominated = option_front.non_dominated
    monkeypatch.setattr(option_front, "non_dominated", counted)
    layers = unequal_layers(128)
    assert stage_options(layers, table(), decisions) is None
    assert max(compared) <= 3 * option_front.MAX_OPTIONS
    assert len(compared) < 100


def test_ctrl_c_ends_an_enumeration() -> None:
    with interrupts.recorded() as pressed, scope(inf):
        assert stage_options(unequal_layers(8), table(), timed=True) is not None
        pressed.append(2)
        assert stage_options(unequal_layers(8), table(), timed=True) is None
        pressed.clear()


@pytest.mark.parametrize("unit", list(RecomputeUnit))
@pytest.mark.parametrize("decisions", DECISIONS)
def test_every_option_needs_at_least_what_a_relaxed_option_needs(
    decisions: Decisions, unit: RecomputeUnit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ppopt.solver.recompute.stage_options.GREEDY_LEVELS", 4)
    for seed in range(6):
        layers = unequal_layers(7, seed)
        options = stage_options(layers, table(unit), decisions)
        assert options is not None
        greedy = greedy_options(layers, table(unit), decisions)
        merged = merged_options(greedy.relaxed, 2), merged_options(options, 3)
        assert (len(merged[0]), len(merged[1])) <= (2, 3)
        for option in (*options, *greedy.options):
            for relaxed in (greedy.relaxed, *merged):
                assert any(each.uses_no_more(option) for each in relaxed)


@pytest.mark.parametrize("decisions", DECISIONS)
def test_greedy_options_are_as_their_layers_state(decisions: Decisions) -> None:
    """Among 7 layers, a greedy option is one of the enumerated options, or dominated by one."""
    layers = unequal_layers(7)
    options = stage_options(layers, table(), decisions)
    assert options is not None
    greedy = greedy_options(layers, table(), decisions).options
    assert options[0] in greedy
    for option in greedy:
        assert any(each.uses_no_more(option) for each in options)
        assert len(option.layers | option.offloaded) == len(option.layers) + len(option.offloaded)


def test_thinned_keeps_the_last_option_of_every_stage() -> None:
    assert thinned([3, 2], 6) == [[0, 1, 2], [0, 1]]
    assert thinned([7, 2], 10) == [[0, 2, 4, 6], [0, 1]]
    many = thinned([3] * 12, 512)
    assert np.prod([len(each) for each in many]) <= 512
    assert all(each[-1] == 2 for each in many)


@pytest.mark.parametrize("decisions", DECISIONS)
def test_the_bound_holds_for_options_that_are_omitted(
    decisions: Decisions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every enumeration ends after two options, and every device has at most two."""
    monkeypatch.setattr(option_front, "MAX_OPTIONS", 2)
    monkeypatch.setattr(partition_option_choice, "MAX_STATED_OPTIONS", 2)
    layer = {"forward": 1, "backward": 2, "activation": 3, "offload_time": 1, "offload_memory": 2}
    layers = [
        {**layer, "recompute_time": 1, "kept": 1},
        {**layer, "recompute_time": 2, "kept": 0},
    ]
    pipeline = Pipeline(
        stages=1, batches=2, model=layers, mem_limit=8,
        **{"recompute": "none", "offload": "none"} | dict.fromkeys(decisions.names, SEARCH),
    )  # fmt: skip
    choice = PartitionOptionChoice(Problem(pipeline, Objective.MAKESPAN, BackwardKind.WHOLE))
    assert isinstance(choice.listed(), Partial)
    expected = least_of_all(pipeline, whole=True)
    assert expected is not None
    assert 12 <= choice.lower_bound / pipeline.grid.time <= expected


def test_after_the_deadline_one_bound_per_device_is_computed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bounded: list[int] = []

    def counted(routes: object, device: int, *arguments: object) -> object:
        bounded.append(device)
        return one_device_bound(routes, device, *arguments)  # type: ignore[arg-type]

    one_device_bound = one_partition.one_device_bound
    monkeypatch.setattr(one_partition, "one_device_bound", counted)
    stepping_clock(monkeypatch, 1, 2)
    pipeline = Pipeline(
        stages=4, batches=4, model=unequal_layers(64), recompute="search", mem_limit=9999
    )
    with within(1):
        choice = PartitionOptionChoice(Problem(pipeline, Objective.MAKESPAN, BackwardKind.MIXED))
    assert bounded == [0, 1, 2, 3]
    assert choice.lower_bound > 0


def test_a_stage_of_many_unequal_layers_can_be_searched() -> None:
    """Options are omitted, so the configurations found are not all."""
    pipeline = Pipeline(
        stages=2, batches=2, model=unequal_layers(140), recompute="search", mem_limit=9999
    )
    options = StageOptions(pipeline)
    front = options.front(0, 70)
    assert not front.complete
    assert not options.complete
    assert front.options[0].layers == frozenset()
    assert front.options[-1].layers == frozenset((index, True) for index in range(70))
