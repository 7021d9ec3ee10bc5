"""Memory of a whole backward (DESIGN section 3, rule 13): by hand, and wrong rules are caught."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import pytest

import ppopt
from ppopt import Layer, Model, Pipeline
from ppopt.errors import VerificationError
from ppopt.formats.schedule_json import dumps, loads
from ppopt.problem import costs
from ppopt.problem.arrays import Ints
from ppopt.problem.layer_table import LayerTable
from ppopt.problem.operation import OpKind
from ppopt.strategies import schedules
from ppopt.verifier import Rule, figures, verify
from ppopt.verifier.whole_backward import allocated_by_whole_backward

BLOCK = {"forward": 1, "backward": 2, "activation": 100, "kept": 4, "recompute": True}


def pipeline(*layers: dict[str, Any], **more: Any) -> Pipeline:
    """One stage of these layers and one microbatch."""
    fields = {"stages": 1, "batches": 1, **more}
    return Pipeline(**fields, model=[{"forward": 1, "backward": 2, **layer} for layer in layers])


@pytest.mark.parametrize(
    ("layers", "allocated"),
    [
        # One layer at a time: the last of three has two others before it, 8 and 100; before, 12.
        ([BLOCK] * 3, 96),
        # The last layer keeps all: it is freed before the first one recomputes.
        ([BLOCK, {"activation": 100}], 0),
        # It keeps 50, which makes room for 50 of the 96.
        ([BLOCK, {"activation": 50}], 46),
        # Recompute last: the layer before it is still there.
        ([{"activation": 50}, BLOCK], 96),
        # Workspace counts with its own layer, and less what later layers freed.
        ([BLOCK | {"workspace": 7}, {"activation": 50}], 53),
        # Also without recompute: 30 - 20 of the first, 5 of the last.
        ([{"activation": 1, "workspace": 30}, {"activation": 20, "workspace": 5}], 10),
        ([{"activation": 1, "workspace": 30}, {"activation": 40, "workspace": 5}], 5),
        ([{"activation": 1, "workspace": 30}, {"activation": 40}], 0),
    ],
)
def test_bw_allocates(layers: list[dict[str, Any]], allocated: int) -> None:
    recomputing = pipeline(*layers)
    assert allocated_by_whole_backward(recomputing, Fraction(1)) == [allocated]
    assert recomputing.ticks.allocates[OpKind.BW] == (allocated,)
    assert recomputing.ticks.frees[OpKind.BW] == (allocated + recomputing.ticks.costs.kept[0],)


def test_whole_stages_recompute_at_once_if_the_model_says_so() -> None:
    recomputing = pipeline(BLOCK, BLOCK | {"workspace": 7}, recompute_unit="stage")
    assert allocated_by_whole_backward(recomputing, Fraction(1)) == [96 + 96 + 7]
    assert recomputing.ticks.allocates[OpKind.BW] == (96 + 96 + 7,)


def test_a_split_backward_recomputes_all_layers() -> None:
    recomputing = pipeline(BLOCK, BLOCK | {"workspace": 7}, batches=2)
    assert recomputing.ticks.allocates[OpKind.B] == (96 + 96 + 7,)
    assert recomputing.ticks.frees[OpKind.W] == (200,)


def test_stages_by_hand_are_one_layer_or_state_what_bw_allocates() -> None:
    pipe = Pipeline(stages=1, batches=1, activation=100, kept=4, workspace=3)
    assert allocated_by_whole_backward(pipe, Fraction(1)) == [96 + 3]
    assert pipe.ticks.allocates[OpKind.BW] == (96 + 3,)
    stated = replace(pipe, recompute_memory=20)
    assert allocated_by_whole_backward(stated, Fraction(1)) == [20 + 3]
    assert ppopt.evaluate(stated, "1f1b").peak_memory == (4 + 20 + 3,)


class BackwardPeak(NamedTuple):
    """Memory of consecutive layers for one microbatch."""

    retained: Fraction = Fraction(0)
    """Activation that F retains, of all layers."""
    peak: Fraction = Fraction(0)
    """Largest live memory while BW runs; `retained` or more."""

    @property
    def allocated(self) -> Fraction:
        """Memory that BW allocates at its start."""
        return self.peak - self.retained


Rule13 = Callable[[BackwardPeak, Fraction, Fraction, Fraction, int], BackwardPeak]


def _grown(peak: BackwardPeak, retained: Fraction, during: Fraction) -> BackwardPeak:
    return BackwardPeak(peak.retained + retained, max(peak.peak, peak.retained + retained, during))


WRONG: dict[str, Rule13] = {
    "nothing recomputed": lambda peak, retained, _, work, n: _grown(
        peak, n * retained, peak.retained + n * retained + work
    ),
    "no workspace": lambda peak, retained, own, _, n: _grown(
        peak, n * retained, peak.retained + (n - 1) * retained + own
    ),
    "later layers not freed": lambda peak, retained, own, work, n: BackwardPeak(
        peak.retained + n * retained,
        max(peak.peak - peak.retained, own - retained + work) + peak.retained + n * retained,
    ),
    "all layers at once": lambda peak, retained, own, work, n: BackwardPeak(
        peak.retained + n * retained, peak.peak + n * (own + work)
    ),
    "only the last layer": lambda peak, retained, own, work, n: BackwardPeak(
        peak.retained + n * retained, peak.retained + (n - 1) * retained + own + work
    ),
}


LAYERS = (
    BLOCK | {"workspace": 9},
    {"forward": 1, "activation": 30, "workspace": 120},
    BLOCK | {"activation": 40, "workspace": 2},
    {"forward": 1, "activation": 20, "workspace": 5},
)


@pytest.mark.parametrize("wrong", WRONG)
def test_the_verifier_alone_catches_each_wrong_part(
    wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest of the program computes claims by a rule that is wrong in one part."""

    def allocated(table: LayerTable, low: Ints, high: Ints, factor: Fraction = Fraction(1)) -> Ints:
        costs = (table.amounts[field] for field in ("kept", "activation", "backward_workspace"))
        layers = list(zip(*(row.tolist() for row in costs), strict=True))
        amounts = []
        for start, end in zip(low.tolist(), high.tolist(), strict=True):
            peak = BackwardPeak()
            for retained, own, work in layers[start:end]:
                peak = WRONG[wrong](peak, factor * retained, factor * own, work, 1)
            amounts.append(int(peak.allocated * factor.denominator))
        return np.array(amounts)

    monkeypatch.setattr(LayerTable, "allocated", allocated)
    assert _caught_claims(Model(LAYERS), partition=[4], stages=1) or _caught_claims(
        Model(LAYERS), partition=[2, 2], stages=2
    )


