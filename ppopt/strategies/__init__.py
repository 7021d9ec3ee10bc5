"""Published strategies, such as GPipe, 1F1B and zero bubble: schedules built by a fixed rule.

Each is one file, with one function that builds the orders of a pipeline. Importing this package
registers all of them.
"""

from __future__ import annotations

import sys
from types import ModuleType

from ppopt.strategies.base import (
    OPTIONS,
    Options,
    Strategy,
    canonical_name,
    names,
    registry,
    resolve,
)

__all__ = ["OPTIONS", "Options", "Strategy", "canonical_name", "names", "registry", "resolve"]


class _Package(ModuleType):
    """The package, which can be called: `ppopt.strategies()`."""

    def __call__(self) -> dict[str, str]:
        """Return every strategy by name, sorted: what it is, and its source."""
        return {
            strategy.name: f"{strategy.summary}  [{strategy.source}]"
            for strategy in registry().values()
        }


sys.modules[__name__].__class__ = _Package
