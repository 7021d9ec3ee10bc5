"""Memory against step time of the bundled models in layers: recompute of none, of all, and chosen.

    python -m benchmarks.recompute --seconds 10 -o benchmarks/records/DATE-recompute.md

For every model the limits lie evenly between the peak of 1F1B with full recompute and without any,
on the balanced partition. Each search has `--seconds` of the processor on one worker; a dash means
that none of its schedules keeps the limit. Chosen is `--recompute search`: which layers of every
stage recompute is searched with the schedule, with a bound over all choices. It has as much time as
each of the other two and knows nothing of them. A picture beside the record has a
curve for each (time against limit), best step time at the bottom.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import ppopt
from benchmarks.machine import heading
from ppopt import Result
from ppopt.formats.files import write

MODELS = ("llama-3.1-8b", "llama-3.1-8b-128k", "llama-3.1-70b", "internvl2-26b", "deepseek-v3")
CHOICES = ("none", "full", "search")
COLOURS = {"none": "#c0392b", "full": "#2c6fbb", "search": "#1e8449"}
POINTS = 4
COLUMNS = ("model", "limit GiB", "none", "full", "chosen", "layers that recompute", "gap %")
WIDTH, HEIGHT, MARGIN = 260, 180, 34


class Point(NamedTuple):
    """What a model reaches within a limit."""

    model: str
    limit: Fraction
    """In the model's unit, MiB."""
    values: dict[str, Fraction | None]
    """Step time by choice; None: nothing found."""
    counts: tuple[int, ...]
    """Layers that recompute, per stage, where it is chosen."""
    gap: Fraction | None

    @property
    def worse(self) -> bool:
        """Whether chosen is worse than none or full."""
        others = [self.values[name] for name in ("none", "full")]
        least = min((one for one in others if one is not None), default=None)
        chosen = self.values["search"]
        return least is not None and (chosen is None or chosen > least)

    def text(self) -> str:
        """Write the row of the table."""
        values = (self.values[name] for name in CHOICES)
        shown = ["-" if one is None else f"{float(one):.1f}" for one in values]
        gap = "-" if self.gap is None else f"{float(100 * self.gap):.2f}"
        layers = " ".join(map(str, self.counts)) or "-"
        cells = (self.model, f"{float(self.limit) / 1024:.1f}", *shown, layers, gap)
        return f"| {' | '.join(cells)} |"


def limits(model: str) -> list[Fraction]:
    """The limits of a model, ascending."""
    base = replace(ppopt.read_pipeline(model), mem_limit=None)
    peaks = []
    for choice in ("full", "none"):
        schedule = ppopt.evaluate(replace(base, recompute=choice), "1f1b")
        memory = schedule.pipeline.ticks.memory
        peaks.append(max(map(memory, schedule.metrics.peak_memory)))
    low, high = min(peaks), max(peaks)
    return [low + (high - low) * step / (POINTS - 1) for step in range(POINTS)]


def point(model: str, limit: Fraction, seconds: float) -> Point:
    """Search within a limit with every choice."""
    base = replace(ppopt.read_pipeline(model), mem_limit=limit)
    found: dict[str, Result] = {}
    for choice in CHOICES:
        with mock.patch.object(time, "monotonic", time.process_time):
            found[choice] = ppopt.solve(
                replace(base, recompute=choice),
                workers=1,
                time_limit=seconds,
            )
    chosen = found["search"].schedule
    return Point(
        model,
        limit,
        {choice: result.value for choice, result in found.items()},
        () if chosen is None else chosen.pipeline.recomputed,
        found["search"].gap,
    )


def picture(points: Sequence[Point]) -> str:
    """Draw the curves of every model, side by side, as SVG."""
    models = list(dict.fromkeys(one.model for one in points))
    drawn = "".join(
        f'<g transform="translate({at * WIDTH} 0)">{"".join(_curves(model, points))}</g>'
        for at, model in enumerate(models)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH * len(models)}" '
        f'height="{HEIGHT}" font-family="sans-serif" font-size="10">'
        f'<rect width="100%" height="100%" fill="white"/>{drawn}</svg>\n'
    )


def _curves(model: str, points: Sequence[Point]) -> Iterator[str]:
    mine = [one for one in points if one.model == model]
    times = [float(value) for one in mine for value in one.values.values() if value is not None]
    low, high = min(times), max(times)
    first, last = float(mine[0].limit), float(mine[-1].limit)
    across, down = WIDTH - 2 * MARGIN, HEIGHT - 2 * MARGIN

    def place(limit: Fraction, time: Fraction) -> str:
        right = (float(limit) - first) / ((last - first) or 1)
        up = (float(time) - low) / ((high - low) or 1)
        return f"{MARGIN + across * right:.1f},{HEIGHT - MARGIN - down * up:.1f}"

    yield f'<text x="{MARGIN}" y="14">{model}</text>'
    yield f'<text x="{MARGIN}" y="{HEIGHT - 6}">{first / 1024:.0f} to {last / 1024:.0f} GiB</text>'
    yield f'<text x="{MARGIN}" y="26">{low:.0f} to {high:.0f} ms</text>'
    for at, name in enumerate(CHOICES):
        line = [place(one.limit, value) for one in mine if (value := one.values[name]) is not None]
        colour = COLOURS[name]
        style = f'fill="none" stroke="{colour}" stroke-width="2"'
        yield f'<polyline {style} points="{" ".join(line)}"/>'
        for spot in line:
            x, y = spot.split(",")
            yield f'<circle cx="{x}" cy="{y}" r="3" fill="{colour}"/>'
        word = "chosen" if name == "search" else name
        yield f'<text x="{MARGIN + 60 * at + 60}" y="26" fill="{colour}">{word}</text>'


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table as it comes, and write the record with its picture."""
    parser = argparse.ArgumentParser(description="memory against step time with recompute")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each search (default 10)")
    parser.add_argument("--only", action="append", metavar="MODEL", help="such models alone")
    parser.add_argument("-o", "--output", type=Path, help="the record (.md)")
    given = parser.parse_args(arguments)
    head, points = heading("Recompute", "ortools", "numpy"), []
    for model in given.only or MODELS:
        for limit in limits(model):
            points.append(point(model, limit, given.seconds))
            print(points[-1].text(), flush=True)
    worse = sum(one.worse for one in points)
    print(f"chosen is worse: {worse} of {len(points)}")
    if given.output is None:
        return
    drawn = given.output.with_suffix(".svg")
    write(drawn, picture(points))
    lines = (
        head,
        f"\n{(__doc__ or '').strip()}\n\nProcessor seconds of each search: {given.seconds:g}. Step "
        f"time in ms. Chosen is worse than none or full in {worse} of {len(points)} points.\n",
        f"![curves]({drawn.name})\n",
        f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}",
        *(one.text() for one in points),
    )
    write(given.output, "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
