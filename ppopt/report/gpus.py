"""The GPUs that ppopt knows, side by side."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from rich import box
from rich.table import Table
from rich.text import Text

from ppopt.derivation.gpus import Basis, Gpu, gpus
from ppopt.report.numbers import number


class GpuRow(NamedTuple):
    """A GPU in the units of data sheets: TFLOP/s, GiB, TB/s, and GB/s one way."""

    name: str
    bf16: float
    fp8: float | None
    fp4: float | None
    memory: float
    memory_speed: float
    gpus_per_node: int
    node_bandwidth: float
    network_bandwidth: float
    measured: int
    """Values that are measured on this GPU."""
    unpublished: int
    """Values that no data sheet has: they are measured, assumed or given."""


HEADS = (
    *("GPU", "BF16", "FP8", "FP4", "memory\n(GiB)", "memory\n(TB/s)", "GPUs\na node"),
    *("NVLink\n(GB/s)", "network\n(GB/s)", "values\nmeasured"),
)
LEGEND = (
    "BF16, FP8, FP4: dense TFLOP/s. Bandwidths: one way. Values measured: of those that no data "
    "sheet has; the others are assumed."
)


def gpu_rows() -> list[GpuRow]:
    """Every known GPU."""
    return [_row(gpu) for gpu in gpus().values()]


def gpu_table() -> Table:
    """Every known GPU, a row each."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 0), show_edge=False, header_style="bold")
    for head in HEADS:
        table.add_column(head, justify="left" if head == HEADS[0] else "right", no_wrap=True)
    for row in gpu_rows():
        name, *figures, measured, unpublished = row
        table.add_row(*map(Text, (name, *map(number, figures), f"{measured} of {unpublished}")))
    return table


def _row(gpu: Gpu) -> GpuRow:
    bases = Counter(origin.basis for origin in gpu.origins.values())
    return GpuRow(
        name=gpu.name,
        bf16=gpu.bf16 / 1e12,
        fp8=None if gpu.fp8 is None else gpu.fp8 / 1e12,
        fp4=None if gpu.fp4 is None else gpu.fp4 / 1e12,
        memory=gpu.memory,
        memory_speed=gpu.memory_speed / 1e12,
        gpus_per_node=gpu.gpus_per_node,
        node_bandwidth=gpu.node_bandwidth / 1e9,
        network_bandwidth=gpu.network_bandwidth / 1e9,
        measured=bases[Basis.MEASURED],
        unpublished=bases.total() - bases[Basis.PUBLISHED],
    )
