"""What a split backward runs on the first stage.

The inputs of the first stage need no gradient. PyTorch's runtime then does nothing in B and runs
the whole backward in W, unless the stage has a `dw_builder` (torch 2.13, `backward_one_chunk` and
`backward_weight_one_chunk` of `PipelineStage`, torch/distributed/pipelining/stage.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any

from ppopt.errors import ConflictError, InputError
from ppopt.problem.named_enum import NamedEnum

Costs = tuple[Fraction, ...]


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


def in_weight(costs: Mapping[str, Costs | None]) -> dict[str, Any]:
    """Costs per stage in which W of stage 0 runs the whole backward, recompute included.

    B of stage 0 has no time and no workspace. If layers recompute one at a time, B allocates
    nothing, and W allocates what BW would; otherwise B allocates what F did not keep. `costs` has
    the fields of `ppopt.problem.costs.StageCosts`; None: 0 on every stage. Times of pairs, if there
    are any, are matrices: F with that B has the time of F.
    """
    changed: dict[str, Any] = dict(costs)
    nothing = (Fraction(0),) * len(changed["forward"])
    recompute_time = changed["recompute_time"] or nothing
    if changed["overlap"] is not None:
        changed["overlap"] = tuple(
            (row[0] + recompute_time[0], *row[1:]) for row in changed["overlap"]
        )
        rows = zip(changed["overlap_input"], changed["forward"], strict=True)
        changed["overlap_input"] = tuple((forward, *row[1:]) for row, forward in rows)
    whole = changed["backward"][0] + recompute_time[0]
    for field in ("backward", "weight"):
        changed[field] = (whole, *changed[field][1:])
    for field in ("backward_input", "memory_b", "recompute_time", "input_workspace"):
        if changed[field] is not None:
            changed[field] = (Fraction(0), *changed[field][1:])
    allocated = (changed["backward_workspace"] or nothing)[0]
    if changed["recompute_memory"] is not None:
        changed["activation"] = (changed["kept"][0], *changed["activation"][1:])
        allocated += changed["recompute_memory"][0]
    workspace = (allocated, *(changed["weight_workspace"] or nothing)[1:])
    changed["weight_workspace"] = workspace if any(workspace) else None
    return changed
