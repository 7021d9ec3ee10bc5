"""Memory of a whole backward (BW) of a stage whose layers recompute and run one at a time.

Trainers checkpoint layer by layer (`CheckpointFunction.backward` of PyTorch's
torch/utils/checkpoint.py; Megatron-LM's uniform method of one layer). The backward runs the layers
last to first. While layer l runs, three amounts are live: what F retains of the layers before it,
its whole activation, and its workspace. Layers after it are freed. With retained_k for what F
retains of layer k, the peak of one microbatch in BW is

    max(sum of retained_k over all k, max over l of (sum of retained_k over k < l + activation_l
                                                     + workspace_l)).

BW allocates this peak minus what F retains at its start, and frees both at its end.
"""

from __future__ import annotations

from ppopt.problem.named_enum import NamedEnum


class RecomputeUnit(NamedEnum):
    """The unit that a whole backward recomputes at once."""

    LAYER = "layer"
    """One layer; each is freed when its backward ends."""
    STAGE = "stage"
    """All layers of the stage; they are freed together when BW ends."""
