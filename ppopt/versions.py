"""Versions of ppopt and of the packages it uses."""

from __future__ import annotations

import platform
from functools import cache
from importlib import metadata

DISTRIBUTION = "ppopt-pipeline"
"""Name of ppopt in package indexes."""
UNKNOWN = "unknown"


@cache
def version_of(distribution: str) -> str:
    """Version of an installed distribution, or `unknown`, as for ppopt run from its sources.

    Cached: reading it takes longer than searching a tiny pipeline.
    """
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return UNKNOWN


def versions() -> dict[str, str]:
    """Versions that a result depends on."""
    return {
        "ppopt": version_of(DISTRIBUTION),
        "python": platform.python_version(),
        "ortools": version_of("ortools"),
        "numpy": version_of("numpy"),
    }
