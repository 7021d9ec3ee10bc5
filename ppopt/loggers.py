"""Loggers below `ppopt`, which is silent until logging is asked for."""

from __future__ import annotations

import logging

logging.getLogger("ppopt").addHandler(logging.NullHandler())


def logger(name: str) -> logging.Logger:
    """The logger of a module of this package, by its `__name__`."""
    return logging.getLogger(name)
