"""Cases that only the whole run has, and how many examples a property has."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import settings

MULTIPLE = int(os.environ.get("PPOPT_EXAMPLES", "1"))
"""How many times more examples than usual are drawn: a long run finds what is rare."""


def slow(*values: Any) -> Any:
    """Values of one case of `parametrize`, which is slow."""
    return pytest.param(*values, marks=pytest.mark.slow)


def first(fast: int, cases: Iterable[Any]) -> list[Any]:
    """Cases of one value each, of which all but the first few are slow."""
    return [case if index < fast else slow(case) for index, case in enumerate(cases)]


def examples(count: int) -> settings:
    """Draw so many examples of a property that takes longer than most."""
    return settings(max_examples=count * MULTIPLE)
