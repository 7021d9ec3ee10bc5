"""Versions of ppopt and of the packages it uses."""

from __future__ import annotations

import platform
from functools import cache
from importlib import metadata

DISTRIBUTION = "ppopt-pipeline"
"""Name of ppopt in package indexes."""
SEARCH_VERSION = 2
"""Version of the meaning of stored results. Only results of this version are reused.

Raise it if a stored result may be wrong, or is of another problem than the same key today. So it is
if a bound or a proof was wrong, or if a rule or a cost has another meaning. It is, too, if a
strategy has another schedule, or a plan of a combination other candidates. Better schedules of a
search need no new version: a longer time limit continues from the stored ones. `python -m
tests.studies.search_version` records the answers of this version, and a test compares them.
"""
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


def version() -> str:
    """Version of ppopt with that of its search, as in `0.1.0+1`."""
    return f"{version_of(DISTRIBUTION)}+{SEARCH_VERSION}"


def versions() -> dict[str, str]:
    """Versions that a result depends on."""
    return {
        "ppopt": version_of(DISTRIBUTION),
        "python": platform.python_version(),
        "ortools": version_of("ortools"),
        "numpy": version_of("numpy"),
    }
