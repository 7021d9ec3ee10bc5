"""Cases that only the whole run has: those with the marker `slow`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def slow(*values: Any) -> Any:
    """Values of one case of `parametrize`, which is slow."""
    return pytest.param(*values, marks=pytest.mark.slow)


def first(fast: int, cases: Iterable[Any]) -> list[Any]:
    """Cases of one value each, of which all but the first few are slow."""
    return [case if place < fast else slow(case) for place, case in enumerate(cases)]
