"""What recipes of Megatron-Bridge set and its tables do not say.

CUDA graphs and overlap of exchanges: scripts/performance/configs of NVIDIA-NeMo/Megatron-Bridge, in
their versions of 2026. Recipes of Llama with tensor parallelism set `tp_comm_overlap`.
"""

from __future__ import annotations

from benchmarks.derived_measured.runs import Run
from ppopt.derivation.training import Overlap

SOURCE = "Megatron-Bridge"


def uses_cuda_graphs(run: Run) -> bool:
    """Whether it runs on Blackwell, where nearly all recipes set `cuda_graph_impl`."""
    return run.source.startswith(SOURCE) and "B" in run.hardware


def overlap(run: Run) -> tuple[Overlap, ...]:
    """The exchanges that overlap with compute: `tp_comm_overlap` and `moe_a2a_overlap`."""
    if not run.source.startswith(SOURCE):
        return (Overlap.DISPATCH,) if run.source == "DeepSeek-V3" else ()
    model = run.model.lower()
    if model.startswith("llama"):
        return (Overlap.TENSOR,) if run.count("tp") > 1 else ()
    return (Overlap.DISPATCH,) if _overlaps_dispatch(model, run) else ()


def _overlaps_dispatch(model: str, run: Run) -> bool:
    """`moe_a2a_overlap` of DeepSeek-V3 and gpt-oss in MXFP8, and of Qwen3 235B on H100."""
    if model.startswith(("qwen3_235b", "qwen3-235b")):
        return "H100" in run.hardware
    mxfp8 = run.precision == "fp8" and run.fp8_recipe == "mxfp8"
    return mxfp8 and model.startswith(("deepseek", "gpt oss", "gpt-oss", "kimi"))
