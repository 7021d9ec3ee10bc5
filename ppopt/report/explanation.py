"""The kernels and collectives of derived layers as a table."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.table import Table
from rich.text import Text

from ppopt.derivation.derived_model import DerivedModel
from ppopt.derivation.explanation import Item, explain

BOUND = "bound by"
HEADS = ("kind", "part", "kernel or collective", BOUND, "GFLOP", "MB", "ms", "share")
WORDS = 4
"""Columns of words; the others are figures."""


def explanation_tables(model: DerivedModel) -> Iterator[tuple[str, Table]]:
    """A line and a table for every layer, equal layers once; `share` is that of F and BW."""
    items = explain(model)
    for layer in model.layers:
        times = f"F {layer.forward:g}, BW {layer.backward:g}"
        split = f"split: B {layer.input:g}, W {layer.weight:g}"
        exposed = layer.communication.forward + layer.communication.backward
        title = f"{layer.name} x {layer.count}: {times} ms ({split})"
        if exposed:
            share = exposed / (layer.forward + layer.backward)
            title += f"; communication {100 * share:.1f} %"
        yield title, _table([item for item in items if item.layer == layer.name])


def _table(items: list[Item]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 0), show_edge=False, header_style="bold")
    for index, head in enumerate(HEADS):
        words = index < WORDS
        table.add_column(head, justify="left" if words else "right", no_wrap=head != BOUND)
    for item in items:
        figures = (item.gflop, item.megabytes, item.milliseconds)
        row = (item.kind, item.part, item.name, item.bound, *map(_figure, figures))
        table.add_row(*map(Text, (*row, f"{100 * item.share:.1f} %")))
    return table


def _figure(value: float) -> str:
    return f"{value:,.3f}" if 0 < value < 1 else f"{value:,.1f}" if value else ""
