"""Partitions as trainers' configurations have them: names per stage, hybrid patterns, losses."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from ppopt.errors import InputError
from ppopt.problem import layout
from ppopt.problem.layer import Layer
from ppopt.problem.partition import normal
from ppopt.problem.pipeline import Model, Pipeline
from tests.factories.bridge_layouts import LAYOUTS

ROLES = {"E": "embedding", "t": "decoder", "m": "mtp", "L": "head"}


def model_of(letters: str) -> Model:
    return Model(tuple(Layer(forward=1, role=ROLES[letter]) for letter in letters))


@pytest.mark.parametrize("recipe", LAYOUTS)
def test_layouts_of_recipes_are_read_and_written_back(recipe: str) -> None:
    text = normal(LAYOUTS[recipe].layout)
    assert isinstance(text, str)
    stages = layout.stages(text)
    assert len(stages) == LAYOUTS[recipe].ranks * LAYOUTS[recipe].chunks
    model = model_of("".join(stages))
    counts = layout.counts(text, model)
    assert counts == tuple(map(len, stages))
    assert layout.counts(layout.write(model, counts), model) == counts


@pytest.mark.parametrize(
    ("partition", "expected"),
    [
        ([["tok_embeddings", "layers.0"], ["layers.1"], ["norm", "output"]], "Et|t|L"),
        ([["tok_embeddings", "layers.0"], ["layers.1", "norm", "lm_head"]], "Et|tL"),
        ([["E", "t"], [" Decoder ", "MTP", "Loss"]], "Et|tmL"),
        ("M-M-|M-M*-", "Etttt|tttttL"),
        ("M-M-|M-M*-/MM/MM", "Etttt|tttttmmL"),
        ("*-*-", "EttttL"),
        ("MEME|M*E", "Etttt|tttL"),
    ],
)
def test_names_and_patterns_are_layouts(partition: Any, expected: str) -> None:
    assert normal(partition) == expected


@pytest.mark.parametrize("text", ["E|L", "Et*3|tL", "E*2|t", "balanced"])
def test_a_layout_is_no_pattern(text: str) -> None:
    assert normal(text) == text


@pytest.mark.parametrize(
    ("partition", "message"),
    [
        (
            [["embedding", "decoder"], ["encoder", "loss"]],
            "stage 1: 'encoder' is no layer; use emb",
        ),
        ([["embedding"], "decoder"], "stage 1: 'decoder' is not a list of names"),
        ([["layers.0"], ["layers.2"]], "stage 1: layers.2 is not the next layer, layers.1"),
        ([["layers.0"], 3], "stage 1: 3 is not a list of names"),
    ],
)
def test_names_that_are_no_partition_are_refused(partition: Any, message: str) -> None:
    with pytest.raises(InputError, match=f"^partition: {message}"):
        normal(partition)


def test_ends_that_the_model_has_no_layer_for_are_left_out() -> None:
    """Exports name them always."""
    model = model_of("tttt")
    assert layout.counts("Ett|ttL", model) == (2, 2)
    assert layout.counts("tt|ttL", model) == (2, 2)
    with pytest.raises(InputError, match="the layout names 4 t, 1 L; the model has 1 E, 4 t, 1 L"):
        layout.counts("tt|ttL", model_of("EttttL"))


WITH_MODULES = Model(
    (
        Layer(forward=1, role="embedding", output=10),
        Layer(forward=4, count=2, output=10),
        Layer(forward=5, role="mtp", output=20),
        Layer(forward=5, role="mtp", output=30),
        Layer(
            forward=12,
            backward=24,
            weight=9,
            role="head",
            activation=30,
            static=100,
            gradient_sync=3,
            workspace=9,
        ),
    )
)


def pipeline_of(text: str) -> Pipeline:
    stages = len(layout.stages(text))
    return WITH_MODULES.pipeline(
        devices=stages, batches=2, partition=text, link={"latency": 0, "bandwidth": 10}
    )


def test_several_losses_divide_the_head() -> None:
    """Times and activations are divided; every stage with a loss has the output matrix once."""
    pipeline = pipeline_of("Et|tmm|LL|L")
    costs = pipeline.costs
    assert pipeline.counts == (2, 3, 2, 1)
    assert costs.forward[2:] == (8, 4)
    assert costs.backward[2:] == (16, 8)
    assert costs.weight[2:] == (6, 3)
    assert costs.activation[2:] == (20, 10)
    assert costs.static[2:] == costs.static[3:] * 2 == (100, 100)
    assert costs.gradient_sync[2:] == (3, 3)
    assert costs.forward_workspace[2:] == (9, 9)
    assert pipeline.links[0][0] == (1, 3, 1), "one state, three with the modules', one remains"


def test_the_losses_of_one_stage_are_the_head() -> None:
    single, several = (pipeline_of(text) for text in ("Et|tmm|L", "Et|tmm|LLL"))
    assert several.costs == single.costs
    assert several.links == single.links


def test_modules_and_losses_are_divided_exactly() -> None:
    """Times of 10 and two losses of thirds: the sum is the head's."""
    model = Model((*WITH_MODULES.layers[:-1], Layer(forward=10, backward=20, role="head")))
    pipeline = model.pipeline(devices=4, batches=2, partition="Et|tmmL|L|L")
    assert pipeline.costs.forward[2:] == (Fraction(10, 3),) * 2
    assert sum(pipeline.costs.forward) == sum(layer.forward for layer in model.layers)


def test_a_divided_head_stays_divided() -> None:
    pipeline = pipeline_of("Et|tm|mL|LL")
    same = Pipeline(
        model=pipeline.model, stages=4, batches=2, partition=pipeline.counts, link=pipeline.link
    )
    assert same.costs == pipeline.costs


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Et|tmm|L|L", "names 2 L; the model has 2 MTP modules and a head, so name 1 L, or 3"),
        ("Et|tm|Lm|LL", "the layout's order is EttmLmLL"),
    ],
)
def test_other_losses_are_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        pipeline_of(text)
