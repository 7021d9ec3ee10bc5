"""The formats that a schedule can be written in, by name."""

from __future__ import annotations

from collections.abc import Callable

from ppopt.formats import megatron, perfetto, schedule_json, torch_csv
from ppopt.schedule.schedule import Schedule

WRITERS: dict[str, Callable[[Schedule], str]] = {
    "torch-csv": torch_csv.dumps,
    "perfetto": perfetto.dumps,
    "json": schedule_json.dumps,
    "megatron": megatron.dumps,
}
"""Name of the format -> writer of its text; each raises InputError for what it cannot say."""
