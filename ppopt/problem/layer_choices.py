"""Which layers of a model recompute, and which offload: as they say, by rule, or searched."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from ppopt.errors import InputError
from ppopt.problem.layers import Layers

SEARCH_RECOMPUTE = SEARCH_OFFLOAD = "search"
"""The value of `recompute`, and of `offload`, that means: chosen with the schedule."""
RULES: Mapping[str, tuple[str, str]] = {"recompute": ("none", "full"), "offload": ("none", "all")}
"""Field of a pipeline -> the values that say which layers do it."""
L = TypeVar("L", bound=Layers)


def refuse_search(field: str, choice: object, what: str) -> None:
    """Raise InputError if recompute, or offload, is to be searched: `what` does not search it."""
    if choice == SEARCH_RECOMPUTE:
        known = " or ".join(RULES[field])
        raise InputError(f"{field}: {what} does not search it; use {known}, or solve")


def read(field: str, choice: Any, model: L) -> tuple[str | None, L]:
    """The choice that is left open, and the model whose layers say what is not.

    Raises InputError if it is no choice of this field, or if layers are to offload and none can.
    """
    if choice is None:
        return None, model
    none, every = RULES[field]
    if choice not in (none, every, SEARCH_RECOMPUTE):
        raise InputError(f"{field}: {choice!r} is unknown; use {none}, {every} or search")
    recompute = field == "recompute"
    if not (recompute or choice == none or any(layer.offload_time for layer in model.layers)):
        raise InputError("offload: no layer gives its offload_time; give it in the layers")
    if choice == SEARCH_RECOMPUTE:
        return choice, model
    return None, model.with_recompute(choice) if recompute else model.with_offload(choice)
