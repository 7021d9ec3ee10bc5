"""Output files of commands: checked before the work starts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from ppopt.errors import InputError
from ppopt.formats.files import failed, resolved

WRITERS = (".html", ".svg", ".png", ".json", ".csv")
_MODULES = {".html": "plotly", ".png": "resvg_py"}
"""Module that draws a kind of file."""


class Target(NamedTuple):
    """A file to write."""

    path: Path
    asked: Path
    """The name that the user gave; it differs from `path` where a page is written instead."""

    @property
    def suffix(self) -> str:
        """The end of its name, in small letters."""
        return self.path.suffix.lower()

    @property
    def is_page(self) -> bool:
        """Whether it is an HTML page."""
        return self.suffix == ".html"

    @property
    def is_picture(self) -> bool:
        """Whether it is a picture of one schedule."""
        return self.suffix in (".svg", ".png")

    def as_page(self) -> Target:
        """The page of the same name."""
        return Target(self.path.with_suffix(".html"), self.asked)

    @property
    def is_order(self) -> bool:
        """Whether it is the order for PyTorch."""
        return self.suffix == ".csv"


def writable(names: Sequence[str]) -> tuple[Target, ...]:
    """Check that each output can be written in the format of its name; raises InputError."""
    targets = {target.path: target for target in map(_target, names)}
    for path in targets:
        check_place(path)
    return tuple(targets.values())


def _target(name: str) -> Target:
    path = Path(name)
    suffix = path.suffix.lower()
    if suffix not in WRITERS:
        raise InputError(f"output: {path}: unknown kind of file; end it in {', '.join(WRITERS)}")
    module = _MODULES.get(suffix)
    if module is not None and find_spec(module) is None:
        package = module.replace("_", "-")
        raise InputError(f"output: {path}: needs {package}; run `pip install {package}`")
    return Target(path, path)


def check_place(path: Path) -> None:
    """Check that a file can be written, before the work starts; raises InputError."""
    try:
        target = resolved(path)
        folder = target.parent
        if target.is_dir():
            raise InputError(f"output: {path} is a folder; name a file")
        if target.exists() and not target.is_file():
            raise InputError(f"output: {path} is no regular file; name one")
        if not folder.is_dir():
            missing = folder if path.is_symlink() else path.parent
            raise InputError(
                f"output: {path}: the folder {missing} does not exist; create it first"
            )
        if target.exists() and not os.access(target, os.W_OK):
            raise InputError(f"output: {path}: no permission to write; choose another place")
        from tempfile import TemporaryFile  # noqa: PLC0415  slow to load, and rarely needed

        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise failed(path, error) from None
