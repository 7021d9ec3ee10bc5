"""How many processors this process may use."""

from __future__ import annotations

import os
import sys


def available() -> int:
    """Processors that the system grants this process; if it does not say, those there are."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
