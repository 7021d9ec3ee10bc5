"""Modules of a layer: sets by hand, options of layers, what is refused, and what files have."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from random import Random
from typing import Any

import pytest

import ppopt
from ppopt import InputError, Layer, Model, Pipeline
from ppopt.formats.schedule_json import dumps, loads
from ppopt.problem.decisions import Decisions
from ppopt.problem.layer_options import convex_hull, options_of
from ppopt.problem.operation import OpKind
from ppopt.verifier import verify
from ppopt.verifier.modules import amounts
from tests.fuzz.layers import draw_modules, module_sets

MODULES: list[dict[str, Any]] = [
    {"name": "norm", "time": "0.1", "memory": 20},
    {"name": "attention", "time": "0.6", "memory": 40, "workspace": 5},
    {"name": "softmax", "time": "0.3", "memory": 25, "inside": "attention"},
    {"name": "act", "time": "0.2", "memory": 10, "offload_time": 3},
]
BLOCK: dict[str, Any] = {"forward": 1, "backward": 2, "activation": 100, "kept": 4}


def pipeline(*sets: Any, **more: Any) -> Pipeline:
    """One stage and one microbatch; a layer for each set of modules that recompute."""
    layers = [BLOCK | {"modules": MODULES, "recompute": chosen} for chosen in sets]
    return Pipeline(**{"stages": 1, "batches": 1} | more, model=layers)


@pytest.mark.parametrize(
    ("sets", "time", "retained", "by_bw"),
    [
        # None; the norm; the norm and the activation: sums.
        ([False], 0, 100, 0),
        ([["norm"]], Fraction(1, 10), 80, 20),
        ([["norm", "act"]], Fraction(3, 10), 70, 30),
        # The workspace of attention; softmax is inside it and adds nothing.
        ([["attention"]], Fraction(6, 10), 60, 40 + 5),
        ([["attention", "softmax"]], Fraction(6, 10), 60, 40 + 5),
        ([["softmax"]], Fraction(3, 10), 75, 25),
        # All of the layer.
        ([True], 1, 4, 96),
        # Layer by layer: the last one is freed before the first one recomputes.
        ([["attention"], ["norm"]], Fraction(7, 10), 140, 20),
        ([["norm"], ["attention"]], Fraction(7, 10), 140, 45),
        ([True, ["norm"]], Fraction(11, 10), 84, 20),
    ],
)
def test_sets_of_modules_by_hand(
    sets: list[Any], time: Fraction, retained: int, by_bw: int
) -> None:
    pipe = pipeline(*sets)
    own = amounts(pipe)
    assert (own.recompute_time, own.retained) == ([time], [retained])
    assert (pipe.costs.recompute_time, pipe.costs.kept) == ((time,), (retained,))
    per_unit = pipe.ticks.memory_per_unit
    assert pipe.ticks.allocates[OpKind.BW] == (by_bw * per_unit,)
    missing = 100 * len(sets) - retained
    needed = (
        5 if any(chosen and chosen is not True and "attention" in chosen for chosen in sets) else 0
    )
    assert pipe.ticks.allocates[OpKind.B] == ((missing + needed) * per_unit,)
    schedule = ppopt.evaluate(pipe, "1f1b")
    assert schedule.makespan == float(3 * len(sets) + time)
    assert schedule.peak_memory == (retained + by_bw,)


def test_flags_choose_modules_of_every_layer_that_has_them() -> None:
    layers = [{**BLOCK, "modules": MODULES, "count": 2}, BLOCK]
    chosen = Pipeline(stages=1, batches=1, model=layers, recompute_modules="act,norm")
    assert [layer.recompute for layer in chosen.model.layers] == [("norm", "act")] * 2 + [False]
    assert chosen.recomputed == (2,)
    named = [{**MODULES[0], "name": "core_attn"}]
    model = Model([BLOCK | {"modules": named}])
    selective = Pipeline(stages=1, batches=1, model=model, recompute="selective")
    assert selective.model.layers[0].recompute == ("core_attn",)
    offloading = Pipeline(stages=1, batches=1, model=layers, offload_modules=["act"])
    assert (offloading.costs.offload_memory, offloading.costs.offload_time) == ((20,), (6,))
    assert not verify(ppopt.evaluate(offloading, "1f1b"))


def test_one_layer_recomputes_and_offloads_different_modules() -> None:
    layer = Layer(**BLOCK, modules=MODULES, recompute=["norm"], offload=["act"])
    pipe = Pipeline(stages=1, batches=2, model=[layer])
    assert (pipe.costs.kept, pipe.costs.offload_memory) == ((80,), (10,))
    assert not verify(ppopt.evaluate(pipe, "1f1b"))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"recompute": ["ffn"]}, "recompute: ffn is no module of the layer; use norm, attention"),
        ({"offload": ["norm"]}, "offload: module norm has no offload_time; give it"),
        ({"recompute": ["act"], "offload": ["act"]}, "offload: module act does not go with"),
        ({"recompute": True, "offload": ["act"]}, "offload: the layer recomputes"),
        ({"modules": [{"name": "a"}]}, "modules: a: no time; give `time`"),
        ({"modules": [{"name": "a", "tim": 1}]}, "modules: a: tim is unknown"),
        ({"modules": [{"name": "a", "time": 1, "inside": "b"}]}, "a: inside: b is no other module"),
        ({"modules": [MODULES[0], MODULES[0]]}, "modules: norm is there twice"),
        ({"modules": [{"name": "a", "time": -1}]}, "modules: time: -1 is negative"),
        (
            {"modules": [{"name": "a", "time": 1, "memory": 101}], "recompute": ["a"]},
            "modules: the memory of those that recompute or offload is more than the activation",
        ),
        (
            {
                "modules": [
                    {"name": "a", "time": 1, "excludes": ["b"]},
                    {"name": "b", "time": 1},
                ],
                "recompute": ["a", "b"],
            },
            "modules: a excludes b; keep one",
        ),
    ],
)
def test_what_is_no_set_of_modules_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        Layer(**BLOCK | {"modules": MODULES} | fields)
    assert message in str(error.value)


def test_units_of_modules_are_converted() -> None:
    module = {"name": "norm", "time": "500us", "memory": "1024MiB"}
    layer = Layer(forward="2ms", activation="4GiB", modules=[module], recompute=["norm"])
    assert (layer.time_unit, layer.memory_unit) == ("ms", "GiB")
    assert (layer.modules[0].time, layer.modules[0].memory) == (Fraction(1, 2), 1)
    microseconds = layer.in_unit(ppopt.problem.units.Unit.TIME, "us")
    assert microseconds.modules[0].time == 500


def test_files_have_modules_and_what_recomputes() -> None:
    schedule = ppopt.evaluate(pipeline(["norm", "act"], True, ["attention"]), "1f1b")
    restored = loads(dumps(schedule), "file")[0]
    assert restored.pipeline == schedule.pipeline
    assert [layer.recompute for layer in restored.pipeline.model.layers] == [
        ("norm", "act"), True, ("attention",)
    ]  # fmt: skip


def test_options_of_a_layer_are_all_that_no_other_dominates() -> None:
    rng = Random(3)
    for _ in range(60):
        taken = rng.randint(1, 6)
        layer = {"forward": 2, "activation": taken, "modules": draw_modules(rng, taken)}
        layer |= {"recompute_time": rng.randint(0, 3), "kept": rng.randint(0, taken)}
        own = Layer(**layer)
        every = [own.having(recompute=names) for names in (False, True, *module_sets(layer))]
        points = {_costs(each) for each in every}
        options = options_of(own, Decisions.RECOMPUTE)
        assert {_costs(own.having(recompute=each.recompute)) for each in options} == {
            point
            for point in points
            if not any(_at_most(better, point) for better in points - {point})
        }
        hull = convex_hull(options)
        for option in options:
            for before, after in pairwise(hull):
                saved = before.resident - option.resident
                assert option.time >= before.time + saved * before.rate(after)


def _costs(layer: Layer) -> tuple[Fraction, ...]:
    costs = layer.in_force
    workspaces = costs["input_workspace"], costs["backward_workspace"]
    return costs["recompute_time"], costs["kept"], *workspaces


def _at_most(first: tuple[Fraction, ...], second: tuple[Fraction, ...]) -> bool:
    return all(own <= cost for own, cost in zip(first, second, strict=True))
