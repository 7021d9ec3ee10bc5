"""First paint and zoom of the page in Chromium, against a naive plotly figure.

In each page `painted` is the time in ms from the start of navigation until all operations are to
be seen, `ready` that until they answer to the pointer; `zoom()` shows the middle tenth of the time,
resolving with its ms after the frame that shows it.

Every run starts a browser of its own, so that nothing is cached, and the sides run in turn. A side
that takes longer than `--patience` seconds, drawing in Python included, is not run again. Processor
time (Linux), of all processes of the browser from the start of navigation, hardly depends on what
else the machine does; time on the clock does.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import plotly.graph_objects as go  # type: ignore[import-untyped]
from selenium.common.exceptions import TimeoutException, WebDriverException
from selenium.webdriver import Chrome, ChromeOptions, ChromeService

from benchmarks.record import heading, table
from ppopt import OpKind, Pipeline, Schedule, evaluate
from ppopt.report.html import page

SIZES = ((16, 125), (32, 260), (64, 521))
"""Devices and microbatches, three operations each: 6,000, 24,960 and 100,032."""
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
Render = Callable[[Schedule], str]
_FRAMES = """<script>
const frame = (act) => requestAnimationFrame(() => requestAnimationFrame(act));
const done = () => frame(() => {
  globalThis.ready = performance.now();
  globalThis.painted = globalThis.ppopt?.painted || ready;
});
</script>"""
_PLOTLY = """
const plot = document.querySelector(".plotly-graph-div");
done();
globalThis.zoom = () => new Promise((ended) => {
  const began = performance.now(), end = plot.layout.xaxis.range[1];
  Plotly.relayout(plot, {"xaxis.range": [0.45 * end, 0.55 * end]})
    .then(() => frame(() => ended(performance.now() - began)));
});
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
    text = figure.to_html(include_plotlyjs=True, post_script=_PLOTLY)
    return str(text).replace("<head>", f"<head>{_FRAMES}", 1)


SIDES: dict[str, Render] = {"ppopt": ours, "naive plotly": naive}


def written(render: Render, schedule: Schedule, path: Path, patience: float) -> float | None:
    """Seconds that a side takes to write its page; None beyond the patience."""
    began = time.perf_counter()
    worker = multiprocessing.get_context("fork").Process(
        target=lambda: path.write_text(render(schedule), encoding="utf-8")
    )
    worker.start()
    worker.join(patience)
    if worker.is_alive():
        worker.kill()
        return None
    assert worker.exitcode == 0, "the side failed"
    return time.perf_counter() - began


class PageLoad(NamedTuple):
    """One run of a page in a browser."""

    painted: float
    """Seconds to the first paint: all operations are to be seen."""
    ready: float
    """Seconds until they answer to the pointer."""
    processor: float
    """Processor time until then, in seconds, of all processes of the browser."""
    zoom: float | None
    """Seconds of a zoom; None if there is none."""


def load_page(path: Path, patience: float) -> PageLoad | None:
    """Open a page in a new browser; None beyond the patience."""
    with tempfile.TemporaryDirectory() as profile:
        options = ChromeOptions()
        options.binary_location = shutil.which("chromium") or ""
        options.page_load_strategy = "none"
        for flag in (*FLAGS, "--window-size=1400,1000", f"--user-data-dir={profile}"):
            options.add_argument(flag)
        driver = Chrome(options=options, service=ChromeService(shutil.which("chromedriver")))
        driver.set_script_timeout(patience)
        try:
            return _measured(driver, path, patience, profile)
        except (TimeoutException, WebDriverException):
            return None
        finally:
            driver.quit()


