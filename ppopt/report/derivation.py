"""Derived models as tables: the GPUs that are known, and the kernels and collectives of layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any

from ppopt.derivation.derived_model import DerivedModel
from ppopt.derivation.explanation import Item, explain
from ppopt.derivation.gpus import Basis, Gpu, gpus
from ppopt.report.columns import Column, Grid, left
from ppopt.report.module_table import cost_columns
from ppopt.report.numbers import number

GPU_LEGEND = (
    "BF16, FP8, FP4: dense TFLOP/s. Bandwidths: one way. Values measured: of those that no data "
    "sheet has; the others are assumed."
)


def _of_gpus(head: str, name: str, per: float = 1) -> Column[Gpu]:
    """A column of a figure of GPUs; `per`: its unit."""

    def cell(gpu: Gpu) -> str:
        value = getattr(gpu, name)
        return number(value if value is None else value / per)

    return Column(head, cell)


def _measured(gpu: Gpu) -> str:
    """How many values are measured of those that no data sheet has."""
    bases = Counter(origin.basis for origin in gpu.origins.values())
    return f"{bases[Basis.MEASURED]} of {bases.total() - bases[Basis.PUBLISHED]}"


GPU_COLUMNS: tuple[Column[Gpu], ...] = (
    left("GPU", attrgetter("name")),
    _of_gpus("BF16", "bf16", 1e12),
    _of_gpus("FP8", "fp8", 1e12),
    _of_gpus("FP4", "fp4", 1e12),
    _of_gpus("memory\n(GiB)", "memory"),
    _of_gpus("memory\n(TB/s)", "memory_speed", 1e12),
    _of_gpus("GPUs\na node", "gpus_per_node"),
    _of_gpus("NVLink\n(GB/s)", "node_bandwidth", 1e9),
    _of_gpus("network\n(GB/s)", "network_bandwidth", 1e9),
    Column("values\nmeasured", _measured),
)


def gpu_table() -> Grid[Gpu]:
    """Every known GPU, a row each, in the units of data sheets."""
    return Grid(GPU_COLUMNS, gpus().values())


def _of_items(head: str, read: Callable[[Item], float]) -> Column[Item]:
    """A column of a figure of kernels and collectives."""
    return Column(head, lambda item: _figure(read(item)))


ITEM_COLUMNS: tuple[Column[Item], ...] = (
    left("kind", attrgetter("kind")),
    left("part", attrgetter("part")),
    left("kernel or collective", attrgetter("name")),
    left("bound by", attrgetter("bound"), wraps=True),
    _of_items("GFLOP", attrgetter("gflop")),
    _of_items("MB", attrgetter("megabytes")),
    _of_items("ms", attrgetter("milliseconds")),
    Column("share", lambda item: f"{100 * item.share:.1f} %"),
)


def explanation_tables(model: DerivedModel) -> Iterator[tuple[str, Grid[Any]]]:
    """A line and a table for every layer, equal layers once; `share` is that of F and BW.

    A second one has its modules, if it has any.
    """
    items = explain(model)
    for layer in model.layers:
        times = f"F {layer.forward:g}, BW {layer.backward:g}"
        split = f"split: B {layer.input:g}, W {layer.weight:g}"
        exposed = layer.communication.forward + layer.communication.backward
        title = f"{layer.name} x {layer.count}: {times} ms ({split})"
        if exposed:
            share = exposed / (layer.forward + layer.backward)
            title += f"; communication {100 * share:.1f} %"
        yield title, Grid(ITEM_COLUMNS, [item for item in items if item.layer == layer.name])
        if layer.modules:
            yield f"modules of {layer.name}", Grid(cost_columns("ms", "MiB"), layer.modules)


def _figure(value: float) -> str:
    return f"{value:,.3f}" if 0 < value < 1 else f"{value:,.1f}" if value else ""
