"""The layout of help texts: commands and options in groups, in the order of work.

Typer has such groups (`rich_help_panel`) only with rich, which takes long to load.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

COMMANDS = {
    "Describe a pipeline": ("init", "profile", "models", "strategies", "schema"),
    "Find a schedule": ("solve", "eval", "compare", "frontier", "plan", "order", "app"),
    "Sweeps": ("sweep", "studies"),
    "Schedule files": ("view", "verify", "check", "export", "import", "run"),
}
"""Heading -> its commands, in the order of work; every command is in one group."""


def write_sections(formatter: Any, sections: Mapping[str, list[tuple[str, str]]]) -> None:
    """Write every group that has rows, under its heading."""
    for heading, rows in sections.items():
        if rows:
            with formatter.section(heading):
                formatter.write_dl(rows)
