"""Options of commands that derive a model from a config.json: `init --from` and `plan --from`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import typer

from ppopt.errors import InputError
from ppopt.problem.settings import Heading


def option(flag: str, metavar: str, words: str, heading: Heading = Heading.PIPELINE) -> Any:
    """An option of a derived model; it has no default to show."""
    return typer.Option(
        flag, metavar=metavar, help=words, show_default=False, rich_help_panel=heading
    )


def refuse_without_configuration(names: Iterable[str]) -> None:
    """Raise InputError if options of --from are given without it."""
    flags = ", ".join(name.replace("_", "-") for name in names)
    if flags:
        raise InputError(f"{flags}: only with --from config.json; give it too")
