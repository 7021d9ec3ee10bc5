"""Every row of the table in docs/pytorch.md: gradients equal to one process, or a refusal."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.packages import needed

needed("torch")

from ppopt import Pipeline
from ppopt.torch.pipeline_runtime import DYNAMIC_METADATA, REDUCES, WITHOUT_GRADIENT
from ppopt.torch.world import World
from tests.factories.schedules import build
from tests.torch.torch_features import (
    FEATURES,
    FSDP,
    MICROBATCHES,
    TOGETHER,
    Dynamic,
    Floats,
    Integers,
    ran,
)
from tests.torch.torch_jobs import RANKS

pytestmark = pytest.mark.slow

TABLE = Path(__file__).parents[2] / "docs" / "pytorch.md"
UNEVEN, V = [0, 1, 2, 3, 3, 1], [0, 1, 1, 0]
"""Placements without and with a second replica."""
LONG_V, UNEVEN_PAIR = [0, 1, 2, 3, 3, 2, 1, 0], [0, 1, 1]
"""The same, the other way round."""


def rows() -> dict[str, tuple[str, str]]:
    """Feature -> what the table says of whole and of split backwards."""
    lines = TABLE.read_text(encoding="utf-8").split("<!-- features -->")[1].splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if "|" in line]
    return {name: (whole, split) for name, whole, split in cells[2:]}


def test_the_table_names_what_is_tested() -> None:
    assert list(rows()) == list(FEATURES)


@pytest.mark.parametrize("backward", ["whole", "mixed"])
@pytest.mark.parametrize("name", FEATURES)
def test_feature(world: World, name: str, backward: str) -> None:
    """Random orders of an uneven placement, or of a V with its copy."""
    hosts = UNEVEN if FEATURES[name].replicas == 1 else V
    as_told(world, name, hosts, backward, documented(name, backward))


@pytest.mark.parametrize("name", FEATURES)
def test_feature_elsewhere(world: World, name: str) -> None:
    """The other way round: random orders of a V, or of an uneven placement with its copy."""
    hosts = LONG_V if FEATURES[name].replicas == 1 else UNEVEN_PAIR
    as_told(world, name, hosts, "split", documented(name, "split"))


OLD = "refused: by this PyTorch"
"""What the text below the table says of older versions."""


def documented(name: str, backward: str) -> str:
    """What the documentation says of a feature with the PyTorch that runs."""
    if issubclass(FEATURES[name], Integers | Floats) and not WITHOUT_GRADIENT:
        return OLD
    if issubclass(FEATURES[name], Dynamic) and not DYNAMIC_METADATA:
        return OLD
    if issubclass(FEATURES[name], FSDP) and backward != "whole" and not REDUCES:
        return OLD
    return rows()[name][backward != "whole"]


SPLITS = ("ScaledAccumulation", "RecomputedFSDP", "ShardedTraining")
"""Of `TOGETHER`: what takes split backwards."""


@pytest.mark.parametrize("backward", ["whole", "mixed"])
@pytest.mark.parametrize("name", TOGETHER)
def test_features_together(world: World, name: str, backward: str) -> None:
    hosts = UNEVEN if TOGETHER[name].replicas == 1 else V
    exact = backward == "whole" or name in SPLITS
    exact &= backward == "whole" or REDUCES or not issubclass(TOGETHER[name], FSDP)
    as_told(world, name, hosts, backward, "exact" if exact else "refused")


REASONS = (
    "a compiled module",
    "solve with --backward whole",
    "this PyTorch wants a gradient of every tensor between stages",
    "is missing; give PipelineStage tensors",
)


def as_told(world: World, name: str, hosts: list[int], backward: str, expected: str) -> None:
    """Run a feature in a random order: every gradient is that of one process, or it is refused."""
    feature = (FEATURES | TOGETHER)[name]
    pipeline = Pipeline(stages=len(hosts), batches=MICROBATCHES, placement=hosts)
    outcomes = world.run(ran, [(name, build(pipeline, Random(3), backward))] * RANKS)
    if isinstance(outcomes[0], str):
        assert expected.startswith("refused"), outcomes[0]
        assert any(part in outcomes[0] for part in REASONS), outcomes[0]
        return
    assert expected == "exact"
    assert sum(count for count, _ in outcomes) == 4 * len(hosts) * feature.replicas
    assert max(difference for _, difference in outcomes) <= feature.tolerance
