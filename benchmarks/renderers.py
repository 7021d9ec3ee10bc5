"""Pages of one schedule by every side, each telling when it is painted and how to zoom it.

In each page `painted` is the time in ms from the start of navigation until all operations are to
be seen, `ready` that until they answer to the pointer; `zoom()` shows the middle tenth of the time,
resolving with its ms after the frame that shows it.
"""

from __future__ import annotations

import enum
import importlib
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import plotly.graph_objects as go  # type: ignore[import-untyped]

from ppopt import OpKind, Schedule
from ppopt.report.html import page

_FRAMES = """<script>
const frame = (act) => requestAnimationFrame(() => requestAnimationFrame(act));
const done = () => frame(() => {
  globalThis.ready = performance.now();
  globalThis.painted = globalThis.ppopt?.painted || ready;
});
</script>"""
_PLOTLY = """{start}
const plot = document.querySelector(".plotly-graph-div");
done();
globalThis.zoom = () => new Promise((ended) => {{
  const began = performance.now(), end = plot.layout.xaxis.range[1];
  Plotly.relayout(plot, {{"xaxis.range": [0.45 * end, 0.55 * end]}})
    .then(() => frame(() => ended(performance.now() - began)));
}});
"""


def ours(schedule: Schedule) -> str:
    """The page of ppopt."""
    watch = """<script>
(function watch() { ppopt.drawn ? done() : requestAnimationFrame(watch); })();
globalThis.zoom = () => new Promise((ended) => {
  const began = performance.now(), drawn = ppopt.drawn, end = ppopt.last;
  ppopt.show({ from: 0.45 * end, to: 0.55 * end });
  (function watch() {
    if (ppopt.drawn > drawn) frame(() => ended(performance.now() - began));
    else requestAnimationFrame(watch);
  })();
});
</script>"""
    return page([schedule]).replace("</head>", f"{_FRAMES}</head>") + watch


def naive(schedule: Schedule) -> str:
    """A plotly figure with one bar per operation, a trace per kind, as a first version has it."""
    unit = schedule.pipeline.ticks.per_unit
    figure = go.Figure(
        [
            go.Bar(
                name=kind.name,
                orientation="h",
                base=schedule.start[chosen] / unit,
                x=(schedule.end - schedule.start)[chosen] / unit,
                y=schedule.device[chosen],
                customdata=schedule.microbatch[chosen],
                hovertemplate="microbatch %{customdata}",
            )
            for kind in OpKind
            if len(chosen := np.flatnonzero(schedule.kind == kind))
        ],
        {
            "barmode": "overlay",
            "xaxis": {"range": [0, int(schedule.end.max()) / unit]},
            "yaxis": {"autorange": "reversed"},
        },
    )
    return _of_figure(figure)


def _of_figure(figure: go.Figure) -> str:
    text = figure.to_html(include_plotlyjs=True, post_script=_PLOTLY.format(start=""))
    return str(text).replace("<head>", f"<head>{_FRAMES}", 1)


def zeropipe(checkout: Path) -> Callable[[Schedule], str]:
    """The renderer of rosinality/zeropipe: HTML elements, without zoom."""
    sys.path.insert(0, str(checkout / "src"))
    nodes = importlib.import_module("zeropipe.schedules.schedule")
    draw = importlib.import_module("zeropipe.visualize").visualize_schedule

    def render(schedule: Schedule) -> str:
        rows: list[list[object]] = [[] for _ in range(schedule.pipeline.num_devices)]
        for row in schedule.rows():
            node = nodes.ScheduleNode(nodes.FnType[row.kind.name], row.device, row.microbatch)
            node.start_time, node.complete_time = row.start, row.end
            rows[row.device].append(node)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "page.html"
            draw(str(path), rows)
            text = path.read_text(encoding="utf-8")
        return text.replace("<head>", f"<head>{_FRAMES}", 1) + "<script>onload = done</script>"

    return render


class _Type(enum.StrEnum):
    """Its names of the kinds."""

    F = "forward"
    B = "backward_D"
    W = "backward_W"
    BW = "backward"


def visualization(checkout: Path) -> Callable[[Schedule], str]:
    """The renderer of Victarry/PP-Schedule-Visualization: plotly shapes and one trace each.

    Its server, which sends this figure to the browser, is neither installed nor started: dash and
    tqdm are empty modules.
    """
    for name in ("dash", "dash.dependencies", "tqdm"):
        stub = ModuleType(name)
        for attribute in ("dcc", "html", "Input", "Output", "tqdm"):
            setattr(stub, attribute, None)
        sys.modules.setdefault(name, stub)
    sys.path.insert(0, str(checkout))
    draw = importlib.import_module("src.visualizer").create_pipeline_figure

    def render(schedule: Schedule) -> str:
        unit = schedule.pipeline.ticks.per_unit
        tasks: dict[int, list[dict[str, object]]] = {
            device: [] for device in range(schedule.pipeline.num_devices)
        }
        for row in schedule.rows():
            task = {"type": _Type[row.kind.name].value, "batch": row.microbatch + 1}
            times = {"start_time": row.start / unit, "duration": (row.end - row.start) / unit}
            tasks[row.device].append({**task, "stage": row.stage, **times})
        return _of_figure(draw(tasks, show_progress=False))

    return render
