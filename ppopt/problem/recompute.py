"""Recompute of a model in layers: as its layers say, none, full, or chosen with the schedule."""

from __future__ import annotations

from typing import Any, TypeVar

from ppopt.errors import InputError
from ppopt.problem.layers import Layers

SEARCH_RECOMPUTE = "search"
"""The value of `recompute` that means: chosen with the schedule."""
L = TypeVar("L", bound=Layers)


def refuse_recompute_search(recompute: object, what: str) -> None:
    """Raise InputError if recompute is to be searched: `what` does not search it."""
    if recompute == SEARCH_RECOMPUTE:
        raise InputError(f"recompute: {what} does not search it; use none or full, or solve")


def read(recompute: Any, model: L) -> tuple[str | None, L]:
    """The choice that is left open, and the model whose layers say what is not.

    Raises InputError if it is not None, `none`, `full` or `search`.
    """
    if recompute is None or recompute == SEARCH_RECOMPUTE:
        return recompute, model
    if recompute not in ("none", "full"):
        raise InputError(f"recompute: {recompute!r} is unknown; use none, full or search")
    return None, model.with_recompute(recompute)
