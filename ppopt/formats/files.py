"""Writing files: whole or not at all."""

from __future__ import annotations

import errno
import os
import re
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import IO

from ppopt.errors import InputError
from ppopt.loggers import logger

try:
    import fcntl
except ImportError:  # not on Windows; there, files of dead processes stay
    fcntl = None  # type: ignore[assignment]

_LOG = logger(__name__)
SUFFIX = ".ppopt-part"
_PART = re.compile(rf"\..+\.[a-z0-9_]{{8}}{re.escape(SUFFIX)}")
"""Names of temporary files: `.NAME.RANDOM.ppopt-part`."""


def write(path: Path, content: str | bytes) -> None:
    """Write a file whole: into a temporary file of the same folder, which then replaces it.

    If `path` is a link, the file it points to is written. Temporary files of killed processes in
    the folder are removed. Raises InputError if writing fails.
    """
    try:
        path = resolved(path)
        mode = path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~_umask()
        _remove_parts_of_the_dead(path.parent)
        part: Path | None = None
        try:
            with _new_part(path) as file:
                part = Path(file.name)
                file.write(content.encode() if isinstance(content, str) else content)
                file.flush()
                part.chmod(mode)
                part.replace(path)
        except BaseException:
            if part is not None:
                part.unlink(missing_ok=True)
            raise
        _LOG.info("wrote %s", path)
    except OSError as error:
        raise failed(path, error) from None


def failed(path: Path, error: OSError) -> InputError:
    """The error of a file that cannot be written."""
    reason = error.strerror or str(error)
    return InputError(f"output: {path}: {reason}; choose another place")


def resolved(path: Path) -> Path:
    """The file that a path leads to, through links; raises OSError if they lead in a circle."""
    try:
        target = path.resolve()
    except RuntimeError:  # Python before 3.13; later ones return the path
        target = path
    if target.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    return target


def _new_part(path: Path) -> IO[bytes]:
    """Create a temporary file for a path, locked for as long as it is open.

    If another process removed it before it was locked, it is created again.
    """
    while True:
        file = tempfile.NamedTemporaryFile(  # noqa: SIM115  closed by the caller
            "wb",
            dir=path.parent,
            prefix=f".{path.name[:100]}.",
            suffix=SUFFIX,
            delete=False,
        )
        _lock(file.fileno(), wait=True)
        if os.fstat(file.fileno()).st_nlink:
            return file
        file.close()


def _lock(number: int, *, wait: bool) -> bool:
    """Lock an open file; whether that worked. The system unlocks it when the process ends."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(number, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _remove_parts_of_the_dead(folder: Path) -> None:
    """Remove temporary files without a lock: their processes have ended."""
    with suppress(OSError):
        for entry in list(os.scandir(folder)):
            if _PART.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                _remove_unless_locked(entry.path)


def _remove_unless_locked(path: str) -> None:
    with suppress(OSError):
        number = os.open(path, os.O_RDWR)
        try:
            if _lock(number, wait=False):
                os.unlink(path)  # noqa: PTH108  a name from os.scandir
        finally:
            os.close(number)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
