"""Where the page may start from: queries that show something, and the models of ppopt."""

from __future__ import annotations

from ppopt.formats.models import model_names

EXAMPLES: dict[str, dict[str, str]] = {
    "four devices, equal times": {"stages": "4", "batches": "8"},
    "within the memory of 1F1B": {
        "stages": "4", "batches": "8", "mem_limit": "1f1b",
        "strategies": "1f1b,zb-h1,zbv,v-half,v-min",
    },
    "slow links": {
        "stages": "4", "batches": "12", "forward_times": "4", "backward_times": "8",
        "p2p_time": "2", "strategies": "1f1b,interleaved,zb-h1,zbv",
    },
    "a slow last stage": {
        "stages": "4", "batches": "8", "forward_times": "2,2,2,3", "backward_times": "4,4,4,6",
        "strategies": "1f1b,zb-1p,zb-h2",
    },
    "pairs of F and a backward": {
        "stages": "8", "batches": "20", "forward_times": "4", "backward_times": "8",
        "overlap_times": "9", "strategies": "dualpipe,dualpipe-v,1f1b-overlap,zbv",
    },
    "transfers one at a time": {
        "stages": "4", "batches": "8", "forward_times": "4", "backward_times": "8",
        "p2p_time": "3", "link_mode": "streams", "strategies": "1f1b,interleaved,zbv",
    },
}  # fmt: skip
"""Name -> query; the page opens with the first."""


def first() -> dict[str, str]:
    """What the page opens with."""
    return next(iter(EXAMPLES.values()))


def examples() -> dict[str, dict[str, str]]:
    """All examples by name, those of models last."""
    return EXAMPLES | {f"model {name}": {"model": name} for name in model_names()}