def _measured(driver: Chrome, path: Path, patience: float, profile: str) -> PageLoad | None:
    before = _processor_time(profile)
    driver.get(path.as_uri())
    end = time.monotonic() + patience
    while not (times := driver.execute_script("return globalThis.ready && [painted, ready]")):
        if time.monotonic() > end:
            return None
        time.sleep(0.1)
    processor = _processor_time(profile) - before
    zoom = driver.execute_async_script(
        "const end = arguments[0]; globalThis.zoom ? zoom().then(end) : end(null)"
    )
    painted, ready = (ms / 1000 for ms in times)
    return PageLoad(painted, ready, processor, None if zoom is None else zoom / 1000)


def _processor_time(profile: str) -> float:
    """Seconds of processor time of the processes that hold a word in their command line."""
    ticks = 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if profile.encode() in (process / "cmdline").read_bytes():
                fields = (process / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
                ticks += int(fields[11]) + int(fields[12])
        except OSError:
            continue
    return ticks / os.sysconf("SC_CLK_TCK")


def measure(repeats: int, patience: float) -> list[dict[str, Any]]:
    """Runs of every size and side in turn."""
    rows = []
    for devices, batches in SIZES:
        schedule = evaluate(Pipeline(stages=devices, batches=batches, p2p=0.25), "zb-h1")
        runs: dict[str, list[PageLoad]] = {name: [] for name in SIDES}
        with tempfile.TemporaryDirectory() as folder:
            paths = {name: Path(folder) / f"{index}.html" for index, name in enumerate(SIDES)}
            write_seconds = {
                name: written(render, schedule, paths[name], patience)
                for name, render in SIDES.items()
            }
            late = {name for name, seconds in write_seconds.items() if seconds is None}
            for _ in range(repeats):
                for name in SIDES:
                    load = None if name in late else load_page(paths[name], patience)
                    if load is None:
                        late.add(name)
                    else:
                        runs[name].append(load)
        rows += [
            {
                "operations": len(schedule),
                "side": name,
                "written": write_seconds[name],
                "runs": runs[name],
            }
            for name in SIDES
        ]
        print(f"done: {len(schedule)} operations", flush=True)
    return rows


HEAD = (
    *("operations", "side", "written, s", "first paint, s", "answers, s", "processor, s"),
    *("zoom, s", "first paint / ours", "answers / ours"),
)


def record(rows: list[dict[str, Any]], patience: float) -> Iterator[str]:
    """The table of the record."""
    first = {row["operations"]: row["runs"] for row in reversed(rows)}
    late = f"over {patience:g}"
    return table(HEAD, (_cells(row, first[row["operations"]], late) for row in rows))


def _cells(row: dict[str, Any], ours: list[PageLoad], late: str) -> list[str]:
    runs: list[PageLoad] = row["runs"]
    written = late if row["written"] is None else f"{row['written']:.2f}"
    cells = [f"{row['operations']:,}", row["side"], written]
    if not runs:
        return [*cells, late, "", "", "", "", ""]
    paint = [run.painted for run in runs]
    zoom = [run.zoom for run in runs if run.zoom is not None]
    pairs = list(zip(runs, ours, strict=False))
    return [
        *cells,
        f"{median(paint):.2f} ({min(paint):.2f})",
        f"{median(run.ready for run in runs):.2f}",
        f"{median(run.processor for run in runs):.2f}",
        f"{median(zoom):.2f}" if zoom else "none",
        f"{median(theirs.painted / own.painted for theirs, own in pairs):.1f}",
        f"{median(theirs.ready / own.ready for theirs, own in pairs):.1f}",
    ]


def main() -> None:
    """Print the record."""
    parser = argparse.ArgumentParser(description="first paint and zoom of the page")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each (default 3)")
    parser.add_argument("--patience", type=float, default=120, help="seconds (default 120)")
    arguments = parser.parse_args()
    head = heading("First paint and zoom of a page", "plotly", "selenium")
    rows = measure(arguments.repeats, arguments.patience)
    print(head)
    print(
        f"\nMedians of {arguments.repeats} runs in turn, smallest in brackets; zb-h1, p2p 0.25.\n"
    )
    print(*record(rows, arguments.patience), sep="\n")


if __name__ == "__main__":
    main()
