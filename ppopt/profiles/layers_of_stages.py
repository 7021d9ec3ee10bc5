"""Estimates the layers of a model from the measured times of its stages and their layers.

Decoder layers count as equal: each takes the mean over the stages that have only decoder layers or,
if there is none, over the stages without a head. Embedding and head take the rest of the time of
their stage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

from ppopt.errors import InputError
from ppopt.formats.typed_values import whole
from ppopt.problem import layout
from ppopt.problem.layer import MAX_LAYERS
from ppopt.problem.layer_settings import DECODER, LETTERS

_ROLES = {letter: role for role, letter in LETTERS.items()}
_T = LETTERS[DECODER]
SHORTEST = Fraction(1, 10**6)
"""Minimum cost of an embedding or a head, the finest number of a file; an F of 0 is an error."""


class LayersOfStage(NamedTuple):
    """Layers of a stage, or of a device: at most one embedding, decoders, at most one head."""

    embedding: int
    decoders: int
    head: int

    @property
    def roles(self) -> list[str]:
        """Their roles in order."""
        return [
            _ROLES[letter] for letter in "E" * self.embedding + _T * self.decoders + "L" * self.head
        ]


class LayerGroup(NamedTuple):
    """Equal layers in a row."""

    role: str
    layers: int
    """Number of the layers."""
    costs: Mapping[str, Fraction]
    """Costs of one layer, by field of `ppopt.Layer`."""


def read_layers(text: str) -> tuple[LayersOfStage, ...]:
    """Read the layers of every stage: a layout, or the decoder layers of every stage.

    The counts `8,8` are the layout `Et*8|t*8L`. Raises InputError if an embedding is not the first
    layer, or if a head is not the last one.
    """
    return _of_layout(text) if any(map(str.isalpha, text)) else _of_counts(text)


def on_devices(layers: Sequence[LayersOfStage], devices: int) -> tuple[LayersOfStage, ...]:
    """Layers of every device, if stage s is on device s modulo the devices.

    Raises InputError if the devices have different numbers of stages.
    """
    if len(layers) % devices:
        raise InputError(f"layers: they are of {len(layers)} stages; the run has {devices}")
    return tuple(
        LayersOfStage(*map(sum, zip(*layers[d::devices], strict=True))) for d in range(devices)
    )


def _of_layout(text: str) -> tuple[LayersOfStage, ...]:
    letters = layout.stages(text)
    names = "".join(letters)
    if names.removeprefix("E").removesuffix("L").strip(_T):
        raise InputError(
            f"layers: {text!r} has more than decoder layers, an embedding before and a head behind "
            "them; write these alone, as Et*8|t*8L"
        )
    return tuple(LayersOfStage(row.count("E"), row.count(_T), row.count("L")) for row in letters)


def _of_counts(text: str) -> tuple[LayersOfStage, ...]:
    counts = [whole("layers", entry.strip()) for entry in text.split(",")]
    if min(counts) < 0 or sum(counts) > MAX_LAYERS:
        raise InputError(f"layers: {text!r} is not a list of 0 to {MAX_LAYERS} decoder layers")
    last = len(counts) - 1
    return tuple(
        LayersOfStage(int(stage == 0), count, int(stage == last))
        for stage, count in enumerate(counts)
    )


def parts(
    layers: Sequence[LayersOfStage], costs: Mapping[str, Sequence[Fraction]]
) -> list[LayerGroup]:
    """The layers of a model with the costs of each, from the costs of stages by field.

    Raises InputError if there are costs of another number of stages, or if no stage without a head
    has decoder layers.
    """
    stages = len(next(iter(costs.values())))
    if len(layers) != stages:
        raise InputError(f"layers: they are of {len(layers)} stages; the run has {stages}")
    if not any(stage.decoders for stage in layers if not stage.head):
        raise InputError("layers: no stage without a head has decoder layers; leave --layers out")
    counts = {
        "E": sum(stage.embedding for stage in layers),
        _T: sum(stage.decoders for stage in layers),
        "L": sum(stage.head for stage in layers),
    }
    split = {field: _split(layers, column) for field, column in costs.items()}
    return [
        LayerGroup(_ROLES[letter], count, {field: each[letter] for field, each in split.items()})
        for letter, count in counts.items()
        if count
    ]


def _split(layers: Sequence[LayersOfStage], column: Sequence[Fraction]) -> dict[str, Fraction]:
    """Split a cost of every stage into costs of an embedding, decoder layer and head, by letter."""
    pairs = [(stage, cost) for stage, cost in zip(layers, column, strict=True) if stage.decoders]
    alone = [pair for pair in pairs if not pair[0].embedding and not pair[0].head]
    chosen = alone or [pair for pair in pairs if not pair[0].head]
    decoder = sum((cost for _, cost in chosen), Fraction()) / sum(s.decoders for s, _ in chosen)
    first, last = (
        max(column[index] - layers[index].decoders * decoder, SHORTEST) for index in (0, -1)
    )
    return {"E": first, _T: decoder, "L": last}
