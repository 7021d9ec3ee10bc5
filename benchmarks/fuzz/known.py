"""Findings that are open: the one list of them, with the item of issue 23 that mends each.

A run reports them like all others; the slice that runs in CI leaves them out. Whoever mends an item
removes its entries.
"""

from __future__ import annotations

from fnmatch import fnmatch

from benchmarks.fuzz.category import Finding

OPEN: dict[tuple[str, str], str] = {
    ("traps", "many-*"): "issue 23, item 7",
    ("valid", "finer-start-refused"): "issue 23, item 11",
    ("*", "no-proof"): "not in issue 23: times of many ticks in common, bounds rise tick by tick",
}
"""Category and kind (`*` stands for any words) -> the item; the first that fits counts."""


def item(category: str, finding: Finding) -> str | None:
    """The item that mends a finding; None where it is not known."""
    found = (
        item
        for (name, kind), item in OPEN.items()
        if fnmatch(category, name) and fnmatch(finding.kind, kind)
    )
    return next(found, None)
