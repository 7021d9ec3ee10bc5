"""One world of four processes serves all tests that run in PyTorch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ppopt.torch.world import World


@pytest.fixture(scope="session")
def world() -> Iterator[World]:
    """Four processes."""
    from ppopt.torch.world import World  # noqa: PLC0415  it loads PyTorch
    from tests.torch.torch_jobs import RANKS  # noqa: PLC0415

    with World(RANKS) as started:
        yield started
