"""The layout of help texts: commands and options in groups, in the order of work.

Typer has such groups (`rich_help_panel`) only with rich, which takes long to load.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

COMMANDS = {
    "Describe a pipeline": ("init", "profile", "models", "strategies", "schema"),
    "Find a schedule": ("solve", "eval", "compare", "frontier", "plan", "order", "app"),
    "Sweeps": ("sweep", "studies"),
    "Schedule files": ("view", "verify", "check", "export", "import", "run"),
}
"""Heading -> its commands, in the order of work."""
_OTHERS = "Further commands"


def in_order_of_work(names: Iterable[str]) -> list[str]:
    """Sort the names of commands; those of no group come last."""
    order = [name for group in COMMANDS.values() for name in group]
    return sorted(names, key=lambda name: order.index(name) if name in order else len(order))


def by_heading(rows: Iterable[tuple[str, str]]) -> dict[str, list[tuple[str, str]]]:
    """Sort rows of commands into their groups."""
    heading = {name: group for group, names in COMMANDS.items() for name in names}
    found: dict[str, list[tuple[str, str]]] = {group: [] for group in (*COMMANDS, _OTHERS)}
    for name, words in rows:
        found[heading.get(name, _OTHERS)].append((name, words))
    return found


def write_sections(formatter: Any, sections: Mapping[str, list[tuple[str, str]]]) -> None:
    """Write every group that has rows, under its heading."""
    for heading, rows in sections.items():
        if rows:
            with formatter.section(heading):
                formatter.write_dl(rows)
