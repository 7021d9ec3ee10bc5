"""What a point of a frontier chose, as text."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from ppopt import Pipeline
from ppopt.formats.figures import LayerRun, ScheduleFigures
from ppopt.report.placement_text import describe_choices, describe_unsearched


@pytest.mark.parametrize(
    ("runs", "text"),
    [
        ([], ""),
        ([LayerRun("", 1, 2)], ""),
        ([LayerRun("", 1, 2, ["mlp"])], " (mlp)"),
        ([LayerRun("", 0, 0), LayerRun("", 1, 3, ["mlp"])], " (whole 1,0, mlp 1,2)"),
        ([LayerRun("", 0, 1, ["mlp", "norm"]), LayerRun("", 2, 2, ["norm"])],
         " (mlp 2,0, norm 2,1)"),
    ],
)  # fmt: skip
def test_modules_have_their_number_in_every_stage(runs: list[LayerRun], text: str) -> None:
    figures: Any = SimpleNamespace(
        partition=[2, 2], placement=None, recompute=[2, 2], recomputed_layers=runs,
        offload=[0, 0], offloaded_layers=[],
    )  # fmt: skip
    chosen = describe_choices(cast("ScheduleFigures", figures), ["partition", "recompute"])
    assert chosen == f": layers 2,2, recompute 2,2{text}"


def test_a_search_of_sets_of_modules_is_a_search_of_recompute() -> None:
    module = {"name": "mlp", "time": 1, "memory": 1}
    layers = [{"forward": 1, "activation": 3, "modules": [module], "count": 4}]
    for recompute in ("search", "search-set"):
        pipeline = Pipeline(stages=2, batches=2, model=layers, mem_limit=9, recompute=recompute)
        assert "recompute" not in describe_unsearched(pipeline)
    assert "recompute" in describe_unsearched(
        Pipeline(stages=2, batches=2, model=layers, mem_limit=9)
    )
