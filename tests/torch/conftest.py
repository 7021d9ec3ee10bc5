"""One world of four processes serves all tests that run in PyTorch."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.torch.torch_jobs import RANKS

from ppopt.torch.world import World  # isort: skip


@pytest.fixture(scope="session")
def world() -> Iterator[World]:
    """Four processes."""
    with World(RANKS) as started:
        yield started