@pytest.mark.parametrize("part", ["BW frees only what it allocates", "B allocates one layer"])
def test_it_catches_wrong_amounts_of_kinds(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = costs.memory_by_kind

    def memory_by_kind(
        activation: Any, retained: Any, allocated: Any, memory_b: Any
    ) -> tuple[list[Any], list[Any]]:
        allocates, frees = right(activation, retained, allocated, memory_b)
        if part == "BW frees only what it allocates":
            frees[OpKind.BW] = allocated
        else:
            allocates[OpKind.B] = allocated
        return allocates, frees

    monkeypatch.setattr(costs, "memory_by_kind", memory_by_kind)
    strategy = "1f1b" if part.startswith("BW") else "zb-h1"
    assert _caught_claims(Model(LAYERS), strategy, partition=[2, 2], stages=2)


def _caught_claims(model: Model, strategy: str = "1f1b", **more: Any) -> bool:
    """Whether the verifier rejects the peaks of an evaluated schedule; they are right otherwise."""
    pipeline = Pipeline(batches=3, model=model, **more)
    schedule = ppopt.evaluate(pipeline, strategy)
    violations = verify(schedule, {"peak_memory": list(schedule.metrics.peak_memory_ticks)})
    assert {violation.rule for violation in violations} <= {Rule.CLAIM}
    return bool(violations)


@pytest.mark.parametrize("strategy", ["1f1b", "zb-h1"])
def test_right_rules_are_not_caught(strategy: str) -> None:
    assert not _caught_claims(Model(LAYERS), strategy, partition=[2, 2], stages=2)
    assert not _caught_claims(Model(LAYERS), strategy, partition=[4], stages=1)


def test_figures_of_a_model_of_twelve_layers_per_device() -> None:
    """1F1B on four devices: four microbatches keep 12 x 4 each, and one layer is recomputed."""
    layers = [{"forward": 1, "backward": 2, "activation": 100, "kept": 4, "count": 48}]
    pipeline = Pipeline(stages=4, batches=8, model=layers, recompute="full")
    assert ppopt.evaluate(pipeline, "1f1b").peak_memory == (288, 240, 192, 144)


WHOLE_IN_W = Pipeline(
    stages=2,
    batches=1,
    partition=[1, 1],
    first_backward="weight",
    mem_limit=[3, 4],
    model=[
        {"forward": 1, "backward": 2, "activation": 4, "recompute": True},
        {"forward": 1, "backward": 2, "activation": 4},
    ],
)
"""W of stage 0 runs its whole backward: it recomputes 4, and the limit is 3."""


def test_a_weight_pass_that_runs_the_whole_backward_recomputes_in_it() -> None:
    assert [row[0] for row in WHOLE_IN_W.ticks.allocates] == [0, 0, 4, 4]
    result = ppopt.solve(WHOLE_IN_W, backward_kind="split", workers=1)
    assert result.status == "infeasible"
    schedule = ppopt.evaluate(replace(WHOLE_IN_W, mem_limit=None), "zb-h1")
    assert schedule.metrics.peak_memory == (4, 4)


def test_the_verifier_alone_catches_a_weight_pass_that_recomputes_nothing() -> None:
    schedule = ppopt.evaluate(replace(WHOLE_IN_W, mem_limit=None), "zb-h1")
    violations = verify(schedule, {"peak_memory": [0, 4]})
    assert {violation.rule for violation in violations} == {Rule.CLAIM}
    vars(schedule.pipeline)["ticks"] = schedule.pipeline.ticks._replace(
        workspace=tuple((0,) * 2 for _ in OpKind)
    )
    assert verify(schedule, {"peak_memory": [4, 4]}) == []


def test_memory_of_bw_at_a_factor_is_whole_ticks() -> None:
    """At factor 1 the workspace of 2 is the largest; at 3 the layer that recomputes 1.5."""
    recomputes = {"activation": "1.5", "recompute": True}
    stage = pipeline(
        *(recomputes, recomputes, {"activation": 0, "workspace": 2}),
        batches=2,
        microbatch_times=1,
        microbatch_memory=[1, 3],
    )
    schedule = ppopt.evaluate(stage, "1f1b")
    assert schedule.peak_memory == (4.5,)
    assert figures(schedule).peak_memory == (9,)
    assert verify(loads(dumps(schedule), "x")[0]) == []


MODULES = [
    {"name": "norm", "time": 1, "memory": 20},
    {"name": "attention", "time": 3, "memory": 40, "workspace": 70, "offload_time": 2},
    {"name": "softmax", "time": 2, "memory": 25, "inside": "attention"},
]
IN_FORCE = Layer.in_force.func
WRONG_SETS: dict[str, dict[str, Callable[[Layer], Fraction]]] = {
    "times do not add up": {"recompute_time": lambda layer: Fraction(len(layer.recompute))},
    "all of the layer": {"kept": lambda layer: layer.kept},
    "nothing saved": {"kept": lambda layer: layer.activation},
    "the module inside counts": {"kept": lambda layer: layer.activation - 85},
    "no workspace of B": {"input_workspace": lambda layer: layer.input_workspace},
    "no workspace of BW": {"backward_workspace": lambda layer: layer.backward_workspace},
    "all of it offloads": {"offload_memory": lambda layer: layer.activation},
    "offload takes no longer": {"offload_time": lambda _: Fraction(1)},
}


@pytest.mark.parametrize("wrong", WRONG_SETS)
def test_the_verifier_alone_catches_each_wrong_part_of_sets_of_modules(
    wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest of the program has one cost of a set of modules wrong."""

    def in_force(layer: Layer) -> dict[str, Fraction]:
        right = dict(IN_FORCE(layer))
        if layer.recompute or layer.offload:
            right |= {field: amount(layer) for field, amount in WRONG_SETS[wrong].items()}
        return right

    monkeypatch.setattr(Layer, "in_force", property(in_force))
    block = BLOCK | {"modules": MODULES, "workspace": 3, "recompute": False}
    moves = "offload" in wrong
    chosen = (
        {"offload": ["attention"]} if moves else {"recompute": ["norm", "attention", "softmax"]}
    )
    model = Model([block | chosen, {"forward": 1, "activation": 30}])
    assert any(
        _caught_sets(model, strategy, counts)
        for strategy in ("zb-h1", "1f1b", "gpipe")
        for counts in ([2], [1, 1])
    )
    monkeypatch.undo()
    schedules.clear_cache()
    assert not _caught_sets(Model([*model.layers]), "zb-h1", [1, 1])


def _caught_sets(model: Model, strategy: str, counts: list[int]) -> bool:
    """Whether the verifier rejects the durations or the peaks of an evaluated schedule."""
    limit = 360 if any(layer.offload for layer in model.layers) else None
    pipeline = Pipeline(
        stages=len(counts), batches=3, model=model, partition=counts, mem_limit=limit
    )
    try:
        schedule = ppopt.evaluate(pipeline, strategy)
    except VerificationError:
        return True
    return bool(verify(schedule, {"peak_memory": list(schedule.metrics.peak_memory_ticks)}))
