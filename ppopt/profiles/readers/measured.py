"""Read schedule files of measured steps, which `ppopt run` writes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ppopt.errors import InputError
from ppopt.formats.documents import label
from ppopt.formats.fields import within
from ppopt.formats.schedule_json import read_valid_schedule
from ppopt.profiles.estimate import Record
from ppopt.profiles.measured_runs import records_of
from ppopt.profiles.reader import Recording, RecordReader


def read_steps(paths: Sequence[Path]) -> Recording:
    """Read the steps of one run; memory is that of the schedule that ran.

    Raises InputError if a file is no measured step, breaks a rule of order, or occurs twice.
    """
    steps: dict[tuple[Record, ...], Path] = {}
    records: list[Record] = []
    for number, path in enumerate(paths):
        schedule = read_valid_schedule(path)
        step = within(label(path), records_of, schedule)
        key = tuple(step)
        if key in steps:
            raise InputError(f"{label(path)}: the same step as {label(steps[key])}; give each once")
        steps[key] = path
        records += (record._replace(step=number) for record in step)
    return Recording(records, memory=schedule.pipeline)


READER = RecordReader(
    content="schedule files with measured steps", marks=('"ops"', '"pipeline"'), read=read_steps
)
