"""Pictures of records, as SVG: who proves how many in what time, gaps over time, sizes reached."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from benchmarks.attempt import Attempt

COLOURS = {
    "ppopt": "#0072b2",
    "cp-sat": "#d55e00",
    "cp-sat order": "#56b4e9",
    "milp": "#009e73",
    "z3": "#cc79a7",
    "pyjobshop": "#e69f00",
}
"""Okabe and Ito's palette, told apart by the colour-blind too."""
FASTEST = 0.01
"""Seconds at the left edge of every picture."""
FREE = "upper left"
"""Corner that no curve which grows reaches; matplotlib's own choice depends on all points, and it
warns where that takes long."""
PANELS = 6


def sides_of(attempts: Sequence[Attempt]) -> list[str]:
    """Sides in the order in which they are listed everywhere."""
    present = {one.side for one in attempts}
    return [side for side in COLOURS if side in present]


def proved(attempts: Sequence[Attempt], path: Path) -> None:
    """Instances proved within a time, per side."""
    figure, axes = _axes("seconds", "instances proved")
    limit = attempts[0].seconds_limit
    for side in sides_of(attempts):
        times = sorted(one.seconds for one in attempts if one.side == side and one.proved)
        stairs = [max(time, FASTEST) for time in times]
        counts = list(range(1, len(stairs) + 1))
        axes.step(
            [FASTEST, *stairs, limit],
            [0, *counts, len(counts)],
            where="post",
            label=side,
            color=COLOURS[side],
        )
    axes.set_xscale("log")
    axes.set_xlim(FASTEST, limit)
    axes.legend(loc=FREE, frameon=False)
    _write(figure, path)


def gaps(attempts: Sequence[Attempt], path: Path) -> list[str]:
    """Gap over time of every side, on instances taken evenly from those hard for some side."""
    names = list(dict.fromkeys(one.instance for one in attempts if not one.proved))
    chosen = names[:: max(1, -(-len(names) // PANELS))]
    figure = Figure(figsize=(9.6, 2.6 * -(-len(chosen) // 3)), layout="constrained")
    for place, name in enumerate(chosen):
        axes = figure.add_subplot(-(-len(chosen) // 3), 3, place + 1)
        _gap_panel(axes, [one for one in attempts if one.instance == name], name)
    if chosen:
        figure.axes[0].legend(loc="lower left", frameon=False, fontsize=7)
        figure.supxlabel("seconds", fontsize=8)
        figure.supylabel("gap", fontsize=8)
        _write(figure, path)
    return chosen


def _gap_panel(axes: Any, attempts: Sequence[Attempt], name: str) -> None:
    for side in sides_of(attempts):
        one = next(one for one in attempts if one.side == side)
        times = [max(seconds, FASTEST) for seconds, _, _ in one.trace]
        heights = [100.0 if not v else 100 * (v - low) / v for _, v, low in one.trace]
        axes.step(
            [FASTEST, *times, max(one.seconds, FASTEST)],
            [100.0, *heights, heights[-1] if heights else 100.0],
            where="post",
            label=side,
            color=COLOURS[side],
        )
    axes.set_xscale("log")
    axes.set_xlim(FASTEST, attempts[0].seconds_limit)
    axes.set_yscale("symlog", linthresh=1)
    axes.set_ylim(0, 110)
    axes.set_yticks([0, 1, 10, 100], ["0", "1", "10", "100 %"])
    axes.set_title(name, fontsize=8)
    axes.tick_params(labelsize=7)


def ladder(attempts: Sequence[Attempt], path: Path) -> None:
    """Seconds to proof over the size of the pipeline; a cross where a side did not prove."""
    figure, axes = _axes("operations (3 x devices x microbatches)", "seconds to proof")
    for side in sides_of(attempts):
        mine = [one for one in attempts if one.side == side]
        done = [(one.operations, max(one.seconds, FASTEST)) for one in mine if one.proved]
        axes.plot(*zip(*done, strict=True), marker="o", ms=3, label=side, color=COLOURS[side])
        for one in mine:
            if not one.proved:
                axes.plot(one.operations, one.seconds_limit, "x", color=COLOURS[side])
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.legend(loc=FREE, frameon=False)
    _write(figure, path)


def _axes(across: str, up: str) -> tuple[Figure, Any]:
    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    axes = figure.add_subplot()
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    return figure, axes


def _write(figure: Figure, path: Path) -> None:
    """Write the same bytes for the same figures; text stays text."""
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(visible=True, color="#dddddd", linewidth=0.5)
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "ppopt"}):
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
