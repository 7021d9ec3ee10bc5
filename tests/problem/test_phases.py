"""Layers with phases: what they say, in which units, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from ppopt import Layer, Model, Pipeline, evaluate, read_schedule, verify
from ppopt.errors import InputError, NotApplicableError
from ppopt.formats.config import canonical, pipeline_of, schema
from ppopt.problem.operation import OpKind
from ppopt.problem.phase_pairs import Chain, min_time
from ppopt.problem.phases import Machine, Phases
from tests.cli.cli_run import json_of, run

COMPUTE, LINK = Machine
F, B, W, BW = OpKind
PHASES: dict[str, Any] = {
    "F": [{"on": "compute", "time": 4}, {"on": "link", "time": 3}],
    "B": [{"on": "link", "time": 3}, {"on": "compute", "time": 5, "weight": 2}],
}
"""F 7, B 8, W 2. As one: compute is 11, and a link may run during all of it."""
PLAIN: dict[str, Any] = {"forward": 3, "backward_input": 4, "weight": 1, "backward": 4}
"""BW is less than B + W."""


def file(*layers: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"stages": 2, "batches": 4, "layers": list(layers), **more}


def phased(*layers: dict[str, Any], **more: Any) -> Pipeline:
    return pipeline_of(canonical(file(*layers, **more)))


def test_times_alone_are_sums() -> None:
    layer = Layer(phases=PHASES)
    assert (layer.forward, layer.backward_input, layer.weight, layer.backward) == (7, 8, 2, 10)
    assert layer.phases == Phases.read(PHASES)
    assert layer.phases.in_file == PHASES
    assert "phases=Phases(F: compute 4, link 3; B: link 3, compute 5 + W 2)" in repr(layer)


def test_equal_times_may_stand_beside_phases() -> None:
    """So `replace` works; so do counts, which are expanded and joined."""
    layer = Layer(phases=PHASES, forward=7, backward=10)
    assert replace(layer, count=3) == Layer(phases=PHASES, count=3)


def test_pairs_of_stages_follow() -> None:
    """Per stage all phases of its layers, those of B from the last layer on.

    A layer without phases computes: F and B, or BW whole.
    """
    pipe = phased({"phases": PHASES}, {"phases": PHASES}, PLAIN, partition=[1, 2])
    chain = Chain((COMPUTE, LINK), (4, 3))
    forwards = chain, Chain((COMPUTE, LINK, COMPUTE), (4, 3, 3))
    with_b = Chain((LINK, COMPUTE), (3, 5)), Chain((COMPUTE, LINK, COMPUTE), (4, 3, 5))
    weights = (0, 0, 2), (0, 0, 0, 2)
    for stage, second in product(range(2), repeat=2):
        whole = with_b[second]._replace(weights=weights[second])
        assert pipe.overlap[stage][second] == min_time(forwards[stage], whole)
        assert pipe.overlap_input[stage][second] == min_time(forwards[stage], with_b[second])
        ticks = pipe.ticks
        assert ticks.pair_time(stage, BW, second) == pipe.overlap[stage][second]
        assert ticks.pair_time(stage, B, second) == pipe.overlap_input[stage][second]
    assert pipe.overlap[0][0] == 4 + 5 + 2  # all compute: B sends while F computes
    assert pipe.overlap_input[0][0] == 4 + 5
    assert (pipe.costs.forward, pipe.costs.backward) == ((7, 10), (10, 14))


def test_bw_of_a_layer_without_phases_is_one_phase() -> None:
    """BW = 4 where B = 4 and W = 1: the pair with BW of it alone is F + 4."""
    pipe = phased({"phases": PHASES}, PLAIN, partition=[1, 1])
    assert pipe.overlap[1][1] == 3 + 4
    assert pipe.overlap_input[1][1] == 3 + 4


def test_without_phases_there_are_no_pairs() -> None:
    pipe = phased(PLAIN, PLAIN)
    assert (pipe.overlap, pipe.overlap_input) == (None, None)


def test_recompute_saves_nothing_in_a_pair() -> None:
    pipe, full = (
        phased(*[{"phases": PHASES}] * 2, recompute=recompute) for recompute in ("none", "full")
    )
    for kind in (B, BW):
        assert full.ticks.pair_time(0, kind, 1) == pipe.ticks.pair_time(0, kind, 1) + 7


def test_first_backward_in_weight() -> None:
    """B of stage 0 takes no time, nor in a pair; its BW takes what it took, recompute included."""
    layers = [{"phases": PHASES, "recompute": {"time": 1}}] * 2
    split, weight = (phased(*layers, first_backward=name) for name in ("split", "weight"))
    for stage in range(2):
        assert weight.ticks.pair_time(stage, B, 0) == 7
        for kind, second in ((BW, 0), (B, 1), (BW, 1)):
            same = split.ticks.pair_time(stage, kind, second)
            assert weight.ticks.pair_time(stage, kind, second) == same


def test_slices_and_speeds_divide_pairs() -> None:
    pipe = phased(*[{"phases": PHASES}] * 2)
    sliced = phased(*[{"phases": PHASES}] * 2, slices=2, device_speed=[1, 4])
    for stage, speed in ((0, 1), (1, 4)):
        for kind in (B, BW):
            time = sliced.ticks.time(sliced.ticks.pair_time(stage, kind, stage))
            assert time == Fraction(pipe.ticks.pair_time(stage, kind, stage), 2 * speed)


def in_units(unit: str, factor: float) -> dict[str, Any]:
    return {
        key: [
            {
                name: value if name == "on" else f"{value * factor:g}{unit}"
                for name, value in row.items()
            }
            for row in rows
        ]
        for key, rows in PHASES.items()
    }


def test_units_are_converted() -> None:
    plain = phased({"phases": PHASES}, {"phases": PHASES}, time_unit="ms")
    mixed = phased({"phases": in_units("us", 1000)}, {"phases": in_units("ms", 1)})
    assert mixed.time_unit == "ms"
    assert mixed.overlap == plain.overlap == phased(*[{"phases": PHASES}] * 2).overlap
    assert mixed.model.layers == plain.model.layers
    micro = phased({"phases": PHASES}, {"phases": in_units("ms", 0.001)}, time_unit="us")
    assert micro.model.layers[0].phases == micro.model.layers[1].phases == Phases.read(PHASES)


def test_a_flag_of_another_unit_keeps_the_numbers_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "model.yaml"
    path.write_text(json.dumps(file(*[{"phases": PHASES}] * 2, time_unit="ms")))
    milli, micro = (
        json_of(f"eval 1f1b-overlap --config {path} --time-unit {unit}") for unit in ("ms", "us")
    )
    assert micro["makespan"] == 1000 * milli["makespan"]


def test_numbers_too_fine_are_rounded_once() -> None:
    phases = {**PHASES, "F": [{"on": "compute", "time": "0.12345678"}]}
    layer = Layer(phases=phases)
    assert layer.rounded == ("phases",)
    assert layer.forward == Fraction(123457, 10**6)
    assert phased({"phases": phases}, PLAIN).rounded == ("phases",)


def test_a_schedule_file_restores_the_layers(tmp_path: Path) -> None:
    third = {**PHASES, "F": [{"on": "compute", "time": "0.3"}, {"on": "link", "time": "1.7"}]}
    pipe = phased(
        {"phases": third, "name": "moe"}, {"phases": PHASES}, PLAIN, PLAIN, time_unit="ms"
    )
    schedule = evaluate(pipe, "1f1b-overlap")
    assert verify(schedule) == []
    path = tmp_path / "schedule.json"
    schedule.to_json(path)
    restored, _ = read_schedule(path)
    assert restored.pipeline == schedule.pipeline
    assert verify(restored) == []
    document = json.loads(path.read_text())
    pairs = document["pipeline"]
    assert pairs["overlap_times"] != pairs["overlap_input_times"]
    for rows in document["origin"]["model"]["layers"][0]["phases"].values():
        rows[0]["time"] += 1
    path.write_text(json.dumps(document))
    with pytest.raises(InputError, match="forward: 2 is not the sum"):
        read_schedule(path)


@pytest.mark.parametrize("strategy", ["1f1b-overlap", "dualpipe", "dualpipe-v"])
def test_strategies_run_pairs(strategy: str) -> None:
    layers = [{"phases": PHASES, "activation": 1}] * 8
    schedule = evaluate(phased(*layers, batches=8), strategy)
    pipe = schedule.pipeline
    times = {row.pair: row for row in schedule.rows() if row.pair >= 0}
    assert times
    allowed = {pipe.ticks.pair_time(first, BW, second)
               for first, second in product(range(pipe.num_stages), repeat=2)}  # fmt: skip
    assert {row.end - row.start for row in times.values()} <= allowed


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        ({"phases": [1]}, "layer 0: phases: [1] given, not F and B; write {F: [{on: compute"),
        ({"phases": {"F": PHASES["F"]}}, "layer 0: phases: F given, not F and B; write"),
        ({"phases": {**PHASES, "W": []}}, "layer 0: phases: F, B, W given, not F and B; write"),
        ({"phases": {**PHASES, "B": []}}, "layer 0: phases: B: [] is no list of phases"),
        ({"phases": {**PHASES, "F": [3]}}, "phases: F: phase 0: 3 is no phase; write {on: compute"),
        (
            {"phases": {**PHASES, "F": [*PHASES["F"], {"on": "gpu", "time": 1}]}},
            "phases: F: phase 2: on: 'gpu' is unknown; use compute or link",
        ),
        ({"phases": {**PHASES, "F": [{"time": 1}]}}, "phases: F: phase 0: on: missing"),
        ({"phases": {**PHASES, "F": [{"on": "link"}]}}, "phases: F: phase 0: time: missing"),
        (
            {"phases": {**PHASES, "F": [{"on": "compute", "time": 1, "w": 1}]}},
            "phases: F: phase 0: 'w' is unknown; use on, time, weight",
        ),
        (
            {"phases": {**PHASES, "F": [{"on": "compute", "time": 1, "weight": 0}]}},
            "weight: W follows a phase of B on compute; leave it out here",
        ),
        (
            {"phases": {**PHASES, "B": [{"on": "link", "time": 1, "weight": 1}]}},
            "weight: W follows a phase of B on compute; leave it out here",
        ),
        (
            {"phases": {**PHASES, "F": [{"on": "link", "time": "x"}]}},
            "layer 0: phases: F: phase 0: time: 'x' is not a number",
        ),
        (
            {"phases": {**PHASES, "F": [{"on": "link", "time": True}]}},
            "layer 0: phases: F: phase 0: time: True is not a number",
        ),
        (
            {"phases": {**PHASES, "F": [*PHASES["F"], {"on": "link", "time": -1}]}},
            "layer 0: phases: F: phase 2: time: -1 is negative",
        ),
        (
            {"phases": {**PHASES, "B": [{"on": "compute", "time": 3, "weight": -1}]}},
            "layer 0: phases: B: phase 0: weight: -1 is negative",
        ),
        ({"phases": {**PHASES, "F": [{"on": "link", "time": 0}]}}, "forward: 0 is not above 0"),
        ({"phases": PHASES, "forward": 6}, "forward: 6 is not the sum 7 of its phases"),
        ({"phases": PHASES, "input": 6}, "input: 6 is not the sum 8 of its phases; leave input"),
        ({"phases": PHASES, "weight": 3}, "weight: 3 is not the sum 2 of its phases"),
        ({"phases": PHASES, "backward": 9}, "backward: 9 is not the sum 10 of its phases"),
        ({"phases": None}, "forward: missing; every layer needs the time of its forward, or"),
    ],
)
def test_refused_in_a_line(layer: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_text(json.dumps(file(layer, PLAIN)))
    ran = run(f"eval 1f1b --config {path}")
    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err
    assert ran.err.count("\n") == 1


def test_pairs_given_by_hand_are_refused_beside_layers() -> None:
    for name in ("overlap_times", "overlap_input_times"):
        with pytest.raises(InputError, match=f"{name}: the layers give the costs; leave it out"):
            phased({"phases": PHASES}, {"phases": PHASES}, **{name: 3})


def test_pairs_with_b_go_with_those_with_bw() -> None:
    with pytest.raises(InputError, match="overlap_input_times: goes with overlap_times"):
        Pipeline(stages=2, batches=2, overlap_input=3)


def test_the_relaxation_to_compute() -> None:
    model = Model((Layer(phases=PHASES), Layer(**PLAIN))).on_compute()
    costs = model.pipeline(devices=2, batches=1).costs
    assert (costs.forward, costs.backward, costs.weight) == ((4, 3), (7, 4), (2, 1))
    sends = {**PHASES, "F": [{"on": "link", "time": 1}]}
    with pytest.raises(NotApplicableError, match="an F on compute in every layer; join sent"):
        Model((Layer(phases=sends, name="sent"),)).on_compute()


def test_the_schema_knows_phases() -> None:
    check = Draft202012Validator(schema()).is_valid
    assert check(file({"phases": PHASES}))
    assert check(file({"forward": 1}))
    assert not check(file({"name": "neither"}))
    assert not check(file({"phases": {"F": PHASES["F"]}}))
    assert not check(file({"phases": {**PHASES, "F": [{"on": "gpu", "time": 1}]}}))
