"""Output files of commands: checked before the work starts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ppopt.errors import InputError

WRITERS = (".html", ".json", ".csv")
PICTURES = (".png", ".jpg", ".jpeg", ".svg", ".pdf")
"""Picture files that older configs name: the page goes beside them."""


class Target(NamedTuple):
    """A file to write."""

    path: Path
    asked: Path
    """The name the user gave: another one where it is a picture's."""

    @property
    def is_page(self) -> bool:
        """Whether it is an HTML page."""
        return self.path.suffix.lower() == ".html"

    @property
    def is_order(self) -> bool:
        """Whether it is the order for PyTorch."""
        return self.path.suffix.lower() == ".csv"


def writable(names: Sequence[str]) -> tuple[Target, ...]:
    """Check that each output can be written as what its name says; raises InputError."""
    targets = {target.path: target for target in map(_target, names)}
    for path in targets:
        try:
            _check_place(path)
        except OSError as error:
            raise InputError(f"output: {path}: {error.strerror}; choose another place") from None
    return tuple(targets.values())


def _target(name: str) -> Target:
    path = Path(name)
    suffix = path.suffix.lower()
    if suffix in PICTURES:
        return Target(path.with_suffix(".html"), path)
    if suffix not in WRITERS:
        raise InputError(f"output: {path}: unknown kind of file; end it in {' or '.join(WRITERS)}")
    return Target(path, path)


def _check_place(path: Path) -> None:
    folder = path.parent
    if path.is_dir():
        raise InputError(f"output: {path} is a folder; name a file")
    if not folder.is_dir():
        raise InputError(f"output: {path}: the folder {folder} does not exist; create it first")
    if path.exists() and not os.access(path, os.W_OK):
        raise InputError(f"output: {path}: no permission to write; choose another place")
    from tempfile import TemporaryFile  # noqa: PLC0415  slow to load, and rarely needed

    with TemporaryFile(dir=folder):
        pass
