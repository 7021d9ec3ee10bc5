"""The table of modules: what they cost and free, and which stages choose them."""

from __future__ import annotations

from ppopt import Pipeline
from ppopt.derivation.derived_model import derive_model
from ppopt.report.derivation import explanation_tables
from ppopt.report.module_table import module_table
from tests.derivation.test_modules import MOONLIGHT, RANKS

MODULES = [
    {"name": "mlp", "time": 2, "memory": 6},
    {"name": "act", "time": "0.5", "memory": 3, "inside": "mlp"},
    {"name": "norm", "memory": 1, "offload_time": "0.25"},
]


def test_every_module_has_its_costs_and_the_layers_that_choose_it() -> None:
    layers = [
        {"name": "block", "forward": 4, "activation": 9, "modules": MODULES, "recompute": own}
        for own in (["mlp"], ["act"], False)
    ]
    layers[2] |= {"offload": ["norm"]}
    pipeline = Pipeline(stages=2, batches=1, model=layers, partition=[2, 1])
    table = module_table(pipeline)
    assert table is not None
    rows = [[str(column.cell(row)) for column in table.columns] for row in table.rows]
    assert rows == [
        ["block", "mlp", "", "2", "6", "", "", "1 0", ""],
        ["block", "act", "mlp", "0.5", "3", "", "", "2 0", ""],
        ["block", "norm", "", "", "", "0.25", "1", "", "0 1"],
    ]


def test_models_without_modules_have_no_table() -> None:
    assert module_table(Pipeline(stages=2, batches=1)) is None
    assert module_table(Pipeline(stages=1, batches=1, model=[{"forward": 1}])) is None


def test_an_explanation_lists_the_modules_of_a_derived_layer() -> None:
    model = derive_model(MOONLIGHT, gpu="h100", **RANKS)
    titles = [title for title, _ in explanation_tables(model)]
    block = model.layers[2]
    assert f"modules of {block.name}" in titles
    table = dict(explanation_tables(model))[f"modules of {block.name}"]
    assert [row.name for row in table.rows] == [own.name for own in block.modules]
