"""Frozen layers and stages, and the operations that they do not have.

A frozen layer has no gradients of its weights: no W, no gradient sync and no optimizer. Its B still
passes a gradient on, and then frees all that F allocated. If all layers before it are frozen, too,
no gradient is needed: the layer has no backward at all, no gradient crosses the links before and
after it, and its F frees the activation at its end. So F of a stage allocates the activations of
all these layers while it runs. (PyTorch saves nothing for a backward if no input and no weight
requires a gradient: docs.pytorch.org/docs/stable/notes/autograd.html, "Setting requires_grad".)

Costs that are stated for a frozen layer and that it does not have count as 0. A stage does not have
the operations that none of its layers runs (`Pipeline.has_operations`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from itertools import takewhile
from typing import Any

from ppopt.errors import ConflictError, InputError
from ppopt.problem.cost_table import COSTS, ZERO, Needs, PairFields, costs_in
from ppopt.problem.field_values import check_count, is_list


def num_forward_only(frozen: Iterable[bool]) -> int:
    """Number of layers, or stages, without a backward: the frozen ones before the first trained."""
    return sum(1 for _ in takewhile(bool, frozen))


def costs_of_frozen(costs: Mapping[str, Any], *, forward_only: bool) -> dict[str, Any]:
    """Changes of the costs of one layer or stage, by field, if it is frozen.

    `forward_only`: all layers before it are frozen, too. The caller then adds the activation to the
    workspace of F.
    """
    lacking = {Needs.BACKWARD, Needs.WEIGHT_GRADIENT} if forward_only else {Needs.WEIGHT_GRADIENT}
    zeros = {cost.field: ZERO for cost in COSTS if cost.needs in lacking and cost.field in costs}
    if forward_only:
        return zeros
    return zeros | {
        "backward": costs["backward_input"],
        "memory_b": -costs["activation"],
        "backward_workspace": costs["input_workspace"],
    }


def read_frozen(raw_value: object, stages: int, chunks: int) -> tuple[bool, ...] | None:
    """Read which stages are frozen: true, false, or a list with one of these per stage; None: none.

    Raises InputError on anything else, ConflictError if chunks cut the shares of devices.
    """
    values: Sequence[object] = raw_value if is_list(raw_value) else [raw_value] * stages  # type: ignore[assignment]
    check_count("frozen", values, stages, "stage", "true, or ")
    for stage, value in enumerate(values):
        if not isinstance(value, bool):
            raise InputError(f"frozen: stage {stage}: {value!r} is not true or false")
    if not any(values):
        return None
    if chunks > 1:
        raise ConflictError(
            "frozen: chunks cut the share of a device into stages that are not next to each other; "
            "give a placement list with one entry per stage, or a model in layers"
        )
    return tuple(map(bool, values))


def with_frozen(costs: Mapping[str, Any], frozen: Sequence[bool]) -> dict[str, Any]:
    """Costs per stage if some stages are frozen; None: the default on every stage.

    A stage that runs no backward is in no pair that saves time.
    """
    if not any(frozen):
        return dict(costs)
    rows: dict[str, Any] = dict(costs)
    common, first = rows["workspace"], num_forward_only(frozen)
    for field in ("forward_workspace", "input_workspace", "backward_workspace"):
        rows[field] = rows[field] or common or (ZERO,) * len(frozen)
    for stage in (stage for stage, is_frozen in enumerate(frozen) if is_frozen):
        own = {field: values[stage] for field, values in rows.items() if values is not None}
        changed = costs_of_frozen(own, forward_only=stage < first)
        if stage >= first:
            changed["backward_workspace"] = min(own["backward_workspace"], own["input_workspace"])
        else:
            changed["forward_workspace"] = own["forward_workspace"] + own["activation"]
        for field, value in changed.items():
            if rows[field] is not None:
                rows[field] = (*rows[field][:stage], value, *rows[field][stage + 1 :])
    pairs = (cost.field for cost in costs_in(PairFields))
    return rows | {field: _pairs(rows[field], rows["forward"], first) for field in pairs}


def _pairs(times: Any, forward: Sequence[Fraction], first: int) -> Any:
    """Times of pairs; with a backward of a stage before `first`, which is nothing: those of F."""
    if times is None:
        return None
    if isinstance(times[0], tuple):
        return tuple((own,) * first + row[first:] for own, row in zip(forward, times, strict=True))
    return (*forward[:first], *times[first:])
