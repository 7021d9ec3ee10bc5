"""Layouts of the recipes of NVIDIA-NeMo/Megatron-Bridge at 067f987df (Apache-2.0).

All that assign a layout, or choose it by the sizes of the pipeline, in src, scripts and examples. A
name is that of the file, and `(pipeline ranks, virtual stages per rank)` of the table in it.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class RecipeLayout(NamedTuple):
    """A layout as a recipe has it."""

    ranks: int
    chunks: int
    layout: Any
    """Text, or the names of the layers of each stage."""


def _names(*stages: tuple[int, int], mtp: int = 0) -> list[list[str]]:
    """Names per stage, from (number of stages, their decoder layers)."""
    names = [["decoder"] * layers for count, layers in stages for _ in range(count)]
    return [["embedding", *names[0]], *names[1:-1], [*names[-1], *["mtp"] * mtp, "loss"]]


def _even(layers: int, ranks: int, mtp: int) -> list[list[str]]:
    """As deepseek_v4_bridge.py divides layers."""
    each, rest = divmod(layers, ranks)
    return _names(*((1, each + (rank < rest)) for rank in range(ranks)), mtp=mtp)


def _exaone(stages: int) -> list[list[str]]:
    """As exaone_moe.py divides 78 decoder layers and 4 MTP layers."""
    last = max(-(-82 // stages) - 4, 0)
    each, rest = divmod(78 - last, stages - 1)
    return _names(*((1, each + (stage < rest)) for stage in range(stages - 1)), (1, last), mtp=4)


LAYOUTS = {
    "deepseek_v3.py (4, 1)": RecipeLayout(4, 1, _names((3, 16), (1, 13), mtp=1)),
    "deepseek_v3.py (8, 1)": RecipeLayout(8, 1, _names((7, 8), (1, 5), mtp=1)),
    "deepseek_v3.py (4, 2)": RecipeLayout(4, 2, _names((7, 8), (1, 5), mtp=1)),
    "deepseek_v3.py (16, 1)": RecipeLayout(16, 1, _names((15, 4), (1, 1), mtp=1)),
    "deepseek_v3.py (8, 2)": RecipeLayout(8, 2, _names((15, 4), (1, 1), mtp=1)),
    "deepseek_v3.py (4, 4)": RecipeLayout(4, 4, _names((15, 4), (1, 1), mtp=1)),
    "deepseek_v3.py standalone MTP": RecipeLayout(
        16, 1, [*_names((5, 5), (9, 4), (1, 0))[:-1], ["mtp"], ["loss"]]
    ),
    "deepseek_v3.py h100": RecipeLayout(16, 2, "Et|(tt|)*30mL"),
    "deepseek_v3.py gb200": RecipeLayout(4, 4, "Et*4|(tttt|)*14tmL"),
    "deepseek_v4.py gb300": RecipeLayout(4, 4, "Et*4|(t*4|)*14tmL"),
    "deepseek-v4-flash card": RecipeLayout(4, 1, "Et*11|t*11|t*11|t*10mL"),
    "deepseek_v4_bridge.py (43, 8)": RecipeLayout(8, 1, _even(43, 8, 1)),
    "deepseek_v4_bridge.py (61, 16)": RecipeLayout(16, 1, _even(61, 16, 1)),
    "kimi_k2.py (4, 1)": RecipeLayout(4, 1, _names((3, 16), (1, 13))),
    "kimi_k2.py (8, 1)": RecipeLayout(8, 1, _names((7, 8), (1, 5))),
    "kimi_k2.py (4, 2)": RecipeLayout(4, 2, _names((7, 8), (1, 5))),
    "kimi_k2.py (16, 1)": RecipeLayout(16, 1, _names((15, 4), (1, 1))),
    "kimi_k2.py (8, 2)": RecipeLayout(8, 2, _names((15, 4), (1, 1))),
    "kimi_k2.py (4, 4)": RecipeLayout(4, 4, _names((15, 4), (1, 1))),
    "kimi_k2.py (2, 8)": RecipeLayout(2, 8, _names((15, 4), (1, 1))),
    "kimi_k2.py h100": RecipeLayout(16, 2, "Et|(tt|)*30L"),
    "glm_45v.py (4, 1)": RecipeLayout(4, 1, _names((1, 11), (2, 12), (1, 11))),
    "glm_45v.py (8, 1)": RecipeLayout(8, 1, _names((1, 1), (6, 7), (1, 3))),
    "glm_45v.py (8, 1) PEFT": RecipeLayout(8, 1, _names((1, 5), (6, 6), (1, 5))),
    "glm_45v.py (16, 1)": RecipeLayout(16, 1, _names((1, 1), (15, 3))),
    "glm_45v.py (16, 1) PEFT": RecipeLayout(16, 1, _names((1, 2), (14, 3), (1, 2))),
    "moonlight_16b.py (2, 1)": RecipeLayout(2, 1, _names((1, 14), (1, 13))),
    "moonlight_16b.py (4, 1)": RecipeLayout(4, 1, _names((3, 7), (1, 6))),
    "moonlight_16b.py (8, 1)": RecipeLayout(8, 1, _names((7, 4), (1, 3))),
    "moonlight_16b.py (2, 2)": RecipeLayout(2, 2, _names((3, 7), (1, 6))),
    "moonlight_16b.py (4, 2)": RecipeLayout(4, 2, _names((7, 4), (1, 3))),
    "olmoe_7b.py (2, 1)": RecipeLayout(2, 1, _names((2, 8))),
    "olmoe_7b.py (4, 1)": RecipeLayout(4, 1, _names((4, 4))),
    "olmoe_7b.py (2, 2)": RecipeLayout(2, 2, _names((4, 4))),
    "sarvam_provider.py 2": RecipeLayout(2, 1, _names((1, 10), (1, 9))),
    "sarvam_provider.py 4": RecipeLayout(4, 1, _names((3, 5), (1, 4))),
    "sarvam_provider.py 8": RecipeLayout(8, 1, _names((3, 3), (5, 2))),
    "exaone_moe.py (8, 1)": RecipeLayout(8, 1, _exaone(8)),
    "exaone_moe.py (8, 2)": RecipeLayout(8, 2, _exaone(16)),
    "glm5.py h100 (13, 2)": RecipeLayout(
        13,
        2,
        "Et|t||tttt|tttt|tttt|tttt||tttt|tttt|tttt|tttt||tttt|tttt|tttt|tttt||tttt|tttt|"
        "tttt|tttt||tttt|tttt|ttttmL",
    ),
    "glm5.py PP13": RecipeLayout(
        13,
        1,
        "Etttttt|tttt|tttttttt|tttttttt|tttttttt|tttttttt|tttttttt|tttttttt|tttt|tttt|tttt|"
        "tttt|ttttmL",
    ),
    "glm5.py PP19": RecipeLayout(19, 1, f"Etttttt|{'tttt|' * 17}ttttmL"),
    "glm5.py gb200": RecipeLayout(6, 1, "Et*14|t*16|t*12|t*12|t*12|t*12mL"),
    "glm5-2 card": RecipeLayout(11, 1, f"Etttttt|{'tttttttt|' * 8}tttt|ttttmL"),
    "conversion, 4 ranks": RecipeLayout(4, 1, "Et*15|t*15|t*16|t*15L"),
    "llama3.py h100": RecipeLayout(8, 5, "Et*2|(t*2|)*34,t*3|(t*2|)*3,tL"),
    "qwen3_moe.py gb300": RecipeLayout(2, 4, "Et*4|(t*7|)*5t*8|tmL"),
}
