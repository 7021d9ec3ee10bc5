"""What a split backward runs on the first stage.

The inputs of the first stage need no gradient. PyTorch's runtime then does nothing in B and runs
the whole backward in W, unless the stage has a `dw_builder` (torch 2.13, `backward_one_chunk` and
`backward_weight_one_chunk` of `PipelineStage`, torch/distributed/pipelining/stage.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ppopt.errors import ConflictError, InputError
from ppopt.problem.named_enum import NamedEnum


class FirstBackward(NamedEnum):
    """What B and W of the first stage run."""

    SPLIT = "split"
    """B and W, as on every stage."""
    WEIGHT = "weight"
    """B nothing, W the whole backward."""

    def check(self, model: object, routes: int, searched: Iterable[str]) -> None:
        """Raise InputError if the setting does not apply to a pipeline.

        `searched` names what is chosen with the schedule: partition, recompute.
        """
        if self is FirstBackward.SPLIT:
            return
        if model is None:
            raise InputError(
                "first_backward: goes with a model in layers; of stages, give stage 0 B = 0 and W "
                "the whole backward"
            )
        if routes == 2:
            raise ConflictError("first_backward: it is PyTorch's, which has no two routes")
        for what in searched:
            raise ConflictError(
                f"first_backward: a search of {what} does not know it; give the {what} that it "
                "finds without, then solve again"
            )


def in_weight(costs: Mapping[str, Any], *, layer_by_layer: bool) -> dict[str, Any]:
    """Costs of stages, lists or arrays by field, if W of stage 0 runs its whole backward.

    B of stage 0 has no time and no workspace. If layers recompute one at a time, B allocates
    nothing, and W allocates what BW would; otherwise B allocates what F did not keep.
    """
    changed = {field: row.copy() for field, row in costs.items()}
    first = {field: row[0] for field, row in costs.items()}
    changed["backward"][0] = changed["weight"][0] = first["backward"] + first["recompute_time"]
    for field in ("backward_input", "memory_b", "recompute_time", "input_workspace"):
        changed[field][0] = 0
    allocated = first["backward_workspace"]
    if layer_by_layer:
        changed["activation"][0] = first["kept"]
        allocated = allocated + first["recompute_memory"]
    changed["weight_workspace"][0] = allocated
    return changed
