"""The formats of measurements that are read."""

from __future__ import annotations

from enum import StrEnum


class Source(StrEnum):
    """Tools whose measurements are read."""

    TORCH_PROFILER = "torch-profiler"
    MEGATRON_TIMERS = "megatron-timers"
    MEASURED = "measured"
    PRIMUS = "primus"
    STRAGGLER = "straggler"


_CONTENT = {
    Source.TORCH_PROFILER: "traces of torch.profiler",
    Source.MEGATRON_TIMERS: "a log with Megatron-LM's timers",
    Source.MEASURED: "schedule files with measured steps",
    Source.PRIMUS: "the dump_pp_data folder of Primus",
    Source.STRAGGLER: "a timeline of StragglerAnalysis",
}
"""What the files of a source are."""


def formats() -> str:
    """List the formats that are read, for a message."""
    return ", ".join(f"{source} ({_CONTENT[source]})" for source in Source)
