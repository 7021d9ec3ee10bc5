"""Output files of commands: checked before the work starts."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from ppopt.errors import InputError

WRITERS = (".html", ".json")
PICTURES = (".png", ".jpg", ".jpeg", ".svg", ".pdf")
"""Picture files that older configs name: the page goes beside them."""


def writable(names: Sequence[str]) -> tuple[Path, ...]:
    """Check that each output can be written as what its name says; raises InputError."""
    paths = [_known(Path(name)) for name in names]
    for path in paths:
        _check_place(path)
    return tuple(dict.fromkeys(paths))


def _known(path: Path) -> Path:
    suffix = path.suffix.lower()
    if suffix in PICTURES:
        page = path.with_suffix(".html")
        print(f"note: pictures are pages here: {path} is written as {page}", file=sys.stderr)
        return page
    if suffix not in WRITERS:
        raise InputError(f"output: {path}: unknown kind of file; end it in {' or '.join(WRITERS)}")
    return path


def _check_place(path: Path) -> None:
    folder = path.parent
    if path.is_dir():
        raise InputError(f"output: {path} is a folder; name a file")
    if not folder.is_dir():
        raise InputError(f"output: {path}: the folder {folder} does not exist; create it first")
    if not os.access(folder, os.W_OK) or (path.exists() and not os.access(path, os.W_OK)):
        raise InputError(f"output: {path}: no permission to write; choose another place")
