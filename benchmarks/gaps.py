"""A picture of the gaps of open instances in two records of the suite.

python -m benchmarks.gaps BEFORE.jsonl AFTER.jsonl -o benchmarks/records/DATE.svg
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

from benchmarks.attempt import read

LEFT, WIDTH, ROW, PAD = 170, 560, 30, 34
"""Pixels: the margin for names of groups, the axis, a group, and the margins above and below."""


class Change(NamedTuple):
    """Gaps of an instance in both records, in percent."""

    group: str
    before: float
    after: float


def main() -> None:
    """Draw the instances of both records that are open in one of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    arguments = parser.parse_args()
    paths = (arguments.before, arguments.after)
    before, after = ({row.instance: row for row in read(path)[1]} for path in paths)
    changes = [
        Change(row.group, 100 * (before[name].gap or 0), 100 * (row.gap or 0))
        for name, row in after.items()
        if name in before
    ]
    picture = "\n".join(draw([change for change in changes if change.before or change.after]))
    arguments.output.write_text(f"{picture}\n", encoding="utf-8")


def draw(changes: Sequence[Change]) -> Iterator[str]:
    """Lines of an SVG: a row per group, with a mark per instance and record."""
    groups = list(dict.fromkeys(change.group for change in changes))
    max_gap = max(max(change.before, change.after) for change in changes)
    scale, height = WIDTH / max_gap, ROW * len(groups) + 2 * PAD
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + PAD}" height="{height}"'
        ' font-family="sans-serif" font-size="12">'
    )
    yield '<rect width="100%" height="100%" fill="white"/>'
    yield (
        f'<text x="{LEFT}" y="18">gap of every open instance in %: ring before, dot after</text>'
    )
    for tick in range(int(max_gap) + 1):
        x = LEFT + tick * scale
        yield f'<path d="M{x:.1f} {PAD}V{height - PAD}" stroke="#ddd"/>'
        yield f'<text x="{x:.1f}" y="{height - 14}" text-anchor="middle">{tick}</text>'
    for row, group in enumerate(groups):
        y = PAD + ROW * (row + 0.5)
        yield f'<text x="8" y="{y + 4:.1f}">{escape(group)}</text>'
        for change in changes:
            if change.group == group:
                before, after = LEFT + change.before * scale, LEFT + change.after * scale
                yield (
                    f'<circle cx="{before:.1f}" cy="{y - 6:.1f}" r="4" fill="none" stroke="#b33"/>'
                    f'<circle cx="{after:.1f}" cy="{y + 6:.1f}" r="4" fill="#27a" opacity="0.7"/>'
                )
    yield "</svg>"


if __name__ == "__main__":
    main()
