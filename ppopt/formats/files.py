"""Writing files: whole or not at all."""

from __future__ import annotations

import logging
import os
import tempfile
from pathlib import Path

from ppopt.errors import InputError

_LOG = logging.getLogger(__name__)


def write(path: Path, text: str) -> None:
    """Write a file whole: into a temporary file of the same folder, which then replaces it.

    Where `path` is a link, the file it points to is written. Raises InputError where that fails.
    """
    try:
        path = path.resolve()
        mode = path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~_umask()
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:100]}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
                file.write(text)
            Path(name).chmod(mode)
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
        _LOG.info("wrote %s", path)
    except OSError as error:
        raise InputError(f"output: {path}: {error.strerror}; choose another place") from None


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
