"""Models in layers, tiny and random."""

from __future__ import annotations

from hypothesis import strategies as st

from ppopt.problem.layers import LETTERS, Layer
from ppopt.problem.pipeline import Model

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
def models(draw: st.DrawFn, most: int = 8) -> Model:
    """Models of up to `most` layers of any roles, times with a decimal."""
    numbers = st.integers(0, 40)
    layers = []
    for _ in range(draw(st.integers(1, most))):
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
