"""What recipes of Megatron-Bridge set and its tables do not say.

CUDA graphs, overlap of exchanges and recomputed modules: src/megatron/bridge/perf_recipes of
NVIDIA-NeMo/Megatron-Bridge, 067f987; of Nemotron 3 Nano on H100 with 8 ranks of experts, aad7d9c.
Recipes of Llama with tensor parallelism set `tp_comm_overlap`. All fuse the loss
(`cross_entropy_loss_fusion` of models/gpt_provider.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from benchmarks.derived_measured.runs import Run
from ppopt.derivation.training import Dispatcher, Overlap

SOURCE = "Megatron-Bridge"
FULL_GRAPHS = "26.06"
"""The container from which Qwen3 in MXFP8 has CUDA graphs of whole iterations, and overlap."""
QWEN3_235B = ("qwen3_235b", "qwen3-235b")
DATA_PARALLEL = (Overlap.GRADIENTS, Overlap.PARAMETERS)
"""`overlap_grad_reduce` and `overlap_param_gather` of `cfg.ddp`, which most recipes set."""


EAGER = {
    "gptoss": ("B200", "GB200 bf16"),
    "deepseek": ("B200", "B300"),
    "kimi": ("B200", "B300"),
    "qwen3235b": ("B200", "B300"),
    "nemotron3super": ("B200 mxfp8",),
}
"""GPUs of Blackwell, perhaps with the precision, whose recipes have no CUDA graphs."""
BY_NCCL = {
    "qwen3235b": ("H100", "B200"),
    "gptoss": ("H100", "B200", "GB200 bf16", "GB300 bf16"),
}
"""GPUs, perhaps with the precision, whose recipes leave `moe_token_dispatcher_type` at alltoall."""
RECOMPUTED = {
    ("gptoss", "layernorm+moe_act"): ("H100", "B200", "GB200 bf16"),
    ("nemotron3nano", "moe+layernorm+core_attn+moe_act"): ("H100",),
    ("nemotron3super", "moe_act+layernorm"): ("B200 mxfp8", "B300 nvfp4"),
    ("deepseek", "mla_up_proj+mlp"): ("H100", "B200 mxfp8"),
    ("deepseek", "mla_up_proj+layernorm+moe_act"): ("B200 nvfp4",),
    ("deepseek", "mla_up_proj"): (
        *("B200 bf16", "B200 fp8", "B300", "GB200 bf16", "GB200 mxfp8", "GB300 fp8"),
        "GB300 nvfp4",
    ),
    ("deepseek", "mlp"): ("GB200 fp8", "GB200 nvfp4"),
    ("deepseek", "moe_act"): ("GB300 bf16",),
    ("kimi", "mla_up_proj+mlp"): ("H100",),
    ("kimi", "mla_up_proj"): ("B200", "B300", "GB200", "GB300"),
}
"""Model and modules -> GPUs, perhaps with the precision, whose recipes recompute them."""


def _is_on(run: Run, machines: Iterable[str]) -> bool:
    """Whether a run has one of these GPUs, and the precision that is named with it."""
    gpu = run.hardware.removeprefix("DGX-")
    kind = "mxfp8" if (run.precision, run.fp8_recipe) == ("fp8", "mxfp8") else run.precision
    return not {gpu, f"{gpu} {kind}"}.isdisjoint(machines)


def _is(run: Run, model: str) -> bool:
    """Whether the name of a run's model begins like this, in letters and digits."""
    return re.sub("[^a-z0-9]", "", run.model.lower()).startswith(model)


def uses_cuda_graphs(run: Run) -> bool:
    """Whether its recipe sets `cuda_graph_impl`, as most on Blackwell do."""
    eager = any(_is(run, model) and _is_on(run, gpus) for model, gpus in EAGER.items())
    return run.source.startswith(SOURCE) and "B" in run.hardware and not eager


def recompute(run: Run) -> str:
    """The modules that a run recomputes, joined by `+`; `none` or `full` where its row says so."""
    if run.full_recompute:
        return "full"
    if not run.source.startswith(SOURCE) or "recompute" in run.row:
        return "none"
    named = (
        modules
        for (model, modules), gpus in RECOMPUTED.items()
        if _is(run, model) and _is_on(run, gpus)
    )
    return next(named, "none")


def overlap(run: Run) -> tuple[Overlap, ...]:
    """The exchanges that overlap with compute: `tp_comm_overlap`, `moe_a2a_overlap`, and `ddp`.

    Recipes with `moe_a2a_overlap` set `delay_wgrad_compute`, too.
    """
    if not run.source.startswith(SOURCE):
        return (Overlap.DISPATCH,) if run.source == "DeepSeek-V3" else ()
    model = run.model.lower()
    shared = (Overlap.PARAMETERS,) if _is_deepseek_on_h100(run) else DATA_PARALLEL
    if model.startswith("llama"):
        return (Overlap.TENSOR, *shared) if run.count("tp") > 1 else shared
    pairs = (Overlap.DISPATCH, Overlap.WEIGHT)
    return (*pairs, *shared) if _overlaps_dispatch(model, run) else shared


def dispatcher(run: Run) -> Dispatcher:
    """HybridEP or DeepEP (`moe_flex_dispatcher_backend`), but for the runs of `BY_NCCL`."""
    by_nccl = any(_is(run, model) and _is_on(run, gpus) for model, gpus in BY_NCCL.items())
    if by_nccl or not run.source.startswith(SOURCE):
        return Dispatcher.ALL_TO_ALL
    return Dispatcher.FLEX


def ends_in_bf16(run: Run) -> tuple[int, int]:
    """Layers at the start and at the end in BF16.

    Nemotron 3 Super has them in NVFP4 (training/mixed_precision.py of src/megatron/bridge).
    """
    return (1, 14) if _is(run, "nemotron3super") and run.precision == "nvfp4" else (0, 0)


def gradient_bytes(run: Run) -> int | None:
    """Bytes of gradients: `grad_reduce_in_fp32` is off (`_benchmark_common`)."""
    return 2 if run.source.startswith(SOURCE) else None


def _is_deepseek_on_h100(run: Run) -> bool:
    """Whether its recipe switches `overlap_grad_reduce` off."""
    return run.model.lower().startswith("deepseek") and "H100" in run.hardware


def _overlaps_dispatch(model: str, run: Run) -> bool:
    """`moe_a2a_overlap` of DeepSeek-V3 and gpt-oss in MXFP8, and of Qwen3 235B on H100.

    Since 55443cb, of June 2026, of Qwen3 in MXFP8 on GB200, GB300 and B300, too.
    """
    if model.startswith(QWEN3_235B) and "H100" in run.hardware:
        return True
    models = ["deepseek", "gpt oss", "gpt-oss", "kimi"]
    if _release(run) >= FULL_GRAPHS:
        models.append("qwen3")
    mxfp8 = run.precision == "fp8" and run.fp8_recipe == "mxfp8"
    return mxfp8 and model.startswith(tuple(models))


def _release(run: Run) -> str:
    """Year and month of the container that a run was measured with; of cards, the last one."""
    container = re.search(r"(\d\d\.\d\d)[.\d]* NeMo Container", str(run.row.get("ref")))
    return container[1] if container else FULL_GRAPHS
