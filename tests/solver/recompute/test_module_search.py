"""A search over modules: the optimum of a small plan, and what whole layers reach."""

from __future__ import annotations

from typing import Any

import pytest

import ppopt
from ppopt import Pipeline, Status, Verdict

MODULES = [
    {"name": "layernorm", "time": "0.05", "memory": 6},
    {"name": "moe_act", "time": "0.05", "memory": 5},
    {"name": "mla_up_proj", "time": "0.2", "memory": 9},
]
LAYER: dict[str, Any] = {"forward": 1, "activation": 24, "kept": 2, "count": 2}


def solved(recompute: str, modules: list[dict[str, Any]]) -> ppopt.Result:
    """Two layers on two devices that store one and a half activations."""
    layer = LAYER | {"modules": modules}
    pipeline = Pipeline(stages=2, batches=4, model=[layer], mem_limit=36, recompute=recompute)
    return ppopt.solve(pipeline, workers=1, time_limit=120)


def test_a_set_of_modules_is_proved_faster_than_none_full_and_any_whole_layers() -> None:
    """16 / 14.25: 12.3 % more throughput than the optimum over whole layers."""
    best = solved("search", MODULES)
    assert (best.status, best.value) == (Status.OPTIMAL, 14.25)
    assert best.schedule is not None
    chosen = [layer.recompute for layer in best.schedule.pipeline.model.layers]
    assert chosen == [("layernorm", "mla_up_proj"), False]
    assert ppopt.recheck(best.schedule, workers=1).verdict is Verdict.CONFIRMED
    assert [solved(mode, MODULES).value for mode in ("none", "full")] == [20, 19]
    assert solved("search", []).value == 16


@pytest.mark.parametrize("partition", ["search", [2, 1]])
def test_layers_and_partitions_choose_modules(partition: Any) -> None:
    """Three layers; memory for two activations on the first device."""
    layers = [LAYER | {"modules": MODULES[:2], "count": 3}]
    pipeline = Pipeline(
        stages=2, batches=2, model=layers, mem_limit=[50, 60], recompute="search",
        partition=partition,
    )  # fmt: skip
    result = ppopt.solve(pipeline, workers=1, time_limit=120)
    assert result.status is Status.OPTIMAL
    every = (
        ppopt.solve(
            Pipeline(stages=2, batches=2, model=layers, mem_limit=[50, 60], partition=counts,
                     recompute_modules=names),
            workers=1, time_limit=120,
        ).value
        for counts in ([1, 2], [2, 1])
        for names in (["layernorm"], ["moe_act"], ["layernorm", "moe_act"])
        if partition in ("search", counts)
    )  # fmt: skip
    assert result.value is not None
    assert all(value is None or result.value <= value for value in every)
