"""One world of four processes serves all tests that run in PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ppopt.torch.world import World


@pytest.fixture(scope="session")
def living_world() -> Iterator[Callable[[], World]]:
    """Four processes; others if a test has ended them."""
    from ppopt.torch.world import World  # noqa: PLC0415  it loads PyTorch
    from tests.clock import HANGS  # noqa: PLC0415
    from tests.torch.torch_jobs import RANKS  # noqa: PLC0415

    class Mortal(World):
        """A world that knows when its processes have ended."""

        ended = False

        def _end(self) -> None:
            self.ended = True
            super()._end()

    worlds: list[Mortal] = []
    with ExitStack() as entered:

        def living() -> World:
            if not worlds or worlds[-1].ended:
                worlds.append(entered.enter_context(Mortal(RANKS, HANGS)))
            return worlds[-1]

        yield living


@pytest.fixture
def world(living_world: Callable[[], World]) -> World:
    """Four processes."""
    return living_world()
