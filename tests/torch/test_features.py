"""Every row of the table in docs/pytorch.md: gradients equal to one process, or a refusal."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from ppopt import Pipeline
from ppopt.torch.world import World
from tests.factories.schedules import build
from tests.torch.torch_features import FEATURES, MICROBATCHES, ran
from tests.torch.torch_jobs import RANKS

TABLE = Path(__file__).parents[2] / "docs" / "pytorch.md"
UNEVEN, V = [0, 1, 2, 3, 3, 1], [0, 1, 1, 0]
"""Placements without and with a second replica."""


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
    """Random orders of an uneven placement, or of a V beside its copy."""
    feature = FEATURES[name]
    hosts = UNEVEN if feature.replicas == 1 else V
    pipeline = Pipeline(stages=len(hosts), batches=MICROBATCHES, placement=hosts)
    found = world.run(ran, [(name, build(pipeline, Random(3), backward))] * RANKS)
    told = rows()[name][backward != "whole"]
    if isinstance(found[0], str):
        assert told.startswith("refused"), found[0]
        assert "a compiled module" in found[0] or "solve with --backward whole" in found[0]
        return
    assert told == "exact"
    assert sum(count for count, _ in found) == 4 * len(hosts) * feature.replicas
    assert max(difference for _, difference in found) <= feature.tolerance
