"""Circumstances of a run that no derived cost knows: reasons for errors."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.derived_measured.runs import (
    BIGSCIENCE,
    LLAMA_3,
    SC21,
    Run,
)
from ppopt.derivation.architecture import Architecture, Experts
from ppopt.derivation.attention import GroupedQueryAttention


def remarks(run: Run, architecture: Architecture) -> Iterator[str]:
    """What is particular about a run."""
    yield from _kernels(run, architecture)
    if "deterministic" in run.note:
        yield "deterministic mode: slower kernels"
    if run.precision == "fp8":
        yield "FP8: casts and scales"
    if "recompute" not in run.row:
        yield "recompute not published"
    if run.source in (LLAMA_3, SC21):
        yield "chunks not published"
    if str(run.row.get("recompute") or "").startswith("selective"):
        yield "selective recompute"
    if isinstance(architecture.last.feed_forward, Experts):
        yield "mixture of experts"


def _kernels(run: Run, architecture: Architecture) -> Iterator[str]:
    attention = architecture.last.attention
    if not isinstance(attention, GroupedQueryAttention):
        return
    heads, tensor = attention.heads, run.count("tp")
    if attention.width % 8:
        yield f"heads {attention.width} wide, not a multiple of 8: slow products"
    if run.source == BIGSCIENCE and heads // tensor * run.microbatch % 4:
        yield "no fused softmax: heads / tensor x microbatch is not a multiple of 4"
    if (architecture.hidden // tensor) % 64:
        yield f"{architecture.hidden // tensor} columns a rank, not a multiple of 64"
