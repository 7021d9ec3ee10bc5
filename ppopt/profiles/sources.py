"""The formats of measurements that are read."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

from ppopt.errors import InputError
from ppopt.formats.documents import label, read_text

LARGEST_FILE = 2**29


class Source(StrEnum):
    """Tools whose measurements are read."""

    TORCH_PROFILER = "torch-profiler"
    MEGATRON_TIMERS = "megatron-timers"
    DEEPSPEED = "deepspeed"
    MEASURED = "measured"
    PRIMUS = "primus"
    STRAGGLER = "straggler"


_CONTENT = {
    Source.TORCH_PROFILER: "traces of torch.profiler",
    Source.MEGATRON_TIMERS: "a log with Megatron-LM's timers",
    Source.DEEPSPEED: "a log of DeepSpeed with wall_clock_breakdown",
    Source.MEASURED: "schedule files with measured steps",
    Source.PRIMUS: "the dump_pp_data folder of Primus",
    Source.STRAGGLER: "a timeline of StragglerAnalysis",
}
"""What the files of a source are."""


TIMERS = (Source.MEGATRON_TIMERS, Source.DEEPSPEED)
"""Sources with sums over the microbatches of stages, which are not stated there."""


def formats() -> str:
    """List the formats that are read, for a message."""
    return ", ".join(f"{source} ({_CONTENT[source]})" for source in Source)


_MARKS = {
    Source.TORCH_PROFILER: ('"traceEvents"',),
    Source.MEASURED: ('"ops"', '"pipeline"'),
    Source.STRAGGLER: ("forward-compute", "mb_id"),
    Source.DEEPSPEED: ("forward_microstep",),
    Source.MEGATRON_TIMERS: ("forward-compute",),
}
"""Texts that files of a source contain; the first source that has all of its texts counts."""


def detected(path: Path) -> Source:
    """The source of a file or folder, by its name or its content.

    Raises InputError, listing the formats, if it is none of them.
    """
    if path.is_dir():
        return Source.PRIMUS if (path / "config.json").exists() else Source.TORCH_PROFILER
    if path.suffix.lower() == ".parquet":
        return Source.STRAGGLER
    text = read_text(path, LARGEST_FILE)
    for source, marks in _MARKS.items():
        if all(mark in text for mark in marks):
            return source
    raise InputError(f"from: {label(path)} is in no format that is read: {formats()}")
