"""What recipes of Megatron-Bridge set and its tables do not say.

CUDA graphs and overlap of exchanges: scripts/performance/configs of NVIDIA-NeMo/Megatron-Bridge, in
their versions of 2026. Recipes of Llama with tensor parallelism set `tp_comm_overlap`.
"""

from __future__ import annotations

from benchmarks.derived_measured.runs import Run
from ppopt.derivation.training import Dispatcher, Overlap

SOURCE = "Megatron-Bridge"
QWEN3_235B = ("qwen3_235b", "qwen3-235b")
DATA_PARALLEL = (Overlap.GRADIENTS, Overlap.PARAMETERS)
"""`overlap_grad_reduce` and `overlap_param_gather` of `cfg.ddp`, which most recipes set."""


def uses_cuda_graphs(run: Run) -> bool:
    """Whether it runs on Blackwell, where nearly all recipes set `cuda_graph_impl`."""
    return run.source.startswith(SOURCE) and "B" in run.hardware


def overlap(run: Run) -> tuple[Overlap, ...]:
    """The exchanges that overlap with compute: `tp_comm_overlap`, `moe_a2a_overlap`, and `ddp`."""
    if not run.source.startswith(SOURCE):
        return (Overlap.DISPATCH,) if run.source == "DeepSeek-V3" else ()
    model = run.model.lower()
    shared = (Overlap.PARAMETERS,) if _is_deepseek_on_h100(run) else DATA_PARALLEL
    if model.startswith("llama"):
        return (Overlap.TENSOR, *shared) if run.count("tp") > 1 else shared
    return (Overlap.DISPATCH, *shared) if _overlaps_dispatch(model, run) else shared


def dispatcher(run: Run) -> Dispatcher:
    """HybridEP or DeepEP, but for Qwen3 235B on H100 (`moe_flex_dispatcher_backend`)."""
    if not run.source.startswith(SOURCE):
        return Dispatcher.ALL_TO_ALL
    alone = run.model.lower().startswith(QWEN3_235B) and "H100" in run.hardware
    return Dispatcher.ALL_TO_ALL if alone else Dispatcher.FLEX


def gradient_bytes(run: Run) -> int | None:
    """Bytes of gradients: `grad_reduce_in_fp32` is off (`_benchmark_common`)."""
    return 2 if run.source.startswith(SOURCE) else None


def _is_deepseek_on_h100(run: Run) -> bool:
    """Whether its recipe switches `overlap_grad_reduce` off."""
    return run.model.lower().startswith("deepseek") and "H100" in run.hardware


def _overlaps_dispatch(model: str, run: Run) -> bool:
    """`moe_a2a_overlap` of DeepSeek-V3 and gpt-oss in MXFP8, and of Qwen3 235B on H100."""
    if model.startswith(QWEN3_235B):
        return "H100" in run.hardware
    mxfp8 = run.precision == "fp8" and run.fp8_recipe == "mxfp8"
    return mxfp8 and model.startswith(("deepseek", "gpt oss", "gpt-oss", "kimi"))
