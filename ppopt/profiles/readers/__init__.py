"""Formats of measurements: one file per format, with its `READER`. A format is named as its file.

May import the rest of `ppopt.profiles`, which imports nothing from here. The command line asks for
the names alone, so that readers are imported on use.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from ppopt.errors import InputError
from ppopt.formats.documents import label, read_text

if TYPE_CHECKING:
    from ppopt.profiles.reader import Reader, RecordReader, TimerReader


def names() -> tuple[str, ...]:
    """Names of all formats, sorted; imports none of them."""
    return tuple(sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(__path__)))


def reader(name: str) -> RecordReader | TimerReader:
    """The reader of a format; raises InputError, listing the formats, if there is none."""
    if name not in names():
        raise InputError(f"from: {name!r} is unknown; formats that are read: {formats()}")
    registered: RecordReader | TimerReader = import_module(
        f"{__name__}.{name.replace('-', '_')}"
    ).READER
    return registered


def formats() -> str:
    """List the formats that are read, for a message."""
    return ", ".join(f"{name} ({reader(name).content})" for name in names())


def detected(path: Path) -> str:
    """The name of the format of a file or folder, by its name or its content.

    If a file has the marks of several formats, the one with most marks counts. Raises InputError,
    listing the formats, if it has none.
    """
    from ppopt.profiles.reader import LARGEST_FILE  # noqa: PLC0415  loads numpy

    readers = {name: reader(name) for name in names()}
    if path.is_dir():
        return min(readers, key=lambda name: _folder_rank(readers[name], path))
    for name, each in readers.items():
        if path.suffix.lower() in each.suffixes:
            return name
    text = read_text(path, LARGEST_FILE)
    marked = {
        name: len(each.marks)
        for name, each in readers.items()
        if each.marks and all(mark in text for mark in each.marks)
    }
    if not marked:
        table = "; a table of layer times is a config: --config" if ".csv" in path.suffixes else ""
        raise InputError(f"from: {label(path)} is in no format that is read: {formats()}{table}")
    return max(marked, key=lambda name: marked[name])


def _folder_rank(candidate: Reader, folder: Path) -> int:
    """0 if the folder has a file that only this format has, 1 if it may be of it, else 2."""
    if candidate.folder:
        return 0 if any(folder.glob(candidate.folder)) else 2
    return 2 if candidate.folder is None else 1
