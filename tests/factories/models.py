"""Models in layers, tiny and random."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from random import Random

from hypothesis import strategies as st

from ppopt.problem.layer import Layer
from ppopt.problem.layer_settings import LETTERS
from ppopt.problem.pipeline import Model, Pipeline

TINY = Model(
    (
        Layer(forward=1, static=5, activation=1, role="embedding"),
        Layer(forward=2, static=2, activation=3, name="block", count=4),
        Layer(forward=4, static=4, activation=2, role="head"),
    ),
    name="tiny",
)
"""An embedding, four blocks and a head twice as long as a block."""


@st.composite
def models(draw: st.DrawFn, max_layers: int = 8) -> Model:
    """Models of up to `most` layers of any roles, times with a decimal."""
    numbers = st.integers(0, 40)
    layers = []
    for _ in range(draw(st.integers(1, max_layers))):
        activation = draw(st.integers(0, 9))
        weight, rest = draw(numbers), draw(numbers)
        layers.append(
            Layer(
                forward=f"{draw(st.integers(1, 40)) / 10}",
                backward=f"{(weight + rest) / 10}",
                weight=f"{weight / 10}",
                activation=activation,
                memory_b=draw(st.integers(-activation, 3)),
                static=draw(numbers),
                role=draw(st.sampled_from(tuple(LETTERS))),
            )
        )
    return Model(tuple(layers))


def with_ends(pipeline: Pipeline, rng: Random) -> Pipeline:
    """The pipeline whose first layer is an embedding and whose last is a head.

    Each of them says that it recomputes, or does not.
    """
    first, *between, last = pipeline.model.layers
    first = replace(first, role="embedding", recompute=rng.random() < 0.4)
    last = replace(last, role="head", recompute=rng.random() < 0.4)
    return replace(pipeline, model=Model((first, *between, last)))


def sets_that_recompute(model: Model) -> Iterator[tuple[bool, ...]]:
    """Whether every layer recomputes, in every way: an end does only where the model says so."""
    return product(
        *(
            (False, True) if layer.recompute or layer.role in ("decoder", "mtp") else (False,)
            for layer in model.layers
        )
    )
