"""What a reader of measurements is, and what it returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ppopt.errors import InputError
from ppopt.formats.documents import by_value, label, read_text
from ppopt.problem.pipeline import Pipeline
from ppopt.profiles.estimate import Record
from ppopt.profiles.stage_times import StageTimes

LARGEST_FILE = 2**29
"""Limit in bytes of a file of measurements."""


class Recording(NamedTuple):
    """Operations as they ran."""

    records: Sequence[Record]
    comments: Sequence[str] = ()
    """Remarks for the file, one line each."""
    memory: Pipeline | None = None
    """The pipeline whose memory is known."""
    warnings: Sequence[str] = ()
    """What may make the times wrong, one line each: also printed."""


@dataclass(frozen=True, kw_only=True)
class Reader:
    """A format of measurements."""

    content: str
    """What its files are, for messages."""
    marks: tuple[str, ...] = ()
    """Texts that every file of this format contains."""
    suffixes: tuple[str, ...] = ()
    """Endings of the names of its files that are no text."""
    folder: str | None = None
    """Pattern of a file name that only folders of this format have; empty: of any folder. None: its
    files are in no folder."""
    runtime: str = "torch"
    """Runtime whose schedules are compared with what ran: a name of `studies.headline`."""


@dataclass(frozen=True, kw_only=True)
class RecordReader(Reader):
    """A format that records operations."""

    read: Callable[[Sequence[Path]], Recording]
    """Read files or folders; raises InputError, naming the file, if one is not of this format."""


@dataclass(frozen=True, kw_only=True)
class TimerReader(Reader):
    """A format with sums over the microbatches of stages, whose numbers are not stated there."""

    parse: Callable[[str, str, int, int], StageTimes]
    """Parse the text of a log, with its name, the devices and the microbatches of a step; raises
    InputError, beginning with the name, if it has no times."""

    def read(self, path: Path, devices: int, batches: int) -> StageTimes:
        """Read a log; see `parse`."""
        return self.parse(read_text(path, LARGEST_FILE), label(path), devices, batches)


def single(paths: Sequence[Path], what: str) -> Path:
    """The only path; raises InputError, with what to give, if there are several."""
    if len(paths) != 1:
        raise InputError(f"{what}; {len(paths)} were given")
    return paths[0]


def files_of(paths: Sequence[Path], *suffixes: str) -> list[Path]:
    """The files, and for a folder those in it whose names have one of the suffixes.

    Files of a folder are in the order of the numbers in their names. Raises InputError if a folder
    has no such file.
    """
    return [file for path in paths for file in _in_folder(path, suffixes)]


def _in_folder(path: Path, suffixes: tuple[str, ...]) -> list[Path]:
    if not path.is_dir():
        return [path]
    files = [file for file in path.iterdir() if file.name.lower().endswith(suffixes)]
    if not files:
        raise InputError(
            f"{label(path)}: holds no file in {', '.join(suffixes)}; give their folder"
        )
    return sorted(files, key=lambda file: by_value(file.name))
