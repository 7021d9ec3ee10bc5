"""Offload and recompute chosen with the schedule, against every schedule of every choice."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ppopt import Model, Objective, Pipeline
from ppopt.problem.backward_kind import BackwardKind
from ppopt.problem.decisions import Decisions
from ppopt.problem.layer import Layer
from ppopt.problem.problem import Problem
from ppopt.solver.partitions.partition_option_choice import PartitionOptionChoice
from ppopt.solver.recompute.stage_options import stage_options
from tests.oracles.gradient_exhaustive import least_value
from tests.oracles.offload_choices import least_of_all
from tests.oracles.rechecked import assert_solved
from tests.tiers import examples


@st.composite
def modules(draw: st.DrawFn, activation: int) -> list[dict[str, Any]]:
    """One or two modules that recompute or move; the second may be inside the first."""
    attention = {
        "name": "attention",
        "memory": activation,
        "time": draw(st.integers(0, 1)),
        "offload_time": draw(st.integers(0, 1)),
    }
    softmax = {"name": "softmax", "memory": 1, "time": draw(st.integers(0, 1)), "offload_time": 1}
    if activation == 1 or draw(st.booleans()):
        return [attention, softmax | {"inside": "attention"}]
    return [attention | {"memory": activation - 1}, softmax]


@st.composite
def pipelines(draw: st.DrawFn) -> Pipeline:
    """Two or three layers on one or two stages, of a microbatch or two; the last has modules."""
    stages = draw(st.integers(1, 2))
    count, batches = draw(st.sampled_from(((2, 2), (3, 1)) if stages == 1 else ((2, 1), (3, 1))))
    layers = []
    for _ in range(count):
        activation = draw(st.integers(1, 3))
        time = draw(st.integers(0, 2))
        layers.append(
            {
                "forward": draw(st.integers(1, 2)),
                "backward": 2,
                "activation": activation,
                "recompute_time": draw(st.integers(0, 2)),
                "kept": draw(st.integers(0, 1)),
                "offload_time": time,
                "offload_memory": draw(st.integers(1, activation)) if time else 0,
            }
        )
    layers[0] |= {"offload_time": 1, "offload_memory": 1}
    if draw(st.booleans()):
        layers[-1]["modules"] = draw(modules(layers[-1]["activation"]))
    choices = draw(st.sampled_from((("search", None), ("search", "search"), ("search", "none"))))
    return Pipeline(
        stages=stages,
        batches=batches,
        model=layers,
        partition=draw(st.sampled_from(([count] if stages == 1 else [1, count - 1], "search"))),
        host_link=draw(st.sampled_from(("duplex", "shared"))),
        offload=choices[0],
        recompute=choices[1],
        mem_limit=draw(st.integers(2, 9)),
    )


@given(pipelines(), st.booleans(), st.booleans())
@examples(4)
def test_no_choice_of_layers_is_better(pipeline: Pipeline, whole: bool, span: bool) -> None:
    expected = least_of_all(pipeline, whole=whole, span=span)
    assert_solved(pipeline, expected, whole=whole, span=span)


@given(pipelines())
@examples(12)
def test_the_bound_of_a_choice_holds_for_its_schedules(pipeline: Pipeline) -> None:
    pipeline = replace(pipeline, partition=pipeline.counts)
    choice = PartitionOptionChoice(Problem(pipeline, Objective.MAKESPAN, BackwardKind.WHOLE))
    keys = list(choice.listed().members)
    if not keys:
        assert least_of_all(pipeline, whole=True) is None
        return
    for configuration in choice.configurations(keys):
        chosen = choice.pipeline(configuration.key)
        value = least_value(chosen, whole=True)
        if value is not None:
            assert choice.lower_bound <= configuration.bound <= value


def test_a_choice_is_left_out_where_another_takes_its_place() -> None:
    """By hand, of two layers alike: F keeps 4 each, 1 with recompute; 3 of 4 move, in 2.

    (recomputes, offloads) with (time, way, kept, left): none (0, 0, 8, 8), one moved (0, 2, 8, 5),
    both moved (0, 4, 8, 2), one again (1, 0, 5, 5), one each (1, 2, 5, 2), both again (2, 0, 2, 2).
    None takes no more than another in all four.
    """
    layer = Layer(
        forward=1, activation=4, recompute_time=1, kept=1, offload_time=2, offload_memory=3
    )
    assert _options_of_two(layer) == [
        (0, 0, 8, 8), (0, 2, 8, 5), (0, 4, 8, 2), (1, 0, 5, 5), (1, 2, 5, 2), (2, 0, 2, 2),
    ]  # fmt: skip
    assert _options_of_two(replace(layer, recompute_time=Fraction(0))) == [(0, 0, 2, 2)]


def _options_of_two(layer: Layer) -> list[tuple[int, ...]]:
    """Time, moves, and memory during F and after it, of the options of two equal layers."""
    table = Pipeline(stages=1, batches=1, model=Model((layer, layer))).partitions.layers
    options = stage_options((layer, layer), table, Decisions.OF_LAYERS)
    assert options is not None
    return [tuple(option[:4]) for option in options]
