"""Findings that are open: the one list of them, with the item of issue 23 that mends each.

A run reports them like all others; the slice that runs in CI leaves them out. Whoever mends an item
removes its entries.
"""

from __future__ import annotations

from fnmatch import fnmatch

from benchmarks.fuzz.category import Finding

OPEN: dict[tuple[str, str], str] = {
    ("disks", "*-result-lost"): "issue 23, item 1",
    ("disks", "*-healthy-output-missing"): "issue 23, item 1",
    ("disks", "dangling-found-late"): "issue 23, item 1",
    ("killed", "dies-of-int*"): "issue 23, item 2",
    ("killed", "output-missing"): "issue 23, item 2",
    ("killed", "dies-of-term"): "issue 23, item 3",
    ("killed", "dies-of-hup"): "issue 23, item 3",
    ("killed", "exit-4-without-json"): "issue 23, items 2 and 4",
    ("killed", "temporary-*"): "issue 23, item 5",
    ("streams", "exit-1-stderr-*"): "issue 23, item 6",
    ("traps", "many-*"): "issue 23, item 7",
    ("disks", "loop-crash"): "issue 23, item 8",
    ("deadlines", "*"): "issue 23, item 9",
    ("*", "hint-lost"): "issue 23, item 10",
    ("valid", "finer-start-refused"): "issue 23, item 11",
    ("killed", "traceback-after-*"): "issue 23, item 12",
    ("traps", "*"): "issue 23, item 12",
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
