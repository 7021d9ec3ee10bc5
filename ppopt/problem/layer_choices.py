"""Recompute and offload of the layers of a model: as stated, by rule, or searched."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from ppopt.errors import InputError
from ppopt.problem.layers import Layers

SEARCH_RECOMPUTE = SEARCH_OFFLOAD = "search"
"""The value of `recompute`, and of `offload`, for a choice made with the schedule."""
RULES: Mapping[str, tuple[str, str]] = {"recompute": ("none", "full"), "offload": ("none", "all")}
"""Field of a pipeline -> its values that are a rule for all layers."""
L = TypeVar("L", bound=Layers)


def refuse_search(field: str, choice: object, what: str) -> None:
    """Raise InputError if recompute, or offload, is to be searched where `what` does not."""
    if choice == SEARCH_RECOMPUTE:
        known = " or ".join(RULES[field])
        raise InputError(f"{field}: {what} does not search it; use {known}, or solve")


def read(field: str, choice: Any, model: L) -> tuple[str | None, L]:
    """The open choice, if any, and the model with the layers that a rule selects.

    Raises InputError if the field has no such choice, or if layers are to offload and none can.
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
