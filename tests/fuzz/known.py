"""Findings that are open: the one list of them, with the reason why each is open.

A run reports them like all others; the slice that runs in CI leaves them out. Whoever mends one
removes its entry.
"""

from __future__ import annotations

from fnmatch import fnmatch

from tests.fuzz.category import Finding

OPEN: dict[tuple[str, str], str] = {}
"""Category and kind (`*` stands for any words) -> the reason; the first that fits counts."""


def reason(category: str, finding: Finding) -> str | None:
    """Why a finding is open; None if it is not known."""
    found = (
        why
        for (name, kind), why in OPEN.items()
        if fnmatch(category, name) and fnmatch(finding.kind, kind)
    )
    return next(found, None)
