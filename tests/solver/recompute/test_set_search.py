"""A search over sets of modules that all layers recompute, against the solve of every set."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from random import Random
from typing import Any

import pytest

import ppopt
from ppopt import InputError, Pipeline, Status, Verdict
from ppopt.problem.decisions import Decisions
from ppopt.problem.layer_options import sets_of_all
from tests.tiers import first

NAMES = ("norm", "attention", "mlp")


def drawn(seed: int) -> dict[str, Any]:
    """Two or three layers with up to three modules, which may be inside or exclude each other."""
    rng = Random(seed)
    layers = []
    for _ in range(rng.randint(2, 3)):
        modules = [
            {"name": name, "time": rng.randint(0, 2), "memory": rng.randint(1, 2)}
            for name in NAMES[: rng.randint(1, 3)]
        ]
        if len(modules) > 1 and rng.random() < 0.5:
            modules[-1][rng.choice(("inside", "excludes"))] = modules[-2]["name"]
        layers.append({"forward": rng.randint(1, 3), "activation": 7, "modules": modules})
    return {"stages": 2, "batches": 2, "model": layers, "mem_limit": rng.randint(8, 22)}


def solved(fields: dict[str, Any]) -> ppopt.Result:
    return ppopt.solve(Pipeline(**fields), workers=1, time_limit=120)


def best_of_sets(fields: dict[str, Any]) -> Any:
    """The minimum over none, full, and every set that the layers accept; None: none fits."""
    choices = [{"recompute": "none"}, {"recompute": "full"}]
    choices += [
        {"recompute_modules": names} for size in (1, 2, 3) for names in combinations(NAMES, size)
    ]
    values = []
    for choice in choices:
        try:
            values.append(solved(fields | choice).value)
        except InputError:
            continue
    return min((value for value in values if value is not None), default=None)


@pytest.mark.parametrize("seed", first(5, [3, 6, 8, 11, 73, 0, 1, 2, 4, 5, 7, 9, 10]))
def test_the_best_set_is_as_good_as_the_best_of_all_sets(seed: int) -> None:
    fields = drawn(seed)
    partition = "search" if seed % 3 == 0 else None
    every = [solved(fields | {"recompute": "none"})]
    cuts = [(1, len(fields["model"]) - 1), (len(fields["model"]) - 1, 1)]
    cuts = sorted(set(cuts)) if partition else [every[0].pipeline.counts]
    values = [best_of_sets(fields | {"partition": counts}) for counts in cuts]
    best = min((value for value in values if value is not None), default=None)
    result = solved(fields | {"recompute": "search-set", "partition": partition})
    assert result.value == best
    assert result.status is (Status.INFEASIBLE if best is None else Status.OPTIMAL)
    decisions = Decisions.PARTITION if partition else Decisions.NONE
    assert result.certificate.decisions == decisions | Decisions.RECOMPUTE_SET
    assert ppopt.recheck(result, workers=1).verdict is Verdict.CONFIRMED
    if result.schedule is None:
        return
    chosen = {layer.recompute for layer in result.schedule.pipeline.model.layers}
    names = {name for own in chosen if isinstance(own, tuple) for name in own}
    for layer in result.schedule.pipeline.model.layers:
        own = {module.name for module in layer.modules}
        assert layer.recompute is True or set(layer.recompute or ()) == names & own


def test_the_rechecker_refutes_a_bound_that_a_set_beats() -> None:
    """Without recompute the limit needs 20 (`test_module_search`); one set is faster."""
    layer = {"forward": 1, "activation": 24, "count": 2,
             "modules": [{"name": "norm", "time": "0.05", "memory": 6}]}  # fmt: skip
    fields = {"stages": 2, "batches": 4, "model": [layer], "mem_limit": 36}
    best = solved(fields | {"recompute": "search-set"})
    assert best.schedule is not None
    assert best.value is not None
    origin = best.schedule.origin
    wrong = replace(origin, lower_bound=best.value + 1, value=best.value)
    claimed = replace(best.schedule, origin=wrong)
    assert ppopt.recheck(claimed, workers=1).verdict is Verdict.WRONG


def test_the_rechecker_knows_a_set_with_a_module_inside_another_one_in_some_layers() -> None:
    """`inner` adds nothing in the first layer, but the second one needs it."""
    inner = {"name": "inner", "time": 1, "memory": 1, "inside": "outer"}
    outer = {"name": "outer", "time": 1, "memory": 3}
    layers = [
        {"forward": 1, "activation": 4, "modules": [outer, inner]},
        {"forward": 1, "activation": 4, "modules": [{"name": "inner", "time": 1, "memory": 3}]},
        {"forward": 1, "activation": 1},
    ]
    fields = {"stages": 3, "batches": 3, "model": layers, "mem_limit": 6}
    best = solved(fields | {"recompute": "search-set"})
    assert best.status is Status.OPTIMAL and best.schedule is not None
    chosen = [layer.recompute for layer in best.schedule.pipeline.model.layers]
    assert chosen == [("outer", "inner"), ("inner",), False]
    assert ppopt.recheck(best, workers=1).verdict is Verdict.CONFIRMED
    inflated = replace(best, bound_ticks=best.bound_ticks + 1)
    assert ppopt.recheck(inflated, workers=1).verdict is Verdict.WRONG


def test_a_set_that_costs_more_in_every_layer_is_left_out() -> None:
    """`mlp` frees no more than `norm` and takes longer; in one layer, `attention` frees more."""
    norm = {"name": "norm", "time": 1, "memory": 2}
    mlp = {"name": "mlp", "time": 3, "memory": 1}
    attention = {"name": "attention", "time": 2, "memory": 3, "inside": "mlp"}
    layers = [
        {"forward": 1, "activation": 9, "modules": [norm, mlp]},
        {"forward": 1, "activation": 9, "modules": [norm, mlp, attention]},
    ]
    model = Pipeline(stages=2, batches=1, model=layers).model
    names = [option.recompute for option in sets_of_all(model.layers)]
    assert names[0] is False
    assert ("norm",) in names
    assert ("norm", "attention") in names
    assert ("mlp", "attention") not in names  # attention is inside: the same as mlp alone


def test_evaluations_and_frontiers_refuse_it() -> None:
    pipeline = Pipeline(**drawn(0), recompute="search-set")
    with pytest.raises(InputError, match="does not search it"):
        ppopt.best_choice(pipeline, "1f1b")
    with pytest.raises(InputError, match="sets of modules for all layers"):
        ppopt.frontier(pipeline, time_limit=5)
